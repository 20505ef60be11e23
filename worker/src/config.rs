//! Owns: an agent's settings: file, environment and flags merged into one checked [`Config`].
//!
//! Invariant: a `Config` that [`Config::load`] returned is complete and within bounds. An unknown key, or one of
//! another engine kind, is refused with the nearest known key.
//! Absent: what the leader decides (heartbeat interval, store URL).

mod compute;
mod devices;
mod engine;
mod enrolment;
mod flags;
mod keys;
mod size;
mod store_gateway;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rollout_config::nearest;
use rollout_telemetry::{SettingError, TracingSettings};
use serde::Deserialize;

pub use self::compute::{ComputeConfig, ComputeProvider};
pub(crate) use self::devices::VISIBLE;
pub use self::engine::{EngineConfig, EngineKind, Tail};
pub use self::enrolment::EnrolmentConfig;
pub use self::flags::Flags;
pub use self::store_gateway::StoreGatewayConfig;

/// Slots that one agent may have; the ledger's own bound.
pub const SLOTS_MAX: usize = 64;
/// Rows that a slot may ask for in one pull; the ledger's own bound.
pub const CREDIT_ROWS_MAX: u32 = 4096;
/// Rows that a slot may hold; the ledger's own bound.
pub(crate) const SLOT_ROWS_MAX: u32 = 16_384;
/// Maximum of `credit.tokens`.
const CREDIT_TOKENS_MAX: u64 = 1 << 40;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not TOML, or a value has the wrong type.
    #[error("{origin}: {message}")]
    Parse {
        /// The file, or the origin of the text.
        origin: String,
        /// The position and the problem.
        message: String,
    },
    /// An unknown key.
    #[error("{origin}: unknown key {key}{}", meant(nearest.as_deref(), known))]
    UnknownKey {
        /// The file, or the origin of the text.
        origin: String,
        /// The key with its path.
        key: String,
        /// The most similar known key.
        nearest: Option<String>,
        /// The known keys of its table.
        known: Vec<String>,
    },
    /// A value is missing or out of bounds.
    #[error("{key}: {reason}")]
    Invalid {
        /// The key with its path.
        key: &'static str,
        /// What is wrong, and what would be valid.
        reason: String,
    },
}

fn meant(nearest: Option<&str>, known: &[String]) -> String {
    match nearest {
        Some(nearest) => format!(", did you mean {nearest}?"),
        None => format!("; known are {}", known.join(", ")),
    }
}

/// All settings of an agent.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The worker's name, unique in its namespace; its certificate has the same name.
    pub name: String,
    /// The namespace that it works for.
    pub namespace: String,
    /// Where the session, the spool and the member list are kept.
    pub data_dir: PathBuf,
    /// Initial members, `host:port`; the members' own list replaces it.
    pub endpoints: Vec<String>,
    /// Labels of every slot, which a run's selector matches.
    pub labels: BTreeMap<String, String>,
    /// Files for mutual TLS, or the flag that disables it.
    pub tls: TlsConfig,
    /// A join token, instead of those files.
    pub enrolment: Option<EnrolmentConfig>,
    /// Members to dial at another address than their own, name to `host:port`.
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
    /// Where metrics are served over HTTP; nowhere by default.
    pub metrics_listen: Option<SocketAddr>,
    /// Where to find this worker; its host's name and process ID by default. For people.
    pub address: String,
    /// The engines, each with its slots.
    pub engine: Vec<EngineConfig>,
}

/// Mutual TLS: three files, or none and the flag that disables TLS.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// The cluster's certificate authority, PEM.
    pub ca_file: Option<PathBuf>,
    /// The worker's certificate, PEM.
    pub cert_file: Option<PathBuf>,
    /// Its key, PEM.
    pub key_file: Option<PathBuf>,
    /// No TLS at all: everyone who reaches the port is trusted.
    pub insecure_plaintext: bool,
}

/// Object stores besides the cluster's.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreConfig {
    /// URLs that runs may name, including everything below them.
    pub urls: Vec<String>,
}

/// How much work a slot asks for.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CreditConfig {
    /// Rows of a slot that are queued or running; twice its engine's concurrency by default.
    pub rows: Option<u32>,
    /// Tokens that they may take, prompts with completions at their longest; by default twice what its engine reports
    /// that it holds at once.
    pub tokens: Option<u64>,
}

