//! A file for the OpenAI API's batches or for `vllm run-batch`, unchanged.

use serde_json::{Value, json};

use super::cluster::{FakeBehavior, TestCluster};
use super::command::Job;

fn line(id: &str, url: &str, content: &str) -> String {
    let body = json!({"model": "mock", "messages": [{"role": "user", "content": content}]});
    let line = json!({"custom_id": id, "method": "POST", "url": url, "body": body});
    format!("{line}\n")
}

fn input() -> String {
    ["a", "b", "c", "d"].map(|id| line(id, "/v1/chat/completions", id)).concat()
}

/// A batch file that names only the model and the files.
fn job<'a>(cluster: &'a TestCluster, input: &str) -> Job<'a> {
    let job = Job::new(cluster, "job", input);
    let config = "[model]\nuri = \"mock\"\n[input]\nglob = \"in.jsonl\"\n[output]\ndir = \"out\"\n";
    job.write("batch.toml", config);
    job
}

#[test]
fn the_format_is_detected_by_lines_and_the_output_has_their_shape() {
    let cluster = TestCluster::start();
    let refusal = json!({"response": {
        "status_code": 400, "request_id": "q", "body": {"error": {"message": "x".repeat(2000)}}
    }});
    let behavior = FakeBehavior {
        fails: vec![2],
        failure_message: Some(refusal.to_string()),
        ..FakeBehavior::default()
    };
    cluster.set_behavior(behavior);
    let job = job(&cluster, &input());
    let ended = job.batch(&["--name", "r"]);
    assert_eq!(ended.code, 10, "{ended:?}");
    assert!(ended.stderr.contains("3 completions in out/output.jsonl"), "{ended:?}");
    assert!(ended.stderr.contains("tokens: 6 in, 9 out"), "{ended:?}");
    assert_eq!(cluster.run("r").unwrap().spec.engine.unwrap().task, "openai");
    let lines = job.lines("out/output.jsonl");
    let ids: Vec<&Value> = lines.iter().map(|line| &line["custom_id"]).collect();
    assert_eq!(ids, ["a", "b", "d"]);
    for line in &lines {
        let keys: Vec<&String> = line.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["id", "custom_id", "response", "error"]);
        assert_eq!(line["response"]["status_code"], 200);
        let content = &line["response"]["body"]["choices"][0]["message"]["content"];
        assert_eq!(content, &format!("MOCK:{}", line["custom_id"].as_str().unwrap()));
        assert_eq!(line["error"], Value::Null);
    }
    let errors = job.lines("out/errors.jsonl");
    assert_eq!(errors.len(), 1);
    assert_eq!((&errors[0]["custom_id"], &errors[0]["error"]), (&json!("c"), &Value::Null));
    assert_eq!(errors[0]["response"], refusal["response"], "from the text in the store");
    let verified = job.run(&["verify", "r", "--output", "out"]);
    assert_eq!(verified.code, 0, "{verified:?}");

    // The same command finds the same run; resuming needs no input.
    assert!(job.batch(&[]).stderr.contains("run r already exists"));
    std::fs::remove_file(job.dir.join("in.jsonl")).unwrap();
    std::fs::remove_dir_all(job.out()).unwrap();
    let resumed = job.batch(&["--resume", "r"]);
    assert_eq!(resumed.code, 10, "{resumed:?}");
    assert_eq!(job.lines("out/output.jsonl"), lines);
    let ours = job.run(&["export", "r", "--output", "ours", "--format", "jsonl"]);
    assert_eq!(ours.code, 10, "{ours:?}");
    assert_eq!(job.lines("ours/completions.jsonl")[0]["custom_id"], "a");
}

#[test]
fn lines_of_two_formats_do_not_mix_and_an_id_comes_once() {
    let cluster = TestCluster::start();
    let mixed = input() + "{\"prompt\":\"x\"}\n" + &line("a", "/v1/embeddings", "x");
    let job = job(&cluster, &mixed);
    let refused = job.batch(&[]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("in.jsonl:5:1: an OpenAI Batch line needs"), "{refused:?}");
    assert!(refused.stderr.contains("in.jsonl:6:1: this row has the"), "{refused:?}");
    job.write("in.jsonl", &("{\"prompt\":\"x\"}\n".to_owned() + &input()));
    let refused = job.batch(&[]);
    assert!(refused.stderr.contains("in.jsonl:2:1: a row needs \"prompt\""), "{refused:?}");
    let sampling = job.read("batch.toml") + "[sampling]\nseed = 1\n";
    job.write("batch.toml", &sampling);
    job.write("in.jsonl", &input());
    let refused = job.batch(&["--dry-run"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("sampling: means nothing for the task"), "{refused:?}");
}

#[test]
fn our_rows_cannot_be_written_in_that_format() {
    let cluster = TestCluster::start();
    let job = job(&cluster, "{\"prompt\":\"x\"}\n");
    let config = job.read("batch.toml") + "format = \"openai-batch\"\n";
    job.write("batch.toml", &config);
    let refused = job.batch(&[]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("output.format: openai-batch is for"), "{refused:?}");
    job.write("batch.toml", &config.replace("format = \"openai-batch\"", "format = \"jsonl\""));
    assert_eq!(job.batch(&["--name", "r"]).code, 0);
    let refused = job.run(&["export", "r", "--output", "o", "--format", "openai-batch"]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("--format openai-batch is for"), "{refused:?}");
}
