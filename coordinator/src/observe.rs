//! Owns: audit, metrics, health, logs.

pub(crate) mod audit;
pub(crate) mod certificate_times;
pub(crate) mod diagnosis;
pub(crate) mod gauges;
pub(crate) mod http;
pub(crate) mod open_files;
pub(crate) mod telemetry;
