//! What a member does while it leads, and what it reports.

use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

const HOUR_MS: u64 = 60 * 60 * 1000;
const DAY_S: u64 = 24 * 60 * 60;

/// Timings of workers' sessions.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Workers {
    /// Interval between a worker's heartbeats.
    ///
    /// Above 1,000 registered workers, the interval grows with their number, up to four times this value or half of
    /// `self_fence_ms`, whichever is less.
    #[schemars(range(min = 1))]
    pub heartbeat_ms: u64,
    /// Time without an answer after which a worker starts no rows.
    ///
    /// At least two heartbeats, below `failure_ms`.
    #[schemars(range(min = 1))]
    pub self_fence_ms: u64,
    /// Silence after which a worker is suspect, so that its unstarted rows go to others.
    ///
    /// Until a worker's first heartbeat to a new leader, this grows by 2 ms for each registered worker, at most by
    /// 30 s.
    #[schemars(range(min = 1))]
    pub failure_ms: u64,
    /// How much longer a suspect worker keeps the rows that it has started.
    pub started_grace_ms: u64,
}

impl Default for Workers {
    fn default() -> Self {
        Self { heartbeat_ms: 500, self_fence_ms: 4000, failure_ms: 5000, started_grace_ms: 60_000 }
    }
}

/// How long ended runs are kept.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Retention {
    /// Time from a run's end until it is sealed.
    ///
    /// Then its rows move from the ledger to [a manifest object](runs.md#retention-of-runs).
    pub run_ttl_ms: u64,
    /// Time from a run's sealing until it is deleted with all its objects; 0: never.
    pub retention_ms: u64,
    /// Interval between sweeps for orphaned objects; 0: never.
    ///
    /// [Orphaned objects](runs.md#retention-of-runs) belong to no run.
    pub sweep_every_ms: u64,
    /// How long an object must have been orphaned before the leader removes it.
    ///
    /// Must exceed the time that any client needs from the first byte of its input to the creation of the run.
    pub sweep_age_ms: u64,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            run_ttl_ms: HOUR_MS,
            retention_ms: 0,
            sweep_every_ms: HOUR_MS,
            sweep_age_ms: 24 * HOUR_MS,
        }
    }
}

/// Where audit lines are kept.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Audit {
    /// File of audit lines, as JSON; without it, audit lines go to the log.
    ///
    /// [The fields of a line](events-and-audit.md#audit).
    pub file: Option<PathBuf>,
    /// Size after which a new file is started.
    ///
    /// The old one gets the suffix `.1`, older ones `.2` and so on.
    #[schemars(range(min = 1))]
    pub bytes_max: u64,
    /// Number of files kept, including the newest.
    #[schemars(range(min = 1))]
    pub files_max: u32,
}

impl Default for Audit {
    fn default() -> Self {
        Self { file: None, bytes_max: 64 << 20, files_max: 8 }
    }
}

/// Metrics for autoscalers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Autoscale {
    /// Rows, pending or running, per slot in `rollout_pool_desired_slots`.
    ///
    /// Set the same value on all members. See [autoscaling](monitoring.md#autoscaling).
    #[schemars(range(min = 1))]
    pub rows_per_slot: u64,
}

impl Default for Autoscale {
    fn default() -> Self {
        Self { rows_per_slot: 1024 }
    }
}

/// Completion webhooks of runs.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WebhookSettings {
    /// File with the secret that signs completion webhooks; required with `allow`.
    ///
    /// The secret is `whsec_` followed by base64, or plain text.
    pub secret_file: Option<PathBuf>,
    /// Origins to which runs may send completion webhooks; empty: none are sent.
    ///
    /// For example `"https://hooks.example.com"`. See [completion webhooks](runs.md#completion-webhooks).
    pub allow: Vec<String>,
}

/// The enrollment port, and the key that signs certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnrollmentSettings {
    /// Address for workers and clients that have no certificate yet.
    ///
    /// Without this section, [enrollment](certificates.md#enrollment) is off.
    #[schemars(extend("format" = "address"))]
    pub listen: SocketAddr,
    /// The intermediate CA's certificate, from `rolloutctl cert init-issuer`; read at startup.
    pub issuer_cert_file: PathBuf,
    /// The intermediate CA's private key; read at startup.
    pub issuer_key_file: PathBuf,
    /// Validity of an issued certificate, in seconds.
    #[serde(default = "default_lifetime_s")]
    #[schemars(range(min = 10, max = 7 * DAY_S))]
    pub lifetime_s: u64,
}

fn default_lifetime_s() -> u64 {
    DAY_S
}
