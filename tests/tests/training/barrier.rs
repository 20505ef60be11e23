//! Barriers of training jobs, with separate processes and three real members.

use anyhow::{Result, ensure};
use rollout_tests::{Fleet, FleetOptions, Participant};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_participant");

/// Three participants that arrive at each generation when the test opens its gate for them.
struct Job {
    who: Vec<Participant>,
}

impl Job {
    fn start(fleet: &Fleet, args: &[&str]) -> Result<Self> {
        let names = ["w0", "w1", "w2"];
        let who = names.map(|name| Self::one(fleet, name, args)).into_iter();
        let who = who.collect::<Result<Vec<_>>>()?;
        who.iter().for_each(|w| drop(w.until_it_says("joined", "")));
        Ok(Self { who })
    }

    fn one(fleet: &Fleet, name: &str, args: &[&str]) -> Result<Participant> {
        let gate = format!("gate={}", fleet.path(&format!("gate-{name}")).display());
        let mut all = vec!["members=w0,w1,w2", &gate];
        all.extend(args);
        Participant::start(fleet, PROGRAM, ("pass", "train", name), &all)
    }

    /// Kills one, and starts another process under its name.
    fn starts_again(&mut self, fleet: &Fleet, n: usize, args: &[&str]) -> Result<()> {
        self.who[n].process.kill();
        self.who[n] = Self::one(fleet, &format!("w{n}"), args)?;
        self.who[n].until_it_says("joined", "");
        Ok(())
    }

    /// Lets a participant arrive at a generation.
    fn let_through(&self, fleet: &Fleet, n: usize, generation: u64) -> Result<()> {
        let gate = fleet.path(&format!("gate-w{n}.{generation}"));
        Ok(std::fs::write(gate, "")?)
    }

    fn arrives(&self, fleet: &Fleet, n: usize, generation: u64) -> Result<()> {
        self.let_through(fleet, n, generation)?;
        self.who[n].until_it_says(&format!("arrived {generation}"), "");
        Ok(())
    }
}

#[test]
fn no_participant_passes_before_all_have_arrived_though_the_leader_is_killed() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let job = Job::start(&fleet, &[])?;
    job.arrives(&fleet, 0, 1)?;
    job.arrives(&fleet, 1, 1)?;
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    fleet.leader_other_than(&leader);
    let seen = fleet.ctl_json(&["barrier", "describe", "train", "epoch"])?;
    let waiting = &seen["generations"][0];
    ensure!(waiting["state"] == "waiting" && waiting["arrived"] == 2, "{seen}");
    ensure!(waiting["missing"][0] == "w2", "{seen}");
    job.who.iter().try_for_each(|w| match w.says("passed") {
        None => Ok(()),
        Some(line) => Err(anyhow::anyhow!("{line}: before all have arrived")),
    })?;
    job.let_through(&fleet, 2, 1)?;
    job.who.iter().for_each(|w| drop(w.until_it_says("passed 1", ": w0 w1 w2")));
    fleet.start_member(&leader)?;
    // The leader dies just as the last participant arrives.
    job.arrives(&fleet, 2, 2)?;
    job.arrives(&fleet, 1, 2)?;
    let leader = fleet.leader();
    job.let_through(&fleet, 0, 2)?;
    fleet.member_process(&leader).kill();
    job.who.iter().for_each(|w| drop(w.until_it_says("passed 2", ": w0 w1 w2")));
    fleet.start_member(&leader)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_process_that_is_started_again_is_waited_for_itself() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    // It is restarted long before it would count as lost.
    let args = ["alive=30000"];
    let mut job = Job::start(&fleet, &args)?;
    job.arrives(&fleet, 0, 1)?;
    std::fs::remove_file(fleet.path("gate-w0.1"))?;
    job.starts_again(&fleet, 0, &args)?;
    job.arrives(&fleet, 1, 1)?;
    job.arrives(&fleet, 2, 1)?;
    let seen = fleet.ctl_json(&["barrier", "describe", "train", "epoch"])?;
    let waiting = &seen["generations"][0];
    ensure!(waiting["state"] == "waiting" && waiting["arrived"] == 2, "{seen}");
    ensure!(waiting["missing"][0] == "w0", "{seen}");
    job.arrives(&fleet, 0, 1)?;
    job.who.iter().for_each(|w| drop(w.until_it_says("passed 1", ": w0 w1 w2")));
    // The gate is still open: the next process arrives at a generation that it has never seen.
    job.starts_again(&fleet, 0, &args)?;
    let refused = job.who[0].until_it_says("refused 1", "");
    ensure!(refused.contains("RO-6006") && refused.contains("has ended"), "{refused}");
    (0..3).try_for_each(|n| job.let_through(&fleet, n, 2))?;
    job.who.iter().for_each(|w| drop(w.until_it_says("passed 2", "")));
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_dead_member_fails_the_barrier_with_its_name_and_host() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let mut job = Job::start(&fleet, &["alive=1500"])?;
    job.arrives(&fleet, 0, 1)?;
    job.arrives(&fleet, 1, 1)?;
    job.who[2].process.kill();
    for who in &job.who[..2] {
        let line = who.until_it_says("failed 1", "");
        ensure!(line.starts_with("failed 1: lost: w2 on host-of-w2 was silent for "), "{line}");
    }
    let seen = fleet.ctl_json(&["barrier", "list", "train"])?;
    ensure!(seen["barriers"][0]["failure"]["participant"] == "w2", "{seen}");
    // The answer about it stays the same.
    job.let_through(&fleet, 0, 2)?;
    job.who[0].until_it_says("failed 2: lost: w2 on host-of-w2", "");
    ensure!(fleet.ctl(&["barrier", "abort", "train", "epoch"])?.status.success());
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_barrier_that_may_shrinks_by_a_dead_member_and_opens() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let mut job = Job::start(&fleet, &["alive=1500", "policy=shrink"])?;
    job.arrives(&fleet, 0, 1)?;
    job.arrives(&fleet, 1, 1)?;
    job.who[2].process.kill();
    // The leader dies too: the dead participant's silence is measured again from the start, and it is still reported
    // as lost.
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    for who in &job.who[..2] {
        who.until_it_says("passed 1", ": w0 w1");
    }
    fleet.start_member(&leader)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn an_operator_ends_a_wait_with_a_reason() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let mut job = Job::start(&fleet, &[])?;
    job.arrives(&fleet, 0, 1)?;
    let out = fleet.ctl(&["barrier", "abort", "train", "epoch", "--reason", "wrong data"])?;
    ensure!(out.status.success());
    job.who[0].until_it_says("failed 1: aborted: it was aborted: wrong data", "");
    let out = fleet.ctl(&["barrier", "describe", "train", "none"])?;
    ensure!(out.status.code() == Some(4), "{out:?}");
    ensure!(job.who[1].process.runs());
    job.who[1].process.terminate(Duration::from_secs(60))?;
    fleet.verify()?;
    fleet.passed()
}
