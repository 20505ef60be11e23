//! One short run of the whole suite. Its verdict may be `unknown` on a machine too busy for enough
//! to happen in that time; a violation it may never be.

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
    let recheck = Command::new(exe).arg("recheck").arg(dir.path()).status().unwrap();
    assert_eq!(recheck.code(), status, "a recorded run gets the same verdict again");
    assert!(std::fs::read_to_string(dir.path().join("report.html")).unwrap().contains("<svg"));
}
