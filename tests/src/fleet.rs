//! Three members and some workers, as their users start them.
//!
//! *Invariant:* a fleet whose test does not end with [`Fleet::passed`] leaves its directory, logs and
//! last state included, and prints where that is: an error and a panic alike can be read afterwards.

mod enrolment;
mod golden;
mod membership;

use crate::clocks::Clocks;
use crate::cut::{Cut, Link};
use crate::http;
use crate::preload;
use crate::process::{self, Process};
use crate::s3::S3;
use crate::wait::eventually;
use anyhow::{Context, Result, bail};
use rollout_proto::pki::{self, IssueRequest};
use rollout_proto::{Client, ClientConfig, Role, Security, TlsFiles};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a healthy fleet may take for anything, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long one of our commands may take before the test gives it up.
const COMMAND_MAX: Duration = Duration::from_secs(120);

/// Ports that tests choose from, upwards from 10,000: below those that Linux hands out.
const PORTS: u32 = 22_000;

/// What a fleet is made of.
#[derive(Clone, Default)]
pub struct FleetOptions {
    /// Lines added to every member's configuration, by section: `("worker", "failure_ms = 1500")`.
    pub member_lines: Vec<(&'static str, &'static str)>,
    /// Every link between members, and from each worker to each member, goes through a proxy.
    pub cuttable: bool,
    /// Each process has a wall clock of its own: see [`Fleet::set_clock`].
    pub clocks: bool,
    /// The most files that each member may have open.
    pub open_files: Option<u64>,
    /// One member instead of three. It begins with the data and objects in this directory, where it is there, and is found by
    /// its name wherever it listens.
    pub alone: Option<PathBuf>,
    /// The object store, with credentials for each process; none: a directory that all of them see.
    pub s3: Option<Arc<S3>>,
    /// Members certify newcomers, each time for so many seconds.
    pub enrolment_lifetime_s: Option<u64>,
}

/// What a worker is made of.
#[derive(Clone)]
pub struct WorkerOptions {
    /// Lines of its `[[engine]]` section.
    pub engine: String,
    /// Further lines before it.
    pub head: String,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        let engine = "kind = \"mock\"\nslots = 2\nconcurrency = 32\n".into();
        Self { engine, head: String::new() }
    }
}

struct Member {
    name: String,
    client: String,
    peer: String,
    http: String,
    process: Option<Process>,
}

/// A running fleet in a directory of its own.
#[must_use = "end the test with `passed`, which removes the fleet's directory"]
pub struct Fleet {
    dir: TempDir,
    passed: bool,
    bin: PathBuf,
    options: FleetOptions,
    clocks: Option<Clocks>,
    /// Variables of the preloaded library, by the process's name.
    preloads: BTreeMap<String, BTreeMap<&'static str, PathBuf>>,
    members: Vec<Member>,
    workers: BTreeMap<String, Option<Process>>,
    /// Where each member certifies newcomers.
    desks: BTreeMap<String, String>,
    /// Cuts by the pair of names, from whom to whom, when the fleet is cuttable.
    cuts: BTreeMap<(String, String), (Cut, Link)>,
}

/// Where cargo put the binaries: beside this one, or beside the directory of the tests.
fn bin_dir() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let mut dirs = exe.ancestors().skip(1).take(2);
    let dir = dirs.find(|dir| dir.join("rollout-coordinator").exists());
    Ok(dir.context("build the binaries first: cargo build --workspace --bins")?.to_owned())
}

/// A program of ours, without arguments and without a fleet.
///
/// # Errors
/// When the binaries were not built.
pub fn program(name: &str) -> Result<Command> {
    Ok(Command::new(bin_dir()?.join(name)))
}

/// An address of loopback that nobody listens on. Not one that the system hands out by itself: those may be
/// taken by an outgoing connection before the process that is told of it listens.
///
/// # Errors
/// When there is none.
pub fn free_addr() -> Result<String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..PORTS {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + (std::process::id().wrapping_mul(211).wrapping_add(next)) % PORTS;
        let addr = format!("127.0.0.1:{port}");
        if TcpListener::bind(&addr).is_ok() {
            return Ok(addr);
        }
    }
    bail!("no port of loopback is free")
}

