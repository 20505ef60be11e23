//! Users' input formats through real members and workers: each row's result comes back in the shape of its input.

use anyhow::{Context, Result};
use rollout_tests::{Fleet, FleetOptions, WorkerOptions, output};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// Runs a batch file whose input is `rows` to its end; returns its exit status and output.
fn run(fleet: &Fleet, name: &str, head: &str, rows: &str, more: &str) -> Result<(i32, String)> {
    let (path, out) = (fleet.path(&format!("{name}.jsonl")), fleet.path(&format!("{name}-out")));
    std::fs::write(&path, rows)?;
    let config = fleet.path(&format!("{name}.batch.toml"));
    let text = format!("{head}\n[input]\nglob = {path:?}\n[output]\ndir = {out:?}\n{more}");
    std::fs::write(&config, text)?;
    let config = config.to_string_lossy().into_owned();
    let args = ["infer", "batch", "--config", &config, "--name", name, "--timeout", "90s"];
    let ended = output(fleet.rollout(&args), Duration::from_secs(240))?;
    let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
    Ok((ended.status.code().unwrap_or(-1), stderr))
}

fn verify(fleet: &Fleet, name: &str) -> Result<()> {
    let out = fleet.path(&format!("{name}-out")).to_string_lossy().into_owned();
    let verified =
        output(fleet.rollout(&["verify", name, "--output", &out]), Duration::from_secs(120))?;
    anyhow::ensure!(verified.status.success(), "{verified:?}");
    Ok(())
}

fn lines(path: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn call(id: &str, url: &str, body: Value) -> String {
    let line = json!({"custom_id": id, "method": "POST", "url": url, "body": body});
    format!("{line}\n")
}

#[test]
fn a_file_for_the_openai_api_and_rows_of_every_task_come_back_in_their_shapes() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let engine = "kind = \"mock\"\nslots = 1\nconcurrency = 8\nloras = { tiny = \"/nowhere\" }\n";
    let options = WorkerOptions { engine: engine.into(), head: String::new() };
    fleet.start_worker("w1", &options)?;
    let model = "[model]\nuri = \"mock/tiny\"";

    let chat = json!({"model": "mock/tiny", "messages": [{"role": "user", "content": "hi"}]});
    let rows = [
        call("chat", "/v1/chat/completions", chat.clone()),
        call("text", "/v1/completions", json!({"model": "mock/tiny", "prompt": "go"})),
        call("vector", "/v1/embeddings", json!({"model": "mock/tiny", "input": "in"})),
        call("score", "/v1/score", json!({"model": "mock/tiny", "text_1": "q", "text_2": "d"})),
        call(
            "other",
            "/v1/chat/completions",
            json!({"model": "gpt", "messages": chat["messages"]}),
        ),
    ];
    let (code, said) = run(&fleet, "openai", model, &rows.concat(), "")?;
    assert_eq!(code, 10, "one row names another model: {said}");
    let found = lines(&fleet.path("openai-out/output.jsonl"))?;
    let answers: Vec<_> =
        found.iter().map(|line| (&line["custom_id"], &line["response"])).collect();
    assert_eq!(answers.len(), 4);
    assert_eq!(answers[0].0, "chat");
    assert_eq!(answers[0].1["status_code"], 200);
    assert_eq!(answers[0].1["body"]["choices"][0]["message"]["content"], "MOCK:hi");
    assert_eq!(answers[1].1["body"]["choices"][0]["text"], "MOCK:go");
    assert!(answers[2].1["body"]["data"][0]["embedding"].is_array());
    assert!(answers[3].1["body"]["data"][0]["score"].is_f64());
    let errors = lines(&fleet.path("openai-out/errors.jsonl"))?;
    assert_eq!((&errors[0]["custom_id"], &errors[0]["response"]), (&json!("other"), &Value::Null));
    assert_eq!(errors[0]["error"]["code"], "MODEL_MISMATCH");
    verify(&fleet, "openai")?;

    let rows = concat!(
        "{\"prompt\":\"a\",\"sampling_params\":{\"n\":2}}\n",
        "{\"prompt\":\"b\",\"lora\":\"tiny\"}\n",
        "{\"prompt\":\"c\",\"lora\":\"none\"}\n"
    );
    let more = "shard_rows = 1\n";
    let head = format!("{model}\n[sampling]\nmax_tokens = 4");
    let (code, said) = run(&fleet, "rows", &head, rows, more)?;
    assert_eq!(code, 10, "{said}");
    let first = lines(&fleet.path("rows-out/completions-00000.jsonl"))?;
    assert_eq!(first[0]["completions"][1]["text"], "MOCK:a 1");
    assert_eq!(first[0]["sampling_params"], json!({"max_tokens": 4, "n": 2}));
    let second = lines(&fleet.path("rows-out/completions-00001.jsonl"))?;
    assert_eq!((&second[0]["completion"], &second[0]["lora"]), (&json!("MOCK:b"), &json!("tiny")));
    let errors = lines(&fleet.path("rows-out/errors-00000.jsonl"))?;
    assert_eq!(errors[0]["error"]["code"], "UNKNOWN_LORA");
    verify(&fleet, "rows")?;

    let embed = format!("{model}\ntask = \"embed\"");
    let (code, said) = run(&fleet, "embed", &embed, "{\"prompt\":\"a\"}\n", "")?;
    assert_eq!(code, 0, "{said}");
    let found = lines(&fleet.path("embed-out/completions.jsonl"))?;
    assert_eq!(found[0]["embedding"].as_array().map(Vec::len), Some(8));
    let score = format!("{model}\ntask = \"score\"");
    let (code, said) = run(&fleet, "score", &score, "{\"query\":\"a\",\"document\":\"b\"}\n", "")?;
    assert_eq!(code, 0, "{said}");
    assert!(lines(&fleet.path("score-out/completions.jsonl"))?[0]["score"].is_f64());
    fleet.passed()
}
