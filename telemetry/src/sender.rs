//! Sends batches, and counts sent and dropped spans.
//!
//! *Invariant:* every accepted span leaves the count of waiting spans exactly once, sent or not. The log reports once
//! that a collector is unreachable, and once more that it is back.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};

/// Spans that wait or are being sent, and the counter of the others by outcome.
pub(crate) struct Waiting {
    spans: AtomicUsize,
    max: usize,
    metric: &'static str,
}

impl Waiting {
    pub(crate) fn new(max: usize, metric: &'static str) -> Arc<Self> {
        // An alert fires when a counter grows, so the counter must exist before.
        for outcome in ["exported", "dropped", "failed"] {
            metrics::counter!(metric, "outcome" => outcome).increment(0);
        }
        Arc::new(Self { spans: AtomicUsize::new(0), max, metric })
    }

    /// Counts one more span. Returns false if there is no room; then the span is dropped and counted.
    pub(crate) fn enter(&self) -> bool {
        if self.spans.fetch_add(1, Ordering::Relaxed) < self.max {
            return true;
        }
        self.spans.fetch_sub(1, Ordering::Relaxed);
        self.count("dropped", 1);
        false
    }

    fn leave(&self, outcome: &'static str, spans: usize) {
        self.spans.fetch_sub(spans, Ordering::Relaxed);
        self.count(outcome, spans);
    }

    fn count(&self, outcome: &'static str, spans: usize) {
        metrics::counter!(self.metric, "outcome" => outcome).increment(spans as u64);
    }
}

/// The exporter `inner`, with its spans counted.
pub(crate) struct Sender<E> {
    pub(crate) inner: E,
    pub(crate) waiting: Arc<Waiting>,
    pub(crate) endpoint: String,
    pub(crate) away: AtomicBool,
}

impl<E> fmt::Debug for Sender<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl<E: SpanExporter> SpanExporter for Sender<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let sent = self.inner.export(batch).await;
        self.waiting.leave(if sent.is_ok() { "exported" } else { "failed" }, spans);
        let was_away = self.away.swap(sent.is_err(), Ordering::Relaxed);
        match &sent {
            Err(error) if !was_away => {
                tracing::warn!(%error, endpoint = self.endpoint, "spans cannot be exported");
            }
            Ok(()) if was_away => {
                tracing::info!(endpoint = self.endpoint, "spans are exported again");
            }
            _ => {}
        }
        sent
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}
