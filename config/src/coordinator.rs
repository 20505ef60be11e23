//! coordinator.toml: the settings of a member.
//!
//! The first paragraph of a field's comment is what `rolloutctl config` shows. The page of the settings has all of it.
//! Attributes name the flag (`x-flag`) and the variable (`x-env`) that override the file.
//!
//! *Invariant:* an unknown key is refused.
//! Absent: combinations of values that a member refuses.

mod api;
mod leader;
mod profile;
mod raft;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::api::ApiSettings;
pub use self::leader::{Audit, Autoscale, EnrollmentSettings, Retention, WebhookSettings, Workers};
pub use self::profile::Profile;
pub use self::raft::{Events, HEARTBEAT_MIN_MS, Raft, Storage, Timings};
use crate::TracingSettings;

/// The default of `log`. openraft logs each election and each lost connection several times.
pub const LOG: &str = "info,openraft=error";

/// The file.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The member's name.
    #[schemars(extend("x-required" = true, "x-flag" = "--name", "x-env" = "ROLLOUT_MEMBER_NAME"))]
    pub name: Option<String>,
    /// Directory for identity, log and image.
    ///
    /// Each member needs its own directory on a local disk.
    #[schemars(extend("x-required" = true, "x-flag" = "--data-dir", "x-env" = "ROLLOUT_DATA_DIR"))]
    pub data_dir: Option<PathBuf>,
    /// Failure domain, shown by `rolloutctl status`.
    #[serde(default)]
    #[schemars(extend("x-flag" = "--zone", "x-env" = "ROLLOUT_ZONE"))]
    pub zone: String,
    /// The cluster that the data must belong to, 32 hex digits.
    ///
    /// The member refuses to start on the data of another cluster, or to join one.
    #[schemars(extend("x-flag" = "--cluster-id"))]
    pub cluster_id: Option<String>,
    /// Filter of the log on stderr.
    ///
    /// Text on a terminal, JSON lines otherwise. The member refuses an invalid filter.
    #[serde(default = "default_log")]
    #[schemars(extend("x-flag" = "--log", "x-env" = "ROLLOUT_LOG"))]
    pub log: String,
    /// Where the member listens.
    pub listen: Listen,
    /// What the member prints at startup.
    pub advertise: Option<Advertise>,
    /// How connections are secured.
    #[serde(default)]
    pub tls: Tls,
    /// Object stores.
    pub store: Store,
    /// Thresholds of free space.
    #[serde(default)]
    pub storage: Storage,
    /// Consensus.
    #[serde(default)]
    pub raft: Raft,
    /// Timings of workers' sessions.
    #[serde(default)]
    pub worker: Workers,
    /// Events in memory.
    #[serde(default)]
    pub events: Events,
    /// How long ended runs are kept.
    #[serde(default)]
    pub retention: Retention,
    /// Where audit lines are kept.
    #[serde(default)]
    pub audit: Audit,
    /// Metrics for autoscalers.
    #[serde(default)]
    pub autoscale: Autoscale,
    /// Completion webhooks of runs.
    #[serde(default)]
    pub webhooks: WebhookSettings,
    /// Issuing certificates to workers and clients that have none.
    #[serde(alias = "enrolment")]
    pub enrollment: Option<EnrollmentSettings>,
    /// OpenAI's HTTP API.
    pub api: Option<ApiSettings>,
    /// Where spans are sent.
    #[serde(default)]
    pub tracing: TracingSettings,
    /// Addresses at which to dial members instead of those that the cluster has on record.
    ///
    /// `NAME = "HOST:PORT"`; the flag takes `NAME=HOST:PORT`.
    #[serde(default)]
    #[schemars(extend("x-flag" = "--dial-map"))]
    pub dial_map: BTreeMap<String, String>,
}

fn default_log() -> String {
    LOG.into()
}

/// Where the member listens: addresses and ports, no host names.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// Address and port for workers, clients and operators.
    #[schemars(extend("format" = "address"))]
    pub client: SocketAddr,
    /// Address and port for other members.
    #[schemars(extend("format" = "address"))]
    pub peer: SocketAddr,
    /// Address and port for health and metrics, plain HTTP.
    #[serde(default = "default_http")]
    #[schemars(extend("format" = "address"))]
    pub http: SocketAddr,
}

fn default_http() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 7422))
}

/// What the member prints at startup.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Advertise {
    /// Address for clients, logged at startup only; as `[listen]` by default.
    ///
    /// Others dial the addresses given to `cluster bootstrap`.
    pub client: String,
    /// Address for other members, logged at startup only; as `[listen]` by default.
    pub peer: String,
}

/// How connections are secured: three files, or none and the flag that disables TLS.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// Certificate authorities that this member trusts.
    ///
    /// PEM; the file holds two authorities while you [replace one](certificates.md#replace-the-authority). Set all of
    /// `ca_file`, `cert_file` and `key_file`, or `insecure_plaintext`.
    #[schemars(extend("x-flag" = "--ca-file", "x-env" = "ROLLOUT_CA_FILE"))]
    pub ca_file: Option<PathBuf>,
    /// The member's certificate.
    #[schemars(extend("x-flag" = "--cert-file", "x-env" = "ROLLOUT_CERT_FILE"))]
    pub cert_file: Option<PathBuf>,
    /// The key of that certificate.
    #[schemars(extend("x-flag" = "--key-file", "x-env" = "ROLLOUT_KEY_FILE"))]
    pub key_file: Option<PathBuf>,
    /// No TLS: every caller is an administrator.
    ///
    /// If other hosts can reach one of the addresses, `insecure_plaintext_public` is also required.
    #[serde(default)]
    pub insecure_plaintext: bool,
    /// Allow `insecure_plaintext` on addresses that other hosts can reach.
    #[serde(default)]
    pub insecure_plaintext_public: bool,
}

/// Object stores.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Store {
    /// The cluster's object store.
    pub url: String,
    /// Further stores that runs may name, and everything below them.
    ///
    /// A batch file names one in `[store] url`. `"s3://teams/a"` allows `s3://teams/a/x`, but not `s3://teams/ab`.
    /// Members write, list and delete objects in these stores, and refuse a run that names any other store. Give all
    /// members the same list.
    #[serde(default)]
    pub urls: Vec<String>,
}
