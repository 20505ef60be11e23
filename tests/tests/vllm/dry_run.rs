//! A dry run counts tokens with the model's own tokenizer and chat template, and the engine counts the same.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, eventually, output};
use serde_json::{Value, json};

use super::setup::{Engine, LOADING, MODEL_LEN, python, tiny_model};

/// The output and the listed errors of a dry run on lines that are not all valid rows.
fn dry_run(fleet: &Fleet, model: &str, name: &str, lines: &[Value]) -> Result<(String, String)> {
    let input = fleet.path(&format!("{name}.jsonl"));
    let text = lines.iter().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{line}");
        text
    });
    std::fs::write(&input, text)?;
    let config = fleet.path(&format!("{name}.batch.toml"));
    let sampling = if name == "own" { "max_tokens = 16\nn = 2\n" } else { "" };
    let out = fleet.path(&format!("{name}-out"));
    let text = format!(
        "[model]\nuri = \"tiny\"\n[sampling]\n{sampling}[input]\nglob = {input:?}\n[output]\ndir = {out:?}\n"
    );
    std::fs::write(&config, text)?;
    let (python, package) = python();
    let (config, python) = (config.to_string_lossy(), python.to_string_lossy());
    let mut command = fleet.rollout(&[
        "infer",
        "batch",
        "--config",
        &config,
        "--dry-run",
        "--python",
        &python,
        "--tokenizer",
        model,
    ]);
    command.env("PYTHONPATH", package).env("HF_HUB_OFFLINE", "1");
    let ended = output(command, Duration::from_secs(300))?;
    let stdout = String::from_utf8_lossy(&ended.stdout).into_owned();
    let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
    ensure!(ended.status.code() == Some(2), "{}: {stdout}{errors}", ended.status);
    Ok((stdout, errors))
}

fn has(text: &str, all: &[&str]) -> Result<()> {
    for wanted in all {
        ensure!(text.contains(wanted), "no {wanted:?} in {text}");
    }
    Ok(())
}

#[test]
fn a_dry_run_counts_every_row_with_the_models_own_tokenizer() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let model = tiny_model(&fleet)?;
    let messages = json!([{"role": "user", "content": "hello"}]);
    // Each letter is a token. The template turns the messages into `<user>hello`, the token `</s>`, and
    // `<assistant>`.
    let chat = 6 + 5 + 1 + 11;
    let own = [
        json!({"prompt": "hello"}),
        json!({"prompt": "x".repeat(1024)}),
        json!({"prompt": 7}),
        json!({"prompt": ""}),
        json!({"prompt": null, "messages": messages}),
        json!({"prompt": "last", "sampling_params": {"max_tokens": 5}}),
    ];
    let (said, errors) = dry_run(&fleet, &model, "own", &own)?;
    let all = format!("{} of prompts, at most {chat} in one of 1,024, as the", 5 + chat + 4);
    has(&said, &[&all, &format!("at most {} of completions\n", 2 * (16 + 16 + 5))])?;
    // An invalid line has no row number.
    has(&errors, &["own.jsonl:3:", "row 1: TOO_LONG: 1024 tokens", "row 2: EMPTY", "3 errors"])?;

    let ask = |number: u32, url: &str, body: Value| {
        let mut body = body;
        body["model"] = "tiny".into();
        json!({"custom_id": format!("c{number}"), "method": "POST", "url": url, "body": body})
    };
    let chats = |number, most: Value, n: u32| {
        let body = json!({"messages": messages, "max_tokens": most, "n": n});
        ask(number, "/v1/chat/completions", body)
    };
    let openai = [
        chats(0, 9.into(), 2),
        chats(1, 1025.into(), 1),
        chats(2, (-1).into(), 1),
        chats(3, "9".into(), 1),
        ask(4, "/v1/completions", json!({"prompt": ["hello", "you"]})),
        ask(5, "/v1/embeddings", json!({"input": "hello"})),
    ];
    let (said, errors) = dry_run(&fleet, &model, "openai", &openai)?;
    let all = format!("{} of prompts, at most {chat} in one of 1,024", 3 * chat + 8 + 5);
    let bound = format!("at most {} of completions, and 2 rows without a bound", 2 * 9 + 2 * 16);
    has(&said, &[&all, &bound])?;
    has(&errors, &["row 1: TOO_LONG: 1025 tokens asked for", "1 error"])?;
    fleet.passed()
}

