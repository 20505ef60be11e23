//! Rendezvous of training jobs: processes of their own, at three real members.

use anyhow::{Result, ensure};
use rollout_tests::{Fleet, FleetOptions, Participant, eventually};
use std::collections::BTreeSet;
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_participant");

fn meet(fleet: &Fleet, job: &str, name: &str, args: &[&str]) -> Result<Participant> {
    Participant::start(fleet, PROGRAM, ("meet", job, name), args)
}

/// All are in a round of these members, the same one, with ranks of their own.
fn all_meet(who: &[&Participant], members: &str) -> Result<u64> {
    let mut ranks = BTreeSet::new();
    let mut rounds = BTreeSet::new();
    let size = members.split(' ').count();
    for one in who {
        let line = one.until_it_says("round ", &format!(" of {size}: {members}"));
        let words: Vec<&str> = line.split(' ').collect();
        rounds.insert(words[1].parse::<u64>()?);
        ranks.insert(words[3].parse::<usize>()?);
    }
    ensure!(rounds.len() == 1, "they are in the rounds {rounds:?}");
    ensure!(ranks.into_iter().eq(0..size), "ranks are not contiguous");
    Ok(rounds.into_iter().next().unwrap_or_default())
}

#[test]
fn a_rendezvous_goes_on_at_the_next_leader_and_all_agree_on_it() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let args = ["min=3", "max=3"];
    let one = meet(&fleet, "train", "n2", &args)?;
    let two = meet(&fleet, "train", "n0", &args)?;
    one.until_it_says("joined", "");
    two.until_it_says("joined", "");
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    let three = meet(&fleet, "train", "n1", &args)?;
    ensure!(all_meet(&[&one, &two, &three], "n0 n1 n2")? == 1);
    fleet.leader_other_than(&leader);
    fleet.start_member(&leader)?;
    // Another idea of the job is refused, and one too many waits.
    let four = meet(&fleet, "train", "n9", &args)?;
    four.until_it_says("joined", "");
    let seen = fleet.ctl_json(&["rendezvous", "describe", "train"])?;
    ensure!(seen["state"] == "complete" && seen["joined"] == 3, "{seen}");
    ensure!(seen["redundant"] == 1 && seen["waiting"] == 0, "{seen}");
    let mut other = meet(&fleet, "train", "n8", &["min=1", "max=2"])?;
    ensure!(!other.process.wait(Duration::from_secs(60))?.success());
    other.until_it_says("Error: RO-6003: ", "");
    ensure!(fleet.ctl(&["rendezvous", "close", "train"])?.status.success());
    for mut who in [one, two, three, four] {
        who.until_it_says("closed", "");
        ensure!(who.process.wait(Duration::from_secs(60))?.success());
    }
    let mut late = meet(&fleet, "train", "n1", &args)?;
    late.until_it_says("closed", "");
    ensure!(late.process.wait(Duration::from_secs(60))?.success());
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_job_forms_smaller_when_a_participant_dies_and_grows_when_it_is_back() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let args = ["min=2", "max=3", "call=1000", "alive=1500"];
    let one = meet(&fleet, "train", "n0", &args)?;
    let two = meet(&fleet, "train", "n1", &args)?;
    let mut three = meet(&fleet, "train", "n2", &args)?;
    let first = all_meet(&[&one, &two, &three], "n0 n1 n2")?;
    three.process.kill();
    let second = all_meet(&[&one, &two], "n0 n1")?;
    ensure!(second > first, "round {second} after {first}");
    let seen = fleet.ctl_json(&["rendezvous", "describe", "train"])?;
    let gone = seen["gone"].as_array().cloned().unwrap_or_default();
    let lost = gone.iter().find(|g| g["why"] == "lost").cloned().unwrap_or_default();
    ensure!(lost["name"] == "n2" && lost["host"] == "host-of-n2", "{seen}");
    // The leader dies between: nobody is lost for that.
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    fleet.leader_other_than(&leader);
    let back = meet(&fleet, "train", "n2", &args)?;
    let line = back.until_it_says("round ", " of 3: n0 n1 n2");
    let third: u64 = line.split(' ').nth(1).unwrap_or_default().parse()?;
    ensure!(third > second, "round {third} after {second}");
    for who in [&one, &two] {
        who.until_it_says(&format!("round {third} "), " of 3: n0 n1 n2");
        ensure!(who.says("gone").is_none(), "{:?}", who.said("gone"));
    }
    fleet.start_member(&leader)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_participant_that_dies_while_it_joins_holds_nobody_up() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let mut dead = meet(&fleet, "train", "n0", &["min=3", "max=3", "alive=1000"])?;
    dead.until_it_says("joined", "");
    dead.process.kill();
    let args = ["min=3", "max=3"];
    let one = meet(&fleet, "train", "n1", &args)?;
    one.until_it_says("joined", "");
    eventually("the dead one is lost", Duration::from_secs(60), || {
        let seen = fleet.ctl_json(&["rendezvous", "describe", "train"]).ok()?;
        (seen["joined"] == 1 && seen["gone"][0]["why"] == "lost").then_some(())
    });
    let two = meet(&fleet, "train", "n2", &args)?;
    two.until_it_says("joined", "");
    ensure!(one.says("round").is_none(), "two are no round of three");
    let three = meet(&fleet, "train", "n3", &args)?;
    all_meet(&[&one, &two, &three], "n1 n2 n3")?;
    fleet.verify()?;
    fleet.passed()
}
