//! Data directories that belong to another member, or are damaged.

use crate::bad_input::setup::{CommandOutcome, PATIENCE, ended};
use anyhow::{Context, Result};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => files_below(&path, found),
            false => found.push(path),
        }
    }
}

/// Flips a bit in the middle of the largest file of a member's records.
fn damage(dir: &Path) -> Result<()> {
    let mut files = Vec::new();
    files_below(dir, &mut files);
    files.retain(|p| p.extension().is_some_and(|e| e == "sst" || e == "log"));
    files.sort_by_key(|p| std::fs::metadata(p).map(|m| m.len()).unwrap_or(0));
    let path = files.pop().context("there are records")?;
    let mut bytes = std::fs::read(&path)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    Ok(std::fs::write(&path, bytes)?)
}

#[test]
fn a_member_with_foreign_or_damaged_data_stops_and_says_what_to_do() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    Batch::submit(&fleet, "first", 3000, "")?.finish(&fleet)?;
    fleet.verify()?;
    let leader = fleet.leader();
    let mut others = fleet.member_names();
    others.retain(|name| *name != leader);
    let (one, two) = (others[0].clone(), others[1].clone());

    // Flags that contradict the directory.
    fleet.member_process(&one).kill();
    let config = fleet.path(&format!("{one}.toml"));
    let start = |flag: &str, value: &str| -> Result<CommandOutcome> {
        let mut command = fleet.program("rollout-coordinator");
        command.arg("--config").arg(&config).arg(flag).arg(value);
        ended(command)
    };
    let name = start("--name", "c9")?;
    assert!(name.code.is_some_and(|c| c != 0), "{name:?}");
    for words in [&one, "c9", "name", &fleet.data_dir(&one).display().to_string()] {
        assert!(name.err.contains(words), "{words} is not said: {name:?}");
    }
    let status = fleet.ctl_json(&["status"])?;
    let id = status["clusterId"].as_str().with_context(|| status.to_string())?.to_owned();
    let other = "00000000000000000000000000000001";
    let cluster = start("--cluster-id", other)?;
    assert!(cluster.code.is_some_and(|c| c != 0), "{cluster:?}");
    for words in [id.as_str(), other, "cluster id"] {
        assert!(cluster.err.contains(words), "{words} is not said: {cluster:?}");
    }

    // A hand-written identity.
    let identity = fleet.data_dir(&one).join("IDENTITY");
    let text = std::fs::read_to_string(&identity)?;
    std::fs::write(&identity, text.replace(&id, other))?;
    let changed = start("--name", &one)?;
    changed.expect(1, &[&identity.display().to_string(), "corrupt", "replace it under a new id"]);
    std::fs::write(&identity, text)?;

    // Flip a bit in the middle of its log, and one in the other member's image.
    fleet.member_process(&two).terminate(Duration::from_secs(20))?;
    for (name, part) in [(&one, "log"), (&two, "image")] {
        let dir = fleet.data_dir(name).join(part);
        damage(&dir)?;
        fleet.start_member(name)?;
        let status = fleet.member_process(name).wait(PATIENCE)?;
        let log = std::fs::read_to_string(fleet.path(&format!("{name}.log")))?;
        assert!(!status.success(), "{part}: {status}: {log}");
        let last = log.lines().rfind(|l| l.starts_with("error: ")).context("an error")?;
        for words in [&dir.display().to_string(), "corrupt", "replace it under a new id"] {
            assert!(last.contains(words), "{part}: {words} is not said: {last}");
        }
    }
    fleet.passed()
}
