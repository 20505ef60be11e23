//! Three members and some workers, started as a user would start them.
//!
//! *Invariant:* a fleet whose test does not end with [`Fleet::passed`] leaves its directory, with logs and last
//! state, and prints its path: errors and panics alike can be investigated afterward.

mod api;
mod baselines;
mod builds;
mod certificates;
mod commands;
mod conditions;
mod enrollment;
mod golden;
mod members;
mod membership;
mod store;
mod workers;

pub use self::api::ApiKey;
pub use self::baselines::Baseline;
pub use self::builds::Build;
pub use self::commands::program;
pub use self::workers::WorkerOptions;

use self::builds::Builds;
use self::conditions::Proxied;
use crate::clocks::Clocks;
use crate::process::Process;
use crate::s3::S3;
use anyhow::{Context as _, Result, bail};
use rollout_jepsen::delay::OneWay;
use rollout_proto::Role;
use rollout_proto::pki;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// Time limit of one command.
const COMMAND_MAX: Duration = Duration::from_secs(120);

/// The first port that tests choose from, unless [`FIRST_PORT`] names another.
const PORT_DEFAULT: u32 = 10_000;
/// The number of ports that a test program chooses from. With three programs they are below those that Linux assigns.
const PORTS: u32 = 7_000;
/// Names the first port of a test program that runs beside another one. `xtask test` sets it.
const FIRST_PORT: &str = "ROLLOUT_TEST_FIRST_PORT";

/// The options of a fleet.
#[derive(Clone, Default)]
pub struct FleetOptions {
    /// Lines added to every member's configuration, by section: `("worker", "failure_ms = 1500")`.
    pub member_lines: Vec<(&'static str, &'static str)>,
    /// Every link between members, and from each worker to each member, goes through a proxy.
    pub cuttable: bool,
    /// Every link between members goes through a proxy with this latency: see [`Fleet::set_distance`].
    pub distance: Option<OneWay>,
    /// Each process has a wall clock of its own: see [`Fleet::set_clock`].
    pub clocks: bool,
    /// The data directory of each member, or this part of it, is on a disk of its own: see [`Fleet::disks`].
    pub disks: Option<fn(PathBuf) -> PathBuf>,
    /// The most files that each member may have open.
    pub open_files: Option<u64>,
    /// One member instead of three. It starts with the data and objects in this directory, if it exists, and is found
    /// by its name wherever it listens.
    pub alone: Option<PathBuf>,
    /// The object store, with credentials for each process; `None`: a directory that all of them share.
    pub s3: Option<Arc<S3>>,
    /// Members enroll unenrolled clients with certificates that last this many seconds.
    pub enrollment_lifetime_s: Option<u64>,
    /// Members enroll unenrolled clients with the default lifetime, without `lifetime_s` in their configuration.
    pub enrollment_by_default: bool,
    /// Members serve OpenAI's HTTP API: see [`Fleet::api_url`].
    pub api: bool,
    /// All processes begin with this earlier build: see [`Fleet::use_build`].
    pub baseline: Option<Baseline>,
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
    builds: Builds,
    options: FleetOptions,
    clocks: Option<Clocks>,
    /// Variables of the preloaded library, by the process's name.
    preloads: BTreeMap<String, BTreeMap<&'static str, PathBuf>>,
    members: Vec<Member>,
    workers: BTreeMap<String, Option<Process>>,
    /// The enrollment address of each member.
    enrollment_addrs: BTreeMap<String, String>,
    /// The address of each member's HTTP API.
    api_addrs: BTreeMap<String, String>,
    /// Proxies by source and destination name, if any.
    links: BTreeMap<(String, String), Proxied>,
}

/// An unused loopback address. It is not from the range that the system assigns itself: an outgoing connection may
/// take such a port before the intended process listens.
///
/// # Errors
/// If no address is free.
pub fn free_addr() -> Result<String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let first = match std::env::var(FIRST_PORT) {
        Ok(port) => port.parse().with_context(|| format!("{FIRST_PORT}={port} is no port"))?,
        Err(_) => PORT_DEFAULT,
    };
    for _ in 0..PORTS {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let port: u32 = first + (std::process::id().wrapping_mul(211).wrapping_add(next)) % PORTS;
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
            builds: Builds::new(options.baseline.as_ref())?,
            dir,
            clocks,
            preloads: BTreeMap::new(),
            passed: false,
            options,
            members: Vec::new(),
            workers: BTreeMap::new(),
            enrollment_addrs: BTreeMap::new(),
            api_addrs: BTreeMap::new(),
            links: BTreeMap::new(),
        };
        pki::init_ca(&fleet.path("ca"), "fleet")?;
        let names: &[&str] = match fleet.options.alone {
            Some(_) => &["c1"],
            None => &["c1", "c2", "c3"],
        };
        fleet.open_enrollment_ports(names)?;
        fleet.open_api_ports(names)?;
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
        fleet.give_disks()?;
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

    /// The last lines of every log, for error messages.
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

    /// The leader, and the state of every run and worker, as the operator sees them.
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

    /// Ends a successful test: stops everything and removes the directory.
    ///
    /// # Errors
    /// Never; a test can return it directly.
    pub fn passed(mut self) -> Result<()> {
        self.passed = true;
        Ok(())
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
