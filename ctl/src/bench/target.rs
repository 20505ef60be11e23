//! The cluster under measurement: a temporary one, or one that is already running.
//!
//! Invariant: a temporary cluster is three members as `rollout dev` starts them, from binaries of the same build, and
//! leaves nothing behind. A running one is a `rollout dev` cluster: its directory has the authority that signs the
//! load's workers and the PIDs of its members.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use rollout_proto::{Client, ClientConfig, Role, Security};
use tempfile::TempDir;

use crate::connect::ConnectArgs;
use crate::dev::cluster::DevCluster;
use crate::dev::layout::Layout;
use crate::dev::pids::Pids;
use crate::dev::{DevArgs, identity, ready};
use crate::stdio::print_note;

/// Where the cluster's files are put.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct TargetArgs {
    /// Directory for the data of the cluster that is started, on the disk to be measured
    /// [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
}

/// The cluster under measurement.
pub(in crate::bench) struct Target {
    layout: Layout,
    own: Option<DevCluster>,
    endpoints: Vec<String>,
    admin: Client,
    _dir: Option<TempDir>,
}

impl Target {
    /// Uses the running cluster that `--context` names, or starts one.
    pub(in crate::bench) async fn open(
        connect: &ConnectArgs,
        args: &TargetArgs,
    ) -> anyhow::Result<Self> {
        match &connect.context {
            Some(context) => Self::running(connect, context),
            None => Self::start(args.work_dir.as_deref()).await,
        }
    }

    async fn start(work_dir: Option<&Path>) -> anyhow::Result<Self> {
        let base = work_dir.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let dir = tempfile::Builder::new()
            .prefix("rollout-bench-")
            .tempdir_in(&base)
            .with_context(|| format!("cannot use {}", base.display()))?;
        let mut cluster = DevCluster::prepare(&DevArgs::members_alone(dir.path().to_owned(), 3))?;
        print_note(format_args!("starting three members in {}", cluster.layout().root().display()));
        ready::start_members(&mut cluster).await?;
        let admin = ready::client(&cluster, cluster.admin())?;
        let endpoints = admin.config().endpoints.clone();
        let layout = cluster.layout().clone();
        Ok(Self { layout, own: Some(cluster), endpoints, admin, _dir: Some(dir) })
    }

    fn running(connect: &ConnectArgs, context: &Path) -> anyhow::Result<Self> {
        let dir =
            context.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let layout = Layout::existing(dir)
            .with_context(|| format!("there is no directory {}", dir.display()))?;
        if !layout.saved().is_file() {
            bail!(
                "{} is not a context of a `rollout dev` cluster; the benchmark needs that cluster's authority",
                context.display()
            );
        }
        let settings = connect.settings()?;
        let admin = Client::new(ClientConfig {
            dial_map: settings.dial_map.clone(),
            ..ClientConfig::new(settings.endpoints.clone(), settings.security)
        })?;
        Ok(Self { layout, own: None, endpoints: settings.endpoints, admin, _dir: None })
    }

    /// A client with an admin's certificate.
    pub(in crate::bench) fn admin(&self) -> &Client {
        &self.admin
    }

    /// The members' client addresses.
    pub(in crate::bench) fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Another client with an admin's certificate and its own connections.
    pub(in crate::bench) fn another_admin(&self) -> anyhow::Result<Client> {
        Ok(Client::new(self.admin.config().clone())?)
    }

    /// The label that separates the load from the other workers of an existing cluster.
    pub(in crate::bench) fn label(&self) -> Option<String> {
        self.own.is_none().then(|| format!("{:016x}", rand::random::<u64>()))
    }

    /// Where the cluster's files are.
    pub(in crate::bench) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// A client with the certificate of a worker, issued for it.
    pub(in crate::bench) fn worker(&self, name: &str) -> anyhow::Result<Client> {
        let files = identity(&self.layout, Role::Worker, name)?;
        Ok(Client::new(ClientConfig::new(self.endpoints.clone(), Security::Mtls(files)))?)
    }

    /// Sends a member a signal that ends it. In a running cluster `rollout dev` starts it again.
    pub(in crate::bench) fn signal_member(
        &self,
        name: &str,
        signal: libc::c_int,
    ) -> anyhow::Result<()> {
        if let Some(cluster) = &self.own {
            let sent = cluster.signal(name, signal);
            return sent.map(drop).with_context(|| format!("member {name} does not run"));
        }
        let pids = Pids::load(&self.layout)?.unwrap_or_default();
        let Some(pid) = pids.members.get(name).filter(|pid| **pid > 1) else {
            bail!("{} names no process of member {name}", self.layout.pids().display());
        };
        // SAFETY: kill has no memory effects; the pid is from the file of the cluster that answers.
        match unsafe { libc::kill(pid.cast_signed(), signal) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()).context(format!("cannot signal pid {pid}")),
        }
    }

    /// Starts a member again after it was ended, once it is gone. Does nothing for an existing cluster.
    pub(in crate::bench) fn revive_member(&mut self, name: &str) -> anyhow::Result<bool> {
        let Some(cluster) = &mut self.own else { return Ok(true) };
        cluster.reap()?;
        let gone = cluster.processes().iter().any(|p| p.name == name && p.pid().is_none());
        if gone {
            cluster.start(name)?;
        }
        Ok(gone)
    }

    /// Fails if a member ended that the benchmark did not kill.
    pub(in crate::bench) fn check_alive(&mut self) -> anyhow::Result<()> {
        let Some(cluster) = &mut self.own else { return Ok(()) };
        if let Some(exit) = cluster.reap()?.into_iter().next() {
            let log = cluster.layout().log(&exit.name);
            bail!(
                "member {} ended with {}; the end of its log:\n{}",
                exit.name,
                crate::dev::process::describe_exit(exit.status),
                crate::dev::process::log_tail(&log, 20)
            );
        }
        Ok(())
    }

    /// Stops everything that was started here.
    pub(in crate::bench) async fn close(mut self) -> anyhow::Result<()> {
        if let Some(cluster) = &mut self.own {
            cluster.stop().await?;
        }
        Ok(())
    }
}
