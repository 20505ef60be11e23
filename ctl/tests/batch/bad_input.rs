//! Errors for bad input.

use super::cluster::TestCluster;
use super::command::{Job, files_below};

const GOOD: &str = "{\"prompt\":\"a\"}\n";

#[test]
fn a_broken_line_is_named_before_anything_is_submitted() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", &format!("{GOOD}{{\"prompt\": 7}}\n{GOOD}not json\n"));
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.stderr.contains("in.jsonl:2:12: \"prompt\" has to be a string"), "{ended:?}");
    assert!(ended.stderr.contains("in.jsonl:4:"), "{ended:?}");
    assert!(ended.stderr.contains("nothing was submitted"), "{ended:?}");
    assert!(cluster.state.lock().runs.is_empty());
}

#[test]
fn a_dry_run_lists_every_error_without_a_cluster() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", &"broken\n".repeat(50));
    let plain = job.batch(&[]);
    assert_eq!(plain.stderr.lines().filter(|line| line.contains("in.jsonl:")).count(), 20);
    let ended = job.batch(&["--dry-run", "-e", "127.0.0.1:1"]);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert_eq!(ended.stderr.lines().filter(|line| line.contains("in.jsonl:")).count(), 50);
    job.write("in.jsonl", &"broken\n".repeat(1_500));
    let ended = job.batch(&["--dry-run"]);
    assert_eq!(ended.stderr.lines().filter(|line| line.contains("in.jsonl:")).count(), 1_000);
    assert!(ended.stderr.contains("and 500 more"), "{}", ended.stderr.lines().count());
    job.write("in.jsonl", &GOOD.repeat(5_000));
    let ended = job.batch(&["--dry-run"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    for expected in ["5,000", "segments   2", "mock", "{\"seed\":1}", "4,999 rows equal"] {
        assert!(ended.stdout.contains(expected), "{expected}: {ended:?}");
    }
    assert!(cluster.state.lock().runs.is_empty());
    assert!(files_below(&cluster.dir.path().join("store")).is_empty());
}

#[test]
fn two_rows_with_one_id_are_both_named() {
    let cluster = TestCluster::start();
    let twice = "{\"prompt\":\"a\",\"id\":\"x\"}\n";
    let job = Job::new(&cluster, "job", &format!("{GOOD}{twice}"));
    job.write("in2.jsonl", &format!("{GOOD}{GOOD}{twice}"));
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.stderr.contains("in2.jsonl:3:1: this row has the \"id\" of "), "{ended:?}");
    assert!(ended.stderr.contains("in.jsonl:2\n"), "{ended:?}");
    assert!(cluster.state.lock().runs.is_empty());
}

#[test]
fn an_unknown_key_an_empty_input_and_a_missing_file_are_usage_errors() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", "\n\n");
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.stderr.contains("no rows"), "{ended:?}");
    std::fs::remove_file(job.dir.join("in.jsonl")).unwrap();
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.stderr.contains("\"in*.jsonl\" matches no file"), "{ended:?}");
    job.write("batch.toml", "[model]\nuri = \"m\"\nrevison = \"x\"\n");
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.stderr.contains("batch.toml:3: model: unknown key \"revison\""), "{ended:?}");
    assert!(ended.stderr.contains("did you mean \"revision\""), "{ended:?}");
}

#[test]
fn another_spec_under_the_name_that_is_resumed_is_refused_with_advice() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", GOOD);
    assert_eq!(job.batch(&["--name", "r"]).code, 0);
    let config = job.read("batch.toml").replace("seed = 1", "seed = 2");
    job.write("batch.toml", &config);
    let ended = job.batch(&["--resume", "r"]);
    assert_eq!(ended.code, 5, "{ended:?}");
    assert!(ended.stderr.contains("another model, sampling"), "{ended:?}");
    assert!(ended.stderr.contains("without --resume"), "{ended:?}");
}

#[test]
fn a_store_that_refuses_a_write_submits_nothing() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", GOOD);
    // A file in place of the store's directory.
    job.write("occupied", "");
    let url = format!("file://{}", job.dir.join("occupied").display());
    let config = job.read("batch.toml") + &format!("[store]\nurl = \"{url}\"\n");
    job.write("batch.toml", &config);
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("refuses a segment, nothing was submitted"), "{ended:?}");
    assert!(cluster.state.lock().runs.is_empty());
}

#[test]
fn a_dry_run_is_a_document_for_programs_with_what_is_wrong() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", "{\"prompt\":\"a\"}\n{\"prompt\":1}\n");
    let ended = job.batch(&["--dry-run", "-o", "json", "--name", "r"]);
    assert_eq!(ended.code, 2, "{ended:?}");
    let document: serde_json::Value = serde_json::from_str(&ended.stdout).expect("one document");
    assert_eq!(document["kind"], "BatchPlan");
    let plan = &document["data"];
    assert_eq!((&plan["run"], &plan["rows"]), (&"r".into(), &"1".into()));
    assert_eq!((&plan["errorCount"], &plan["errors"][0]["line"]), (&"1".into(), &2.into()));
    assert_eq!(plan["errors"][0]["message"], "\"prompt\" has to be a string");
    assert!(cluster.state.lock().runs.is_empty());
}
