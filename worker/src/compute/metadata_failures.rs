//! Owns: the response to a metadata service that fails: back off, and log once.
//!
//! Invariant: a service that stays broken costs one log line, and is polled at least every `longest`.
//! Absent: giving up.

use std::time::Duration;

use super::metadata::MetadataError;
use crate::backoff::Backoff;

#[derive(Debug)]
pub(super) struct Trouble {
    backoff: Backoff,
    met: bool,
}

impl Trouble {
    pub(super) fn new(longest: Duration) -> Self {
        Self { backoff: Backoff::new(Duration::from_millis(500).min(longest), longest), met: false }
    }

    /// How long to wait before the next retry.
    pub(super) fn met(&mut self, error: &MetadataError) -> Duration {
        metrics::counter!("rollout_worker_compute_errors_total").increment(1);
        if self.met {
            tracing::debug!(%error, "still no notices from the cloud");
        } else {
            tracing::warn!(%error, "no notices from the cloud until its metadata service answers");
        }
        self.met = true;
        self.backoff.wait()
    }

    /// The service answers properly again.
    pub(super) fn over(&mut self) {
        if std::mem::take(&mut self.met) {
            tracing::info!("the cloud's metadata service answers again");
        }
        self.backoff.reset();
    }
}
