//! What a dry run counts with the model's own tokenizer and chat template.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Result, ensure};
use rollout_tests::{Fleet, FleetOptions, output};
use serde_json::{Value, json};

use super::setup::{python, tiny_model};

/// What it prints, and the errors that it lists, of lines that are not all rows.
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
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
    ensure!(ended.status.code() == Some(2), "{}: {said}{errors}", ended.status);
    Ok((said, errors))
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
    // A letter is a token. The template makes `<user>hello`, the token `</s>`, and `<assistant>` of the messages.
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
    // The line that is no row has no number.
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
        chats(1, 1010.into(), 1),
        chats(2, (-1).into(), 1),
        chats(3, "9".into(), 1),
        ask(4, "/v1/completions", json!({"prompt": ["hello", "you"]})),
        ask(5, "/v1/embeddings", json!({"input": "hello"})),
    ];
    let (said, errors) = dry_run(&fleet, &model, "openai", &openai)?;
    let all = format!("{} of prompts, at most {chat} in one of 1,024", 3 * chat + 8 + 5);
    let bound = format!("at most {} of completions, and 2 rows say no bound", 2 * 9 + 2 * 16);
    has(&said, &[&all, &bound])?;
    has(&errors, &["row 1: TOO_LONG: 23 tokens and 1010 asked for", "1 error"])?;
    fleet.passed()
}
