//! An idle slot steals what a busy one has not started, with real members and workers: no row is lost, and none runs
//! twice. At a run's tail, if its user allows it, an idle slot also runs a row that another slot runs, and each row
//! has one result.

use anyhow::Result;
use rollout_tests::{Batch, Executions, Fleet, FleetOptions, WorkerOptions, eventually};
use std::fmt::Write;
use std::time::Duration;

/// Time limit of every wait.
const PATIENCE: Duration = Duration::from_secs(120);

/// A worker with one slot whose rows take this long, with credit for many more than it runs.
fn worker(fleet: &Fleet, name: &str, concurrency: u32, latency_ms: u64) -> WorkerOptions {
    let mut engine = String::from("kind = \"mock\"\nslots = 1\n");
    let side = fleet.path(&format!("{name}.side"));
    let _ = writeln!(engine, "concurrency = {concurrency}\nside_file = {side:?}");
    let _ = writeln!(engine, "latency_ms_min = {latency_ms}\nlatency_ms_max = {latency_ms}");
    WorkerOptions { engine, head: "[credit]\nrows = 1024\n".into() }
}

/// One of a run's counts, once a member reports it.
fn counted(fleet: &Fleet, run: &str, what: &str) -> Option<u64> {
    let run = fleet.ctl_json(&["--timeout", "5s", "run", "describe", run]).ok()?;
    run.get("run")?.get("counts")?.get(what)?.as_str()?.parse().ok()
}

/// The number of stolen rows.
fn stolen(fleet: &Fleet, run: &str) -> Option<u64> {
    counted(fleet, run, "stolen")
}

/// Checks that each row was started exactly once, whichever worker had it first.
fn check_executions(fleet: &Fleet, workers: &[&str], rows: u64) -> Result<()> {
    let files: Vec<_> = workers.iter().map(|w| fleet.path(&format!("{w}.side"))).collect();
    let executions = Executions::read(&files)?;
    let twice: Vec<_> = executions.attempts.iter().filter(|(_, a)| a.len() > 1).collect();
    assert!(twice.is_empty(), "rows were run twice: {twice:?}{}", fleet.logs());
    assert_eq!((executions.started, executions.attempts.len() as u64), (rows, rows));
    Ok(())
}

#[test]
fn an_idle_worker_gets_half_of_what_a_busy_one_has_not_started() -> Result<()> {
    const ROWS: u64 = 200;
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("slow", &worker(&fleet, "slow", 1, 300))?;
    let mut batch = Batch::submit(&fleet, "queue", ROWS, "")?;
    batch.until(&fleet, "one worker holds every row", |c| c.running + c.done == ROWS);
    fleet.start_worker("fast", &worker(&fleet, "fast", 8, 5))?;
    batch.finish(&fleet)?;
    // Alone, the slow worker would take a minute; stealing half of its queue at a time soon moves all of it.
    let moved = eventually("rows were stolen", PATIENCE, || stolen(&fleet, "queue"));
    assert!(moved > ROWS / 2, "{moved} rows stolen{}", fleet.logs());
    let (slow, fast) = (fleet.rows_done_by("slow"), fleet.rows_done_by("fast"));
    assert!(fast > slow, "the fast one did {fast:?}, the slow one {slow:?}");
    check_executions(&fleet, &["slow", "fast"], ROWS)?;
    let leader = fleet.leader();
    let counted = |metric| fleet.counted(&leader, metric).unwrap_or(0);
    assert!(counted("rollout_steals_total") > 1);
    assert_eq!(counted("rollout_rows_stolen_total"), moved);
    fleet.verify()?;
    fleet.passed()
}

