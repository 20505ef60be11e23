//! Rows of every kind get the same result as from vLLM itself; rows that vLLM refuses are error rows.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions};
use serde_json::{Value, json};

use super::setup::{
    Engine, LOADING, MODEL_LEN, completions, errors, near, reference, rows, script, tiny_model,
};

#[test]
fn rows_that_vllm_refuses_are_error_rows_and_the_others_finish() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let model = tiny_model(&fleet)?;
    // The model's own token settings impose no limit.
    let own = json!({"bos_token_id": 0, "eos_token_id": 1, "max_new_tokens": 9});
    std::fs::write(format!("{model}/generation_config.json"), own.to_string())?;
    let mut text = rows(40);
    let long = "x".repeat(700);
    let _ = writeln!(text, "{{\"id\":\"long\",\"prompt\":\"{long}\"}}");
    let _ = writeln!(text, "{{\"id\":\"empty\",\"prompt\":\"\"}}");
    let chat = r#"{"id":"chat","messages":[{"role":"user","content":"hello"}]}"#;
    let _ = writeln!(text, "{chat}");
    let curt = chat
        .replace("chat", "curt")
        .replace("}]}", "}],\"chat_template_kwargs\":{\"tone\":\"c\"}}");
    let _ = writeln!(text, "{curt}");
    // Not together with adapters, with which vLLM's CPU kernels fail.
    let _ = writeln!(
        text,
        "{{\"id\":\"likely\",\"prompt\":\"abc\",\"sampling_params\":{{\"prompt_logprobs\":1}}}}"
    );
    let bad = [
        ("mass", json!({"top_p": 7})),
        ("none", json!({"max_tokens": -1})),
        ("unheard", json!({"temprature": 1})),
        ("kind", json!({"stop": 7})),
        ("seed", json!({"seed": u64::MAX})),
        ("token", json!({"stop_token_ids": [1_000_000], "min_tokens": 4})),
        ("grammar", json!({"structured_outputs": {"regex": "["}})),
    ];
    for (id, params) in &bad {
        let row = json!({"id": id, "prompt": "good", "sampling_params": params});
        let _ = writeln!(text, "{row}");
    }
    let input = fleet.path("refused.jsonl");
    std::fs::write(&input, text)?;
    fleet.start_worker("w1", &Engine::new(&model, 16).worker(""))?;
    // Without a token limit, a completion may fill the model's context after the prompt.
    let lines = "[model]\nuri = \"tiny\"\n[sampling]\ntemperature = 0.0\nignore_eos = true\n\
        chat_template_kwargs = { tone = \"kind\" }\n";
    let mut batch = Batch::submit_file(&fleet, "refused", input, 45 + bad.len() as u64, lines)?;
    let status = batch.process().wait(LOADING).with_context(|| fleet.logs())?;
    ensure!(status.code() == Some(10), "{status}{}", fleet.logs());
    for row in completions(&batch)? {
        let tokens = |key: &str| row[key].as_u64().unwrap_or_default();
        let all = tokens("prompt_tokens") + tokens("completion_tokens");
        ensure!(
            all == u64::from(MODEL_LEN) && row["finish_reason"] == "length",
            "{all} tokens: {row}"
        );
    }
    let errors = errors(&batch)?;
    let told: Vec<_> = errors.iter().map(|e| (&e["id"], &e["error"]["code"])).collect();
    ensure!(errors.len() == 2 + bad.len(), "{told:?}");
    for error in &errors {
        ensure!(error["error"]["class"] == "invalid_row", "{error}");
        ensure!(error["attempts"].as_u64().is_none_or(|n| n == 1), "tried again: {error}");
    }
    for error in errors.iter().filter(|error| error["id"] == "long" || error["id"] == "empty") {
        ensure!(error["error"]["code"] == "VLLMValidationError", "{error}");
    }
    for (id, code) in [("unheard", "UNKNOWN_PARAMETER"), ("seed", "BAD_PARAMETER")] {
        let error = errors.iter().find(|error| error["id"] == id);
        ensure!(error.is_some_and(|error| error["error"]["code"] == code), "{id}: {told:?}");
    }
    let log = std::fs::read_to_string(fleet.path("worker-w1.log"))?;
    ensure!(
        !log.contains("the engine was ended") && !log.contains("ended with status"),
        "an engine died: {log}"
    );
    let done = completions(&batch)?;
    let prompted = |id: &str| {
        let row = done.iter().find(|row| row["id"] == id).with_context(|| format!("no {id}"))?;
        row["prompt_tokens"].as_u64().with_context(|| row.to_string())
    };
    // The model's template writes the run's tone, or the row's, letter by letter, and each letter is a token.
    ensure!(prompted("chat")? == prompted("curt")? + 3, "arguments of the template are lost");
    let likely = done.iter().find(|row| row["id"] == "likely").context("no row likely")?;
    let told = likely["prompt_logprobs"].as_array().context("no prompt_logprobs")?;
    let first = told.len() == 3 && told[0].is_null();
    ensure!(first && told[1].is_object() && told[2].is_object(), "{told:?}");
    fleet.verify()?;
    fleet.passed()
}

