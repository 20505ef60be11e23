//! Logging: human-readable on a terminal, JSON lines elsewhere. A line about a request has its trace in
//! `span.trace_id`. Also spans of the same traces, for a collector.

use crate::config::Config;
use rollout_telemetry::{Exporter, Service, StartError};
use std::io::IsTerminal;

/// Starts logging to stderr with this filter, which the configuration has accepted.
pub(crate) fn init(filter: &str) {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_new(filter).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match std::io::stderr().is_terminal() {
        true => builder.init(),
        false => builder.json().flatten_event(true).with_span_list(false).init(),
    }
}

/// Starts sending spans, if that is configured.
pub(crate) fn export(config: &Config) -> Result<Option<Exporter>, StartError> {
    let service = Service {
        name: "rollout-coordinator",
        version: env!("CARGO_PKG_VERSION"),
        instance: &config.name,
        metric: "rollout_trace_spans_total",
    };
    Exporter::start(&config.tracing, service)
}
