//! torch's own TCPStore client, through gateways, against the replicated store; and the same with `rollout.Store`.
//! `make test-torch` runs this, and fails if torch is not available.

use anyhow::{Result, ensure};
use rollout_tests::torch::{Running, SLOW, gateway, not_run};
use rollout_tests::{Fleet, FleetOptions, WorkerOptions, eventually};

fn scenario(fleet: &Fleet, name: &str, args: &[&str]) -> Result<Running> {
    Running::script(fleet, name, "store.py", args)
}

/// The arguments of `rollout.Store`.
fn context(fleet: &Fleet) -> String {
    fleet.path("user.toml").display().to_string()
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
fn the_package_finds_every_operation_as_torch_means_it() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let (_gateway, addr) = gateway(&fleet, "gateway")?;
    let context = context(&fleet);
    scenario(&fleet, "operations", &["operations", &context, &context])?.finish()?;
    // `rollout.Store` and a stock client share one store.
    scenario(&fleet, "waits", &["waits", &context, &addr])?.finish()?;
    for what in ["trampoline", "waits"] {
        let name = format!("python-{what}");
        Running::script(&fleet, &name, "python_store.py", &[what, &context])?.finish()?;
    }
    let ranks = ["0", "1"].map(|rank| {
        let name = format!("gloo-{rank}");
        Running::script(&fleet, &name, "python_store.py", &["gloo", &context, rank])
    });
    for rank in ranks {
        rank?.finish()?;
    }
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn the_tests_of_torch_for_stores_and_rendezvous_backends_pass() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let mut borrowed = Running::script(&fleet, "borrowed", "borrowed.py", &[&context(&fleet)])?;
    borrowed.finish()?;
    borrowed.lines("NOT RUN").iter().try_for_each(|line| not_run(line))?;
    fleet.passed()
}

#[test]
fn a_worker_serves_the_store_of_a_job_to_its_host() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let head = "[store_gateway]\njob = \"train\"\nlisten = \"127.0.0.1:0\"\n".into();
    fleet.start_worker("w1", &WorkerOptions { head, ..WorkerOptions::default() })?;
    let log = fleet.path("worker-w1.log");
    let addr = eventually("the worker says where", SLOW, || {
        let text = std::fs::read_to_string(&log).ok()?;
        let line = text.lines().find(|line| line.contains("serving a store"))?.to_owned();
        let (_, rest) = line.split_once("127.0.0.1:")?;
        Some(format!("127.0.0.1:{}", rest.split(|c: char| !c.is_ascii_digit()).next()?))
    });
    scenario(&fleet, "put", &["put", &addr, "key"])?.finish()?;
    let mut show = scenario(&fleet, "show", &["show", &context(&fleet), "key"])?;
    show.finish()?;
    ensure!(show.says("value ").as_deref() == Some("value set"), "{:?}", show.says("value "));
    fleet.passed()
}

#[test]
fn a_counter_is_exact_though_the_leader_is_killed_in_the_middle() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let (_one, first) = gateway(&fleet, "gateway-1")?;
    let (_two, second) = gateway(&fleet, "gateway-2")?;
    let context = context(&fleet);
    let mut adders = Vec::new();
    for (name, addr) in [("adder-1", &first), ("adder-2", &second), ("adder-3", &context)] {
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
    let context = context(&fleet);
    let mut waiters = vec![
        scenario(&fleet, "waiter", &["wait", &first, "go"])?,
        scenario(&fleet, "python-waiter", &["wait", &context, "go"])?,
    ];
    for waiter in &waiters {
        waiter.until_it_says("waiting");
    }
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    // Set the key at once: the waits may reach the next leader before or after that.
    scenario(&fleet, "put", &["put", &second, "go"])?.finish()?;
    for waiter in &mut waiters {
        waiter.until_it_says("released");
        waiter.finish()?;
    }
    fleet.start_member(&leader)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_barrier_of_the_store_goes_on_at_the_next_leader_and_counts_each_arrival_once() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let (_one, first) = gateway(&fleet, "gateway-1")?;
    let (_two, second) = gateway(&fleet, "gateway-2")?;
    let context = context(&fleet);
    let mut arrived = vec![
        scenario(&fleet, "stock", &["arrive", &first, "all"])?,
        scenario(&fleet, "package", &["arrive", &context, "all"])?,
    ];
    scenario(&fleet, "two", &["until", &second, "all", "2"])?.finish()?;
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    fleet.leader_other_than(&leader);
    for waiter in &arrived {
        ensure!(waiter.says("passed").is_none(), "one passed before the third came");
    }
    fleet.start_member(&leader)?;
    // Kill again as the third arrives: the leader asked first must not answer any more.
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    arrived.push(scenario(&fleet, "third", &["arrive", &second, "all"])?);
    for waiter in &mut arrived {
        waiter.until_it_says("passed");
        waiter.finish()?;
    }
    let mut show = scenario(&fleet, "show", &["show", &first, "all"])?;
    show.finish()?;
    ensure!(show.says("value ").as_deref() == Some("value 3"), "{:?}", show.says("value "));
    fleet.start_member(&leader)?;
    fleet.verify()?;
    fleet.passed()
}
