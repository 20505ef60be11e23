//! Outputs in several files.

use serde_json::json;

use super::cluster::{FakeBehavior, TestCluster};
use super::command::Job;

const RECORD: &str = ".rollout.json";

fn input(rows: usize) -> String {
    (0..rows).map(|n| format!("{{\"id\":{n},\"prompt\":\"p{n}\"}}\n")).collect()
}

fn names(job: &Job<'_>, dir: &str) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(job.dir.join(dir))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn shards_together_are_the_one_file_and_the_manifest_says_what_they_are() {
    let cluster = TestCluster::start();
    cluster.set_behavior(FakeBehavior { fails: vec![3, 5000], ..FakeBehavior::default() });
    let job = Job::new(&cluster, "job", &input(9_000));
    let config =
        job.read("batch.toml").replace("dir = \"out\"", "dir = \"out\"\nshard_rows = 4000");
    job.write("batch.toml", &config);
    let ended = job.batch(&["--name", "r"]);
    assert_eq!(ended.code, 10, "{ended:?}");
    assert!(ended.stderr.contains("8,998 completions in out/completions-*.jsonl"), "{ended:?}");
    let shards = [0, 1, 2].map(|n| format!("completions-{n:05}.jsonl"));
    let expected: Vec<&str> = shards.iter().map(String::as_str).collect();
    assert_eq!(
        names(&job, "out"),
        [&[RECORD], &expected[..], &["errors-00000.jsonl", "manifest.json", "run-id"]].concat()
    );
    assert_eq!(job.run(&["export", "r", "--output", "one"]).code, 10);
    let whole: String = shards.iter().map(|name| job.read(&format!("out/{name}"))).collect();
    assert_eq!(whole, job.read("one/completions.jsonl"));

    let manifest: serde_json::Value = serde_json::from_str(&job.read("out/manifest.json")).unwrap();
    for (key, value) in [
        ("run", json!("r")),
        ("format", json!("jsonl")),
        ("shard_rows", json!(4000)),
        ("rows", json!(9000)),
        ("completions", json!(8998)),
        ("failed", json!(2)),
        ("prompt_tokens", json!(2 * 8998)),
        ("completion_tokens", json!(3 * 8998)),
    ] {
        assert_eq!(manifest[key], value, "{key}");
    }
    let rows: Vec<_> = manifest["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| {
            let text = job.read(&format!("out/{}", file["name"].as_str().unwrap()));
            assert_eq!(file["bytes"], text.len());
            assert_eq!(file["blake3"], blake3::hash(text.as_bytes()).to_hex().as_str());
            file["rows"].as_u64().unwrap()
        })
        .collect();
    assert_eq!(rows, [4000, 4000, 998, 2]);
    let verified = job.run(&["verify", "r", "--output", "out"]);
    assert_eq!(verified.code, 0, "{verified:?}");
}

#[test]
fn every_byte_of_every_shard_is_proven_and_nothing_more_may_be_there() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", &input(25));
    assert_eq!(job.batch(&["--name", "r"]).code, 0);
    let export = |more: &[&str]| {
        let args = ["export", "r", "--output", "o", "--shard-rows", "10"];
        job.run(&[&args[..], more].concat())
    };
    let exported = |more: &[&str]| {
        let ended = export(more);
        assert_eq!(ended.code, 0, "{ended:?}");
    };
    let verify = |why: &str| {
        let verified = job.run(&["verify", "r", "--output", "o"]);
        assert_eq!(verified.code, 1, "{verified:?}");
        assert!(verified.stderr.contains(why), "{why}: {verified:?}");
    };
    exported(&[]);
    let second = job.read("o/completions-00001.jsonl");
    job.write("o/completions-00001.jsonl", &second.replace("p13", "q13"));
    verify("completions-00001.jsonl:4 differs from the run's parts");
    exported(&[]);
    job.write("o/completions-00003.jsonl", "");
    verify("completions-00003.jsonl is not of this run");
    let refused = export(&[]);
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(
        refused.stderr.contains("completions-00003.jsonl there was not written"),
        "{refused:?}"
    );
    exported(&["--overwrite"]);
    assert!(!job.dir.join("o/completions-00003.jsonl").exists(), "an older shard stayed");
    let manifest = job.read("o/manifest.json").replace("\"failed\": 0", "\"failed\": 1");
    job.write("o/manifest.json", &manifest);
    verify("manifest.json:");
    std::fs::remove_file(job.dir.join("o/completions-00002.jsonl")).unwrap();
    verify("completions-00002.jsonl");
    // With a single file, shards and manifest are removed.
    assert_eq!(job.run(&["export", "r", "--output", "o"]).code, 0);
    assert_eq!(names(&job, "o"), [RECORD, "completions.jsonl"]);
    assert_eq!(job.run(&["verify", "r", "--output", "o"]).code, 0);
}

#[test]
fn a_manifest_that_is_not_ours_is_neither_removed_nor_overwritten() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", &input(25));
    std::fs::create_dir(job.dir.join("out")).unwrap();
    let own = "{\"manifest_version\": 3, \"name\": \"an extension\"}";
    job.write("out/manifest.json", own);
    assert_eq!(job.batch(&["--name", "r"]).code, 5);
    assert_eq!(job.batch(&["--name", "r", "--overwrite"]).code, 0);
    assert_eq!(job.read("out/manifest.json"), own);
    let verified = job.run(&["verify", "r", "--output", "out"]);
    assert_eq!(verified.code, 0, "{verified:?}");
    for (more, code) in [(&[][..], 5), (&["--overwrite"], 1)] {
        let args = ["export", "r", "--output", "out", "--shard-rows", "10"];
        let sharded = job.run(&[&args[..], more].concat());
        assert_eq!(sharded.code, code, "{sharded:?}");
        assert!(sharded.stderr.contains("manifest.json"), "{sharded:?}");
        let names = names(&job, "out");
        assert_eq!(names, [RECORD, "completions.jsonl", "manifest.json", "run-id"]);
        assert_eq!(job.read("out/manifest.json"), own);
    }
}
