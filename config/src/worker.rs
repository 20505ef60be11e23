//! worker.toml: the settings of an agent.
//!
//! Invariant: a configuration that [`Config::check`] accepts is complete and within bounds. An unknown key, or one of
//! another engine kind, is refused with the nearest known key.
//! Absent: flags and variables, what the leader decides (heartbeat interval, store URL), and the host's devices.

mod check;
mod engine;
mod file;
mod sections;
mod slots;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::engine::{EngineConfig, EngineKind, TASKS, Tail, server_url};
pub use self::file::ConfigError;
pub use self::sections::{
    CacheConfig, ComputeConfig, ComputeProvider, CreditConfig, EnrollmentConfig, PartConfig,
    StoreConfig, StoreGatewayConfig, TimingConfig, TlsConfig,
};
pub use self::slots::{Device, SLOTS_AUTO};
use crate::TracingSettings;

/// Slots that one agent may have; the ledger's own bound.
pub const SLOTS_MAX: usize = 64;
/// Rows that a slot may hold; the ledger's own bound.
pub const SLOT_ROWS_MAX: u32 = 16_384;
const CREDIT_TOKENS_MAX: u64 = 1 << 40;
/// Rows of results that close a part, unless the file has another number.
pub const PART_ROWS: usize = 1000;
/// Maximum of `part.rows`: no part holds more.
pub const PART_ROWS_MAX: usize = 4096;
/// Bytes of results that close a part, and the maximum of `part.bytes`.
pub const PART_BYTES: usize = 8 << 20;

/// All settings of an agent.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The worker's name, unique in its namespace.
    ///
    /// Its certificate has the same name.
    #[schemars(extend("x-required" = true, "x-unset" = true))]
    #[schemars(extend("x-flag" = "--name", "x-env" = "ROLLOUT_WORKER_NAME"))]
    pub name: String,
    /// The namespace that it works for.
    #[schemars(extend("x-flag" = "--namespace", "x-env" = "ROLLOUT_NAMESPACE"))]
    pub namespace: String,
    /// Directory for session and spool.
    ///
    /// The [spool](../glossary.md) holds finished rows that are not in the ledger yet. Keep the directory across
    /// restarts; only one process may use it.
    #[schemars(extend("x-required" = true, "x-unset" = true))]
    #[schemars(extend("x-flag" = "--data-dir", "x-env" = "ROLLOUT_WORKER_DATA_DIR"))]
    pub data_dir: PathBuf,
    /// Initial members, `host:port`.
    ///
    /// Once connected, the worker uses the cluster's own list of members.
    #[schemars(extend("x-required" = true, "x-unset" = true))]
    #[schemars(extend("x-flag" = "--endpoint", "x-env" = "ROLLOUT_ENDPOINTS"))]
    pub endpoints: Vec<String>,
    /// Text that `rolloutctl` shows as the worker's address; its host's name and process ID by default.
    #[schemars(extend("x-unset" = true))]
    pub address: String,
    /// Address and port on which to serve metrics over HTTP; nowhere by default.
    #[schemars(extend("format" = "address"))]
    #[schemars(extend("x-flag" = "--metrics-listen", "x-env" = "ROLLOUT_WORKER_METRICS_LISTEN"))]
    pub metrics_listen: Option<SocketAddr>,
    /// Labels of every slot, which a run's selector matches.
    ///
    /// A run selects workers by `[workers] labels`.
    #[schemars(extend("x-flag" = "--label"))]
    pub labels: BTreeMap<String, String>,
    /// Files for mutual TLS, or the flag that disables it.
    pub tls: TlsConfig,
    /// A join token, instead of those files.
    #[serde(alias = "enrolment")]
    pub enrollment: Option<EnrollmentConfig>,
    /// Addresses at which to dial members instead of their own, name to `host:port`.
    #[schemars(extend("x-flag" = "--dial-map", "x-env" = "ROLLOUT_DIAL_MAP"))]
    pub dial_map: BTreeMap<String, String>,
    /// Object stores besides the cluster's.
    pub store: StoreConfig,
    /// How much work a slot asks for.
    pub credit: CreditConfig,
    /// When a part of results is closed.
    pub part: PartConfig,
    /// Times.
    pub timing: TimingConfig,
    /// Input segments kept in memory.
    pub cache: CacheConfig,
    /// Notices of the cloud that runs this machine.
    pub compute: ComputeConfig,
    /// A training job's store for the torch processes of this host; none by default.
    pub store_gateway: Option<StoreGatewayConfig>,
    /// Where spans are sent; nowhere by default.
    pub tracing: TracingSettings,
    /// The engines, each with its slots.
    pub engine: Vec<EngineConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: String::new(),
            namespace: "default".to_owned(),
            data_dir: PathBuf::new(),
            endpoints: Vec::new(),
            address: String::new(),
            metrics_listen: None,
            labels: BTreeMap::new(),
            tls: TlsConfig::default(),
            enrollment: None,
            dial_map: BTreeMap::new(),
            store: StoreConfig::default(),
            credit: CreditConfig::default(),
            part: PartConfig::default(),
            timing: TimingConfig::default(),
            cache: CacheConfig::default(),
            compute: ComputeConfig::default(),
            store_gateway: None,
            tracing: TracingSettings::default(),
            engine: Vec::new(),
        }
    }
}

impl Config {
    /// Rows that a slot with such an engine may have queued, running or unanswered. `None` if the slot derives the
    /// number from its engine's speed.
    pub fn credit_rows(&self, engine: &EngineConfig) -> Option<u32> {
        let twice = (engine.seats() == 0).then(|| engine.concurrency.saturating_mul(2));
        self.credit.rows.or(twice).map(|rows| rows.min(SLOT_ROWS_MAX))
    }
}

#[cfg(test)]
mod tests;
