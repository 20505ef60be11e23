//! An ended run is sealed, stays readable, is deleted, and leaves nothing behind.

use anyhow::{Context, Result};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually, files};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

fn fleet(lines: &[(&'static str, &'static str)]) -> Result<Fleet> {
    let member_lines = lines.to_vec();
    let mut fleet = Fleet::start(FleetOptions { member_lines, ..FleetOptions::default() })?;
    let engine = "kind = \"mock\"\nslots = 2\nconcurrency = 64\n".to_owned();
    for name in ["w1", "w2"] {
        fleet
            .start_worker(name, &WorkerOptions { engine: engine.clone(), ..Default::default() })?;
    }
    Ok(fleet)
}

fn described(fleet: &Fleet, run: &str) -> Option<Value> {
    fleet.ctl_json(&["run", "describe", run]).ok()
}

fn sealed(fleet: &Fleet, run: &str) {
    eventually("the run is sealed", PATIENCE, || {
        let text = described(fleet, run)?.to_string();
        text.contains("\"sealed\":true").then_some(())
    });
}

fn gone(fleet: &Fleet, run: &str) -> Result<()> {
    let out = fleet.ctl(&["run", "delete", run, "--yes", "--wait"])?;
    anyhow::ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Ok(())
}

#[test]
fn a_sealed_run_exports_the_same_bytes_and_a_deleted_one_leaves_no_object() -> Result<()> {
    let mut fleet = fleet(&[("retention", "run_ttl_ms = 500")])?;
    let mut batch = Batch::submit(&fleet, "kept", 9000, "")?;
    batch.finish(&fleet)?;
    sealed(&fleet, "kept");
    let objects = fleet.path("store").join("runs/default/kept");
    let export = |fleet: &Fleet, to: &str| -> Result<Vec<u8>> {
        let dir = fleet.path(to);
        let out = fleet.rollout(&["export", "kept", "--output"]).arg(&dir).output()?;
        anyhow::ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        Ok(std::fs::read(dir.join("completions.jsonl"))?)
    };
    let written = std::fs::read(fleet.path("kept-out").join("completions.jsonl"))?;
    assert_eq!(export(&fleet, "again")?, written, "the manifest lists what the ledger listed");
    // The ledger has none of its rows any more, and the error refers the user to the manifest.
    for args in
        [&["item", "list", "kept", "--state", "done"][..], &["item", "describe", "kept", "17"]]
    {
        let out = fleet.ctl(args)?;
        let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
        anyhow::ensure!(
            out.status.code() == Some(5) && stderr.contains("sealed"),
            "{args:?}: {out:?}"
        );
    }
    let results = fleet.rollout(&["run", "results", "kept", "--quiet"]).output()?;
    let lines = results.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
    anyhow::ensure!(
        results.status.success() && lines == 9000,
        "{lines} rows: {:?}",
        results.status
    );
    let verified = fleet.rollout(&["verify", "kept"]).output()?;
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));

    // Reads are the same after a failover and a restart.
    let old = fleet.leader();
    fleet.member_process(&old).kill();
    fleet.leader_other_than(&old);
    fleet.start_member(&old)?;
    assert_eq!(export(&fleet, "after")?, written);
    fleet.verify()?;

    let refused = {
        let mut open = Batch::submit(&fleet, "open", 50_000, "")?;
        open.until(&fleet, "rows run", |c| c.done > 0);
        let out = fleet.ctl(&["run", "delete", "open", "--yes"])?;
        fleet.ctl(&["run", "cancel", "open"])?;
        let _ = open.process().wait(PATIENCE);
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    assert!(refused.contains("RO-2013"), "{refused}");

    gone(&fleet, "kept")?;
    assert_eq!(files(&objects), [], "objects are left");
    gone(&fleet, "open")?;
    let mut again = Batch::submit(&fleet, "kept", 500, "")?;
    again.finish(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn unnamed_parts_are_swept_when_the_run_is_sealed() -> Result<()> {
    let fleet = fleet(&[("retention", "run_ttl_ms = 3000")])?;
    let mut batch = Batch::submit(&fleet, "swept", 2000, "")?;
    batch.finish(&fleet)?;
    let parts = fleet.objects_of("swept").join("parts");
    let named: BTreeSet<PathBuf> = files(&parts).into_iter().map(|f| f.0).collect();
    let orphan = parts.join("00".repeat(32));
    std::fs::write(&orphan, b"of an attempt that was refused")?;
    sealed(&fleet, "swept");
    eventually("it is swept", PATIENCE, || (!orphan.exists()).then_some(()));
    let left: BTreeSet<PathBuf> = files(&parts).into_iter().map(|f| f.0).collect();
    assert_eq!(left, named, "and nothing else");
    fleet.passed()
}

#[test]
fn the_engines_text_about_a_failed_row_survives_the_sweep_and_is_deleted_with_the_run() -> Result<()>
{
    let mut fleet = fleet(&[("retention", "run_ttl_ms = 3000")])?;
    let engine = "kind = \"mock\"\nprocess = true\nslots = 1\nconcurrency = 8\n".to_owned();
    for name in ["w1", "w2"] {
        fleet.worker_process(name).kill();
    }
    fleet.start_worker("w3", &WorkerOptions { engine, ..Default::default() })?;
    let mut text = String::new();
    for row in 0..20 {
        let ask = if row == 5 { "MOCK_CRASH" } else { "" };
        text.push_str(&format!("{{\"prompt\":\"say {row} {ask}\"}}\n"));
    }
    let input = fleet.path("said.jsonl");
    std::fs::write(&input, text)?;
    let mut batch = Batch::submit_file(&fleet, "said", input, 20, "")?;
    let status = batch.process().wait(PATIENCE)?;
    anyhow::ensure!(status.code() == Some(10), "{status}{}", fleet.logs());
    let item = fleet.ctl_json(&["item", "describe", "said", "5"])?;
    let last = item["history"].as_array().and_then(|h| h.last()).cloned().unwrap_or_default();
    let key = last["text"]["key"].as_str().unwrap_or_default().to_owned();
    let (named, objects) = (fleet.path("store").join(&key), fleet.objects_of("said"));
    anyhow::ensure!(named.starts_with(objects.join("evidence")), "{item}");
    let orphan = objects.join("evidence").join("00".repeat(32));
    std::fs::write(&orphan, b"of a report that was refused")?;
    sealed(&fleet, "said");
    eventually("it is swept", PATIENCE, || (!orphan.exists()).then_some(()));
    assert!(named.exists(), "the failed row's text is named by the manifest");
    gone(&fleet, "said")?;
    assert_eq!(files(&objects), [], "objects are left");
    fleet.passed()
}

#[test]
fn a_run_is_deleted_when_its_retention_is_over() -> Result<()> {
    let fleet = fleet(&[("retention", "run_ttl_ms = 300\nretention_ms = 1000")])?;
    let mut batch = Batch::submit(&fleet, "short", 1000, "")?;
    batch.finish(&fleet)?;
    eventually("the run is gone", PATIENCE, || described(&fleet, "short").is_none().then_some(()));
    assert_eq!(files(&fleet.path("store").join("runs/default/short")), []);
    fleet.passed()
}

#[test]
fn objects_of_no_run_are_swept_and_those_of_runs_and_of_other_clusters_are_not() -> Result<()> {
    let fleet = fleet(&[("retention", "sweep_every_ms = 300\nsweep_age_ms = 1500")])?;
    let mut batch = Batch::submit(&fleet, "lives", 1000, "")?;
    batch.finish(&fleet)?;
    let objects = fleet.objects_of("lives");
    let before: BTreeSet<PathBuf> = files(&objects).into_iter().map(|f| f.0).collect();
    let own = objects.file_name().context("a folder")?.to_string_lossy().into_owned();
    let (cluster, _) = own.split_once('-').context("a cluster's mark")?;
    let left = |folder: String| -> Result<PathBuf> {
        let dir = fleet.path("store").join(format!("runs/default/gone/{folder}/segments"));
        std::fs::create_dir_all(&dir)?;
        let object = dir.join("00".repeat(32));
        std::fs::write(&object, b"of a run that is no more")?;
        Ok(object)
    };
    let orphan = left(format!("{cluster}-{:016x}", 1))?;
    let others = left(format!("{}-{:016x}", "f".repeat(16), 1))?;
    let unmarked = left("by-hand".to_owned())?;
    eventually("it is swept", PATIENCE, || (!orphan.exists()).then_some(()));
    let again = left(format!("{cluster}-{:016x}", 2))?;
    eventually("the next one too", PATIENCE, || (!again.exists()).then_some(()));
    assert!(others.exists() && unmarked.exists(), "what is not the cluster's own is left alone");
    let after: BTreeSet<PathBuf> = files(&objects).into_iter().map(|f| f.0).collect();
    assert_eq!(after, before, "a run's objects stay");
    let verified = fleet.rollout(&["verify", "lives"]).output()?;
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    fleet.passed()
}
