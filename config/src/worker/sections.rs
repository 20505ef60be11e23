//! The sections of worker.toml, except `[[engine]]`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{CREDIT_TOKENS_MAX, PART_BYTES, PART_ROWS, PART_ROWS_MAX, SLOT_ROWS_MAX};
use crate::size;

/// Mutual TLS: three files, or none and the flag that disables TLS.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TlsConfig {
    /// The cluster's certificate authority, PEM.
    #[schemars(extend("x-flag" = "--ca-file", "x-env" = "ROLLOUT_CA_FILE"))]
    pub ca_file: Option<PathBuf>,
    /// The worker's certificate, PEM.
    #[schemars(extend("x-flag" = "--cert-file", "x-env" = "ROLLOUT_CERT_FILE"))]
    pub cert_file: Option<PathBuf>,
    /// The key of that certificate, PEM.
    #[schemars(extend("x-flag" = "--key-file", "x-env" = "ROLLOUT_KEY_FILE"))]
    pub key_file: Option<PathBuf>,
    /// No TLS, instead of the three files: the worker trusts everyone who reaches the port.
    #[schemars(extend("x-flag" = "--insecure-plaintext"))]
    pub insecure_plaintext: bool,
}

/// A join token, and the endpoints to which it is presented. Such an agent has no certificate files from elsewhere.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EnrollmentConfig {
    /// File with a join token, instead of the files of `[tls]`.
    ///
    /// See [enrollment](certificates.md#enrollment).
    #[schemars(extend("x-unset" = true))]
    pub token_file: PathBuf,
    /// The members' enrollment addresses, `host:port`; list all of them.
    ///
    /// The leader issues the certificate.
    #[schemars(extend("x-unset" = true))]
    pub endpoints: Vec<String>,
}

/// Object stores besides the cluster's.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StoreConfig {
    /// Stores that runs may name in addition to the cluster's, and everything below them.
    ///
    /// The rule is that of the [members' list](#coordinatortoml). Below cluster version 3, runs may name only these
    /// exact URLs.
    #[schemars(extend("x-unset" = true, "x-flag" = "--store-url"))]
    pub urls: Vec<String>,
}

/// How much work a slot asks for.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CreditConfig {
    /// Rows of a slot that are queued or running; twice its engine's concurrency by default.
    ///
    /// For vLLM, the default follows the engine's speed.
    #[schemars(range(min = 1, max = SLOT_ROWS_MAX), extend("x-flag" = "--credit-rows"))]
    pub rows: Option<u32>,
    /// Tokens that these rows may take, prompts with completions at their longest.
    ///
    /// By default twice the number of tokens that the engine reports as its capacity.
    #[schemars(range(min = 1, max = CREDIT_TOKENS_MAX))]
    pub tokens: Option<u64>,
}

/// When a part of results is closed: at the first bound that is reached.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PartConfig {
    /// A part, an object of result rows, is stored when it has this number of rows.
    #[schemars(range(min = 1, max = PART_ROWS_MAX))]
    pub rows: usize,
    /// A part is stored when its results have this size, a number or text such as `"8MiB"`.
    #[serde(deserialize_with = "size::deserialize", serialize_with = "size::serialize")]
    #[schemars(schema_with = "size::schema", range(min = 1, max = PART_BYTES))]
    pub bytes: usize,
    /// A part is stored this long after its first row, even if it is smaller.
    ///
    /// If the worker's disk is lost, the rows of its open parts run again.
    #[schemars(range(min = 1, max = 60_000))]
    pub linger_ms: u64,
}

impl Default for PartConfig {
    fn default() -> Self {
        Self { rows: PART_ROWS, bytes: PART_BYTES, linger_ms: 10_000 }
    }
}

