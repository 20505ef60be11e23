//! Sends the spans of a daemon to an OpenTelemetry collector, by OTLP over gRPC.
//!
//! The spans are those of `rollout_proto::trace`, with the same ids as in logs, the audit log and `traceparent`
//! headers. This crate decides which traces are recorded, keeps ended spans in a bounded queue, and sends them in
//! batches from a thread of the SDK's batch processor.
//!
//! *Invariant:* no request waits for a collector, and none fails because of it. Spans that do not fit into the queue,
//! or that the collector does not accept in time, are dropped and counted.
//!
//! Absent: TLS, credentials and retries over minutes, which a collector that runs beside the daemon
//! provides; metrics and logs, which leave in other ways.

mod exporter;
mod sender;
mod wire;

pub use exporter::{Exporter, Service, StartError};
pub use rollout_config::{SettingError, TracingSettings};
