//! Owns: how a command line finds its cluster: endpoints, TLS files, dial map, namespace, timeout.
//!
//! Invariant: flags override the environment, which overrides the named context, which overrides the batch file, which
//! overrides the current context. TLS is used unless a flag or a file explicitly disables it. If flags specify the
//! cluster and its security, or a batch file names endpoints, the current context is ignored, because it may belong to
//! another cluster.
//! Absent: connecting. The client connects with its first request.

mod context;
mod contexts;
mod duration;
mod no_cluster;
mod wait_notice;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rollout_batch::hint::NAMESPACE_DEFAULT;
pub use rollout_proto::OnWait;
use rollout_proto::{
    Client, ClientConfig, ClientError, DialMap, EndpointError, Security, TlsFiles,
};

use crate::completer::{self, Names};

pub use self::context::{Context, ContextError};
pub use self::contexts::Contexts;
pub use self::duration::parse_duration;

pub const ENDPOINT_DEFAULT: &str = "127.0.0.1:7420";
/// How long a command keeps trying without a leader, by default.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// The flags that every command shares.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Connection")]
pub struct ConnectArgs {
    /// Client address of a member, host:port; repeatable. These are seeds: the cluster supplies the
    /// full list
    #[arg(
        short = 'e',
        long = "endpoint",
        value_name = "HOST:PORT",
        env = "ROLLOUT_ENDPOINTS",
        value_delimiter = ',',
        global = true
    )]
    pub endpoints: Vec<String>,
    /// Name of a context (see `rolloutctl context`), or a context file, such as `rollout dev` writes: endpoints,
    /// ca_file, cert_file and key_file [default: the current context]
    #[arg(
        long,
        value_name = "NAME|FILE",
        env = "ROLLOUT_CONTEXT",
        global = true,
        add = completer::of_contexts_and_files()
    )]
    pub context: Option<PathBuf>,
    /// Certificate authority that signed the members' certificates
    #[arg(
        long = "ca-cert",
        alias = "cacert",
        value_name = "FILE",
        env = "ROLLOUT_CA_CERT",
        global = true
    )]
    pub ca_cert: Option<PathBuf>,
    /// Your certificate
    #[arg(long, value_name = "FILE", env = "ROLLOUT_CERT", global = true)]
    pub cert: Option<PathBuf>,
    /// Your certificate's key
    #[arg(long, value_name = "FILE", env = "ROLLOUT_KEY", global = true)]
    pub key: Option<PathBuf>,
    /// Disable TLS: anyone on the network can read and change all traffic
    #[arg(long, env = "ROLLOUT_INSECURE_PLAINTEXT", global = true)]
    pub insecure_plaintext: bool,
    /// Dial a member at this address instead of its published one; repeatable
    #[arg(
        long = "dial-map",
        value_name = "NAME=HOST:PORT",
        env = "ROLLOUT_DIAL_MAP",
        value_delimiter = ',',
        global = true
    )]
    pub dial_map: Vec<String>,
    /// Time to keep trying while there is no leader, such as 500ms, 30s, 2m [default: 30s]
    #[arg(long, value_name = "TIME", env = "ROLLOUT_TIMEOUT", value_parser = parse_duration, global = true)]
    pub timeout: Option<Duration>,
    /// Namespace in which names are looked up [default: default]
    #[arg(
        short = 'n',
        long,
        value_name = "NAME",
        env = "ROLLOUT_NAMESPACE",
        global = true,
        add = completer::of(Names::Namespaces)
    )]
    pub namespace: Option<String>,
}

