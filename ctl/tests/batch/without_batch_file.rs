//! A batch whose command names a model, an input and an output, and no batch file.

use super::cluster::TestCluster;
use super::command::Job;

const FLAGS: [&str; 8] =
    ["infer", "batch", "--model", "mock", "--input", "in.jsonl", "--output", "out"];

#[test]
fn flags_run_a_batch_and_leave_a_file_that_continues_it() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "flags", "{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n");
    let dry = job.run(&[&FLAGS[..], &["--dry-run"]].concat());
    assert_eq!(dry.code, 0, "{dry:?}");
    assert!(!job.out().exists(), "a dry run wrote {:?}", job.out());

    let ended = job.run(&FLAGS);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(job.lines("out/completions.jsonl").len(), 2);
    for again in [&FLAGS[..], &["infer", "batch", "--config", "out/batch.toml"]] {
        let ended = job.run(again);
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    assert_eq!(cluster.state.lock().runs.len(), 1, "the same batch ran twice");
}

#[test]
fn flags_of_another_batch_do_not_replace_the_file() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "other-flags", "{\"prompt\":\"a\"}\n");
    assert_eq!(job.run(&FLAGS).code, 0);
    let file = job.read("out/batch.toml");
    let other = ["infer", "batch", "--model", "other", "--input", "in.jsonl", "--output", "out"];
    let refused = job.run(&other);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(
        refused.stderr.contains("out/batch.toml belongs to a batch with other flags"),
        "{refused:?}"
    );
    assert_eq!(job.read("out/batch.toml"), file);
}

#[test]
fn flags_that_are_missing_or_contradict_are_named() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "bad-flags", "{\"prompt\":\"a\"}\n");
    for (wrong, named) in [
        (&FLAGS[..4], "--input <FILE>"),
        (&FLAGS[..6], "--output <DIR>"),
        (&[&FLAGS[..], &["--config", "batch.toml"]].concat()[..], "cannot be used with"),
    ] {
        let refused = job.run(wrong);
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.stderr.contains(named), "{refused:?}");
    }
    assert!(!job.out().exists());
}
