//! Rendezvous of training jobs, with separate processes and three real members.

use anyhow::{Result, ensure};
use rollout_tests::{Fleet, FleetOptions, Participant, eventually};
use std::collections::BTreeSet;
use std::time::Duration;

/// Longer than the test's participants may be silent, and shorter than a leader with profile `far-zones` keeps
/// leading without a quorum.
const AWAY: Duration = Duration::from_secs(5);
/// How often to try until the followers come back while the leader still leads.
const TRIES: usize = 8;

const PROGRAM: &str = env!("CARGO_BIN_EXE_participant");

fn meet(fleet: &Fleet, job: &str, name: &str, args: &[&str]) -> Result<Participant> {
    Participant::start(fleet, PROGRAM, ("meet", job, name), args)
}

/// Checks that all are in the same round of these members, each with its own rank.
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
    // A different definition of the job is refused, and a surplus participant waits.
    let four = meet(&fleet, "train", "n9", &args)?;
    four.until_it_says("joined", "");
    let seen = fleet.ctl_json(&["rendezvous", "describe", "train"])?;
    ensure!(seen["state"] == "complete" && seen["joined"] == 3, "{seen}");
    ensure!(seen["redundant"] == 1 && seen["waiting"] == 0, "{seen}");
    let mut other = meet(&fleet, "train", "n8", &["min=1", "max=2"])?;
    ensure!(!other.process.wait(Duration::from_secs(60))?.success());
    other.until_it_says("Error: RO-6003: ", "");
    ensure!(fleet.ctl(&["rendezvous", "close", "train", "--yes"])?.status.success());
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
    // The leader dies in between: no participant is lost because of that.
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
fn a_participant_that_dies_while_it_joins_delays_no_other() -> Result<()> {
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

#[test]
fn no_participant_is_lost_for_silence_without_a_quorum() -> Result<()> {
    let member_lines = vec![("raft", "profile = \"far-zones\"")];
    let mut fleet = Fleet::start(FleetOptions { member_lines, ..FleetOptions::default() })?;
    // Each may be silent for three seconds.
    let args = ["min=2", "max=2", "alive=1000"];
    let one = meet(&fleet, "train", "n0", &args)?;
    let two = meet(&fleet, "train", "n1", &args)?;
    let round = all_meet(&[&one, &two], "n0 n1")?;
    let epoch =
        |fleet: &Fleet| Ok::<_, anyhow::Error>(fleet.ctl_json(&["status"])?["coordEpoch"].clone());
    for tried in 1.. {
        ensure!(
            tried <= TRIES,
            "each time a new leader gave everybody all of the time: nothing was tried"
        );
        let before = epoch(&fleet)?;
        let leader = fleet.leader();
        let followers: Vec<_> = fleet.member_names().into_iter().filter(|m| *m != leader).collect();
        for follower in &followers {
            fleet.member_process(follower).signal(libc::SIGSTOP)?;
        }
        std::thread::sleep(AWAY);
        for follower in &followers {
            fleet.member_process(follower).signal(libc::SIGCONT)?;
        }
        fleet.leader();
        // By then every proposed loss has taken effect.
        std::thread::sleep(Duration::from_secs(1));
        let seen = fleet.ctl_json(&["rendezvous", "describe", "train"])?;
        ensure!(seen["gone"].as_array().is_none_or(Vec::is_empty), "{seen}");
        ensure!(
            seen["joined"] == 2 && seen["round"].as_str() == Some(&round.to_string()),
            "{seen}"
        );
        if epoch(&fleet)? == before {
            break;
        }
    }
    // A participant that is silent while a quorum answers is lost as usual.
    two.process.signal(libc::SIGSTOP)?;
    eventually("the silent one is lost", Duration::from_secs(60), || {
        let seen = fleet.ctl_json(&["rendezvous", "describe", "train"]).ok()?;
        // Participants that moved on to the next round may be listed too, before or after it.
        let mut gone = seen["gone"].as_array()?.iter();
        gone.any(|one| one["why"] == "lost" && one["name"] == "n1").then_some(())
    });
    two.process.signal(libc::SIGCONT)?;
    fleet.verify()?;
    fleet.passed()
}
