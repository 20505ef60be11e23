//! Settings of a member: flags override the environment, the environment overrides the file, and the file overrides
//! defaults. Crate `rollout-config` declares the file.
//!
//! *Invariant:* an unknown key is refused with the nearest known one. Timings with which a worker could keep running
//! rows that another worker was given are refused too.

use anyhow::{Context, Result, bail};
use clap::Parser;
use rollout_config::coordinator::{File, Profile, Raft, Tls};
use rollout_config::{TracingSettings, bounds, nearest};
use rollout_proto::{DialMap, Security, TlsFiles};
use std::net::SocketAddr;
use std::path::PathBuf;
use tracing_subscriber::EnvFilter;

pub use rollout_config::coordinator::{
    ApiSettings, Audit, Autoscale, EnrollmentSettings, Retention, WebhookSettings, Workers,
};

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

/// The settings of one member.
#[derive(Clone, Debug)]
pub struct Config {
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
    /// Issuing certificates to unenrolled clients; `None`: this member issues none.
    pub enrollment: Option<EnrollmentSettings>,
    /// OpenAI's HTTP API; `None`: this member does not serve it.
    pub api: Option<ApiSettings>,
    /// Where spans go.
    pub tracing: TracingSettings,
    /// Consensus.
    pub raft: rollout_raft::RaftConfig,
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
        let mut file = parse(text, &path)?;
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
        let mut ports = vec![file.listen.client, file.listen.peer];
        ports.extend(file.api.as_ref().map(|api| api.listen));
        let security = security(&file.tls, &ports).with_context(|| path.clone())?;
        let mut dial_map =
            file.dial_map.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>();
        dial_map.extend(flags.dial_map);
        let dial_map = parse_dial_map(&dial_map)?;
        let cluster_id = match flags.cluster_id.or(file.cluster_id) {
            Some(id) => Some(id.parse().context("`cluster_id`")?),
            None => None,
        };
        let mut raft = raft_config(&file.raft, data_dir, &name, dial_map, &security, cluster_id)?;
        raft.events_bytes_max = file.events.bytes_max;
        raft.events_count_max = file.events.count_max;
        raft.disk_low_bytes = file.storage.low_bytes;
        raft.disk_reserve_bytes = file.storage.reserve_bytes;
        raft.validate().with_context(|| format!("{path}: [storage]"))?;
        check_timings(&file.worker).with_context(|| path.clone())?;
        if file.enrollment.is_some() && matches!(security, Security::InsecurePlaintext) {
            bail!(
                "{path}: [enrollment] has nothing to issue where [tls] insecure_plaintext = true"
            );
        }
        file.tracing.lay_endpoint(flags.otlp_endpoint.as_deref());
        file.tracing.check().with_context(|| path.clone())?;
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
            enrollment: file.enrollment,
            api: file.api,
            tracing: file.tracing,
            raft,
        })
    }
}

/// The file, with values within their bounds.
fn parse(text: &str, path: &str) -> Result<File> {
    let file: File = toml::from_str(text).map_err(|e| {
        let line = nearest::line_of(text, e.span());
        let why = nearest::explain_at(text, e.span(), e.message());
        anyhow::anyhow!("{path}: line {line}: {why}")
    })?;
    bounds::check(&file).with_context(|| path.to_owned())?;
    Ok(file)
}

fn parse_dial_map(entries: &[String]) -> Result<DialMap> {
    let mut map = DialMap::default();
    for entry in entries {
        let one = entry.parse::<DialMap>().with_context(|| format!("--dial-map {entry}"))?;
        map.merge(one).with_context(|| format!("--dial-map {entry}"))?;
    }
    Ok(map)
}

fn security(tls: &Tls, ports: &[SocketAddr]) -> Result<Security> {
    let public = ports.iter().find(|port| !port.ip().is_loopback());
    if let (true, false, Some(port)) =
        (tls.insecure_plaintext, tls.insecure_plaintext_public, public)
    {
        bail!(
            "[tls] insecure_plaintext = true, and other hosts can reach {port}: they could act as administrators, or \
             read API keys. Listen on 127.0.0.1, give certificates, or set insecure_plaintext_public = true too"
        );
    }
    match (&tls.ca_file, &tls.cert_file, &tls.key_file, tls.insecure_plaintext) {
        (Some(ca), Some(cert), Some(key), false) => {
            Ok(Security::Mtls(TlsFiles { ca: ca.clone(), cert: cert.clone(), key: key.clone() }))
        }
        (None, None, None, true) => Ok(Security::InsecurePlaintext),
        _ => {
            bail!("[tls]: set ca_file, cert_file and key_file, or only insecure_plaintext = true")
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
    if file.profile == Profile::FarZones {
        config = config.far_zones();
    }
    config.cluster_id = cluster_id;
    config.versions = rollout_ledger::SUPPORTED_VERSIONS;
    let timings = file.timings();
    config.heartbeat_ms = timings.heartbeat_ms;
    config.election_min_ms = timings.election_min_ms;
    config.election_max_ms = timings.election_max_ms;
    config.image_interval_ms = file.image_interval_ms;
    config.image_log_bytes = file.image_log_bytes;
    config.log_keep_bytes = file.log_keep_bytes;
    config.validate()?;
    Ok(config)
}

/// Checks that a worker stops starting rows before the leader gives them to another one.
fn check_timings(t: &Workers) -> Result<()> {
    if t.self_fence_ms < 2 * t.heartbeat_ms {
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

#[cfg(test)]
mod tests;