fn request(url: &str, asked: Value, more: Value) -> Value {
    let mut body = json!({"model": "tiny", "max_tokens": 2});
    if let Value::Object(body) = &mut body {
        body.extend(
            [asked, more].into_iter().filter_map(|part| part.as_object().cloned()).flatten(),
        );
    }
    json!({"method": "POST", "url": url, "body": body})
}

/// Requests near the length limit, and messages of every kind.
fn requests() -> Vec<Value> {
    let room = MODEL_LEN as usize;
    let chat = |content: Value, more| {
        let messages = json!([{"role": "user", "content": content}]);
        request("/v1/chat/completions", json!({ "messages": messages }), more)
    };
    let complete = |letters: usize, more| {
        request("/v1/completions", json!({"prompt": "x".repeat(letters)}), more)
    };
    // Letters that the template writes around a message.
    let around = 6 + 1 + 11;
    let whole = json!({ "max_tokens": room });
    let more = json!({ "max_tokens": room + 1 });
    let parts = json!([{"type": "text", "text": "two"}, {"type": "text", "text": "parts"}]);
    let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let called = json!({"messages": [
        {"role": "developer", "content": "call"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": parts},
    ]});
    vec![
        chat("hello".into(), whole.clone()),
        chat("hello".into(), more.clone()),
        chat("x".repeat(room - around - 1).into(), json!({"max_tokens": 9})),
        chat("x".repeat(room - around).into(), json!({ "max_tokens": null })),
        chat("x".repeat(2 * room).into(), json!({"truncate_prompt_tokens": 7})),
        chat("x".repeat(2 * room).into(), json!({"truncate_prompt_tokens": -1})),
        chat(parts, json!({})),
        request("/v1/chat/completions", called, json!({})),
        complete(room - 1, whole),
        complete(room, json!({})),
        complete(5, more),
        complete(room + 1, json!({"truncate_prompt_tokens": room + 1})),
    ]
}

#[test]
fn a_dry_run_predicts_the_engines_answer_to_a_request() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let model = tiny_model(&fleet)?;
    fleet.start_worker("w1", &Engine::new(&model, 8).worker(""))?;
    eventually("the engine says how much it has room for", LOADING, || {
        let list = fleet.ctl_json(&["--timeout", "5s", "worker", "list"]).ok()?;
        let versions = &list["workers"][0]["slots"][0]["versions"];
        (versions["max_model_len"].as_str()?.parse() == Ok(MODEL_LEN)).then_some(())
    });
    let mut rows = requests();
    for (number, row) in rows.iter_mut().enumerate() {
        row["custom_id"] = number.to_string().into();
    }
    let (said, listed) = dry_run(&fleet, &model, "asked", &rows)?;
    has(&said, &["that the workers' engines have room for"])?;
    let number = |line: &str| line.strip_prefix("row ")?.split(':').next()?.parse().ok();
    let listed: Vec<usize> = listed.lines().filter_map(number).collect();

    let input = fleet.path("asked.jsonl");
    let count = rows.len() as u64;
    let lines = "[model]\nuri = \"tiny\"\n[sampling]\n";
    let mut batch = Batch::submit_file(&fleet, "answered", input, count, lines)?;
    let status = batch.process().wait(LOADING).with_context(|| fleet.logs())?;
    ensure!(status.code() == Some(10), "{status}{}", fleet.logs());
    let read = |name: &str| -> Result<Vec<Value>> {
        let text = std::fs::read_to_string(batch.output.join(name))?;
        text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
    };
    let refused = read("errors.jsonl")?;
    let id = |row: &Value| row["custom_id"].as_str().and_then(|id| id.parse().ok());
    let ids: Vec<usize> = refused.iter().filter_map(id).collect();
    ensure!(listed == ids, "{listed:?} were listed, and refused: {refused:?}");
    let used = |row: &Value| row["response"]["body"]["usage"]["prompt_tokens"].as_u64();
    let tokens: u64 = read("output.jsonl")?.iter().filter_map(used).sum();
    has(&said.replace(',', ""), &[&format!("{tokens} of prompts")])?;
    fleet.passed()
}
