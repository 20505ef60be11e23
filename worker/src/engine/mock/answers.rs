//! Owns: the mock engine's answer to a row of each task, once its latency has passed.
//!
//! Invariant: the same row gives the same answer everywhere.
//! Absent: latency and failures; answers to requests of the OpenAI API (`routes`).

use serde_json::{Map, Value, json};

use super::routes;
use crate::config::EngineConfig;
use crate::engine::request::{Input, Request};
use crate::engine::{Completion, EngineFailure};

/// Numbers of a vector.
const DIMENSIONS: usize = 8;
/// Completions of a row.
const N_MAX: u64 = 64;

/// The text that the mock answers: a prompt, the text of a user's last message, a query with its document, or the texts
/// of a request.
pub(super) fn prompt_of(input: &Input) -> Result<String, EngineFailure> {
    match input {
        Input::Text(text) => Ok(text.clone()),
        Input::Messages(messages) => last_user_text(messages),
        Input::Pair { query, document } => Ok(format!("{query}\n{document}")),
        Input::Call { url, body } => routes::prompt_of(url, body),
    }
}

pub(super) fn answer(
    config: &EngineConfig,
    model: &str,
    request: &Request,
    prompt: &str,
) -> Result<Completion, EngineFailure> {
    if let Some(lora) = &request.lora
        && !config.loras.contains_key(lora)
    {
        return Err(EngineFailure::invalid("UNKNOWN_LORA", format!("no adapter {lora:?} here")));
    }
    let prompt_tokens = words(prompt);
    let plain =
        Completion { finish_reason: "stop".to_owned(), prompt_tokens, ..Completion::default() };
    match &request.input {
        Input::Pair { .. } => {
            let extra = json!({ "score": vector(prompt)[0] }).to_string();
            Ok(Completion { extra, ..plain })
        }
        Input::Call { url, body } => routes::called(plain, model, url, body, prompt),
        Input::Text(_) | Input::Messages(_) if request.embeds => {
            let extra = json!({ "embedding": vector(prompt) }).to_string();
            Ok(Completion { extra, ..plain })
        }
        Input::Text(_) | Input::Messages(_) => generated(plain, &request.sampling, prompt),
    }
}

fn generated(
    plain: Completion,
    sampling: &Map<String, Value>,
    prompt: &str,
) -> Result<Completion, EngineFailure> {
    let n = match sampling.get("n") {
        None | Some(Value::Null) => 1,
        Some(n) => n.as_u64().filter(|n| (1..=N_MAX).contains(n)).ok_or_else(|| {
            EngineFailure::invalid("MOCK_INVALID", format!("n is not in 1 to {N_MAX}"))
        })?,
    };
    let text = format!("MOCK:{prompt}");
    let all: Vec<Value> = (0..n)
        .map(|index| {
            let text = if index == 0 { text.clone() } else { format!("{text} {index}") };
            json!({"index": index, "text": text, "finish_reason": "stop"})
        })
        .collect();
    let texts = all.iter().filter_map(|completion| completion["text"].as_str());
    let completion_tokens = texts.map(words).sum();
    let extra = if n > 1 { json!({ "completions": all }).to_string() } else { String::new() };
    Ok(Completion { text, completion_tokens, extra, ..plain })
}

/// Numbers from 0 to 1, derived from a text.
pub(super) fn vector(text: &str) -> [f64; DIMENSIONS] {
    let hash = blake3::hash(text.as_bytes());
    std::array::from_fn(|at| f64::from(hash.as_bytes()[at]) / 256.0)
}

pub(super) fn words(text: &str) -> u64 {
    text.split_whitespace().count() as u64
}

pub(super) fn shape(message: impl Into<String>) -> EngineFailure {
    EngineFailure::invalid("ROW_SHAPE", message)
}

/// The content of a user's last message: a text, or the texts of its parts.
pub(super) fn last_user_text(messages: &[Value]) -> Result<String, EngineFailure> {
    let last = messages.iter().rev().find(|m| m.get("role") == Some(&Value::from("user")));
    match last.and_then(|message| message.get("content")) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            Ok(parts.iter().filter_map(|p| p.get("text").and_then(Value::as_str)).collect())
        }
        _ => Err(shape("no user message has content")),
    }
}
