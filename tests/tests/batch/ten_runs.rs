//! Ten runs, one after another, take the space of one: in memory, in the ledger, and on a member's disk.
//!
//! The test command runs them with few rows each; `make gc` with a million. The log is kept so short that the
//! first run already reaches its bound, so that the usage after the tenth can be compared with it.

use anyhow::{Context, Result, ensure};
use rollout_tests::{
    Batch, Fleet, FleetOptions, WorkerOptions, eventually, eventually_or_show, files,
    resident_bytes, weight,
};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);
const RUNS: u64 = 10;
/// RocksDB's own overhead: journals, descriptions, and tables with the changes of the last seconds.
const DATABASE: u64 = 128 << 10;

/// Seconds for which memory is sampled.
const REST_SAMPLES: u32 = 20;

/// More than the size of any entry of this log.
const LOG_ENTRY: u64 = 16 << 10;

/// Rows of each of the ten runs: ROLLOUT_GC_ROWS, as `make gc` sets it, or few enough for a routine test.
fn rows_of_a_run() -> u64 {
    let rows = std::env::var("ROLLOUT_GC_ROWS").ok();
    rows.map_or(10_000, |rows| rows.parse().expect("ROLLOUT_GC_ROWS is a number"))
}

/// Bytes of log that a member keeps: less than one run writes.
fn log_keep_bytes(rows: u64) -> u64 {
    (rows * 2 / 5).max(4096)
}

fn fleet(rows: u64) -> Result<Fleet> {
    let keep = format!("image_interval_ms = 200\nlog_keep_bytes = {}", log_keep_bytes(rows));
    let member_lines = vec![
        // Runs are sealed at once, and deleted when the test says so, never while an output is still being written.
        ("retention", "run_ttl_ms = 100\nretention_ms = 0"),
        ("raft", &*keep.leak()),
        ("events", "bytes_max = 1048576"),
    ];
    let mut fleet = Fleet::start(FleetOptions { member_lines, ..FleetOptions::default() })?;
    let engine = "kind = \"mock\"\nslots = 2\nconcurrency = 64\n".to_owned();
    for name in ["w1", "w2"] {
        fleet
            .start_worker(name, &WorkerOptions { engine: engine.clone(), ..Default::default() })?;
    }
    Ok(fleet)
}

/// Runs a batch from its input to its deletion.
fn run_and_forget(fleet: &Fleet, name: &str, rows: u64) -> Result<()> {
    let mut batch = Batch::submit(fleet, name, rows, "")?;
    batch.finish(fleet)?;
    let described = |fleet: &Fleet| fleet.ctl_json(&["run", "describe", name]).ok();
    eventually("the run is sealed", PATIENCE, || {
        described(fleet)?.to_string().contains("\"sealed\":true").then_some(())
    });
    let out = fleet.ctl(&["run", "delete", name, "--yes", "--wait"])?;
    ensure!(out.status.success(), "{}{}", String::from_utf8_lossy(&out.stderr), fleet.logs());
    ensure!(described(fleet).is_none(), "{name} was deleted and is there");
    // The test's own files do not count.
    std::fs::remove_dir_all(&batch.output)?;
    Ok(std::fs::remove_file(&batch.input)?)
}

/// The highest memory use of these members.
fn memory(fleet: &mut Fleet, members: &[String]) -> u64 {
    let of_one = |member: &String| {
        // Subtract write buffers: a database's write buffer fills to its bound and is flushed, whatever is written.
        let buffers = fleet.counted(member, "rollout_storage_write_buffer_bytes").unwrap_or(0);
        let resident = resident_bytes(fleet.member_process(member).pid()).unwrap_or(0);
        resident.saturating_sub(buffers)
    };
    members.iter().map(of_one).max().unwrap_or(0)
}

/// The memory once the members are idle: their allocator returns pages within about ten seconds, and memory that a
/// deletion needs for a moment does not count. The least of several samples, or the first that is at most `enough`.
fn memory_at_rest(fleet: &mut Fleet, members: &[String], enough: u64) -> u64 {
    let mut least = u64::MAX;
    for _ in 0..REST_SAMPLES {
        std::thread::sleep(Duration::from_secs(1));
        least = least.min(memory(fleet, members));
        if least <= enough {
            break;
        }
    }
    least
}

