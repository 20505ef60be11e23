//! The processes of a development cluster: prepared, started, killed, stopped.
//!
//! Invariant: one `DevCluster` at a time uses a directory (it holds the lock), and a child is signaled only until it
//! has been waited for. Absent: whether to restart a dead process (see `supervise`) and the cluster's
//! view of itself (see `ready`).

use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rollout_proto::programs::{self, Program};
use rollout_proto::{Role, Security};

use super::args::DevArgs;
use super::layout::Layout;
use super::pids::{DirLock, Pids};
use super::process::{self, Launcher};
use super::saved_settings::{Saved, write_atomically};
use super::{certs, config};

const STOP_WORKERS: Duration = Duration::from_secs(15);
const STOP_MEMBERS: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// The kind of a process of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A coordinator replica.
    Member,
    /// An agent with slots.
    Worker,
}

impl Kind {
    /// The word that commands print.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Member => "member",
            Self::Worker => "worker",
        }
    }
}

/// One process, running or not.
#[derive(Debug)]
pub struct Process {
    /// `c1`, `w1`, ...
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// When it was last started.
    pub started: Option<Instant>,
    child: Option<Child>,
}

impl Process {
    /// Its PID while it runs, as of the last check.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }
}

/// The end of a process.
#[derive(Debug)]
pub struct Exit {
    pub name: String,
    pub kind: Kind,
    /// The PID that it had.
    pub pid: u32,
    /// How it ended.
    pub status: ExitStatus,
    /// How long it had run.
    pub ran: Duration,
}

/// A cluster of local processes. Dropping it kills them.
#[derive(Debug)]
pub struct DevCluster {
    layout: Layout,
    saved: Saved,
    processes: Vec<Process>,
    launcher: Launcher,
    coordinator: Program,
    worker: Option<Program>,
    ready: bool,
    _lock: DirLock,
}

impl DevCluster {
    /// Claims the directory, and writes certificates, configs and contexts. Starts nothing.
    ///
    /// # Errors
    /// Another `rollout dev` uses the directory, the flags contradict it, or a file cannot be written.
    pub fn prepare(args: &DevArgs) -> anyhow::Result<Self> {
        let layout = Layout::open(&args.dir)
            .with_context(|| format!("cannot use the directory {}", args.dir.display()))?;
        let lock = DirLock::take(&layout)?;
        let coordinator = programs::find("rollout-coordinator")?;
        let worker = match args.workers {
            0 => None,
            _ => Some(programs::find("rollout-worker")?),
        };
        let saved = Saved::load_or_create(&layout, args)?;
        write_files(&layout, &saved, args)?;
        let member_names = saved.members.iter().map(|member| (member.name.clone(), Kind::Member));
        let worker_names = (1..=args.workers).map(|at| (format!("w{at}"), Kind::Worker));
        let processes = member_names
            .chain(worker_names)
            .map(|(name, kind)| Process { name, kind, started: None, child: None })
            .collect();
        let launcher = Launcher::start().context("cannot start a thread")?;
        let ready = false;
        Ok(Self { layout, saved, processes, launcher, coordinator, worker, ready, _lock: lock })
    }

    /// Where everything is.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Members and ports.
    pub fn saved(&self) -> &Saved {
        &self.saved
    }

    pub fn processes(&self) -> &[Process] {
        &self.processes
    }

    /// The credentials of the admin `dev`.
    pub fn admin(&self) -> Security {
        Security::Mtls(self.layout.tls_files("admin", certs::PERSON))
    }

