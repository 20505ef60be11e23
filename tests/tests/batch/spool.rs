//! Results that a worker finished while no leader could accept them survive the agent, and are accepted or refused by
//! attempt when it is back.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Executions, Fleet, FleetOptions, WorkerOptions, eventually};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(90);
const ROWS: u64 = 24;
/// Rows that a slot runs at once.
const RUNNING: u64 = 8;
/// After this long without an answer, a worker starts nothing.
const SELF_FENCE: Duration = Duration::from_secs(4);

fn worker(fleet: &Fleet, name: &str, latency_ms: u64) -> WorkerOptions {
    let side = fleet.path(&format!("{name}.side"));
    let engine = format!(
        "kind = \"mock\"\nslots = 1\nconcurrency = {RUNNING}\nlatency_ms_min = {latency_ms}\n\
         latency_ms_max = {latency_ms}\nside_file = {side:?}\n"
    );
    WorkerOptions { engine, head: "[credit]\nrows = 1024\n".into() }
}

/// Counts the lines of a side file that contain this.
fn side_lines(fleet: &Fleet, name: &str, what: &str) -> u64 {
    let text = std::fs::read_to_string(fleet.path(&format!("{name}.side"))).unwrap_or_default();
    text.lines().filter(|line| line.ends_with(what)).count() as u64
}

/// The non-empty files of the spool.
fn spooled(fleet: &Fleet, name: &str) -> Vec<PathBuf> {
    let dir = fleet.path(&format!("worker-{name}")).join("spool/slot-0");
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|file| file.path());
    let spools = files.filter(|path| path.extension().is_some_and(|end| end == "spool"));
    spools.filter(|path| path.metadata().is_ok_and(|file| file.len() > 0)).collect()
}

fn until_running(fleet: &Fleet, batch: &Batch) {
    batch.until(fleet, "one worker holds every row", |c| c.running == ROWS);
    eventually("the first rows run", PATIENCE, || {
        (side_lines(fleet, "w1", "started") == RUNNING).then_some(())
    });
}

/// Finishes rows that the agent cannot report, and then kills the agent.
fn finished_and_killed(fleet: &mut Fleet, cut_at: Instant) -> Result<()> {
    eventually("what ran has finished", PATIENCE, || {
        (side_lines(fleet, "w1", "finished") == RUNNING).then_some(())
    });
    eventually("it is in the spool", PATIENCE, || (!spooled(fleet, "w1").is_empty()).then_some(()));
    // Long enough that it could have started other rows if it had not fenced itself.
    eventually("the fence is closed for long", PATIENCE, || {
        (cut_at.elapsed() > SELF_FENCE + Duration::from_secs(3)).then_some(())
    });
    ensure!(side_lines(fleet, "w1", "started") == RUNNING, "it started a row without a leader");
    fleet.worker_process("w1").kill();
    Ok(())
}

#[test]
fn results_finished_without_a_leader_survive_the_agents_death_and_are_accepted() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &worker(&fleet, "w1", 5000))?;
    let mut batch = Batch::submit(&fleet, "kept", ROWS, "")?;
    until_running(&fleet, &batch);
    let leader = fleet.leader();
    let others: Vec<_> = fleet.member_names().into_iter().filter(|m| *m != leader).collect();
    let cut_at = Instant::now();
    others.iter().for_each(|member| fleet.member_process(member).kill());
    finished_and_killed(&mut fleet, cut_at)?;
    // Start the agent first: it waits for a leader with its results.
    fleet.start_worker("w1", &worker(&fleet, "w1", 50))?;
    for member in &others {
        fleet.start_member(member)?;
    }
    batch.finish(&fleet)?;
    let executions = Executions::read(&[fleet.path("w1.side")])?;
    ensure!(executions.started == ROWS, "{} executions: one was lost", executions.started);
    eventually("the spool is empty", PATIENCE, || spooled(&fleet, "w1").is_empty().then_some(()));
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn results_that_another_worker_has_reported_are_refused_and_dropped() -> Result<()> {
    let member_lines = vec![("worker", "started_grace_ms = 1000")];
    let mut fleet =
        Fleet::start(FleetOptions { cuttable: true, member_lines, ..FleetOptions::default() })?;
    fleet.start_worker("w1", &worker(&fleet, "w1", 5000))?;
    let mut batch = Batch::submit(&fleet, "refused", ROWS, "")?;
    until_running(&fleet, &batch);
    let members = fleet.member_names();
    let cut_at = Instant::now();
    members.iter().for_each(|member| fleet.set_cut("w1", member, true));
    finished_and_killed(&mut fleet, cut_at)?;
    fleet.start_worker("w2", &worker(&fleet, "w2", 5))?;
    batch.finish(&fleet)?;
    ensure!(!spooled(&fleet, "w1").is_empty(), "nothing to refuse");
    members.iter().for_each(|member| fleet.set_cut("w1", member, false));
    fleet.start_worker("w1", &worker(&fleet, "w1", 5))?;
    eventually("the spool is empty", PATIENCE, || spooled(&fleet, "w1").is_empty().then_some(()));
    ensure!(fleet.rows_done_by("w1") == Some(0), "a result was accepted twice");
    let counts = batch.counts(&fleet).context("counts")?;
    ensure!((counts.done, counts.failed) == (ROWS, 0), "{counts:?}");
    ensure!(side_lines(&fleet, "w2", "started") == ROWS);
    batch.check_output()?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_torn_end_of_the_spool_costs_the_torn_row_alone() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &worker(&fleet, "w1", 5000))?;
    let mut batch = Batch::submit(&fleet, "torn", ROWS, "")?;
    until_running(&fleet, &batch);
    let members = fleet.member_names();
    let cut_at = Instant::now();
    members.iter().for_each(|member| fleet.member_process(member).kill());
    finished_and_killed(&mut fleet, cut_at)?;
    let files = spooled(&fleet, "w1");
    ensure!(files.len() == 1, "{files:?}");
    let len = std::fs::metadata(&files[0])?.len();
    std::fs::File::options().write(true).open(&files[0])?.set_len(len - 3)?;
    for member in &members {
        fleet.start_member(member)?;
    }
    fleet.start_worker("w1", &worker(&fleet, "w1", 50))?;
    batch.finish(&fleet)?;
    let executions = Executions::read(&[fleet.path("w1.side")])?;
    ensure!(executions.started == ROWS + 1, "{} executions", executions.started);
    fleet.verify()?;
    fleet.passed()
}
