//! Edited inputs: when they become a revision, and which results are reused.

use super::cluster::{FakeBehavior, TestCluster};
use super::command::{CommandOutcome, Job, interrupt};

fn input(rows: &[&str]) -> String {
    rows.iter().map(|prompt| format!("{{\"prompt\":\"{prompt}\"}}\n")).collect()
}

#[test]
fn an_edited_input_is_a_revision_that_reuses_the_results_of_equal_rows() {
    let cluster = TestCluster::start();
    cluster.set_behavior(FakeBehavior { fails: vec![1], ..FakeBehavior::default() });
    let job = Job::new(&cluster, "job", &input(&["a", "b", "c", "d"]));
    assert_eq!(job.batch(&["--name", "r"]).code, 10, "row b fails");
    cluster.set_behavior(FakeBehavior { holds_from: Some(0), ..FakeBehavior::default() });
    // d comes first, c has new wording, b failed, one a occurs twice.
    job.write("in.jsonl", &input(&["d", "a", "b", "cc", "a"]));
    let ended = job.batch(&["--detach"]);
    assert_eq!((ended.code, ended.stdout.trim()), (0, "r.r2"), "{ended:?}");
    assert!(ended.stderr.contains("2 of 5 with a reused result"), "{ended:?}");
    assert_eq!(job.run_name(), "r.r2");
    let run = cluster.run("r.r2").unwrap();
    let carried: Vec<bool> = run.outcomes.iter().map(Option::is_some).collect();
    assert_eq!(carried, [true, true, false, false, false]);
    // The same command means the same run.
    let again = job.batch(&["--detach"]);
    assert_eq!((again.code, again.stdout.trim()), (0, "r.r2"), "{again:?}");
    assert_eq!(cluster.state.lock().runs.len(), 2);
    cluster.release();
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let lines = job.lines("out/completions.jsonl");
    let found: Vec<_> = lines.iter().map(|line| line["completion"].as_str().unwrap()).collect();
    assert_eq!(found, ["MOCK:d", "MOCK:a", "MOCK:b", "MOCK:cc", "MOCK:a"]);
    let verified = job.run(&["verify", "r.r2", "--output", "out"]);
    assert_eq!(verified.code, 0, "{verified:?}");
    // Other sampling parameters share no item.
    let config = job.read("batch.toml").replace("seed = 1", "seed = 2");
    job.write("batch.toml", &config);
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(!ended.stderr.contains("reused result"), "{ended:?}");
    assert_eq!(job.run_name(), "r.r3");
    // And back: the items of the second revision.
    job.write("batch.toml", &config.replace("seed = 2", "seed = 1"));
    let ended = job.batch(&[]);
    assert!(ended.stderr.contains("5 of 5 with a reused result"), "{ended:?}");
}

#[test]
fn a_second_revision_is_refused_unless_it_replaces_the_running_one() {
    let cluster = TestCluster::start();
    cluster.set_behavior(FakeBehavior { holds_from: Some(2), ..FakeBehavior::default() });
    let job = Job::new(&cluster, "job", &input(&["a", "b", "c"]));
    assert_eq!(job.batch(&["--name", "r", "--detach"]).code, 0);
    cluster.wait_for("two rows", |state| {
        state.runs.values().any(|run| run.outcomes.iter().flatten().count() == 2)
    });
    job.write("in.jsonl", &input(&["a", "c"]));
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 5, "{ended:?}");
    assert!(ended.stderr.contains("2 of 3 rows decided"), "{ended:?}");
    assert!(ended.stderr.contains("--replace"), "{ended:?}");
    // An invalid input cancels nothing.
    job.write("in.jsonl", "{}\n");
    assert_eq!(job.batch(&["--replace"]).code, 2);
    assert_eq!(cluster.run("r").unwrap().state, rollout_proto::v1::RunState::Running as i32);
    job.write("in.jsonl", &input(&["a", "c"]));
    cluster.set_behavior(FakeBehavior::default());
    let ended = job.batch(&["--replace"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("1 of 2 with a reused result"), "{ended:?}");
    assert_eq!(cluster.run("r").unwrap().reason, "replaced by r.r2");
    assert_eq!(job.lines("out/completions.jsonl").len(), 2);
}

#[test]
fn ctrl_c_while_reused_results_are_copied_names_no_run_that_is_not_there() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", &input(&["a", "b"]));
    assert_eq!(job.batch(&["--name", "r"]).code, 0);
    let opened = cluster.state.lock().streams_opened;
    // The input is compared with the first revision's, and its results are listed then.
    let after = opened + 1;
    cluster
        .set_behavior(FakeBehavior { lists_nothing_after: Some(after), ..FakeBehavior::default() });
    job.write("in.jsonl", &input(&["a", "b", "c"]));
    let child = job.spawn_batch(&[]);
    cluster.wait_for("its results are asked for", |state| state.streams_opened > after);
    interrupt(&child);
    let ended = CommandOutcome::from(child.wait_with_output().unwrap());
    assert_eq!(ended.code, 130, "{ended:?}");
    assert!(ended.stderr.contains("copied: nothing was submitted"), "{ended:?}");
    assert!(!ended.stderr.contains("--resume"), "{ended:?}");
    assert!(cluster.run("r.r2").is_none(), "it was created");
    // The same command begins again.
    cluster.set_behavior(FakeBehavior::default());
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("2 of 3 with a reused result"), "{ended:?}");
}
