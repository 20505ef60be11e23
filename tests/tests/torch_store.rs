//! torch's own TCPStore client, through gateways, at the replicated store. `make test-torch` runs this, and fails
//! where torch cannot be had.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Fleet, FleetOptions, Process, eventually};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Importing torch takes its time on a busy machine.
const SLOW: Duration = Duration::from_secs(240);

fn python(args: &[&str]) -> Command {
    let python = std::env::var_os("ROLLOUT_TORCH_PYTHON");
    let mut command = Command::new(python.expect("run `make test-torch`: it says where torch is"));
    command.arg(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("torch/store.py"));
    command.args(args);
    command
}

/// A process, and where it writes.
struct Running {
    process: Process,
    log: PathBuf,
}

impl Running {
    fn start(fleet: &Fleet, name: &str, command: Command) -> Result<Self> {
        let log = fleet.path(&format!("{name}.log"));
        Ok(Self { process: Process::start(command, &log)?, log })
    }

    fn says(&self, what: &str) -> Option<String> {
        let text = std::fs::read_to_string(&self.log).ok()?;
        text.lines().find(|line| line.starts_with(what)).map(str::to_owned)
    }

    fn until_it_says(&self, what: &str) -> String {
        eventually(&format!("{what:?} in {}", self.log.display()), SLOW, || self.says(what))
    }

    fn finish(&mut self) -> Result<()> {
        let status = self.process.wait(SLOW)?;
        ensure!(status.success(), "{status}: {}", self.process.log_tail());
        Ok(())
    }
}

/// A gateway of the job's store, and its address.
fn gateway(fleet: &Fleet, name: &str) -> Result<(Running, String)> {
    let args = ["store-gateway", "--job", "train", "--listen", "127.0.0.1:0"];
    let running = Running::start(fleet, name, fleet.rollout(&args))?;
    let line = running.until_it_says("store of train at ");
    let addr = line.rsplit(' ').next().context("an address")?.to_owned();
    Ok((running, addr))
}

fn scenario(fleet: &Fleet, name: &str, args: &[&str]) -> Result<Running> {
    Running::start(fleet, name, python(args))
}

#[test]
fn a_stock_client_finds_every_operation_as_it_knows_it() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let (_one, first) = gateway(&fleet, "gateway-1")?;
    let (_two, second) = gateway(&fleet, "gateway-2")?;
    for what in ["operations", "waits"] {
        scenario(&fleet, what, &[what, &first, &second])?.finish()?;
    }
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_counter_is_exact_though_the_leader_is_killed_in_the_middle() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let (_one, first) = gateway(&fleet, "gateway-1")?;
    let (_two, second) = gateway(&fleet, "gateway-2")?;
    let mut adders = Vec::new();
    for (name, addr) in [("adder-1", &first), ("adder-2", &second), ("adder-3", &first)] {
        adders.push(scenario(&fleet, name, &["adds", addr, "n", "1000"])?);
    }
    for at in ["added 100", "added 400"] {
        adders[0].until_it_says(at);
        let leader = fleet.leader();
        fleet.member_process(&leader).kill();
        fleet.leader_other_than(&leader);
        fleet.start_member(&leader)?;
    }
    adders.iter_mut().try_for_each(Running::finish)?;
    let mut show = scenario(&fleet, "show", &["show", &second, "n"])?;
    show.finish()?;
    ensure!(show.says("value ").as_deref() == Some("value 3000"), "{:?}", show.says("value "));
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_wait_goes_on_at_the_next_leader_and_loses_no_wake_up() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let (_one, first) = gateway(&fleet, "gateway-1")?;
    let (_two, second) = gateway(&fleet, "gateway-2")?;
    let mut waiter = scenario(&fleet, "waiter", &["wait", &first, "go"])?;
    waiter.until_it_says("waiting");
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    // At once: the key may be set before the wait has reached the next leader, or after.
    scenario(&fleet, "put", &["put", &second, "go"])?.finish()?;
    waiter.until_it_says("released");
    waiter.finish()?;
    fleet.start_member(&leader)?;
    fleet.verify()?;
    fleet.passed()
}