/// Makes two adapters with random weights; returns them as lines of an engine's block and as the reference's option.
fn two_adapters(fleet: &Fleet, model: &str) -> Result<(String, Value)> {
    let mut paths = serde_json::Map::new();
    let mut line = String::from("loras = { ");
    for (seed, name) in [(1, "one"), (2, "two")] {
        let dir = fleet.path(&format!("lora-{name}")).to_string_lossy().into_owned();
        let made = script("tiny_lora.py").args([model, &seed.to_string(), &dir]).output()?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let _ = write!(line, "{name} = {dir:?}, ");
        paths.insert(name.to_owned(), dir.into());
    }
    Ok((line.trim_end_matches(", ").to_owned() + " }", paths.into()))
}

#[test]
fn parameters_and_adapters_of_a_row_give_what_vllm_gives_for_them() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let model = tiny_model(&fleet)?;
    let (loras, paths) = two_adapters(&fleet, &model)?;
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}},
        "required": ["a"], "additionalProperties": false});
    let asked = [
        json!({"prompt": "plain"}),
        json!({"prompt": "several", "sampling_params": {"n": 3, "seed": 5, "temperature": 1.0}}),
        json!({"prompt": "stop", "sampling_params": {"stop": ["e", "a", "X", "7"]}}),
        json!({"prompt": "logprobs", "sampling_params": {"logprobs": 2}}),
        json!({"prompt": "choice", "sampling_params": {"structured_outputs": {"choice": ["yes", "no"]}}}),
        json!({"prompt": "regex", "sampling_params": {"structured_outputs": {"regex": "[0-9]{3}"}}}),
        json!({"prompt": "json", "sampling_params": {"max_tokens": 64, "structured_outputs": {"json": schema}}}),
        json!({"prompt": "adapter", "lora": "one"}),
        json!({"prompt": "adapter", "lora": "two"}),
        json!({"prompt": "adapter"}),
    ];
    let good = asked.iter().fold(String::new(), |text, row| text + &row.to_string() + "\n");
    let input = fleet.path("good.jsonl");
    std::fs::write(&input, &good)?;
    let options = json!({ "sampling": {"temperature": 0, "max_tokens": 12}, "loras": paths });
    let expected = reference("generate", &model, &input, &options)?;
    let input = fleet.path("rows.jsonl");
    let refused = "{\"prompt\":\"whose\",\"lora\":\"three\"}\n\
        {\"prompt\":\"greedy for numbers\",\"sampling_params\":{\"logprobs\":200}}\n";
    std::fs::write(&input, good + refused)?;
    let engine = Engine { lines: loras, ..Engine::new(&model, 4) };
    fleet.start_worker("w1", &engine.worker(""))?;
    let lines = "[model]\nuri = \"tiny\"\n[sampling]\ntemperature = 0.0\nmax_tokens = 12\n";
    let mut batch = Batch::submit_file(&fleet, "rows", input, 12, lines)?;
    let status = batch.process().wait(LOADING).with_context(|| fleet.logs())?;
    ensure!(status.code() == Some(10), "{status}{}", fleet.logs());
    let got = completions(&batch)?;
    ensure!(got.len() == 10, "{got:?}");
    for (got, expected) in got.iter().zip(&expected) {
        ensure!(got["completion"] == expected["texts"][0], "{got} for {expected}");
        ensure!(got["completion_tokens"] == expected["tokens"], "{got} for {expected}");
        ensure!(got["finish_reason"] == expected["reason"], "{got} for {expected}");
        if let Some(all) = got.get("completions").and_then(Value::as_array) {
            let texts: Vec<_> = all.iter().map(|one| one["text"].clone()).collect();
            ensure!(Value::from(texts) == expected["texts"], "{got} for {expected}");
        }
        let chosen = got.get("logprobs").map_or(&Value::Null, |l| &l["token_logprobs"]);
        ensure!(near(chosen, &expected["logprobs"]), "{got} for {expected}");
    }
    let text = |row: usize| got[row]["completion"].as_str().unwrap_or_default();
    ensure!(["yes", "no"].contains(&text(4)), "{}", text(4));
    ensure!(text(5).len() == 3 && text(5).parse::<u32>().is_ok(), "{}", text(5));
    let object: Value = serde_json::from_str(text(6)).with_context(|| text(6).to_owned())?;
    ensure!(object["a"].is_boolean(), "{object}");
    ensure!(text(7) != text(8) && text(8) != text(9), "adapters change nothing: {got:?}");
    let codes: Vec<_> = errors(&batch)?.iter().map(|row| row["error"]["code"].clone()).collect();
    ensure!(codes == ["UNKNOWN_LORA", "VLLMValidationError"], "{codes:?}");
    properties_come_in_the_order_of_the_runs_schema(&fleet)?;
    fleet.passed()
}

