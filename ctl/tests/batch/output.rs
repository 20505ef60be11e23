//! The output.

use std::time::Duration;

use super::cluster::{FakeBehavior, TestCluster};
use super::command::{CommandOutcome, Job};

fn input(rows: usize) -> String {
    let mut text = String::new();
    for n in 0..rows {
        text += &match n % 4 {
            0 => format!("{{\"prompt\": \"p{n}\", \"weight\": 1.50, \"n\": {n}}}\n"),
            1 => format!("{{\"id\":\"own-{n}\",\"prompt\":\"q\"}}\n"),
            2 => format!(
                "{{\"messages\":[{{\"role\":\"user\",\"content\":\"m{n}\"}}],\"id\":{n}}}\n"
            ),
            _ => "{\"prompt\":\"again\"}\n".to_owned(),
        };
    }
    text
}

#[test]
fn every_row_comes_back_once_and_in_order_with_its_fields() {
    let cluster = TestCluster::start();
    let rows = 9_000;
    let job = Job::new(&cluster, "job", &input(rows));
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("9,000 completions"), "{ended:?}");
    let lines = job.lines("out/completions.jsonl");
    assert_eq!(lines.len(), rows);
    let mut ids = std::collections::HashSet::new();
    for (n, (line, source)) in lines.iter().zip(input(rows).lines()).enumerate() {
        let source: serde_json::Value = serde_json::from_str(source).unwrap();
        for (name, value) in source.as_object().unwrap() {
            assert_eq!(&line[name], value, "row {n}");
        }
        let expected: serde_json::Value =
            serde_json::from_slice(&super::cluster::answer(source.to_string().as_bytes())).unwrap();
        assert_eq!(line["completion"], expected["completion"], "row {n}");
        assert_eq!(line["sampling_params"], serde_json::json!({"seed": 1}));
        assert_eq!(line["model_uri"], "mock");
        assert_eq!(line["completion_blob_id"].as_str().unwrap().len(), 64);
        assert!(ids.insert(line["id"].to_string()), "row {n} has an id twice");
    }
    assert!(job.read("out/completions.jsonl").contains("\"weight\":1.50,"));
    assert!(!job.out().join("errors.jsonl").exists());

    // The same command again finds the same run and writes the same bytes.
    let before = job.read("out/completions.jsonl");
    std::fs::remove_file(job.out().join("completions.jsonl")).unwrap();
    let again = job.batch(&[]);
    assert_eq!(again.code, 0, "{again:?}");
    assert_eq!(job.read("out/completions.jsonl"), before);
    assert_eq!(cluster.state.lock().runs.len(), 1);

    let name = job.run_name();
    let exported = job.run(&["export", &name, "--output", "other"]);
    assert_eq!(exported.code, 0, "{exported:?}");
    assert_eq!(job.read("other/completions.jsonl"), before);
    let verified = job.run(&["verify", &name, "--output", "out"]);
    assert_eq!(verified.code, 0, "{verified:?}");
    assert!(verified.stdout.contains("9000"), "{verified:?}");
}

#[test]
fn rows_that_failed_for_good_are_in_errors_and_in_the_exit_status() {
    let cluster = TestCluster::start();
    cluster.set_behavior(FakeBehavior { fails: vec![1, 6], ..FakeBehavior::default() });
    let job = Job::new(&cluster, "job", &input(8));
    let ended = job.batch(&["--name", "some.run"]);
    assert_eq!(ended.code, 10, "{ended:?}");
    assert!(ended.stderr.contains("2 rows failed for good"), "{ended:?}");
    let example = "2 rows; for example row 1 (id \"own-1\"): ";
    let commonest = format!("  most common failure: RO-7001 (transient), {example}");
    assert!(ended.stderr.contains(&commonest), "{ended:?}");
    let (good, bad) = (job.lines("out/completions.jsonl"), job.lines("out/errors.jsonl"));
    assert_eq!((good.len(), bad.len()), (6, 2));
    assert_eq!(bad[0]["id"], "own-1");
    assert_eq!(bad[1]["id"], 6);
    for line in &bad {
        assert_eq!(line["completion"], serde_json::Value::Null);
        assert_eq!(line["finish_reason"], "error");
        assert_eq!(line["error"]["code"], "RO-7001");
        let keys = |line: &serde_json::Value| -> Vec<String> {
            let ours = line.as_object().unwrap().keys().skip_while(|key| *key != "completion");
            ours.filter(|key| *key != "error").cloned().collect()
        };
        assert_eq!(keys(line), keys(&good[0]));
    }
    let verified = job.run(&["verify", "some.run", "--output", "out"]);
    assert_eq!(verified.code, 0, "{verified:?}");
}

