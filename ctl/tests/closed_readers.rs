//! Commands whose reader has gone: `rolloutctl … --watch | head -1`, and messages to a closed stderr.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_watching_command_ends_when_its_reader_has_gone() {
    let dir = tempfile::tempdir().unwrap();
    let command = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rolloutctl"));
        command.current_dir(&dir).env("XDG_CONFIG_HOME", dir.path()).stdin(Stdio::null());
        command
    };
    let made = command().args(["cert", "init-ca", "--ca-dir", "ca"]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let watch = ["cert", "inspect", "ca/ca.pem", "--watch=100ms", "-o", "json"];
    let mut child = command().args(watch).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    assert!(first.contains("\"kind\":\"Certificate\""), "{first}");
    drop(lines);
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("it still looks");
        }
        std::thread::sleep(Duration::from_millis(50)); // The poll; the condition decides.
    };
    assert!(status.success(), "{status}");
}

#[test]
fn a_failing_command_keeps_its_exit_status_if_stderr_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let (reader, stderr) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(env!("CARGO_BIN_EXE_rolloutctl"));
    command.current_dir(&dir).env("XDG_CONFIG_HOME", dir.path()).stdin(Stdio::null());
    let failed = command.args(["errors", "explain", "RO-0000"]).stderr(stderr).status().unwrap();
    assert_eq!(failed.code(), Some(4), "{failed}");
}