/// Acknowledgments race steals all the time, and exactly one wins each row.
#[test]
fn concurrent_ack_and_steal_no_double_execute() -> Result<()> {
    const ROWS: u64 = 3000;
    let workers = [("w1", 1, 4), ("w2", 2, 2), ("w3", 4, 9), ("w4", 3, 1)];
    let mut fleet = Fleet::start(FleetOptions::default())?;
    // Two workers hold everything in their queues before the others come: from then on, a worker that runs dry steals
    // while the others' results are in transit.
    for (name, concurrency, latency_ms) in &workers[..2] {
        fleet.start_worker(name, &worker(&fleet, name, *concurrency, *latency_ms))?;
    }
    let mut batches = Vec::new();
    for name in ["one", "two", "three"] {
        batches.push(Batch::submit(&fleet, name, ROWS / 3, "")?);
    }
    for (name, concurrency, latency_ms) in &workers[2..] {
        fleet.start_worker(name, &worker(&fleet, name, *concurrency, *latency_ms))?;
    }
    for batch in &mut batches {
        batch.finish(&fleet)?;
    }
    let moved: u64 = ["one", "two", "three"].iter().filter_map(|run| stolen(&fleet, run)).sum();
    assert!(moved > 0, "nothing was stolen{}", fleet.logs());
    let files: Vec<_> = workers.iter().map(|w| fleet.path(&format!("{}.side", w.0))).collect();
    let executions = Executions::read(&files)?;
    assert_eq!(executions.started, ROWS, "{moved} rows were stolen{}", fleet.logs());
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_leader_that_dies_between_asking_and_moving_loses_nothing() -> Result<()> {
    const ROWS: u64 = 160;
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("slow", &worker(&fleet, "slow", 1, 60))?;
    let mut batch = Batch::submit(&fleet, "orphan", ROWS, "")?;
    batch.until(&fleet, "one worker holds every row", |c| c.running + c.done == ROWS);
    // The worker is paused, so its answer to this leader's steal request goes to the next leader.
    let leader = fleet.leader();
    fleet.worker_process("slow").signal(libc::SIGSTOP)?;
    fleet.start_worker("fast", &worker(&fleet, "fast", 4, 5))?;
    eventually("the busy worker is asked", PATIENCE, || {
        fleet.counted(&leader, "rollout_steal_requests_total").filter(|n| *n > 0)
    });
    fleet.member_process(&leader).kill();
    fleet.worker_process("slow").signal(libc::SIGCONT)?;
    fleet.leader_other_than(&leader);
    fleet.start_member(&leader)?;
    batch.finish(&fleet)?;
    check_executions(&fleet, &["slow", "fast"], ROWS)?;
    fleet.verify()?;
    fleet.passed()
}

/// Two rows of a thousand can hold up a run while a slot is stuck, unless the run allows duplicates.
#[test]
fn a_stuck_rows_duplicate_wins_and_its_first_holder_stops() -> Result<()> {
    const ROWS: u64 = 8;
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("stuck", &worker(&fleet, "stuck", 4, 3_600_000))?;
    let mut batch = Batch::submit(&fleet, "tail", ROWS, "[run]\ntail_duplicates = true\n")?;
    batch.until(&fleet, "one worker holds every row", |c| c.running == ROWS);
    fleet.start_worker("idle", &worker(&fleet, "idle", 8, 5))?;
    // Unstarted rows are stolen, started ones are duplicated: otherwise this would take an hour.
    batch.finish(&fleet)?;
    let count = |what| eventually("somebody counts", PATIENCE, || counted(&fleet, "tail", what));
    assert_eq!((count("stolen"), count("duplicated"), count("done")), (4, 4, ROWS));
    let files = ["stuck", "idle"].map(|w| fleet.path(&format!("{w}.side")));
    let executions = Executions::read(&files)?;
    let twice = executions.attempts.values().filter(|attempts| attempts.len() == 2).count();
    assert_eq!((executions.started, twice), (ROWS + 4, 4), "{}", fleet.logs());
    let leader = fleet.leader();
    assert_eq!(fleet.counted(&leader, "rollout_rows_superseded_total"), Some(4));
    // The worker that lost the race learns it, and has no work left: it drains at once.
    eventually("the stuck rows are taken back", PATIENCE, || {
        let log = std::fs::read_to_string(fleet.path("worker-stuck.log")).ok()?;
        log.contains("rows were revoked").then_some(())
    });
    let status = fleet.worker_process("stuck").terminate(Duration::from_secs(30))?;
    assert!(status.success(), "{status}{}", fleet.logs());
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_row_that_two_workers_finish_at_once_has_one_result() -> Result<()> {
    const ROWS: u64 = 96;
    let mut fleet = Fleet::start(FleetOptions::default())?;
    // A duplicate starts a second after its original at the earliest, and takes a second less.
    fleet.start_worker("first", &worker(&fleet, "first", 12, 2400))?;
    let mut batch = Batch::submit(&fleet, "race", ROWS, "[run]\ntail_duplicates = true\n")?;
    batch.until(&fleet, "one worker holds every row", |c| c.running + c.done == ROWS);
    fleet.start_worker("second", &worker(&fleet, "second", 16, 1150))?;
    fleet.start_worker("third", &worker(&fleet, "third", 16, 1250))?;
    batch.finish(&fleet)?;
    let count = |what| eventually("somebody counts", PATIENCE, || counted(&fleet, "race", what));
    let (duplicated, done) = (count("duplicated"), count("done"));
    assert!(duplicated > 0, "nothing was duplicated{}", fleet.logs());
    assert_eq!(done, ROWS);
    let files = ["first", "second", "third"].map(|w| fleet.path(&format!("{w}.side")));
    let executions = Executions::read(&files)?;
    assert_eq!(executions.attempts.len() as u64, ROWS);
    assert!(executions.started <= ROWS + duplicated, "{executions:?} {duplicated} duplicated");
    fleet.verify()?;
    fleet.passed()
}

/// A duplicate won the first of a stuck worker's rows, at a leader that could not tell the stuck worker, and died.
/// Nothing else runs: the winner is paused.
struct Outrun {
    fleet: Fleet,
    batch: Batch,
    old_leader: String,
}

impl Outrun {
    const ROWS: u64 = 8;

    /// The stuck worker's rows take `latency_ms`. It can reach the other members only if it is not `apart`.
    fn new(latency_ms: u64, apart: bool) -> Result<Self> {
        let mut fleet = Fleet::start(FleetOptions { cuttable: true, ..FleetOptions::default() })?;
        fleet.start_worker("stuck", &worker(&fleet, "stuck", 4, latency_ms))?;
        let batch = Batch::submit(&fleet, "tail", Self::ROWS, "[run]\ntail_duplicates = true\n")?;
        batch.until(&fleet, "one worker holds every row", |c| c.running == Self::ROWS);
        // It steals the unstarted rows, and then duplicates one row after another.
        fleet.start_worker("idle", &worker(&fleet, "idle", 1, 1500))?;
        eventually("a row is duplicated", PATIENCE, || {
            counted(&fleet, "tail", "duplicated").filter(|rows| *rows > 0)
        });
        let old_leader = fleet.leader();
        for member in fleet.member_names().iter().filter(|name| apart || **name == old_leader) {
            fleet.set_cut("stuck", member, true);
        }
        batch.until(&fleet, "the duplicate has won", |c| c.done > 4);
        fleet.worker_process("idle").signal(libc::SIGSTOP)?;
        anyhow::ensure!(!Self::was_reported(&fleet), "no leader can have told it{}", fleet.logs());
        fleet.member_process(&old_leader).kill();
        fleet.leader_other_than(&old_leader);
        Ok(Self { fleet, batch, old_leader })
    }

    /// Whether the stuck worker has learned that it lost rows.
    fn was_reported(fleet: &Fleet) -> bool {
        let log = std::fs::read_to_string(fleet.path("worker-stuck.log")).unwrap_or_default();
        log.contains("rows were revoked")
    }

    /// Resumes all processes, and checks that each row has one result.
    fn finish(mut self) -> Result<()> {
        let fleet = &mut self.fleet;
        fleet.worker_process("idle").signal(libc::SIGCONT)?;
        fleet.start_member(&self.old_leader)?;
        self.batch.finish(fleet)?;
        let done = self.batch.counts(fleet).map(|c| (c.done, c.running));
        assert_eq!(done, Some((Self::ROWS, 0)));
        let files = ["stuck", "idle"].map(|w| fleet.path(&format!("{w}.side")));
        let executions = Executions::read(&files)?;
        assert_eq!(executions.attempts.len() as u64, Self::ROWS);
        let duplicated = counted(fleet, "tail", "duplicated").unwrap_or_default();
        assert!(executions.started <= Self::ROWS + duplicated, "{executions:?} {duplicated}");
        let status = fleet.worker_process("stuck").terminate(Duration::from_secs(30))?;
        assert!(status.success(), "it holds nothing any more: {status}{}", fleet.logs());
        fleet.verify()?;
        self.fleet.passed()
    }
}

#[test]
fn a_new_leader_tells_a_superseded_worker_that_the_old_one_did_not() -> Result<()> {
    let outrun = Outrun::new(3_600_000, false)?;
    let fleet = &outrun.fleet;
    eventually("the new leader takes the row back", PATIENCE, || {
        Outrun::was_reported(fleet).then_some(())
    });
    let left = outrun.batch.until(fleet, "the others still run", |c| c.running > 0);
    assert!(left.done > 4 && left.done + left.running == Outrun::ROWS, "{left:?}");
    outrun.finish()
}

#[test]
fn the_next_leader_refuses_a_result_of_a_superseded_worker() -> Result<()> {
    let outrun = Outrun::new(20_000, true)?;
    let fleet = &outrun.fleet;
    let before = outrun.batch.until(fleet, "the new leader counts", |c| c.done > 4);
    // Cut off, it finishes all rows that it has started, including the row that has a result.
    eventually("the stuck worker has finished its rows", PATIENCE, || {
        let side = std::fs::read_to_string(fleet.path("stuck.side")).ok()?;
        (side.lines().filter(|line| line.ends_with("finished")).count() == 4).then_some(())
    });
    for member in fleet.member_names() {
        if member != outrun.old_leader {
            fleet.set_cut("stuck", &member, false);
        }
    }
    // Rows that it finished first count; the row that another worker finished before does not. Each row counts once.
    outrun.batch.until(fleet, "its results are in", |c| c.done == Outrun::ROWS);
    let by_stuck = fleet.rows_done_by("stuck");
    assert_eq!(by_stuck, Some(Outrun::ROWS - before.done), "{before:?}{}", fleet.logs());
    outrun.finish()
}

#[test]
fn a_run_that_does_not_ask_for_it_has_no_duplicates() -> Result<()> {
    const ROWS: u64 = 4;
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("slow", &worker(&fleet, "slow", 4, 4000))?;
    let mut batch = Batch::submit(&fleet, "plain", ROWS, "")?;
    batch.until(&fleet, "one worker holds every row", |c| c.running == ROWS);
    fleet.start_worker("idle", &worker(&fleet, "idle", 4, 5))?;
    batch.finish(&fleet)?;
    assert_eq!(fleet.rows_done_by("slow"), Some(ROWS));
    check_executions(&fleet, &["slow"], ROWS)?;
    fleet.passed()
}
