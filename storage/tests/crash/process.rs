//! Owns: starting the child, reading its output, killing it; building the preloaded library once.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::child::{self, Task};

/// Starts a child, and kills it some time after it has said that it is ready. Returns the complete lines that it
/// printed.
pub(crate) fn run_and_kill(
    task: Task,
    root: &Path,
    seed: u64,
    unsafe_no_fsync: bool,
    library: Option<(&Path, &Path)>,
    kill_after_ms: u64,
) -> Vec<String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "child", "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(child::TASK_ENV, task.name())
        .env(child::ROOT_ENV, root)
        .env(child::SEED_ENV, seed.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    if unsafe_no_fsync {
        command.env(child::NO_FSYNC_ENV, "1");
    }
    if let Some((library, journal)) = library {
        command.env("LD_PRELOAD", library).env(rollout_powerloss::JOURNAL_ENV, journal);
    }
    let mut process = command.spawn().unwrap();
    let stdout = process.stdout.take().unwrap();
    let (ready, is_ready) = channel();
    let reader = std::thread::spawn(move || {
        let mut lines = Vec::new();
        let mut reader = BufReader::new(stdout);
        let mut line = String::new();
        while reader.read_line(&mut line).unwrap() > 0 {
            // The kill may cut the last line. An incomplete line does not count.
            if let Some(complete) = line.strip_suffix('\n') {
                if complete.ends_with("ready") {
                    let _ = ready.send(());
                }
                lines.push(complete.to_owned());
            }
            line.clear();
        }
        lines
    });
    let started = is_ready.recv_timeout(Duration::from_secs(60));
    // The only wait for time to pass: the moment of the crash is the input of this test.
    std::thread::sleep(Duration::from_millis(kill_after_ms));
    process.kill().unwrap();
    process.wait().unwrap();
    let lines = reader.join().unwrap();
    assert!(started.is_ok(), "the child never became ready: {lines:?}");
    lines
}

/// The path of the preloaded library, built with this test's profile into this test's target directory.
pub(crate) fn preload_library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let exe = std::env::current_exe().unwrap();
        // <target>/<profile>/deps/<test>
        let profile = exe.parent().unwrap().parent().unwrap();
        let mut build = Command::new(env!("CARGO"));
        build
            .args(["build", "--quiet", "-p", "rollout-preload", "--target-dir"])
            .arg(profile.parent().unwrap())
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "the preloaded library does not build");
        let library = profile.join("librollout_preload.so");
        assert!(library.is_file(), "{} is missing", library.display());
        library
    })
}
