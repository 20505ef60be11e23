//! Settings. Flags override the environment, the environment overrides the file, and the file overrides defaults.
//!
//! *Invariant:* an unknown key is refused with the nearest known one. Timings with which a worker could keep running
//! rows that another worker was given are refused too.

mod enrolment;

use anyhow::{Context, Result, bail};
use clap::Parser;
use rollout_config::nearest;
use rollout_proto::{DialMap, Security, TlsFiles};
use rollout_telemetry::TracingSettings;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use tracing_subscriber::EnvFilter;

pub use crate::gc::Retention;
pub use crate::leader::settings::{WebhookSettings, Workers};
pub use enrolment::EnrolmentSettings;

/// The daemon's flags. Each overrides a key of the file.
#[derive(Debug, Default, Parser)]
#[command(name = "rollout-coordinator", version, about = "A member of a rollout cluster")]
#[command(after_help = "Offline: rollout-coordinator snapshot restore|salvage --help")]
pub struct Flags {
    /// Configuration file (TOML)
    #[arg(long, env = "ROLLOUT_COORDINATOR_CONFIG")]
    pub config: PathBuf,
    /// Name of this member
    #[arg(long, env = "ROLLOUT_MEMBER_NAME")]
    pub name: Option<String>,
    /// Data directory
    #[arg(long, env = "ROLLOUT_DATA_DIR")]
    pub data_dir: Option<PathBuf>,
    /// Failure domain
    #[arg(long, env = "ROLLOUT_ZONE")]
    pub zone: Option<String>,
    /// The cluster's certificate authority
    #[arg(long, env = "ROLLOUT_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// The member's certificate
    #[arg(long, env = "ROLLOUT_CERT_FILE", value_name = "FILE")]
    pub cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, env = "ROLLOUT_KEY_FILE", value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Refuse to start unless the data directory belongs to this cluster (32 hex digits)
    #[arg(long)]
    pub cluster_id: Option<String>,
    /// Dial a member at this address instead of its published one: NAME=HOST:PORT, repeatable
    #[arg(long = "dial-map")]
    pub dial_map: Vec<String>,
    /// Log filter, as RUST_LOG
    #[arg(long, env = "ROLLOUT_LOG")]
    pub log: Option<String>,
    /// Send spans to this collector, by OTLP over gRPC: http://HOST:PORT
    #[arg(long, env = "ROLLOUT_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// Check the configuration and exit
    #[arg(long)]
    pub check_config: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Option<String>,
    data_dir: Option<PathBuf>,
    #[serde(default)]
    zone: String,
    cluster_id: Option<String>,
    #[serde(default = "default_log")]
    log: String,
    listen: Listen,
    advertise: Option<Advertise>,
    #[serde(default)]
    tls: Tls,
    store: Store,
    #[serde(default)]
    storage: Storage,
    #[serde(default)]
    raft: Raft,
    #[serde(default)]
    worker: Workers,
    #[serde(default)]
    retention: Retention,
    #[serde(default)]
    events: Events,
    #[serde(default)]
    dial_map: BTreeMap<String, String>,
    #[serde(default)]
    audit: Audit,
    #[serde(default)]
    autoscale: Autoscale,
    #[serde(default)]
    webhooks: WebhookSettings,
    enrolment: Option<EnrolmentSettings>,
    #[serde(default)]
    tracing: TracingSettings,
}

