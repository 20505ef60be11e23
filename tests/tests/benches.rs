//! Every `rolloutctl bench` measures a cluster that it starts itself, in little; what they measure is in docs/figures.md.

use anyhow::{Result, ensure};
use rollout_tests::{json_lines, output, program};
use serde_json::Value;
use std::time::Duration;

/// Of one, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(300);

/// What one prints: its lines by kind, of a cluster that is removed again.
fn measured(args: &[&str]) -> Result<Vec<(String, Value)>> {
    let dir = tempfile::tempdir()?;
    let mut command = program("rolloutctl")?;
    command.env_remove("ROLLOUT_CONTEXT").args(["-o", "jsonl", "bench"]).args(args);
    command.arg("--work-dir").arg(dir.path());
    let out = output(command, PATIENCE)?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "{args:?}: {}: {said}", out.status);
    let left = std::fs::read_dir(dir.path())?.count();
    ensure!(left == 0, "{args:?} leaves {left} directories behind");
    let lines = json_lines(&String::from_utf8_lossy(&out.stdout)).into_iter();
    Ok(lines
        .map(|l| (l["kind"].as_str().unwrap_or_default().to_owned(), l["data"].clone()))
        .collect())
}

fn kinds(lines: &[(String, Value)]) -> Vec<&str> {
    lines.iter().map(|(kind, _)| kind.as_str()).collect()
}

/// A figure of a line that is none unless something was measured.
fn positive(data: &Value, key: &str) -> Result<()> {
    ensure!(data[key].as_f64().is_some_and(|n| n > 0.0), "{key} of {data}");
    Ok(())
}

const LOAD: [&str; 6] = ["--workers", "2", "--items", "20000", "--warmup", "500ms"];

#[test]
fn the_ledgers_bench_counts_what_was_acknowledged_and_proves_that_nothing_was_lost() -> Result<()> {
    let lines = measured(&[&["ledger", "--batch", "64", "--seconds", "1s"], &LOAD[..]].concat())?;
    ensure!(kinds(&lines) == ["BenchLedger"], "{lines:?}");
    let data = &lines[0].1;
    positive(data, "itemsPerSecond")?;
    ensure!(data["settled"]["digestsEqual"] == true, "{data}");
    Ok(())
}

#[test]
fn a_leaders_death_and_both_ways_to_hand_over_are_measured_in_epochs_that_follow_one_another()
-> Result<()> {
    let lines = measured(&[&["failover", "--times", "1"], &LOAD[..]].concat())?;
    ensure!(kinds(&lines) == ["BenchFailover", "BenchFailoverSummary"], "{lines:?}");
    positive(&lines[0].1, "seconds")?;
    for by in ["sigterm", "transfer"] {
        let lines = measured(&[&["handover", "--times", "1", "--by", by], &LOAD[..]].concat())?;
        ensure!(kinds(&lines) == ["BenchHandover", "BenchHandoverSummary"], "{lines:?}");
        let (one, all) = (&lines[0].1, &lines[1].1);
        let epoch = |key: &str| one[key].as_str().and_then(|n| n.parse::<u64>().ok());
        ensure!(epoch("epochAfter") > epoch("epochBefore"), "{one}");
        ensure!(one["by"] == by && all["settled"]["digestsEqual"] == true, "{one}\n{all}");
        positive(all, "worstSeconds")?;
        ensure!(all["memberFsyncP99Us"].as_u64().is_some_and(|us| us > 0), "{all}");
    }
    Ok(())
}

#[test]
fn rows_are_submitted_nodes_rendezvous_and_a_disk_is_measured() -> Result<()> {
    let lines = measured(&["submit", "--rows", "20000", "--row-bytes", "100"])?;
    ensure!(kinds(&lines) == ["BenchSubmit"], "{lines:?}");
    ensure!(lines[0].1["rows"] == "20000" && lines[0].1["digestsEqual"] == true, "{lines:?}");
    positive(&lines[0].1, "rowsPerSecond")?;
    let lines = measured(&["rendezvous", "--nodes", "2,5", "--rounds", "2"])?;
    ensure!(kinds(&lines) == ["BenchRendezvous", "BenchRendezvous"], "{lines:?}");
    let nodes: Vec<_> = lines.iter().filter_map(|(_, data)| data["nodes"].as_u64()).collect();
    ensure!(nodes == [2, 5], "{lines:?}");
    positive(&lines[1].1, "medianSeconds")?;
    let lines = measured(&["fsync", "--seconds", "100ms"])?;
    ensure!(kinds(&lines) == ["BenchFsync"], "{lines:?}");
    positive(&lines[0].1, "fsyncsPerSecond")
}
