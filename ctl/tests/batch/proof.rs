//! The defects that `rollout verify` detects.

use super::cluster::{FakeBehavior, TestCluster};
use super::command::{CommandOutcome, Job, files_below};

fn input() -> String {
    (0..500).map(|n| format!("{{\"prompt\":\"p{n}\"}}\n")).collect()
}

#[test]
fn a_changed_output_is_named_by_its_line() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", &input());
    assert_eq!(job.batch(&["--name", "r"]).code, 0);
    let good = job.read("out/completions.jsonl");
    let verify = || job.run(&["verify", "r", "--output", "out"]);
    assert_eq!(verify().code, 0);
    let lines: Vec<&str> = good.lines().collect();
    let without_last = lines[..499].join("\n") + "\n";
    let mut swapped = lines.clone();
    swapped.swap(10, 11);
    let cases = [
        (good.replace("MOCK:p77\"", "MOCK:p78\""), "completions.jsonl:78 "),
        (swapped.join("\n") + "\n", "completions.jsonl:11 "),
        (without_last, "completions.jsonl:500 "),
        (format!("{good}{good}"), "completions.jsonl:501 "),
    ];
    for (text, place) in cases {
        job.write("out/completions.jsonl", &text);
        let ended = verify();
        assert_eq!(ended.code, 1, "{ended:?}");
        assert!(ended.stderr.contains(place), "{place}: {ended:?}");
    }
    std::fs::remove_file(job.out().join("completions.jsonl")).unwrap();
    assert_eq!(verify().code, 1);
}

#[test]
fn a_changed_object_is_noticed() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", &input());
    assert_eq!(job.batch(&["--name", "r"]).code, 0);
    let objects = files_below(&cluster.dir.path().join("store"));
    assert_eq!(objects.len(), 3, "one segment, two parts");
    for object in objects {
        let good = std::fs::read(&object).unwrap();
        let mut bad = good.clone();
        let middle = bad.len() / 2;
        bad[middle] ^= 1;
        std::fs::write(&object, &bad).unwrap();
        let ended = job.run(&["verify", "r"]);
        assert_eq!(ended.code, 1, "{ended:?}");
        assert!(ended.stderr.contains("is corrupt"), "{ended:?}");
        std::fs::remove_file(&object).unwrap();
        let ended = job.run(&["verify", "r"]);
        assert!(ended.code == 1 && ended.stderr.contains("is missing"), "{ended:?}");
        std::fs::write(&object, &good).unwrap();
    }
    assert_eq!(job.run(&["verify", "r"]).code, 0);
}

/// The runs of the reports, which are one document per line.
fn reported(ended: &CommandOutcome) -> Vec<String> {
    let run = |line: &str| {
        let document: serde_json::Value = serde_json::from_str(line).unwrap();
        document["data"]["run"].as_str().unwrap().to_owned()
    };
    ended.stdout.lines().map(run).collect()
}

#[test]
fn of_several_runs_each_has_its_report_and_the_others_are_verified_if_one_fails() {
    let cluster = TestCluster::start();
    for name in ["a", "b"] {
        let submitted = Job::new(&cluster, name, &input()).batch(&["--name", name]);
        assert_eq!(submitted.code, 0, "{submitted:?}");
    }
    let job = Job::new(&cluster, "job", &input());
    let both = job.run(&["verify", "a", "b"]);
    assert_eq!(both.code, 0, "{both:?}");
    let named = both.stdout.lines().filter_map(|line| line.strip_prefix("run "));
    assert_eq!(named.map(str::trim).collect::<Vec<_>>(), ["a", "b"], "{both:?}");
    let ended = job.run(&["verify", "a", "nope", "b", "-o", "json"]);
    assert_eq!(ended.code, 4, "{ended:?}");
    assert_eq!(reported(&ended), ["a", "b"], "{ended:?}");
    assert!(ended.stderr.contains("nope: error: "), "{ended:?}");
    assert!(ended.stderr.contains("RO-2001"), "{ended:?}");

    let objects = files_below(&cluster.dir.path().join("store/runs/default/a"));
    std::fs::remove_file(&objects[0]).unwrap();
    let ended = job.run(&["verify", "a", "b", "-o", "json"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert_eq!(reported(&ended), ["b"], "{ended:?}");
    assert!(ended.stderr.contains("a: error: "), "{ended:?}");
    // The highest status, wherever it is in the list.
    assert_eq!(job.run(&["verify", "nope", "a"]).code, 4);
}

#[test]
fn a_directory_is_compared_with_one_run() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", &input());
    assert_eq!(job.batch(&["--name", "r"]).code, 0);
    let refused = job.run(&["verify", "r", "r", "--output", "out"]);
    assert_eq!((refused.code, &*refused.stdout), (2, ""), "{refused:?}");
    assert!(refused.stderr.contains("--output names the directory of one run"), "{refused:?}");
}

#[test]
fn a_result_of_another_row_is_noticed() {
    let cluster = TestCluster::start();
    cluster.set_behavior(FakeBehavior { shifts_rows: true, ..FakeBehavior::default() });
    let job = Job::new(&cluster, "job", &input());
    let ended = job.batch(&["--name", "r"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("is the run's row"), "{ended:?}");
    assert!(!job.out().join("completions.jsonl").exists());
    assert_eq!(job.run(&["verify", "r"]).code, 1);
}

#[test]
fn an_item_with_anothers_id_is_noticed() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", &input());
    assert_eq!(job.batch(&["--name", "r"]).code, 0);
    // With other sampling parameters the same rows are other items.
    let mut guard = cluster.state.lock();
    guard.runs.values_mut().next().unwrap().spec.sampling_json = "{}".into();
    drop(guard);
    let ended = job.run(&["verify", "r"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("row 0 has another row's id"), "{ended:?}");
}
