//! Submissions that fail or are killed anywhere: the same command resumes or starts a run, and no row runs twice.

use rollout_proto::ErrorCode;

use super::cluster::{FakeBehavior, Run, TestCluster};
use super::command::{CommandOutcome, Job};

const INPUT: &str = "{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n";

/// Where a submission ends.
#[derive(Debug, Clone, Copy)]
enum Fails {
    /// A row is invalid.
    Input,
    /// The store accepts no segment.
    Upload,
    /// The cluster refuses the run.
    Create,
    /// The client is killed while it waits for the answer to a request, which has taken effect or not.
    Killed(&'static str, bool),
}

/// Before the cluster has acknowledged the run.
const BEFORE: [Fails; 5] = [
    Fails::Input,
    Fails::Upload,
    Fails::Create,
    Fails::Killed("create", false),
    Fails::Killed("create", true),
];

const AFTER: [Fails; 4] = [
    Fails::Killed("add", false),
    Fails::Killed("add", true),
    Fails::Killed("close", false),
    Fails::Killed("close", true),
];

/// Submits, and fails at that point. Afterward the next command can succeed.
fn fail(cluster: &TestCluster, job: &Job<'_>, fails: Fails, more: &[&str]) {
    let config = job.read("batch.toml");
    let code = match fails {
        Fails::Input => {
            job.write("in.jsonl", &format!("{INPUT}{{}}\n"));
            Some(2)
        }
        Fails::Upload => {
            job.write("occupied", "");
            let url = format!("file://{}", job.dir.join("occupied").display());
            job.write("batch.toml", &format!("{config}[store]\nurl = \"{url}\"\n"));
            Some(1)
        }
        Fails::Create => {
            let refuses = Some(("create", ErrorCode::OverQuota));
            cluster.set_behavior(FakeBehavior { refuses, ..FakeBehavior::default() });
            None
        }
        Fails::Killed(request, has_its_effect) => {
            let hangs = Some((request, has_its_effect));
            cluster.set_behavior(FakeBehavior { hangs, ..FakeBehavior::default() });
            let mut child = job.spawn_batch(more);
            cluster.wait_for("a request without an answer", |state| state.hanging > 0);
            child.kill().unwrap();
            child.wait().unwrap();
            cluster.set_behavior(FakeBehavior::default());
            return;
        }
    };
    let ended = job.batch(more);
    assert_ne!(ended.code, 0, "{fails:?}: {ended:?}");
    assert!(code.is_none_or(|code| code == ended.code), "{fails:?}: {ended:?}");
    if more.contains(&"B") {
        assert!(ended.stderr.contains("out/run-id still names run A\n"), "{fails:?}: {ended:?}");
    }
    job.write("in.jsonl", INPUT);
    job.write("batch.toml", &config);
    cluster.set_behavior(FakeBehavior::default());
}

#[track_caller]
fn ended_well(ended: &CommandOutcome, fails: Fails) {
    assert_eq!(ended.code, 0, "{fails:?}: {ended:?}");
}

fn rows(run: &Run) -> usize {
    run.outcomes.iter().flatten().count()
}

#[test]
fn in_a_fresh_directory_the_same_command_again_is_one_run_with_every_row_once() {
    for fails in BEFORE.into_iter().chain(AFTER) {
        let cluster = TestCluster::start();
        let job = Job::new(&cluster, "job", INPUT);
        fail(&cluster, &job, fails, &[]);
        ended_well(&job.batch(&[]), fails);
        let runs: Vec<_> = cluster.state.lock().runs.values().cloned().collect();
        assert_eq!(runs.iter().map(rows).collect::<Vec<_>>(), [2], "{fails:?}");
        assert_eq!(job.run_name(), runs[0].name, "{fails:?}");
    }
}

#[test]
fn an_interrupted_submission_is_completed_although_the_file_has_another_deadline() {
    for fails in [Fails::Killed("create", true)].into_iter().chain(AFTER) {
        for resume in [false, true] {
            let cluster = TestCluster::start();
            let job = Job::new(&cluster, "job", INPUT);
            fail(&cluster, &job, fails, &["--name", "A"]);
            let config = job.read("batch.toml");
            job.write("batch.toml", &format!("{config}[run]\ndeadline_s = 3600\n"));
            let more: &[&str] = if resume { &["--resume", "A"] } else { &["--name", "A"] };
            ended_well(&job.batch(more), fails);
            let runs: Vec<_> = cluster.state.lock().runs.values().cloned().collect();
            assert_eq!(runs.iter().map(rows).collect::<Vec<_>>(), [2], "{fails:?}");
            assert_eq!(runs[0].spec.deadline_ms, 0, "{fails:?}");
        }
    }
}

#[test]
fn a_run_that_never_was_does_not_displace_the_one_of_the_directory() {
    let other = ["--name", "B", "--overwrite"];
    for fails in BEFORE {
        let cluster = TestCluster::start();
        let job = Job::new(&cluster, "job", INPUT);
        ended_well(&job.batch(&["--name", "A"]), fails);
        fail(&cluster, &job, fails, &other);
        let ended = job.batch(&[]);
        ended_well(&ended, fails);
        assert_eq!(job.run_name(), "A", "{fails:?}");
        assert!(ended.stderr.contains("run A already exists"), "{fails:?}: {ended:?}");
        let rows_of_b = || cluster.run("B").map_or(0, |run| run.outcomes.len());
        assert_eq!(rows_of_b(), 0, "{fails:?}");
        // And the wanted run is not lost.
        ended_well(&job.batch(&other), fails);
        assert_eq!((job.run_name().as_str(), rows_of_b()), ("B", 2), "{fails:?}");
    }
}

#[test]
fn a_run_with_rows_is_the_one_that_the_directory_names() {
    for fails in AFTER {
        let cluster = TestCluster::start();
        let job = Job::new(&cluster, "job", INPUT);
        ended_well(&job.batch(&["--name", "A"]), fails);
        fail(&cluster, &job, fails, &["--name", "B", "--overwrite"]);
        ended_well(&job.batch(&[]), fails);
        assert_eq!(job.run_name(), "B", "{fails:?}");
        let runs: Vec<_> = cluster.state.lock().runs.values().cloned().collect();
        assert_eq!(runs.iter().map(rows).collect::<Vec<_>>(), [2, 2], "{fails:?}");
    }
}

#[test]
fn a_name_whose_submission_failed_may_be_another_next_time() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", INPUT);
    fail(&cluster, &job, Fails::Input, &["--name", "first"]);
    assert_eq!(job.batch(&["--name", "second"]).code, 0);
    assert_eq!(job.run_name(), "second");
}