/// The order is not alphabetical: a model that should reason before it answers depends on the order.
fn properties_come_in_the_order_of_the_runs_schema(fleet: &Fleet) -> Result<()> {
    let names = ["reasoning", "answer", "verdict"];
    let properties: Vec<_> =
        names.iter().map(|name| format!("{name} = {{ type = \"boolean\" }}")).collect();
    let lines = format!(
        "[model]\nuri = \"tiny\"\n[sampling]\ntemperature = 0.0\nmax_tokens = 128\n\
         structured_outputs = {{ json = {{ type = \"object\", properties = {{ {} }}, \
         required = {names:?}, additionalProperties = false }} }}\n",
        properties.join(", ")
    );
    let input = fleet.path("ordered.jsonl");
    std::fs::write(&input, "{\"prompt\":\"json\"}\n")?;
    let mut batch = Batch::submit_file(fleet, "ordered", input, 1, &lines)?;
    let status = batch.process().wait(LOADING).with_context(|| fleet.logs())?;
    ensure!(status.success(), "{status}{}", fleet.logs());
    let got = completions(&batch)?;
    let text = got[0]["completion"].as_str().unwrap_or_default();
    let object: serde_json::Map<String, Value> =
        serde_json::from_str(text).with_context(|| text.to_owned())?;
    ensure!(object.keys().eq(names), "{text}");
    Ok(())
}

#[test]
fn vectors_and_scores_are_vllms_own() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let model = tiny_model(&fleet)?;
    let engine = Engine::new(&model, 4).worker(", runner = \"pooling\"");
    let options = json!({ "engine_args": {"runner": "pooling"} });
    let mut runs = Vec::new();
    for (task, fields) in [("embed", ["prompt", "x"]), ("score", ["query", "document"])] {
        let input = fleet.path(&format!("{task}.jsonl"));
        let rows = (0..20).fold(String::new(), |mut text, n| {
            let [one, other] = fields;
            let _ = writeln!(text, "{{\"{one}\":\"text {n}\",\"{other}\":\"answer {}\"}}", n * 7);
            text
        });
        std::fs::write(&input, rows)?;
        runs.push((task, reference(task, &model, &input, &options)?, input));
    }
    fleet.start_worker("w1", &engine)?;
    for (task, expected, input) in runs {
        let field = if task == "embed" { "embedding" } else { "score" };
        let lines = format!("[model]\nuri = \"tiny\"\ntask = \"{task}\"\n[sampling]\n");
        let mut batch = Batch::submit_file(&fleet, task, input, 20, &lines)?;
        let status = batch.process().wait(LOADING).with_context(|| fleet.logs())?;
        ensure!(status.success(), "{status}{}", fleet.logs());
        let got = completions(&batch)?;
        ensure!(got.len() == 20 && expected.len() == 20, "{} rows", got.len());
        for (got, expected) in got.iter().zip(&expected) {
            ensure!(near(&got[field], &expected[field]), "{got} for {expected}");
            ensure!(got["completion"] == "" && got["prompt_tokens"] != 0, "{got}");
        }
    }
    fleet.passed()
}
