//! Owns: the command line and the environment.
//!
//! Invariant: a flag overrides its environment variable; both override the file.
//! Absent: settings that only a file can hold (several engines, their details).

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;

use super::{ComputeProvider, Config, EngineConfig, EngineKind};

/// Runs prompts that the cluster grants on this host's engines.
#[derive(Debug, Clone, Default, Parser)]
#[command(name = "rollout-worker", version, about)]
pub struct Flags {
    /// The configuration file
    #[arg(long, env = "ROLLOUT_WORKER_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Check the configuration, print what it says, and exit
    #[arg(long)]
    pub check_config: bool,
    /// The worker's name, unique in its namespace
    #[arg(long, env = "ROLLOUT_WORKER_NAME")]
    pub name: Option<String>,
    /// The namespace it works for
    #[arg(long, env = "ROLLOUT_NAMESPACE")]
    pub namespace: Option<String>,
    /// Directory for session and spool
    #[arg(long, env = "ROLLOUT_WORKER_DATA_DIR", value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// A member, host:port; repeat it, or separate by commas
    #[arg(
        long = "endpoint",
        env = "ROLLOUT_ENDPOINTS",
        value_delimiter = ',',
        value_name = "ADDR"
    )]
    pub endpoints: Vec<String>,
    /// A label of every slot
    #[arg(long = "label", value_parser = pair, value_name = "KEY=VALUE")]
    pub labels: Vec<(String, String)>,
    /// The cluster's certificate authority
    #[arg(long, env = "ROLLOUT_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// The worker's certificate
    #[arg(long, env = "ROLLOUT_CERT_FILE", value_name = "FILE")]
    pub cert_file: Option<PathBuf>,
    /// Its key
    #[arg(long, env = "ROLLOUT_KEY_FILE", value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Disable TLS: every peer is trusted
    #[arg(long)]
    pub insecure_plaintext: bool,
    /// Dial a member at another address
    #[arg(long = "dial-map", env = "ROLLOUT_DIAL_MAP", value_delimiter = ',', value_parser = pair, value_name = "NAME=ADDR")]
    pub dial_map: Vec<(String, String)>,
    /// An object store that runs may name, and everything below it
    #[arg(long = "store-url", value_name = "URL")]
    pub store_urls: Vec<String>,
    /// Rows that a slot may have queued or running
    #[arg(long)]
    pub credit_rows: Option<u32>,
    /// Listen to notices of this cloud: auto, aws, gcp, azure or none
    #[arg(long, env = "ROLLOUT_WORKER_COMPUTE", value_parser = ComputeProvider::from_flag, value_name = "PROVIDER")]
    pub compute: Option<ComputeProvider>,
    /// The cloud's metadata service, if not at its usual address
    #[arg(long, env = "ROLLOUT_WORKER_COMPUTE_ENDPOINT", value_name = "URL")]
    pub compute_endpoint: Option<String>,
    /// Serve the store of this training job to the torch processes of this host, as `rollout store-gateway` does
    #[arg(long, env = "ROLLOUT_WORKER_STORE_GATEWAY", value_name = "JOB")]
    pub store_gateway: Option<String>,
    /// Serve metrics over HTTP here
    #[arg(long, env = "ROLLOUT_WORKER_METRICS_LISTEN", value_name = "ADDR")]
    pub metrics_listen: Option<SocketAddr>,
    /// Send spans to this collector, by OTLP over gRPC: http://HOST:PORT
    #[arg(long, env = "ROLLOUT_OTLP_ENDPOINT", value_name = "URL")]
    pub otlp_endpoint: Option<String>,
    /// Use this engine instead of the file's: mock or openai
    #[arg(long, value_parser = kind)]
    pub engine: Option<EngineKind>,
    /// Slots of --engine
    #[arg(long, requires = "engine")]
    pub slots: Option<u32>,
    /// Rows that run at a time in each slot of --engine
    #[arg(long, requires = "engine")]
    pub concurrency: Option<u32>,
    /// The server of --engine openai
    #[arg(long, requires = "engine", value_name = "URL")]
    pub base_url: Option<String>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write it as key=value".to_owned()),
    }
}

fn kind(text: &str) -> Result<EngineKind, String> {
    match text {
        "mock" => Ok(EngineKind::Mock),
        "openai" => Ok(EngineKind::Openai),
        // vllm needs more settings than flags have: configure it as a block in the file.
        _ => Err("mock or openai; others are configured in the file".to_owned()),
    }
}

fn lay<T: Clone>(over: &mut T, flag: &Option<T>) {
    if let Some(value) = flag {
        over.clone_from(value);
    }
}

impl Flags {
    pub(super) fn apply(&self, config: &mut Config) {
        lay(&mut config.name, &self.name);
        lay(&mut config.namespace, &self.namespace);
        lay(&mut config.data_dir, &self.data_dir);
        if !self.endpoints.is_empty() {
            config.endpoints.clone_from(&self.endpoints);
        }
        config.labels.extend(self.labels.iter().cloned());
        for (over, flag) in [
            (&mut config.tls.ca_file, &self.ca_file),
            (&mut config.tls.cert_file, &self.cert_file),
            (&mut config.tls.key_file, &self.key_file),
        ] {
            if flag.is_some() {
                over.clone_from(flag);
            }
        }
        config.tls.insecure_plaintext |= self.insecure_plaintext;
        config.dial_map.extend(self.dial_map.iter().cloned());
        config.store.urls.extend(self.store_urls.iter().cloned());
        if self.credit_rows.is_some() {
            config.credit.rows = self.credit_rows;
        }
        lay(&mut config.compute.provider, &self.compute);
        if self.compute_endpoint.is_some() {
            config.compute.endpoint.clone_from(&self.compute_endpoint);
        }
        if let Some(job) = &self.store_gateway {
            config.store_gateway.get_or_insert_default().job.clone_from(job);
        }
        config.tracing.lay_endpoint(self.otlp_endpoint.as_deref());
        if self.metrics_listen.is_some() {
            config.metrics_listen = self.metrics_listen;
        }
        if let Some(kind) = self.engine {
            let mut engine = EngineConfig::new(kind);
            lay(&mut engine.slots, &self.slots);
            lay(&mut engine.concurrency, &self.concurrency);
            lay(&mut engine.base_url, &self.base_url);
            config.engine = vec![engine];
        }
    }
}