    /// Records that the cluster was formed.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn set_bootstrapped(&mut self) -> anyhow::Result<()> {
        self.saved.bootstrapped = true;
        self.saved.save(&self.layout)
    }

    /// Records in `pids.json` that the cluster serves.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set_ready(&mut self) -> anyhow::Result<()> {
        self.ready = true;
        self.save_pids()
    }

    /// Starts every process of a kind that is not running.
    ///
    /// # Errors
    /// A process cannot be started.
    pub fn start_all(&mut self, kind: Kind) -> anyhow::Result<()> {
        let names: Vec<String> = self
            .processes
            .iter()
            .filter(|process| process.kind == kind && process.child.is_none())
            .map(|process| process.name.clone())
            .collect();
        names.iter().try_for_each(|name| self.start(name).map(drop))
    }

    /// Starts one process, and returns its PID.
    ///
    /// # Errors
    /// It is already running or unknown, or its binary cannot be started.
    pub fn start(&mut self, name: &str) -> anyhow::Result<u32> {
        let log = self.layout.log(name);
        let config = self.layout.config(name);
        let Some(process) = self.processes.iter_mut().find(|process| process.name == name) else {
            bail!("there is no process {name}");
        };
        if process.child.is_some() {
            bail!("{name} runs already");
        }
        let program = match (process.kind, &self.worker) {
            (Kind::Member, _) => &self.coordinator,
            (Kind::Worker, Some(worker)) => worker,
            (Kind::Worker, None) => bail!("there is no worker binary"),
        };
        let named = program.name.map(Path::new).into_iter();
        let arguments: Vec<&Path> = named.chain([Path::new("--config"), &config]).collect();
        let child = self.launcher.spawn(&program.path, &arguments, &log)?;
        let pid = child.id();
        process.child = Some(child);
        process.started = Some(Instant::now());
        self.save_pids()?;
        Ok(pid)
    }

    /// Sends a signal to one process, and returns its PID; `None` if it is not running.
    pub fn signal(&self, name: &str, signal: libc::c_int) -> Option<u32> {
        let process = self.processes.iter().find(|process| process.name == name)?;
        let child = process.child.as_ref()?;
        process::signal(child, signal);
        Some(child.id())
    }

    /// The processes that ended since the last call. Does not wait.
    ///
    /// # Errors
    /// `pids.json` cannot be written.
    pub fn reap(&mut self) -> anyhow::Result<Vec<Exit>> {
        let mut exits = Vec::new();
        for process in &mut self.processes {
            let Some(child) = &mut process.child else { continue };
            if let Some(status) = child.try_wait().context("cannot wait for a child")? {
                let pid = child.id();
                process.child = None;
                exits.push(Exit {
                    name: process.name.clone(),
                    kind: process.kind,
                    pid,
                    status,
                    ran: process.started.map_or(Duration::ZERO, |started| started.elapsed()),
                });
            }
        }
        if !exits.is_empty() {
            self.save_pids()?;
        }
        Ok(exits)
    }

    /// Stops everything: workers first, so that they can deregister at a leader; SIGTERM, then SIGKILL for processes
    /// that have not ended in time. Returns the names of the killed ones.
    ///
    /// # Errors
    /// Waiting for a child failed.
    pub async fn stop(&mut self) -> anyhow::Result<Vec<String>> {
        let mut killed = Vec::new();
        for (kind, patience) in [(Kind::Worker, STOP_WORKERS), (Kind::Member, STOP_MEMBERS)] {
            self.signal_all(kind, libc::SIGTERM);
            if !self.wait_gone(kind, patience).await? {
                killed.extend(self.running(kind));
                self.signal_all(kind, libc::SIGKILL);
                self.wait_gone(kind, patience).await?;
            }
        }
        self.ready = false;
        self.save_pids()?;
        Ok(killed)
    }

    async fn wait_gone(&mut self, kind: Kind, patience: Duration) -> anyhow::Result<bool> {
        let deadline = Instant::now() + patience;
        loop {
            self.reap()?;
            if self.running(kind).is_empty() {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn running(&self, kind: Kind) -> Vec<String> {
        self.processes
            .iter()
            .filter(|process| process.kind == kind && process.child.is_some())
            .map(|process| process.name.clone())
            .collect()
    }

    fn signal_all(&self, kind: Kind, signal: libc::c_int) {
        for process in self.processes.iter().filter(|process| process.kind == kind) {
            if let Some(child) = &process.child {
                process::signal(child, signal);
            }
        }
    }

    fn save_pids(&self) -> anyhow::Result<()> {
        let of = |kind: Kind| {
            self.processes
                .iter()
                .filter(|process| process.kind == kind)
                .filter_map(|process| Some((process.name.clone(), process.pid()?)))
                .collect()
        };
        let (members, workers) = (of(Kind::Member), of(Kind::Worker));
        Pids { dev: std::process::id(), ready: self.ready, members, workers }.save(&self.layout)
    }
}

/// Writes the files that every process reads at its start: certificates, its config, the contexts.
fn write_files(layout: &Layout, saved: &Saved, args: &DevArgs) -> anyhow::Result<()> {
    certs::authority(layout)?;
    for member in &saved.members {
        let files = certs::identity(layout, Role::Member, &member.name)?;
        let text = config::coordinator(layout, member, &files)?;
        write_atomically(&layout.config(&member.name), text.as_bytes())?;
        std::fs::create_dir_all(layout.data(&member.name))?;
    }
    for at in 1..=args.workers {
        let name = format!("w{at}");
        let files = certs::identity(layout, Role::Worker, &name)?;
        let text = config::worker(layout, saved, args, &name, &files)?;
        write_atomically(&layout.config(&name), text.as_bytes())?;
        std::fs::create_dir_all(layout.data(&name))?;
    }
    for (role, context) in [(Role::Client, "client"), (Role::Admin, "admin")] {
        let files = certs::identity(layout, role, certs::PERSON)?;
        let text = config::context(saved, &files)?;
        write_atomically(&layout.context(context), text.as_bytes())?;
    }
    Ok(())
}
