//! A file for `vllm run-batch` gives the same results through rollout.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions};
use serde_json::{Value, json};

use super::setup::{Engine, LOADING, MODEL_LEN, near, python, reference, script_of, tiny_model};

/// Requests to a chat model, and to one that computes embeddings and scores.
fn requests() -> [(&'static str, Vec<Value>); 2] {
    let chat = |content: &str, more: Value| {
        let mut body = json!({"model": "tiny", "temperature": 0, "max_tokens": 9,
            "messages": [{"role": "user", "content": content}]});
        if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
            body.extend(more);
        }
        ("/v1/chat/completions", body)
    };
    let chats = vec![
        chat("hello", json!({})),
        chat("several", json!({"n": 2, "temperature": 1, "seed": 3})),
        chat("numbers", json!({"logprobs": true, "top_logprobs": 2})),
        chat("a choice", json!({"structured_outputs": {"choice": ["yes", "no"]}})),
        chat("refused", json!({"top_p": 7})),
        chat("too long", json!({"max_tokens": 100_000})),
    ];
    let others = vec![
        ("/v1/embeddings", json!({"model": "tiny", "input": "one text"})),
        ("/v1/embeddings", json!({"model": "tiny", "input": ["two", "texts"]})),
        ("/score", json!({"model": "tiny", "queries": "what", "documents": ["this", "that"]})),
        ("/v1/score", json!({"model": "tiny", "text_1": "what", "text_2": "this"})),
    ];
    [("chat", numbered(chats)), ("pooling", numbered(others))]
}

fn numbered(requests: Vec<(&str, Value)>) -> Vec<Value> {
    let line = |(n, (url, body)): (usize, (&str, Value))| json!({"custom_id": format!("c{n}"), "method": "POST", "url": url, "body": body});
    requests.into_iter().enumerate().map(line).collect()
}

/// Answers by custom id, without fields that vary; for an error, its status and the error.
fn answers(text: &str) -> Result<BTreeMap<String, (Value, Value)>> {
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let row: Value = serde_json::from_str(line)?;
        let response = &row["response"];
        let status = response["status_code"].clone();
        // vLLM's own runner puts an error beside the response.
        let mut body = if status == 200 || row["error"].is_null() {
            response["body"].clone()
        } else {
            row["error"].clone()
        };
        if let Value::Object(body) = &mut body {
            // The fingerprint covers the server's settings, including its batch runner's.
            body.retain(|name, _| !["id", "created", "system_fingerprint"].contains(&&**name));
        }
        let id = row["custom_id"].as_str().context("custom_id")?.to_owned();
        ensure!(all.insert(id, (status, body)).is_none(), "twice: {row}");
    }
    Ok(all)
}

#[test]
fn a_file_for_vllms_batch_runner_gives_equal_rows_through_both() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let model = tiny_model(&fleet)?;
    for (name, requests) in requests() {
        let pooling = name == "pooling";
        let input = fleet.path(&format!("{name}.jsonl"));
        let lines = requests.iter().fold(String::new(), |text, row| text + &row.to_string() + "\n");
        std::fs::write(&input, &lines)?;
        let theirs = fleet.path(&format!("{name}.theirs.jsonl"));
        let mut command = script_of(&python().0, &["-m", "vllm.entrypoints.launchers.run_batch"]);
        command.arg("-i").arg(&input).arg("-o").arg(&theirs);
        command.args(["--model", &model, "--served-model-name", "tiny", "--dtype", "float32"]);
        command.args(["--enforce-eager", "--max-num-seqs", "4"]);
        command.args(["--max-model-len", &MODEL_LEN.to_string()]);
        if pooling {
            command.args(["--runner", "pooling"]);
        }
        let ran = command.output()?;
        ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let expected = answers(&std::fs::read_to_string(&theirs)?)?;

        // One more request that only rollout can refuse: it names another model than the run's.
        let mut other = requests[0].clone();
        other["custom_id"] = "other".into();
        other["body"]["model"] = "another".into();
        std::fs::write(&input, lines + &other.to_string() + "\n")?;
        let worker = format!("w-{name}");
        let args = if pooling { ", runner = \"pooling\"" } else { "" };
        fleet.start_worker(&worker, &Engine::new(&model, 4).worker(args))?;
        let rows = requests.len() as u64 + 1;
        let lines = "[model]\nuri = \"tiny\"\n[sampling]\n";
        let mut batch = Batch::submit_file(&fleet, name, input, rows, lines)?;
        let status = batch.process().wait(LOADING).with_context(|| fleet.logs())?;
        ensure!(status.code() == Some(10), "{status}{}", fleet.logs());
        let read = |file: &str| std::fs::read_to_string(batch.output.join(file));
        let mut got = answers(&read("output.jsonl")?)?;
        got.extend(answers(&read("errors.jsonl")?)?);
        let refused = got.remove("other").context("the row for another model is missing")?;
        ensure!(refused.1["code"] == "MODEL_MISMATCH", "{refused:?}");
        for (id, expected) in &expected {
            let got = got.get(id).with_context(|| format!("{id} is missing"))?;
            let same = got.0 == expected.0 && near(&got.1, &expected.1);
            ensure!(same, "{id}: {got:?}\nfor {expected:?}");
        }
        ensure!(got.len() == expected.len(), "{} rows", got.len());
        fleet.worker_process(&worker).kill();
    }
    fleet.passed()
}

