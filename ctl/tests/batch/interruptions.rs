//! Interruptions, and what happens without a leader.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use rollout_proto::v1::RunState;

use super::cluster::{FakeBehavior, TestCluster};
use super::command::{CommandOutcome, Job, interrupt};

const INPUT: &str = "{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n";

fn held() -> TestCluster {
    let cluster = TestCluster::start();
    cluster.set_behavior(FakeBehavior { holds_from: Some(1), ..FakeBehavior::default() });
    cluster
}

#[test]
fn ctrl_c_leaves_the_run_alive_and_says_how_to_come_back() {
    let cluster = held();
    let job = Job::new(&cluster, "job", INPUT);
    let child = job.spawn_batch(&["--name", "r"]);
    cluster.wait_for("a watcher", |state| state.streams_opened > 0);
    interrupt(&child);
    let ended = CommandOutcome::from(child.wait_with_output().unwrap());
    assert_eq!(ended.code, 130, "{ended:?}");
    assert!(
        ended.stderr.contains("rollout infer batch --config batch.toml --resume r\n"),
        "{ended:?}"
    );
    assert!(ended.stderr.contains("rolloutctl run watch r\n"), "{ended:?}");
    assert_eq!(cluster.run("r").unwrap().reason, "");
    assert!(!job.out().join("completions.jsonl").exists());
    cluster.release();
    let resumed = job.batch(&["--resume", "r"]);
    assert_eq!(resumed.code, 0, "{resumed:?}");
    assert_eq!(job.lines("out/completions.jsonl").len(), 2);
}

#[test]
fn the_printed_command_returns_to_a_run_with_a_canary() {
    let cluster = held();
    let job = Job::new(&cluster, "job", INPUT);
    let child = job.spawn_batch(&["--name", "r", "--canary", "1"]);
    cluster.wait_for("a watcher", |state| state.streams_opened > 0);
    interrupt(&child);
    let ended = CommandOutcome::from(child.wait_with_output().unwrap());
    let mut lines = ended.stderr.lines();
    let back = lines.find_map(|line| line.strip_prefix("  rollout infer ")).expect("a command");
    let words: Vec<&str> = back.split(' ').collect();
    cluster.release();
    let resumed = job.run(&[&["infer"], &words[..]].concat());
    assert_eq!(resumed.code, 0, "{resumed:?}");
}

#[test]
fn ctrl_c_never_cancels_however_often_it_comes_and_a_command_does() {
    let cluster = held();
    let job = Job::new(&cluster, "job", INPUT);
    let child = job.spawn_batch(&["--name", "r"]);
    cluster.wait_for("a watcher", |state| state.streams_opened > 0);
    interrupt(&child);
    // Signaling a process that has ended is harmless too: it was not waited for.
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(100));
        interrupt(&child);
    }
    let ended = CommandOutcome::from(child.wait_with_output().unwrap());
    assert_eq!(ended.code, 130, "{ended:?}");
    assert!(ended.stderr.contains("to cancel it:\n  rollout run cancel r\n"), "{ended:?}");
    let run = cluster.run("r").unwrap();
    assert_eq!((run.state, &*run.reason), (RunState::Running as i32, ""));

    let cancelled = job.run(&["run", "cancel", "r", "--reason", "too dear"]);
    assert_eq!(cancelled.code, 0, "{cancelled:?}");
    assert!(cancelled.stderr.contains("run r is cancelled: "), "{cancelled:?}");
    let ended = job.batch(&["--resume", "r"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("was cancelled: too dear"), "{ended:?}");
    assert_eq!(job.run(&["run", "cancel", "nope"]).code, 4);
    let both = job.run(&["run", "cancel", "nope", "r"]);
    assert_eq!(both.code, 4, "{both:?}");
    for said in ["nope: error: ", "run r is cancelled: "] {
        assert!(both.stderr.contains(said), "{said}: {both:?}");
    }
}

#[test]
fn a_paused_run_is_reported_with_its_reason_and_watched_further() {
    let cluster = held();
    let job = Job::new(&cluster, "job", INPUT);
    let mut child = job.spawn_batch(&["--name", "r"]);
    cluster.wait_for("a watcher", |state| state.streams_opened > 0);
    let set = |state: rollout_proto::v1::RunState, reason: &str| {
        let mut guard = cluster.state.lock();
        let run = guard.runs.values_mut().next().unwrap();
        run.state = state as i32;
        run.reason = reason.to_owned();
    };
    set(rollout_proto::v1::RunState::Paused, "the store is full");
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("is paused: the store is full; to continue: rolloutctl run resume r") {
        line.clear();
        assert!(stderr.read_line(&mut line).unwrap() > 0, "it ended");
    }
    set(rollout_proto::v1::RunState::Running, "");
    cluster.release();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_command_without_a_leader_says_so_and_ends_at_its_time_out() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", INPUT);
    let config = job.read("batch.toml");
    job.write("batch.toml", &config);
    let args = ["infer", "batch", "--config", "batch.toml", "--name", "r"];
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_rollout"));
    command.args(args).args(["--insecure-plaintext", "-e", "127.0.0.1:1", "--timeout", "2s"]);
    command.current_dir(&job.dir).env("XDG_CACHE_HOME", job.dir.join("cache"));
    let ended = CommandOutcome::from(command.output().unwrap());
    assert_eq!(ended.code, 3, "{ended:?}");
    assert!(ended.stderr.contains("127.0.0.1:1"), "{ended:?}");
    assert!(ended.stderr.contains("tcp"), "{ended:?}");
    assert!(ended.stderr.contains("waiting: "), "{ended:?}");
}

#[test]
fn an_unknown_run_is_not_found() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", INPUT);
    for args in [&["export", "nope", "--output", "x"][..], &["verify", "nope"]] {
        let ended = job.run(args);
        assert_eq!(ended.code, 4, "{ended:?}");
        assert!(ended.stderr.contains("RO-2001"), "{ended:?}");
    }
    assert_eq!(job.batch(&["--resume", "nope"]).code, 4);
}