impl Fleet {
    /// Starts three members and makes them a cluster.
    ///
    /// # Errors
    /// When something cannot be started; the logs are in the error.
    pub fn start(options: FleetOptions) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("rollout-fleet-").tempdir()?;
        let clocks = match options.clocks {
            true => Some(Clocks::new(dir.path().join("clocks"))?),
            false => None,
        };
        let mut fleet = Self {
            bin: bin_dir()?,
            dir,
            clocks,
            preloads: BTreeMap::new(),
            passed: false,
            options,
            members: Vec::new(),
            workers: BTreeMap::new(),
            desks: BTreeMap::new(),
            cuts: BTreeMap::new(),
        };
        pki::init_ca(&fleet.path("ca"), "fleet")?;
        let names: &[&str] = match fleet.options.alone {
            Some(_) => &["c1"],
            None => &["c1", "c2", "c3"],
        };
        fleet.open_desks(names)?;
        for name in names {
            let (client, peer) = (free_addr()?, free_addr()?);
            fleet.members.push(Member {
                name: (*name).into(),
                client,
                peer,
                http: String::new(),
                process: None,
            });
        }
        let formed = fleet.take_over()?;
        for name in fleet.member_names() {
            fleet.issue(Role::Member, &name)?;
            fleet.start_member(&name)?;
        }
        fleet.issue(Role::Client, "user")?;
        fleet.issue(Role::Admin, "operator")?;
        fleet.write_context("user", "client-user")?;
        fleet.write_context("operator", "admin-operator")?;
        if !formed {
            fleet.bootstrap()?;
        }
        Ok(fleet)
    }

    /// A path in the fleet's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The names of the members.
    pub fn member_names(&self) -> Vec<String> {
        self.members.iter().map(|m| m.name.clone()).collect()
    }

    fn member(&self, name: &str) -> &Member {
        self.members.iter().find(|m| m.name == name).expect("a member's name")
    }

    fn member_mut(&mut self, name: &str) -> &mut Member {
        self.members.iter_mut().find(|m| m.name == name).expect("a member's name")
    }

    fn issue(&self, role: Role, name: &str) -> Result<TlsFiles> {
        let request = IssueRequest {
            role,
            name: name.into(),
            namespaces: Vec::new(),
            dns_names: vec!["localhost".into()],
            ip_addrs: vec![[127, 0, 0, 1].into()],
            days: 2,
        };
        Ok(pki::issue(&self.path("ca"), &request, &self.path("tls"))?)
    }

    /// A worker's certificate, for a test that speaks as a worker of that name.
    ///
    /// # Errors
    /// When it cannot be issued.
    pub fn certify_worker(&self, name: &str) -> Result<Security> {
        self.issue(Role::Worker, name)?;
        Ok(self.security("worker", name))
    }

    /// What a program of the test's own shows as its certificate: of one of the fleet's processes,
    /// by its role and name.
    pub fn security(&self, role: &str, name: &str) -> Security {
        let file = |end: &str| self.path("tls").join(format!("{role}-{name}.{end}"));
        Security::Mtls(TlsFiles {
            ca: self.path("tls").join("ca.pem"),
            cert: file("pem"),
            key: file("key"),
        })
    }

    /// A client of the members that there are now, which waits for a leader as long as a command may take.
    ///
    /// # Errors
    /// When it has no certificate that it can use.
    pub fn client(&self, role: &str, name: &str) -> Result<Client> {
        let endpoints = self.members.iter().map(|m| m.client.clone()).collect();
        let mut config = ClientConfig::new(endpoints, self.security(role, name));
        config.timeout = COMMAND_MAX;
        Ok(Client::new(config)?)
    }

    fn tls_lines(&self, stem: &str) -> String {
        let dir = self.path("tls");
        let (ca, dir) = (dir.join("ca.pem"), dir.display());
        format!(
            "ca_file = {ca:?}\ncert_file = \"{dir}/{stem}.pem\"\nkey_file = \"{dir}/{stem}.key\"\n"
        )
    }

    fn write_context(&self, name: &str, stem: &str) -> Result<()> {
        let endpoints: Vec<&str> = self.members.iter().map(|m| m.client.as_str()).collect();
        let named = |m: &Member| format!("{}={}", m.name, m.client);
        let dial_map: Vec<String> = match self.options.alone {
            Some(_) => self.members.iter().map(named).collect(),
            None => Vec::new(),
        };
        let tls = self.tls_lines(stem);
        let text = format!("endpoints = {endpoints:?}\ndial_map = {dial_map:?}\n{tls}");
        Ok(std::fs::write(self.path(&format!("{name}.toml")), text)?)
    }

    /// The link from one process to another's port, through a proxy where the fleet is cuttable.
    fn link(&mut self, from: &str, to: &str, addr: String) -> Result<String> {
        if !self.options.cuttable {
            return Ok(addr);
        }
        let key = (from.to_owned(), to.to_owned());
        if !self.cuts.contains_key(&key) {
            let cut = Cut::default();
            let link = Link::start(addr, cut.clone())?;
            self.cuts.insert(key.clone(), (cut, link));
        }
        Ok(self.cuts[&key].1.addr.clone())
    }

    /// Cuts, or heals, everything between two names, both ways.
    pub fn set_cut(&self, a: &str, b: &str, cut: bool) {
        for key in [(a.to_owned(), b.to_owned()), (b.to_owned(), a.to_owned())] {
            if let Some((link, _)) = self.cuts.get(&key) {
                if cut { link.cut() } else { link.heal() }
            }
        }
    }

    /// Gives the command of a process, by its name, what it preloads.
    fn preload_into(&self, command: &mut Command, name: &str) -> Result<()> {
        for (variable, value) in self.preloads.get(name).into_iter().flatten() {
            preload::give(command, variable, value)?;
        }
        self.clocks.as_ref().map_or(Ok(()), |clocks| clocks.give(command, name))
    }

    /// From its next start a member or a worker loads the library `rollout-preload` with this variable.
    pub fn preload(&mut self, name: &str, variable: &'static str, value: PathBuf) {
        self.preloads.entry(name.into()).or_default().insert(variable, value);
    }

    /// Sets the wall clock of a member or a worker, running or not, so many seconds ahead of the real one;
    /// negative: behind.
    ///
    /// # Errors
    /// When the fleet has no clocks of its own, or one cannot be set.
    pub fn set_clock(&self, name: &str, ahead_s: i64) -> Result<()> {
        self.clocks.as_ref().context("the fleet was started without clocks")?.set(name, ahead_s)
    }

    /// `rolloutctl` without a context, on a host of this name: with the wall clock of that name.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn ctl_at(&self, host: &str, args: &[&str]) -> Result<Output> {
        let mut command = self.program("rolloutctl");
        command.args(args);
        self.preload_into(&mut command, host)?;
        process::output(command, COMMAND_MAX)
    }

    /// The object store's URL.
    pub fn store_url(&self) -> String {
        match &self.options.s3 {
            Some(s3) => s3.url(),
            None => format!("file://{}", self.path("store").display()),
        }
    }

    /// The folder of a run's objects in the store, which is a file system here, as soon as there is one.
    pub fn objects_of(&self, run: &str) -> PathBuf {
        let of_the_name = self.path(&format!("store/runs/default/{run}"));
        eventually("the run has a folder", Duration::from_secs(60), || {
            let mut folders = std::fs::read_dir(&of_the_name).ok()?;
            folders.find_map(|folder| Some(folder.ok()?.path()).filter(|path| path.is_dir()))
        })
    }

    /// The same for a program of a test.
    pub fn use_store(&self, command: &mut Command, name: &str) {
        self.store_into(command, name);
    }

    /// A file that cargo put beside the binaries, if it is there.
    pub fn built(&self, file: &str) -> Option<PathBuf> {
        Some(self.bin.join(file)).filter(|path| path.exists())
    }

    /// Gives the command of a process, by its name, what it needs to use the store.
    fn store_into(&self, command: &mut Command, name: &str) {
        if let Some(s3) = &self.options.s3 {
            command.envs(s3.env(name));
        }
    }

    /// Starts a member, for the first time or again.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_member(&mut self, name: &str) -> Result<()> {
        if self.options.s3.is_none() {
            std::fs::create_dir_all(self.path("store"))?;
        }
        let others: Vec<(String, String)> = self
            .members
            .iter()
            .filter(|m| m.name != name)
            .map(|m| (m.name.clone(), m.peer.clone()))
            .collect();
        let mut dial_map = String::new();
        for (other, peer) in others {
            let addr = self.link(name, &other, peer)?;
            writeln!(dial_map, "{other} = {addr:?}")?;
        }
        let member = self.member(name);
        let (client, peer) = (member.client.clone(), member.peer.clone());
        let http = free_addr()?;
        let mut text = format!(
            "name = {name:?}\ndata_dir = {:?}\n[listen]\nclient = {client:?}\npeer = {peer:?}\n\
             http = {http:?}\n[tls]\n{}[store]\nurl = {:?}\n",
            self.path(name),
            self.tls_lines(&format!("member-{name}")),
            self.store_url(),
        );
        if self.options.cuttable {
            write!(text, "[dial_map]\n{dial_map}")?;
        }
        let mut sections: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (section, line) in &self.options.member_lines {
            sections.entry(section).or_default().push(line);
        }
        for (section, lines) in sections {
            write!(text, "[{section}]\n{}\n", lines.join("\n"))?;
        }
        text.push_str(&self.desk_lines(name));
        let config = self.path(&format!("{name}.toml"));
        std::fs::write(&config, text)?;
        let mut command = Command::new(self.bin.join("rollout-coordinator"));
        command.arg("--config").arg(&config);
        self.preload_into(&mut command, name)?;
        self.store_into(&mut command, name);
        if let Some(files) = self.options.open_files {
            process::limit_open_files(&mut command, files);
        }
        let process = Process::start(command, &self.path(&format!("{name}.log")))?;
        let member = self.member_mut(name);
        (member.process, member.http) = (Some(process), http);
        Ok(())
    }

    fn bootstrap(&self) -> Result<()> {
        let mut args = vec!["cluster".to_owned(), "bootstrap".to_owned()];
        for m in &self.members {
            args.push("--member".into());
            args.push(format!("{}={},{},z{}", m.name, m.peer, m.client, m.name));
        }
        args.extend(["--store".into(), self.store_url()]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        // Members that do not listen yet are a reason to try again, and the repeat is harmless.
        let mut last = String::new();
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let out = self.ctl(&args)?;
            if out.status.success() {
                return Ok(());
            }
            last = String::from_utf8_lossy(&out.stderr).into_owned();
            std::thread::sleep(Duration::from_millis(50)); // The poll; the condition decides.
        }
        bail!("bootstrap: {last}{}", self.logs())
    }

    /// Forms another cluster of the same members: all their data is gone.
    ///
    /// # Errors
    /// When a member cannot be stopped, emptied or started.
    pub fn rebuild(&mut self) -> Result<()> {
        for name in self.member_names() {
            self.member_mut(&name).process = None;
            std::fs::remove_dir_all(self.data_dir(&name))?;
        }
        for name in self.member_names() {
            self.start_member(&name)?;
        }
        self.bootstrap()
    }

    /// The last lines of every log, for an error's sake.
    pub fn logs(&self) -> String {
        let mut text = String::new();
        for entry in std::fs::read_dir(self.dir.path()).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|e| e == "log") {
                let log = std::fs::read_to_string(entry.path()).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let last = lines[lines.len().saturating_sub(15)..].join("\n");
                let _ = write!(text, "\n--- {}\n{last}", entry.path().display());
            }
        }
        text
    }

    /// Who leads, and where every run and worker is, as the operator is told.
    pub fn state(&self) -> String {
        let mut text = String::new();
        for args in [&["status"][..], &["run", "list"], &["worker", "list"]] {
            let _ = writeln!(text, "$ rolloutctl {}", args.join(" "));
            match self.ctl(&[&["--timeout", "3s"], args].concat()) {
                Ok(out) => [out.stdout, out.stderr]
                    .iter()
                    .for_each(|part| text.push_str(&String::from_utf8_lossy(part))),
                Err(error) => {
                    let _ = writeln!(text, "{error:#}");
                }
            }
        }
        text
    }

    /// Ends a test that went well: everything is stopped, and the directory removed.
    ///
    /// # Errors
    /// Never; it is what such a test returns.
    pub fn passed(mut self) -> Result<()> {
        self.passed = true;
        Ok(())
    }

    /// Runs `rolloutctl` as the operator.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn ctl(&self, args: &[&str]) -> Result<Output> {
        let mut command = Command::new(self.bin.join("rolloutctl"));
        command.arg("--context").arg(self.path("operator.toml")).args(args);
        self.store_into(&mut command, "operator");
        process::output(command, COMMAND_MAX)
    }

    /// Runs `rolloutctl -o json` and returns the `data` of what it prints.
    ///
    /// # Errors
    /// When it fails or prints no JSON.
    pub fn ctl_json(&self, args: &[&str]) -> Result<Value> {
        let mut all = vec!["-o", "json"];
        all.extend(args);
        let out = self.ctl(&all)?;
        let text = String::from_utf8_lossy(&out.stdout);
        let value: Value = serde_json::from_str(&text)
            .with_context(|| format!("{args:?}: {text}{}", String::from_utf8_lossy(&out.stderr)))?;
        Ok(value.get("data").cloned().unwrap_or(value))
    }

    /// A command of `rollout`, as the user.
    pub fn rollout(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.bin.join("rollout"));
        command.env("ROLLOUT_CONTEXT", self.path("user.toml")).args(args);
        self.store_into(&mut command, "user");
        command
    }

    /// Starts a worker, for the first time or again.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_worker(&mut self, name: &str, options: &WorkerOptions) -> Result<()> {
        if !self.path(&format!("tls/worker-{name}.pem")).exists() {
            self.issue(Role::Worker, name)?;
        }
        let members: Vec<(String, String)> =
            self.members.iter().map(|m| (m.name.clone(), m.client.clone())).collect();
        let (mut endpoints, mut dial_map) = (Vec::new(), String::new());
        for (member, client) in members {
            let addr = self.link(name, &member, client)?;
            writeln!(dial_map, "{member} = {addr:?}")?;
            endpoints.push(addr);
        }
        let dial_map = match self.options.cuttable || self.options.alone.is_some() {
            true => format!("[dial_map]\n{dial_map}"),
            false => String::new(),
        };
        // A test's worker asks no real cloud.
        let compute = match options.head.contains("[compute]") {
            true => "",
            false => "[compute]\nprovider = \"none\"\n",
        };
        let text = format!(
            "name = {name:?}\ndata_dir = {:?}\nendpoints = {endpoints:?}\n{}\n{compute}[tls]\n{}\
             {dial_map}[[engine]]\n{}",
            self.path(&format!("worker-{name}")),
            options.head,
            self.tls_lines(&format!("worker-{name}")),
            options.engine,
        );
        let config = self.path(&format!("worker-{name}.toml"));
        std::fs::write(&config, text)?;
        let mut command = Command::new(self.bin.join("rollout-worker"));
        command.arg("--config").arg(&config);
        self.preload_into(&mut command, name)?;
        self.store_into(&mut command, name);
        let process = Process::start(command, &self.path(&format!("worker-{name}.log")))?;
        self.workers.insert(name.into(), Some(process));
        Ok(())
    }

    /// A program of ours, without arguments.
    pub fn program(&self, name: &str) -> Command {
        Command::new(self.bin.join(name))
    }

    /// Starts a worker that the fleet does not count as its own: `label` names its directory and log, `name`
    /// is what it calls itself, `cert` whose certificate it shows. `lines` are the top of its configuration.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_impostor(
        &self,
        label: &str,
        name: &str,
        cert: &str,
        lines: &str,
    ) -> Result<Process> {
        let endpoints: Vec<&str> = self.members.iter().map(|m| m.client.as_str()).collect();
        let text = format!(
            "name = {name:?}\ndata_dir = {:?}\nendpoints = {endpoints:?}\n{lines}\n[compute]\n\
             provider = \"none\"\n[tls]\n{}[[engine]]\nkind = \"mock\"\n",
            self.path(&format!("worker-{label}")),
            self.tls_lines(&format!("worker-{cert}")),
        );
        let config = self.path(&format!("worker-{label}.toml"));
        std::fs::write(&config, text)?;
        let mut command = self.program("rollout-worker");
        command.arg("--config").arg(&config);
        Process::start(command, &self.path(&format!("worker-{label}.log")))
    }

    /// The process of a member.
    ///
    /// # Panics
    /// When it does not run.
    pub fn member_process(&mut self, name: &str) -> &mut Process {
        self.member_mut(name).process.as_mut().expect("the member runs")
    }

    /// The process of a worker.
    ///
    /// # Panics
    /// When it does not run.
    pub fn worker_process(&mut self, name: &str) -> &mut Process {
        self.workers.get_mut(name).and_then(Option::as_mut).expect("the worker runs")
    }

    /// Waits until some member leads and says so, and names it.
    pub fn leader(&self) -> String {
        eventually("there is a leader", PATIENCE, || self.leader_now())
    }

    /// Waits until a member that is not `old` leads.
    pub fn leader_other_than(&self, old: &str) -> String {
        eventually("another member leads", PATIENCE, || {
            self.leader_now().filter(|name| name != old)
        })
    }

    fn leader_now(&self) -> Option<String> {
        let status = self.ctl_json(&["--timeout", "2s", "status"]).ok()?;
        Some(status.get("leader")?.as_str()?.to_owned())
    }

    /// Proves that all members hold the same state, in memory and on disk.
    ///
    /// # Errors
    /// What `rolloutctl cluster verify` says.
    pub fn verify(&self) -> Result<()> {
        let out = self.ctl(&["cluster", "verify"])?;
        if !out.status.success() {
            let (o, e) =
                (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
            bail!("cluster verify: {o}{e}{}", self.logs());
        }
        Ok(())
    }

    /// Rows that a worker has finished in its session, once somebody can say.
    pub fn rows_done_by(&self, worker: &str) -> Option<u64> {
        let list = self.ctl_json(&["--timeout", "5s", "worker", "list"]).ok()?;
        let workers = list.get("workers").unwrap_or(&list).as_array()?;
        let worker = workers.iter().find(|w| w["name"] == worker)?;
        let slots = worker.get("slots")?.as_array()?;
        let done = slots.iter().filter_map(|s| s["rowsDone"].as_str()?.parse::<u64>().ok());
        Some(done.sum())
    }

    /// What a member answers to a probe or a scraper: status and body.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn http(&self, member: &str, path: &str) -> Result<(u16, String)> {
        http::get(&self.member(member).http, path)
    }

    /// What a member counts under that name; 0 where it has not counted yet.
    pub fn counted(&self, member: &str, metric: &str) -> Option<u64> {
        http::counted(&self.member(member).http, metric)
    }

    /// The client address of a member, for an error's or a lone question's sake.
    pub fn client_addr(&self, name: &str) -> &str {
        &self.member(name).client
    }

    /// The address at which a member listens for the others.
    pub fn peer_addr(&self, name: &str) -> &str {
        &self.member(name).peer
    }

    /// The address at which a member serves health and metrics.
    pub fn http_addr(&self, name: &str) -> &str {
        &self.member(name).http
    }

    /// The data directory of a member.
    pub fn data_dir(&self, name: &str) -> PathBuf {
        Path::new(self.dir.path()).join(name)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if self.passed {
            return;
        }
        let state = self.state(); // While the processes still run.
        let _ = std::fs::write(self.path("state-at-failure.txt"), &state);
        self.dir.disable_cleanup(true);
        eprintln!("the test did not pass: logs are in {}\n{state}", self.dir.path().display());
    }
}