/// Prompts of `/v1/completions`, with further parameters.
fn completions() -> Vec<Value> {
    let ask = |prompt: Value, more: Value| {
        let mut body =
            json!({"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 9});
        if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
            body.extend(more);
        }
        ("/v1/completions", body)
    };
    numbered(vec![
        ask("hello".into(), json!({})),
        ask(json!(["one", "two"]), json!({})),
        ask("numbers".into(), json!({"logprobs": 2})),
        ask("said again".into(), json!({"echo": true})),
        ask("a choice".into(), json!({"structured_outputs": {"choice": ["yes", "no"]}})),
        ask("refused".into(), json!({"top_p": 7})),
        ask("x".repeat(700).into(), json!({})),
        ask("in pieces".into(), json!({"stream": true})),
    ])
}

#[test]
fn a_file_for_completions_is_answered_by_vllms_own_handler() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let model = tiny_model(&fleet)?;
    let input = fleet.path("plain.jsonl");
    let prompts = ["hello", "one", "two", "numbers", "said again"];
    let plain = prompts.map(|prompt| json!({ "prompt": prompt }).to_string() + "\n").concat();
    std::fs::write(&input, plain)?;
    let options = json!({ "sampling": {"temperature": 0, "max_tokens": 9, "logprobs": 2} });
    let expected = reference("generate", &model, &input, &options)?;
    let input = fleet.path("completions.jsonl");
    let lines =
        completions().iter().fold(String::new(), |text, row| text + &row.to_string() + "\n");
    std::fs::write(&input, lines)?;
    fleet.start_worker("w1", &Engine::new(&model, 4).worker(""))?;
    let lines = "[model]\nuri = \"tiny\"\n[sampling]\n";
    let mut batch = Batch::submit_file(&fleet, "completions", input, 8, lines)?;
    let status = batch.process().wait(LOADING).with_context(|| fleet.logs())?;
    ensure!(status.code() == Some(10), "{status}{}", fleet.logs());
    let read = |file: &str| std::fs::read_to_string(batch.output.join(file));
    let mut got = answers(&read("output.jsonl")?)?;
    ensure!(got.len() == 5, "{got:?}");
    got.extend(answers(&read("errors.jsonl")?)?);
    let text = |id: &str, choice: usize| got[id].1["choices"][choice]["text"].clone();
    for (id, choice, of) in [("c0", 0, 0), ("c1", 0, 1), ("c1", 1, 2), ("c2", 0, 3)] {
        let (said, wanted) = (text(id, choice), &expected[of]["texts"][0]);
        ensure!(said == *wanted, "{id}: {said} for {wanted}");
    }
    let wanted = format!("said again{}", expected[4]["texts"][0].as_str().context("no text")?);
    ensure!(text("c3", 0) == wanted.as_str(), "{} for {wanted}", text("c3", 0));
    ensure!(["yes", "no"].contains(&text("c4", 0).as_str().unwrap_or_default()), "{got:?}");
    let chosen = &got["c2"].1["choices"][0]["logprobs"]["token_logprobs"];
    ensure!(near(chosen, &expected[3]["logprobs"]), "{chosen} for {}", expected[3]);
    for (id, answer) in &got {
        let refused = ["c5", "c6", "c7"].contains(&&**id);
        ensure!(answer.0 == if refused { 400 } else { 200 }, "{id}: {answer:?}");
        ensure!(refused || answer.1["object"] == "text_completion", "{id}: {answer:?}");
    }
    let tokens =
        [1, 2].map(|row| expected[row]["tokens"].as_u64().unwrap_or(0)).iter().sum::<u64>();
    ensure!(got["c1"].1["usage"]["completion_tokens"] == tokens, "{tokens}: {:?}", got["c1"]);
    ensure!(got.len() == 8, "{} rows", got.len());
    fleet.passed()
}