/// How many events are kept in memory for followers of events.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Events {
    bytes_max: Option<usize>,
    count_max: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listen {
    client: SocketAddr,
    peer: SocketAddr,
    #[serde(default = "default_http")]
    http: SocketAddr,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Advertise {
    client: String,
    peer: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tls {
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    #[serde(default)]
    insecure_plaintext: bool,
    /// Allows plaintext even if other hosts can reach the ports.
    #[serde(default)]
    insecure_plaintext_public: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Store {
    url: String,
    #[serde(default)]
    urls: Vec<String>,
}

/// Thresholds of free space on the data disk.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Storage {
    low_bytes: Option<u64>,
    reserve_bytes: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raft {
    #[serde(default)]
    profile: Profile,
    heartbeat_ms: Option<u64>,
    election_min_ms: Option<u64>,
    election_max_ms: Option<u64>,
    image_interval_ms: Option<u64>,
    image_log_bytes: Option<u64>,
    log_keep_bytes: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Profile {
    /// Members within one region, on local disks.
    #[default]
    Near,
    /// Members in distant zones, or on slow disks.
    FarZones,
}

/// Where audit lines are kept.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Audit {
    /// A file of JSON lines. Without one, lines go to the log under the target `audit`.
    pub file: Option<PathBuf>,
    /// Size after which a new file is started.
    pub bytes_max: u64,
    /// Number of files kept, including the newest.
    pub files_max: u32,
}

impl Default for Audit {
    fn default() -> Self {
        Self { file: None, bytes_max: 64 << 20, files_max: 8 }
    }
}

/// Metrics for autoscalers.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Autoscale {
    /// Rows, pending or running, per desired slot.
    pub rows_per_slot: u64,
}

impl Default for Autoscale {
    fn default() -> Self {
        Self { rows_per_slot: 1024 }
    }
}

/// The settings of one member.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name.
    pub name: String,
    /// Failure domain.
    pub zone: String,
    /// Log filter.
    pub log: String,
    /// Address for workers, clients and operators.
    pub listen_client: SocketAddr,
    /// Address for other members.
    pub listen_peer: SocketAddr,
    /// Health and metrics.
    pub listen_http: SocketAddr,
    /// The address that members publish for workers and clients.
    pub advertise_client: String,
    /// The address that members publish for other members.
    pub advertise_peer: String,
    /// How connections are secured.
    pub security: Security,
    /// The cluster's object store.
    pub store_url: String,
    /// Other stores that runs may name; a run may also name a folder below one of them.
    pub store_urls: Vec<String>,
    /// Timings of workers' sessions.
    pub workers: Workers,
    /// How long ended runs are kept.
    pub retention: Retention,
    /// Where audit lines are kept.
    pub audit: Audit,
    /// Metrics for autoscalers.
    pub autoscale: Autoscale,
    /// Completion webhooks of runs.
    pub webhooks: WebhookSettings,
    /// Issuing certificates to newcomers; `None`: this member issues none.
    pub enrolment: Option<EnrolmentSettings>,
    /// Where spans go.
    pub tracing: TracingSettings,
    /// Consensus.
    pub raft: rollout_raft::RaftConfig,
}

fn default_log() -> String {
    // openraft logs each election and each lost connection several times.
    "info,openraft=error".into()
}

fn default_http() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 7422))
}

impl Config {
    /// Reads the file and applies the flags over it.
    ///
    /// # Errors
    /// A file that cannot be read, an unknown key, and contradicting settings.
    pub fn load(flags: Flags) -> Result<Self> {
        let text = std::fs::read_to_string(&flags.config)
            .with_context(|| format!("cannot read {}", flags.config.display()))?;
        Self::of(&text, flags)
    }

    /// Applies the flags over the text of the file that they name.
    pub(crate) fn of(text: &str, flags: Flags) -> Result<Self> {
        let path = flags.config.display().to_string();
        let mut file: File = toml::from_str(text).map_err(|e| {
            let (line, why) = (
                nearest::line_of(text, e.span()),
                nearest::explain_at(text, e.span(), e.message()),
            );
            anyhow::anyhow!("{path}: line {line}: {why}")
        })?;
        // An empty variable, for example from a label that a host does not have, counts as unset.
        file.zone = flags.zone.filter(|zone| !zone.is_empty()).unwrap_or(file.zone);
        file.tls.ca_file = flags.ca_file.or(file.tls.ca_file);
        file.tls.cert_file = flags.cert_file.or(file.tls.cert_file);
        file.tls.key_file = flags.key_file.or(file.tls.key_file);
        let Some(name) = flags.name.or(file.name) else { bail!("{path}: `name` is missing") };
        let Some(data_dir) = flags.data_dir.or(file.data_dir) else {
            bail!("{path}: `data_dir` is missing")
        };
        let log = flags.log.filter(|log| !log.is_empty()).unwrap_or(file.log);
        if let Err(error) = EnvFilter::try_new(&log) {
            bail!("{path}: `log` = {log:?} is no filter: {error}");
        }
        let security = security(&file.tls, [file.listen.client, file.listen.peer])
            .with_context(|| path.clone())?;
        let mut dial_map =
            file.dial_map.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>();
        dial_map.extend(flags.dial_map);
        let dial_map = parse_dial_map(&dial_map)?;
        let cluster_id = match flags.cluster_id.or(file.cluster_id) {
            Some(id) => Some(id.parse().context("`cluster_id`")?),
            None => None,
        };
        let mut raft = raft_config(&file.raft, data_dir, &name, dial_map, &security, cluster_id)?;
        raft.events_bytes_max = file.events.bytes_max.unwrap_or(raft.events_bytes_max);
        raft.events_count_max = file.events.count_max.unwrap_or(raft.events_count_max);
        raft.validate().with_context(|| format!("{path}: [events]"))?;
        raft.disk_low_bytes = file.storage.low_bytes.unwrap_or(raft.disk_low_bytes);
        raft.disk_reserve_bytes = file.storage.reserve_bytes.unwrap_or(raft.disk_reserve_bytes);
        raft.validate().with_context(|| format!("{path}: [storage]"))?;
        check_timings(&file.worker).with_context(|| path.clone())?;
        check_audit(&file.audit).with_context(|| path.clone())?;
        if let Some(enrolment) = &file.enrolment {
            enrolment.check(&security).with_context(|| path.clone())?;
        }
        file.tracing.lay_endpoint(flags.otlp_endpoint.as_deref());
        file.tracing.check().with_context(|| path.clone())?;
        if file.autoscale.rows_per_slot == 0 {
            bail!("{path}: [autoscale] rows_per_slot has to be 1 or more");
        }
        let (advertise_client, advertise_peer) = match file.advertise {
            Some(a) => (a.client, a.peer),
            None => (file.listen.client.to_string(), file.listen.peer.to_string()),
        };
        Ok(Self {
            name,
            zone: file.zone,
            log,
            listen_client: file.listen.client,
            listen_peer: file.listen.peer,
            listen_http: file.listen.http,
            advertise_client,
            advertise_peer,
            security,
            store_url: file.store.url,
            store_urls: file.store.urls,
            workers: file.worker,
            retention: file.retention,
            audit: file.audit,
            autoscale: file.autoscale,
            webhooks: file.webhooks,
            enrolment: file.enrolment,
            tracing: file.tracing,
            raft,
        })
    }
}