/// What forgotten runs leave, in bytes.
#[derive(Debug)]
struct Leftovers {
    /// Size of the ledger's state in a snapshot file.
    state: u64,
    /// Size of the data directory without the log, after a restart.
    disk: u64,
    /// Size of the log's files, likewise.
    log: u64,
}

/// Restarts a member, so that its databases flush and compact, and measures its size.
fn weigh(fleet: &mut Fleet, member: &str, rows: u64, file: &str) -> Result<Leftovers> {
    fleet.member_process(member).terminate(PATIENCE)?;
    fleet.start_member(member)?;
    fleet.verify().context("after the restart")?;
    // A snapshot is taken after every half of the kept size, and the log is purged below it if that much remains.
    let bound = 3 * log_keep_bytes(rows) + LOG_ENTRY;
    let log = eventually_or_show("the log is purged", PATIENCE, |seen| {
        let bytes = fleet.counted(member, "rollout_storage_log_bytes")?;
        *seen = format!("{bytes} bytes, {bound} are the bound");
        (bytes > 0 && bytes <= bound).then_some(bytes)
    });
    // Deleted data leaves the tables some seconds after a start, and the snapshot with them.
    let parts = eventually_or_show("what was forgotten leaves the image", PATIENCE, |seen| {
        let parts = weight(&fleet.data_dir(member));
        *seen = format!("{parts:?}");
        (parts.get("image")? < &(2 * DATABASE)).then_some(parts)
    });
    let file = fleet.path(file);
    fleet.ctl_json(&["snapshot", "save", &file.to_string_lossy()])?;
    let state = std::fs::metadata(&file)?.len();
    let files_of_log = parts.get("log").copied().unwrap_or(0);
    let disk = parts.values().sum::<u64>() - files_of_log;
    let left = Leftovers { state, disk, log: files_of_log };
    println!("{member} has {left:?}, {log} bytes of log, and on disk {parts:?}");
    Ok(left)
}

#[test]
fn ten_runs_one_after_another_take_the_room_of_one() -> Result<()> {
    let rows = rows_of_a_run();
    let mut fleet = fleet(rows)?;
    // One member is measured after restarts; the others show the memory after ten runs.
    let leader = fleet.leader();
    let mut others = fleet.member_names();
    others.retain(|name| *name != leader);
    let weighed = others.pop().context("a follower")?;
    others.push(leader);
    let mut first = None;
    for turn in 0..RUNS {
        run_and_forget(&fleet, &format!("turn{turn}"), rows)?;
        let resident = memory(&mut fleet, &others) >> 10;
        println!("run {turn}: {rows} rows, {resident} KiB resident at most");
        if turn == 0 {
            let log = std::fs::read_to_string(&fleet.member_process(&weighed).log)?;
            ensure!(log.contains("purging the log"), "one run is too short for its bound: {log}");
            let memory = memory_at_rest(&mut fleet, &others, 0);
            first = Some((memory, weigh(&mut fleet, &weighed, rows, "one.snapshot")?));
        }
    }
    let (memory_of_one, one) = first.context("a first run")?;
    // A first run of few rows does not touch all the memory that a member needs; a million rows do.
    let many = rows >= 1_000_000;
    let cold = if many { 0 } else { 32 << 20 };
    let bound = memory_of_one + memory_of_one / 10 + cold;
    // With many rows this is also a figure of the documentation.
    let memory_now = memory_at_rest(&mut fleet, &others, if many { 0 } else { bound });
    println!("at rest: {} KiB, {} KiB after one run", memory_now >> 10, memory_of_one >> 10);
    let ten = weigh(&mut fleet, &weighed, rows, "ten.snapshot")?;
    assert!(memory_now <= bound, "{memory_now} bytes, {memory_of_one} after one");
    // Sessions of clients are remembered for a day, each with a few answers.
    let bound = one.state + one.state / 10 + RUNS * (4 << 10);
    assert!(ten.state <= bound, "of the ledger {ten:?}, {one:?} after one");
    let bound = one.disk + one.disk / 10 + DATABASE;
    assert!(ten.disk <= bound, "on disk {ten:?}, {one:?} after one");
    // The log keeps what its own bound says, whatever was run: entries, and as much again that is purged but not
    // compacted.
    let bound = 2 * (3 * log_keep_bytes(rows) + LOG_ENTRY) + DATABASE;
    assert!(ten.log <= bound, "of the log {ten:?}, {one:?} after one");
    assert_eq!(files(&fleet.path("store").join("runs")), [], "objects are left");
    fleet.verify()?;
    fleet.passed()
}
