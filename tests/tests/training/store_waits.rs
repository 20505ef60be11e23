//! Blocking calls on a job's store, from separate processes, while leaders are killed: each call ends as if nothing
//! had happened, and no popped value is lost or delivered twice.

use anyhow::{Result, ensure};
use rollout_tests::{Fleet, FleetOptions, Process, eventually_or_show, python};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(240);

fn start(fleet: &Fleet, name: &str, args: &[&str]) -> Result<Process> {
    python(fleet, name, "stores.py", args)
}

/// Its output lines so far with this prefix.
fn lines(process: &Process, begin: &str) -> Vec<String> {
    let text = std::fs::read_to_string(&process.log).unwrap_or_default();
    text.lines().filter_map(|line| line.strip_prefix(begin)).map(str::to_owned).collect()
}

fn until_it_says(process: &Process, begin: &str) {
    eventually_or_show(begin, PATIENCE, |seen| {
        *seen = process.log_tail();
        lines(process, begin).first().map(drop)
    });
}

fn ends(mut process: Process) -> Result<()> {
    let ended = process.wait(PATIENCE)?;
    ensure!(ended.success(), "{ended}: {}", process.log_tail());
    Ok(())
}

/// Kills the leader, and waits for another one.
fn kill_leader(fleet: &mut Fleet) -> String {
    let killed = fleet.leader();
    fleet.member_process(&killed).kill();
    fleet.leader_other_than(&killed);
    killed
}

#[test]
fn a_get_that_blocks_has_the_value_though_two_leaders_are_killed_under_it() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let names = ["one", "two", "three"];
    let waiting = names.map(|name| start(&fleet, name, &["gets", "go"]));
    let waiting = waiting.into_iter().collect::<Result<Vec<_>>>()?;
    waiting.iter().for_each(|one| until_it_says(one, "waits"));
    for _ in 0..2 {
        let killed = kill_leader(&mut fleet);
        fleet.start_member(&killed)?;
    }
    for one in &waiting {
        ensure!(lines(one, "got").is_empty(), "the key is not set yet: {}", one.log_tail());
    }
    // The third leader dies just as the key is set.
    let killed = fleet.leader();
    let puts = start(&fleet, "puts", &["puts", "go", "now"])?;
    fleet.member_process(&killed).kill();
    ends(puts)?;
    for one in waiting {
        until_it_says(&one, "got now");
        ends(one)?;
    }
    fleet.start_member(&killed)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_barrier_of_the_store_opens_for_all_though_the_leader_is_killed_under_it() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let first = ["a", "b"].map(|name| start(&fleet, name, &["meets", name, "3"]));
    let first = first.into_iter().collect::<Result<Vec<_>>>()?;
    first.iter().for_each(|one| until_it_says(one, "waits"));
    let killed = kill_leader(&mut fleet);
    for one in &first {
        ensure!(lines(one, "passed").is_empty(), "not all are there: {}", one.log_tail());
    }
    let last = start(&fleet, "c", &["meets", "c", "3"])?;
    for one in first.into_iter().chain([last]) {
        ends(one)?;
    }
    fleet.start_member(&killed)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn each_element_is_popped_once_although_leaders_are_killed() -> Result<()> {
    const ELEMENTS: u64 = 150;
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let names = ["pops-1", "pops-2", "pops-3"];
    let poppers = names.map(|name| start(&fleet, name, &["pops", "jobs"]));
    let poppers = poppers.into_iter().collect::<Result<Vec<_>>>()?;
    poppers.iter().for_each(|one| until_it_says(one, "waits"));
    // Kill the leader while all wait at an empty queue.
    let killed = kill_leader(&mut fleet);
    fleet.start_member(&killed)?;
    let pushes = start(&fleet, "pushes", &["pushes", "jobs", &ELEMENTS.to_string(), "3"])?;
    // Kill it twice more while elements come and go.
    for pushed in ["pushed 40", "pushed 100"] {
        until_it_says(&pushes, pushed);
        let killed = kill_leader(&mut fleet);
        fleet.start_member(&killed)?;
    }
    ends(pushes)?;
    let mut popped: Vec<u64> = Vec::new();
    for one in poppers {
        let log = one.log.clone();
        ends(one)?;
        let text = std::fs::read_to_string(&log)?;
        popped.extend(
            text.lines().filter_map(|line| line.strip_prefix("popped ")?.parse::<u64>().ok()),
        );
    }
    popped.sort_unstable();
    ensure!(popped == (0..ELEMENTS).collect::<Vec<_>>(), "{popped:?}");
    fleet.verify()?;
    fleet.passed()
}
