//! The defects that `rollout verify` detects.

use super::cluster::{FakeBehavior, TestCluster};
use super::command::{Job, files_below};

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