/// The endpoints and credentials of the cluster, merged from all sources.
#[derive(Debug, Clone)]
pub struct ConnectSettings {
    /// Client addresses, host:port.
    pub endpoints: Vec<String>,
    /// TLS files, or none.
    pub security: Security,
    /// Addresses by member name.
    pub dial_map: DialMap,
    /// How long to keep trying without a leader.
    pub timeout: Duration,
    /// The namespace of run and worker names.
    pub namespace: String,
}

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The context file is missing or wrong.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// Some of the three TLS files are named, others are not.
    #[error(
        "tls needs {missing} too; give --ca-cert, --cert and --key together, a --context, or --insecure-plaintext"
    )]
    TlsIncomplete {
        /// The flags that are missing.
        missing: String,
    },
    /// Neither a context nor TLS files are named.
    #[error("no cluster is named: {}", no_cluster::advice(dev.as_deref()))]
    NoContext {
        /// The context file of a development cluster in the working directory or above it.
        dev: Option<PathBuf>,
    },
    /// TLS files and plaintext contradict each other.
    #[error("--insecure-plaintext contradicts the TLS files {files}; give one or the other")]
    TlsContradiction {
        /// The files that are named.
        files: String,
    },
    /// An entry of the dial map is not NAME=HOST:PORT.
    #[error(transparent)]
    DialMap(#[from] EndpointError),
    /// The client refuses the settings, for instance a key file that cannot be read.
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl ConnectArgs {
    /// Merges flags and environment with the context file.
    pub fn settings(&self) -> Result<ConnectSettings, ConnectError> {
        self.settings_over(&Context::default())
    }

    /// As [`settings`](Self::settings), with a batch file's settings as a weaker source.
    pub fn settings_over(&self, file: &Context) -> Result<ConnectSettings, ConnectError> {
        let settings = self.settings_among(file, Contexts::path().as_deref());
        settings.map_err(|error| match error {
            ConnectError::NoContext { .. } => {
                let here = std::env::current_dir().ok();
                let program = std::env::args_os().next();
                let near = |dir| no_cluster::dev_context(dir, program.as_deref());
                ConnectError::NoContext { dev: here.as_deref().and_then(near) }
            }
            error => error,
        })
    }

    /// As [`settings_over`](Self::settings_over), with the file of contexts at `contexts_at`.
    fn settings_among(
        &self,
        file: &Context,
        contexts_at: Option<&Path>,
    ) -> Result<ConnectSettings, ConnectError> {
        let base = match self.context.as_deref() {
            Some(wanted) => contexts::load(Some(wanted), contexts_at)?.over(file),
            None if self.is_complete() || !file.endpoints.is_empty() => file.clone(),
            // A batch file's settings override the current context.
            None => file.clone().over(&contexts::load(None, contexts_at)?),
        };
        let endpoints = first_filled([&self.endpoints, &base.endpoints])
            .unwrap_or_else(|| vec![ENDPOINT_DEFAULT.to_owned()]);
        let dial = first_filled([&self.dial_map, &base.dial_map]).unwrap_or_default();
        Ok(ConnectSettings {
            endpoints,
            security: self.security(&base)?,
            dial_map: DialMap::from_entries(&dial)?,
            timeout: self.timeout.unwrap_or(TIMEOUT_DEFAULT),
            namespace: self
                .namespace
                .clone()
                .or(base.namespace)
                .unwrap_or_else(|| NAMESPACE_DEFAULT.to_owned()),
        })
    }

    /// Whether flags alone specify the cluster and its security, so that the current context does not matter.
    fn is_complete(&self) -> bool {
        let files = [&self.ca_cert, &self.cert, &self.key].iter().all(|file| file.is_some());
        !self.endpoints.is_empty() && (files || self.insecure_plaintext)
    }

    /// A client for these flags. `on_wait` is called with what it waits for.
    pub fn client(&self, on_wait: Option<OnWait>) -> Result<Client, ConnectError> {
        self.settings()?.client(on_wait)
    }

    fn security(&self, base: &Context) -> Result<Security, ConnectError> {
        let given = [&self.ca_cert, &self.cert, &self.key];
        if self.insecure_plaintext {
            // The flag overrides a context's files; files given beside the flag contradict it.
            let files: Vec<String> = given
                .iter()
                .filter_map(|file| file.as_ref())
                .map(|file| file.display().to_string())
                .collect();
            return match files.is_empty() {
                true => Ok(Security::InsecurePlaintext),
                false => Err(ConnectError::TlsContradiction { files: files.join(", ") }),
            };
        }
        let pick = |flag: &Option<PathBuf>, file: &Option<PathBuf>| flag.clone().or(file.clone());
        let ca = pick(&self.ca_cert, &base.ca_file);
        let cert = pick(&self.cert, &base.cert_file);
        let key = pick(&self.key, &base.key_file);
        if base.insecure_plaintext && given.iter().all(|file| file.is_none()) {
            return Ok(Security::InsecurePlaintext);
        }
        match (ca, cert, key) {
            (Some(ca), Some(cert), Some(key)) => Ok(Security::Mtls(TlsFiles { ca, cert, key })),
            (None, None, None) => Err(ConnectError::NoContext { dev: None }),
            (ca, cert, key) => {
                let missing = [("--ca-cert", ca), ("--cert", cert), ("--key", key)]
                    .into_iter()
                    .filter(|(_, file)| file.is_none())
                    .map(|(flag, _)| flag)
                    .collect::<Vec<_>>()
                    .join(", ");
                Err(ConnectError::TlsIncomplete { missing })
            }
        }
    }
}

impl ConnectSettings {
    /// A client with these settings. It connects with its first request. Without an `on_wait`, a longer wait is
    /// reported on stderr, once.
    pub fn client(&self, on_wait: Option<OnWait>) -> Result<Client, ConnectError> {
        Ok(Client::new(ClientConfig { end_where_refused: true, ..self.config(on_wait) })?)
    }

    /// As [`client`](Self::client), for a process that serves others and outlives the replacement of an authority.
    pub fn lasting_client(&self, on_wait: Option<OnWait>) -> Result<Client, ConnectError> {
        Ok(Client::new(self.config(on_wait))?)
    }

    fn config(&self, on_wait: Option<OnWait>) -> ClientConfig {
        let mut config = ClientConfig::new(self.endpoints.clone(), self.security.clone());
        config.dial_map = self.dial_map.clone();
        config.timeout = self.timeout;
        config.members_file = self.members_file();
        config.follow_restored = true;
        config.on_wait = Some(on_wait.unwrap_or_else(wait_notice::on_stderr));
        config
    }

    /// The cache file of the last member list from these seeds, which lets the next call find a cluster whose members
    /// have all moved. Clusters are distinguished by their authority, so without one, or without a cache directory,
    /// nothing is cached.
    fn members_file(&self) -> Option<PathBuf> {
        let Security::Mtls(files) = &self.security else { return None };
        let authority = std::fs::read(&files.ca).ok()?;
        let cache = match std::env::var_os("XDG_CACHE_HOME") {
            Some(dir) if Path::new(&dir).is_absolute() => PathBuf::from(dir),
            _ => Path::new(&std::env::var_os("HOME")?).join(".cache"),
        };
        let mut seeds = self.endpoints.clone();
        seeds.sort_unstable();
        let mut hasher = blake3::Hasher::new();
        hasher.update(seeds.join("\n").as_bytes()).update(b"\n").update(&authority);
        let digest = hasher.finalize().to_hex();
        let dir = cache.join("rollout");
        // Without it the seeds find the cluster, as the first time.
        std::fs::create_dir_all(&dir).ok()?;
        Some(dir.join(format!("members-{}", &digest[..16])))
    }
}

fn first_filled(lists: [&Vec<String>; 2]) -> Option<Vec<String>> {
    lists.into_iter().find(|list| !list.is_empty()).cloned()
}

#[cfg(test)]
mod tests;
