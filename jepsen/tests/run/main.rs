//! One short run of the whole suite. Its verdict may be `unknown`, because not every kind of fault fits into that
//! time; it must not be a violation, and the run must have done something.

use std::path::Path;
use std::process::Command;

#[test]
fn a_short_run_under_all_faults_shows_no_violation() {
    let dir = tempfile::tempdir().unwrap();
    let exe = env!("CARGO_BIN_EXE_rollout-jepsen");
    let members = Path::new(exe).with_file_name("rollout-coordinator");
    assert!(members.exists(), "build the binaries first: cargo build --workspace --bins");
    let mut command = Command::new(exe);
    command.args(["run", "--workload", "item", "--seed", "5", "--secs", "25", "--dir"]);
    let out = command.arg(dir.path()).output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    let status = out.status.code();
    if !matches!(status, Some(0 | 2)) {
        let kept = dir.keep();
        panic!("status {status:?}, recorded in {}:\n{text}", kept.display());
    }
    println!("{text}");
    something_happened(dir.path());
    let recheck = Command::new(exe).arg("recheck").arg(dir.path()).status().unwrap();
    assert_eq!(recheck.code(), status, "a recorded run gets the same verdict again");
    assert!(std::fs::read_to_string(dir.path().join("report.html")).unwrap().contains("<svg"));
}

/// Checks that each kind of event that a pass requires happened at least a little.
fn something_happened(dir: &Path) {
    let verdict = std::fs::read(dir.join("verdict.json")).unwrap();
    let verdict: serde_json::Value = serde_json::from_slice(&verdict).unwrap();
    let coverage = &verdict["coverage"];
    let faults: u64 =
        coverage["faults"].as_object().unwrap().values().filter_map(|n| n.as_u64()).sum();
    assert!(faults > 0, "no fault was proven: {coverage}");
    for (what, counts) in [
        ("writes accepted under a fault", &coverage["written_under_fault"]),
        ("results accepted", &coverage["completed"][0]),
        ("rows read at the end", &coverage["final_reads"][0]),
        ("digests at one index", &coverage["digests"]),
        ("answers replayed", &coverage["replayed"]),
    ] {
        assert!(counts.as_u64().is_some_and(|count| count > 0), "{what}: {coverage}");
    }
}
