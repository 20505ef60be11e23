//! Sends the spans of a daemon to an OpenTelemetry collector, by OTLP over gRPC.
//!
//! The spans are those of `rollout_proto::trace`, with the very ids that logs, the audit and `traceparent` headers have;
//! this crate says which traces are recorded, keeps what has ended in a bounded queue and sends it in batches, from a
//! thread of the SDK's batch processor.
//!
//! *Invariant:* no request waits for a collector, and none fails for its sake. What does not fit into the queue, and what the
//! collector does not take in time, is dropped and counted.
//!
//! Deliberately absent: TLS, credentials and retries over minutes, which are a collector's business, that runs beside the
//! daemon; metrics and logs, which have their own ways out.

mod exporter;
mod sender;
mod settings;
mod wire;

pub use exporter::{Exporter, Service, StartError};
pub use settings::{SettingError, TracingSettings};
