//! All members hold the same state, in memory and on disk, and a flipped bit is detected.

use anyhow::{Context, Result};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn tables(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            tables(&path, found);
        } else if path.extension().is_some_and(|e| e == "sst" || e == "log") {
            found.push(path);
        }
    }
}

#[test]
fn a_bit_flipped_in_one_members_image_is_noticed() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    let mut batch = Batch::submit(&fleet, "digests", 5000, "")?;
    batch.finish(&fleet)?;
    fleet.verify()?;

    let leader = fleet.leader();
    let victim = fleet.member_names().into_iter().find(|n| *n != leader).context("a follower")?;
    fleet.member_process(&victim).terminate(Duration::from_secs(20))?;
    let mut files = Vec::new();
    tables(&fleet.data_dir(&victim).join("image"), &mut files);
    // The largest file of the image holds its records.
    files.sort_by_key(|p| std::fs::metadata(p).map(|m| m.len()).unwrap_or(0));
    let path = files.pop().context("the image has files")?;
    let mut bytes = std::fs::read(&path)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes)?;

    fleet.start_member(&victim)?;
    // It either refuses to start and names the file, or serves and the digests expose it.
    let status = fleet.member_process(&victim).wait(Duration::from_secs(10));
    match status {
        Ok(status) => {
            assert!(!status.success());
            let log = std::fs::read_to_string(fleet.path(&format!("{victim}.log")))?;
            assert!(log.contains("image"), "it says what is damaged: {log}");
        }
        Err(_) => {
            let verdict = fleet.verify().expect_err("a flipped bit is noticed").to_string();
            assert!(verdict.contains(&victim), "it names the member: {verdict}");
        }
    }
    fleet.passed()
}