#[test]
fn two_commands_at_once_in_a_fresh_directory_are_one_run() {
    let cluster = TestCluster::start();
    cluster.state.lock().behavior.together = 2;
    let job = Job::new(&cluster, "job", INPUT);
    let children = [job.spawn_batch(&[]), job.spawn_batch(&[])];
    for child in children {
        let ended = CommandOutcome::from(child.wait_with_output().unwrap());
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    let runs: Vec<_> = cluster.state.lock().runs.values().cloned().collect();
    assert_eq!(runs.iter().map(rows).collect::<Vec<_>>(), [2]);
    assert_eq!(job.run_name(), runs[0].name);
}

#[test]
fn a_command_that_another_one_overtakes_in_a_fresh_directory_means_the_same_run() {
    let cluster = TestCluster::start();
    {
        let behavior = &mut cluster.state.lock().behavior;
        (behavior.together, behavior.only_one_is_early) = (2, true);
    }
    let job = Job::new(&cluster, "job", INPUT);
    let children = [job.spawn_batch(&[]), job.spawn_batch(&[])];
    for child in children {
        let ended = CommandOutcome::from(child.wait_with_output().unwrap());
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    let runs: Vec<_> = cluster.state.lock().runs.values().cloned().collect();
    assert_eq!(runs.iter().map(rows).collect::<Vec<_>>(), [2]);
    assert_eq!(job.run_name(), runs[0].name);
}

#[test]
fn a_deleted_run_is_submitted_again_with_a_message() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", INPUT);
    assert_eq!(job.batch(&["--name", "A"]).code, 0);
    cluster.state.lock().runs.clear();
    let ended = job.batch(&[]);
    assert_eq!((ended.code, job.run_name().as_str()), (0, "A"), "{ended:?}");
    assert!(ended.stderr.contains("run A no longer exists"), "{ended:?}");
}

#[test]
fn a_batch_file_that_asks_for_more_workers_than_are_ready_submits_nothing_and_says_what_to_do() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", INPUT);
    let file = job.read("batch.toml").replace("count = 1", "count = 3");
    job.write("batch.toml", &file);
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 5, "{ended:?}");
    for said in
        ["[workers] count = 3", "1 of the namespace's workers are ready", "rollout dev --workers 3"]
    {
        assert!(ended.stderr.contains(said), "{said}: {ended:?}");
    }
    assert!(cluster.state.lock().runs.is_empty());
    let ended = job.batch(&["--workers", "3"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("warning: 1 of 3 workers"), "{ended:?}");
    // The run exists: it continues with whatever workers there are.
    assert_eq!(job.batch(&[]).code, 0);
}
