//! Owns: the response to a metadata service that fails: back off, and log once.
//!
//! Invariant: a service that stays broken costs one log line, and is polled at least every `longest`.
//! Absent: giving up.

use std::time::Duration;

use super::metadata::MetadataError;
use crate::backoff::Backoff;

#[derive(Debug)]
pub(super) struct MetadataFailures {
    backoff: Backoff,
    failing: bool,
}

impl MetadataFailures {
    pub(super) fn new(longest: Duration) -> Self {
        Self {
            backoff: Backoff::new(Duration::from_millis(500).min(longest), longest),
            failing: false,
        }
    }

    /// How long to wait before the next retry.
    pub(super) fn record_failure(&mut self, error: &MetadataError) -> Duration {
        metrics::counter!("rollout_worker_compute_errors_total").increment(1);
        if self.failing {
            tracing::debug!(%error, "still no notices from the cloud");
        } else {
            tracing::warn!(%error, "no notices from the cloud until its metadata service answers");
        }
        self.failing = true;
        self.backoff.wait()
    }

    /// The service answers properly again.
    pub(super) fn record_success(&mut self) {
        if std::mem::take(&mut self.failing) {
            tracing::info!("the cloud's metadata service answers again");
        }
        self.backoff.reset();
    }
}