#[test]
fn programs_read_the_outcome_as_one_json_document() {
    let cluster = TestCluster::start();
    cluster.set_behavior(FakeBehavior { fails: vec![1, 6], ..FakeBehavior::default() });
    let job = Job::new(&cluster, "job", &input(8));
    let commands: [(&[&str], i32, &str); 4] = [
        (&["infer", "batch", "--config", "batch.toml", "--name", "r"], 10, "BatchOutcome"),
        (&["export", "r", "--output", "other"], 10, "ExportOutcome"),
        (&["verify", "r", "--output", "out"], 0, "VerifyOutcome"),
        (&["infer", "batch", "--config", "batch.toml", "--detach"], 0, "BatchOutcome"),
    ];
    for (command, code, kind) in commands {
        let ended = job.run(&[command, &["-o", "json"]].concat());
        assert_eq!(ended.code, code, "{ended:?}");
        let document: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(document["kind"], kind);
        assert_eq!(document["data"]["run"], "r");
        let written = &document["data"]["written"];
        if code == 10 {
            assert_eq!(written["rows"], "8");
            assert_eq!(written["failed"], "2");
            assert_eq!(written["failures"][0]["exampleId"], "\"own-1\"");
        } else {
            assert!(written.is_null(), "{document}");
        }
    }
    // The text about a written output goes to stderr, as always.
    let plain = job.run(&["export", "r", "--output", "other"]);
    assert_eq!(plain.stdout, "", "{plain:?}");
}

#[test]
fn a_lost_stream_is_invisible() {
    let cluster = TestCluster::start();
    cluster.set_behavior(FakeBehavior { cuts_streams_after: Some(1), ..FakeBehavior::default() });
    let job = Job::new(&cluster, "job", &input(9_000));
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(job.lines("out/completions.jsonl").len(), 9_000);
    assert!(cluster.state.lock().streams_opened > 3, "no stream was cut");
}

#[test]
fn a_reader_that_takes_its_time_is_no_cluster_that_does_not_answer() {
    let cluster = TestCluster::start();
    let mut job = Job::new(&cluster, "job", &input(9_000));
    assert_eq!(job.batch(&["--name", "r"]).code, 0);
    // The pipe is full long before the first segment has been printed, and meanwhile the list of the others breaks off.
    cluster.set_behavior(FakeBehavior { cuts_streams_after: Some(1), ..FakeBehavior::default() });
    job.timeout = "1s";
    let child = job.spawn(&["run", "results", "r"]);
    std::thread::sleep(Duration::from_secs(3)); // More than the timeout; nothing ends earlier.
    let ended: CommandOutcome = child.wait_with_output().unwrap().into();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(ended.stdout.lines().count(), 9_000);
}

#[test]
fn results_that_cannot_be_printed_are_no_success() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", &input(8));
    assert_eq!(job.batch(&["--name", "r"]).code, 0);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let child = job.spawn_into(&["run", "results", "r"], full);
    let ended: CommandOutcome = child.wait_with_output().unwrap().into();
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    assert!(ended.stderr.contains("standard output"), "{}", ended.stderr);
}

#[test]
fn a_part_of_a_run_is_exported_on_request() {
    let cluster = TestCluster::start();
    cluster.set_behavior(FakeBehavior { holds_from: Some(700), ..FakeBehavior::default() });
    let job = Job::new(&cluster, "job", &input(1_000));
    let ended = job.batch(&["--name", "r", "--detach"]);
    assert_eq!((ended.code, ended.stdout.trim()), (0, "r"), "{ended:?}");
    cluster.wait_for("700 rows", |state| {
        let done = |run: &super::cluster::Run| run.outcomes.iter().flatten().count();
        state.runs.values().any(|run| done(run) == 700)
    });
    let refused = job.run(&["export", "r", "--output", "part"]);
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(refused.stderr.contains("300 rows without an outcome"), "{refused:?}");
    assert_eq!(job.run(&["verify", "r"]).code, 5);
    let partial = job.run(&["export", "r", "--output", "part", "--partial"]);
    assert_eq!(partial.code, 0, "{partial:?}");
    assert_eq!(job.lines("part/completions.jsonl").len(), 700);
    cluster.release();
    let resumed = job.batch(&["--resume", "r"]);
    assert_eq!(resumed.code, 0, "{resumed:?}");
    assert_eq!(job.lines("out/completions.jsonl").len(), 1_000);
}

#[test]
fn without_a_terminal_progress_is_plain_lines_and_quiet_has_none() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", &input(50));
    let plain = job.batch(&["--name", "plain"]);
    assert_eq!(plain.code, 0, "{plain:?}");
    assert!(!plain.stderr.contains('\u{1b}'), "{plain:?}");
    // One line every few seconds: after a slow start it is the line about reading the input.
    let shows_progress = |ended: &CommandOutcome| {
        ["reading the input", "rows/s"].iter().any(|line| ended.stderr.contains(line))
    };
    assert!(shows_progress(&plain), "{plain:?}");
    let quiet = job.batch(&["--name", "quiet", "--quiet", "--overwrite"]);
    assert_eq!(quiet.code, 0, "{quiet:?}");
    assert!(!shows_progress(&quiet), "{quiet:?}");
}