/// Times in milliseconds.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TimingConfig {
    /// Without an answered heartbeat for this long, no row is started.
    ///
    /// The leader's own value applies if it is smaller.
    #[schemars(range(min = 200, max = 60_000))]
    pub self_fence_ms: u64,
    /// After a heartbeat is unanswered for this long, the worker looks for another leader.
    ///
    /// Must be below `self_fence_ms`.
    #[schemars(range(min = 50, max = 60_000))]
    pub leader_silent_ms: u64,
    /// Time limit for running rows after SIGTERM.
    #[schemars(range(max = 3_600_000))]
    pub drain_ms: u64,
    /// How often an unreachable engine or store is tried again.
    #[schemars(range(min = 10, max = 600_000))]
    pub probe_ms: u64,
    /// How long a refused registration is retried before the worker exits.
    ///
    /// The cluster refuses it for reasons that need an operator, such as a name that a live process has.
    #[schemars(range(max = 3_600_000))]
    pub register_refused_ms: u64,
    /// How long the worker keeps and retries results that the store refuses.
    ///
    /// Then it drops them and returns their rows. See [the object store](install.md#the-object-store).
    #[schemars(range(max = 3_600_000))]
    pub store_refused_ms: u64,
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

/// Input segments kept in memory.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CacheConfig {
    /// Bytes of input segments in memory, a number or text such as `"256MiB"`.
    #[serde(deserialize_with = "size::deserialize", serialize_with = "size::serialize")]
    #[schemars(schema_with = "size::schema")]
    pub bytes: usize,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self { bytes: 256 << 20 }
    }
}

/// Which metadata service is polled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ComputeProvider {
    /// The service that answers when the worker starts.
    #[default]
    Auto,
    /// EC2's instance metadata service, version 2.
    Aws,
    /// Google Compute Engine's.
    Gcp,
    /// Azure's instance metadata service.
    Azure,
    /// No cloud.
    None,
}

impl ComputeProvider {
    /// Reads a flag's value.
    ///
    /// # Errors
    /// The allowed values.
    pub fn from_flag(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "aws" => Ok(Self::Aws),
            "gcp" => Ok(Self::Gcp),
            "azure" => Ok(Self::Azure),
            "none" => Ok(Self::None),
            _ => Err("auto, aws, gcp, azure or none".to_owned()),
        }
    }

    /// The name in the configuration and in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Aws => "aws",
            Self::Gcp => "gcp",
            Self::Azure => "azure",
            Self::None => "none",
        }
    }
}

/// Notices of a cloud that reclaims its machines.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ComputeConfig {
    /// The cloud whose preemption notices the worker watches; `"auto"`: the one that answers at startup.
    ///
    /// See [preemption](workers.md#preemption).
    #[schemars(extend("x-flag" = "--compute", "x-env" = "ROLLOUT_WORKER_COMPUTE"))]
    pub provider: ComputeProvider,
    /// Address of the cloud's metadata service, `http://host[:port]`.
    ///
    /// `"http://169.254.169.254"` by default.
    #[schemars(extend("x-flag" = "--compute-endpoint", "x-env" = "ROLLOUT_WORKER_COMPUTE_ENDPOINT"))]
    pub endpoint: Option<String>,
    /// Interval between polls for preemption notices, on AWS and Azure.
    ///
    /// Azure is polled at least every second. GCP is not polled: its service holds the request until there is a notice.
    #[schemars(range(min = 100, max = 30_000))]
    pub poll_ms: u64,
}

impl Default for ComputeConfig {
    fn default() -> Self {
        Self { provider: ComputeProvider::default(), endpoint: None, poll_ms: 5000 }
    }
}

/// A training job's store, for the torch processes of this host.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StoreGatewayConfig {
    /// The training job whose store is served to this host.
    ///
    /// Its namespace is the worker's.
    #[schemars(extend("x-unset" = true))]
    #[schemars(extend("x-flag" = "--store-gateway", "x-env" = "ROLLOUT_WORKER_STORE_GATEWAY"))]
    pub job: String,
    /// The round of its rendezvous; 0 for data that outlives rounds.
    pub round: u64,
    /// Address and port where the store is served.
    #[schemars(extend("format" = "address"))]
    pub listen: SocketAddr,
    /// Other hosts, and all users of this one, may read and write the store, without TLS.
    pub insecure_tcpstore: bool,
    /// Users of this host that it serves besides the worker's own and root.
    pub allow_uids: Vec<u32>,
}

impl Default for StoreGatewayConfig {
    fn default() -> Self {
        // torchrun's own port.
        let listen = (Ipv4Addr::LOCALHOST, 29400).into();
        let (insecure_tcpstore, allow_uids) = (false, Vec::new());
        Self { job: String::new(), round: 0, listen, insecure_tcpstore, allow_uids }
    }
}
