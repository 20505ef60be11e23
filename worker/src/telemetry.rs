//! Owns: the service name, version and instance that a worker's spans carry. The code that starts a span defines it.
//!
//! Absent: how they are sent (`rollout-telemetry`).

use rollout_telemetry::{Exporter, Service, StartError};

use crate::config::Config;

/// Starts to send spans, if configured. Call it once, after [`metrics::serve`](crate::metrics::serve).
///
/// # Errors
/// The settings are unusable.
pub(crate) fn export_spans(config: &Config) -> Result<Option<Exporter>, StartError> {
    let service = Service {
        name: "rollout-worker",
        version: env!("CARGO_PKG_VERSION"),
        instance: &config.name,
        metric: "rollout_worker_trace_spans_total",
    };
    Exporter::start(&config.tracing, service)
}