/// When a part of results is closed: at the first bound that is reached.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PartConfig {
    /// Rows, at most 4096.
    pub rows: usize,
    /// Bytes of results, a number or `"8MiB"`.
    #[serde(deserialize_with = "size::bytes")]
    pub bytes: usize,
    /// Milliseconds since its first row, at most.
    pub linger_ms: u64,
}

/// Times in milliseconds.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TimingConfig {
    /// Without an answered heartbeat for this long, no row is started. The leader's own value applies if it is smaller.
    pub self_fence_ms: u64,
    /// After a heartbeat is unanswered for this long, the worker looks for another leader.
    pub leader_silent_ms: u64,
    /// How long a drain lets running rows finish.
    pub drain_ms: u64,
    /// How often an unreachable engine is tried again.
    pub probe_ms: u64,
    /// How long a worker retries a registration that is refused for a reason that needs an operator, such as a name
    /// that a live process has. After that it exits.
    pub register_refused_ms: u64,
    /// A part that the store has refused for this long is dropped, and its rows go back to the leader.
    pub store_refused_ms: u64,
}

/// Input segments kept in memory.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CacheConfig {
    /// Bytes, a number or `"256MiB"`.
    #[serde(deserialize_with = "size::bytes")]
    pub bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: String::new(),
            namespace: "default".to_owned(),
            data_dir: PathBuf::new(),
            endpoints: Vec::new(),
            labels: BTreeMap::new(),
            tls: TlsConfig::default(),
            enrolment: None,
            dial_map: BTreeMap::new(),
            store: StoreConfig::default(),
            credit: CreditConfig::default(),
            part: PartConfig::default(),
            timing: TimingConfig::default(),
            cache: CacheConfig::default(),
            compute: ComputeConfig::default(),
            store_gateway: None,
            tracing: TracingSettings::default(),
            metrics_listen: None,
            address: String::new(),
            engine: Vec::new(),
        }
    }
}

impl Default for PartConfig {
    fn default() -> Self {
        Self {
            rows: rollout_storage::PART_ROWS_CLOSE,
            bytes: rollout_storage::PART_BYTES_CLOSE,
            linger_ms: 10_000,
        }
    }
}

impl Default for TimingConfig {
    fn default() -> Self {
        Self {
            self_fence_ms: 4000,
            leader_silent_ms: 1000,
            drain_ms: 60_000,
            probe_ms: 2000,
            register_refused_ms: 60_000,
            store_refused_ms: 60_000,
        }
    }
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self { bytes: 256 << 20 }
    }
}

impl Config {
    /// Reads the file that the flags name, applies the flags and checks the result.
    pub fn load(flags: &Flags) -> Result<Self, ConfigError> {
        let mut config = match &flags.config {
            Some(path) => Self::read(path)?,
            None => Self::default(),
        };
        flags.apply(&mut config);
        config.check()?;
        config.assign_devices(&devices::Host::here())?;
        // `"auto"` may have produced too many slots.
        config.check()?;
        Ok(config)
    }

    fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Parses a file's text, without the checks that need the complete configuration.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigError> {
        let parse = |error: toml::de::Error| {
            let line = nearest::line_of(text, error.span());
            let why = nearest::explain_at(text, error.span(), error.message());
            ConfigError::Parse { origin: origin.to_owned(), message: format!("line {line}: {why}") }
        };
        let table: toml::Table = text.parse().map_err(parse)?;
        keys::check(&table, origin)?;
        toml::from_str(text).map_err(parse)
    }

    /// Refuses missing and out-of-bounds values.
    pub fn check(&self) -> Result<(), ConfigError> {
        let invalid = |key, reason: &str| Err(ConfigError::Invalid { key, reason: reason.into() });
        if self.name.is_empty() || self.name.len() > 128 {
            return invalid("name", "a worker needs a name of 1 to 128 bytes (--name)");
        }
        if self.data_dir.as_os_str().is_empty() {
            return invalid("data_dir", "a worker needs its own data directory (--data-dir)");
        }
        if self.endpoints.is_empty() {
            return invalid("endpoints", "give at least one member as host:port (--endpoint)");
        }
        self.check_tls()?;
        self.check_bounds()?;
        self.compute.check()?;
        self.store_gateway.as_ref().map_or(Ok(()), StoreGatewayConfig::check)?;
        self.tracing
            .check()
            .map_err(|SettingError { key, reason }| ConfigError::Invalid { key, reason })?;
        if self.engine.is_empty() {
            return invalid("engine", "give at least one [[engine]] block (or --engine mock)");
        }
        for engine in &self.engine {
            engine.check()?;
        }
        let counted = self.engine.iter().filter(|engine| engine.slots != devices::SLOTS_AUTO);
        let slots: usize = counted.map(|engine| engine.slots as usize).sum();
        if slots > SLOTS_MAX {
            return invalid("engine.slots", &format!("{slots} slots: at most 64 are allowed"));
        }
        Ok(())
    }

    fn check_tls(&self) -> Result<(), ConfigError> {
        let tls = &self.tls;
        let files = [&tls.ca_file, &tls.cert_file, &tls.key_file];
        let given = files.iter().filter(|file| file.is_some()).count();
        if let Some(enrolment) = &self.enrolment {
            return match (given, tls.insecure_plaintext) {
                (0, false) => enrolment.check(),
                _ => {
                    let reason =
                        "[enrolment] replaces ca_file, cert_file and key_file, and needs TLS";
                    Err(ConfigError::Invalid { key: "tls", reason: reason.to_owned() })
                }
            };
        }
        let reason = match (given, tls.insecure_plaintext) {
            (3, false) | (0, true) => return Ok(()),
            (0, false) => {
                "ca_file, cert_file and key_file are needed, or [enrolment], or insecure_plaintext = true"
            }
            (_, true) => "insecure_plaintext contradicts the certificate files",
            (_, false) => "ca_file, cert_file and key_file are needed together",
        };
        Err(ConfigError::Invalid { key: "tls", reason: reason.to_owned() })
    }

    fn check_bounds(&self) -> Result<(), ConfigError> {
        let within = |key, value: u64, min: u64, max: u64| {
            if (min..=max).contains(&value) {
                return Ok(());
            }
            Err(ConfigError::Invalid { key, reason: format!("{value} is not in {min} to {max}") })
        };
        let (part, timing) = (&self.part, &self.timing);
        if let Some(rows) = self.credit.rows {
            within("credit.rows", rows.into(), 1, SLOT_ROWS_MAX.into())?;
        }
        if let Some(tokens) = self.credit.tokens {
            within("credit.tokens", tokens, 1, CREDIT_TOKENS_MAX)?;
        }
        within("part.rows", part.rows as u64, 1, rollout_storage::PART_ROWS_MAX as u64)?;
        within("part.bytes", part.bytes as u64, 1, rollout_storage::PART_BYTES_CLOSE as u64)?;
        within("part.linger_ms", part.linger_ms, 1, 60_000)?;
        within("timing.self_fence_ms", timing.self_fence_ms, 200, 60_000)?;
        within("timing.leader_silent_ms", timing.leader_silent_ms, 50, 60_000)?;
        within("timing.drain_ms", timing.drain_ms, 0, 3_600_000)?;
        within("timing.probe_ms", timing.probe_ms, 10, 600_000)?;
        within("timing.register_refused_ms", timing.register_refused_ms, 0, 3_600_000)?;
        within("timing.store_refused_ms", timing.store_refused_ms, 0, 3_600_000)?;
        if timing.leader_silent_ms >= timing.self_fence_ms {
            let reason = format!(
                "{} must be below timing.self_fence_ms = {}",
                timing.leader_silent_ms, timing.self_fence_ms
            );
            return Err(ConfigError::Invalid { key: "timing.leader_silent_ms", reason });
        }
        Ok(())
    }

    /// Rows that a slot with such an engine may have queued, running or unanswered. `None` if the slot derives the
    /// number from its engine's speed.
    pub fn credit_rows(&self, engine: &EngineConfig) -> Option<u32> {
        let twice = (engine.seats() == 0).then(|| engine.concurrency.saturating_mul(2));
        self.credit.rows.or(twice).map(|rows| rows.min(SLOT_ROWS_MAX))
    }
}

#[cfg(test)]
mod tests;