fn parse_dial_map(entries: &[String]) -> Result<DialMap> {
    let mut map = DialMap::default();
    for entry in entries {
        let one = entry.parse::<DialMap>().with_context(|| format!("--dial-map {entry}"))?;
        map.merge(one).with_context(|| format!("--dial-map {entry}"))?;
    }
    Ok(map)
}

fn security(tls: &Tls, ports: [SocketAddr; 2]) -> Result<Security> {
    let public = ports.into_iter().find(|port| !port.ip().is_loopback());
    if let (true, false, Some(port)) =
        (tls.insecure_plaintext, tls.insecure_plaintext_public, public)
    {
        bail!(
            "[tls] insecure_plaintext = true with [listen] {port}: any host that reaches it would be an administrator. \
             Listen on 127.0.0.1, give certificates, or set insecure_plaintext_public = true too"
        );
    }
    match (&tls.ca_file, &tls.cert_file, &tls.key_file, tls.insecure_plaintext) {
        (Some(ca), Some(cert), Some(key), false) => {
            Ok(Security::Mtls(TlsFiles { ca: ca.clone(), cert: cert.clone(), key: key.clone() }))
        }
        (None, None, None, true) => Ok(Security::InsecurePlaintext),
        _ => {
            bail!("[tls] wants ca_file, cert_file and key_file, or insecure_plaintext = true alone")
        }
    }
}

fn raft_config(
    file: &Raft,
    data_dir: PathBuf,
    name: &str,
    dial_map: DialMap,
    security: &Security,
    cluster_id: Option<rollout_raft::ClusterId>,
) -> Result<rollout_raft::RaftConfig> {
    let mut config =
        rollout_raft::RaftConfig::new(data_dir, name.to_owned(), dial_map, security.clone());
    if matches!(file.profile, Profile::FarZones) {
        config = config.far_zones();
    }
    config.cluster_id = cluster_id;
    config.versions = rollout_ledger::SUPPORTED_VERSIONS;
    let overrides = [
        (&mut config.heartbeat_ms, file.heartbeat_ms),
        (&mut config.election_min_ms, file.election_min_ms),
        (&mut config.election_max_ms, file.election_max_ms),
        (&mut config.image_interval_ms, file.image_interval_ms),
        (&mut config.image_log_bytes, file.image_log_bytes),
        (&mut config.log_keep_bytes, file.log_keep_bytes),
    ];
    for (place, value) in overrides {
        if let Some(value) = value {
            *place = value;
        }
    }
    config.validate()?;
    Ok(config)
}

/// Checks that a worker stops starting rows before the leader gives them to another one.
fn check_timings(t: &Workers) -> Result<()> {
    if t.heartbeat_ms == 0 || t.self_fence_ms < 2 * t.heartbeat_ms {
        bail!("[worker] self_fence_ms = {} has to be two heartbeats or more", t.self_fence_ms);
    }
    if t.self_fence_ms >= t.failure_ms {
        bail!(
            "[worker] self_fence_ms = {} has to be less than failure_ms = {}: a worker must stop \
             starting rows before they are given to others",
            t.self_fence_ms,
            t.failure_ms
        );
    }
    Ok(())
}

fn check_audit(audit: &Audit) -> Result<()> {
    if audit.bytes_max == 0 || audit.files_max == 0 {
        bail!("[audit] bytes_max and files_max have to be 1 or more");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
