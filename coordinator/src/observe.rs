//! Owns: audit, metrics, logs, and the positions in the log that answers and audit lines name.

pub(crate) mod audit;
pub(crate) mod certificate_times;
pub(crate) mod diagnosis;
pub(crate) mod log_position;
pub(crate) mod metrics;
pub(crate) mod open_files;
pub(crate) mod telemetry;
