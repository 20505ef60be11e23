//! Owns: the mock engine's answer to a row of each task, once its latency has passed.
//!
//! Invariant: the same row gives the same answer everywhere.
//! Absent: latency and failures.

use serde_json::{Map, Value, json};

use crate::config::EngineConfig;
use crate::engine::request::{Input, Request};
use crate::engine::{Completion, EngineFailure};

/// Numbers of a vector.
const DIMENSIONS: usize = 8;
/// Completions of a row.
const N_MAX: u64 = 64;

/// The text that the mock answers: a prompt, the text of a user's last message, a query, or a request's own words.
pub(super) fn prompt_of(input: &Input) -> Result<String, EngineFailure> {
    match input {
        Input::Text(text) => Ok(text.clone()),
        Input::Messages(messages) => last_user_text(messages),
        Input::Pair { query, document } => Ok(format!("{query}\n{document}")),
        Input::Call { url, body } => match url.as_str() {
            "/v1/chat/completions" => match body.get("messages") {
                Some(Value::Array(messages)) => last_user_text(messages),
                _ => Err(shape("the body has no messages")),
            },
            "/v1/completions" => text_of(body, "prompt"),
            "/v1/embeddings" => text_of(body, "input"),
            "/v1/score" => {
                Ok(format!("{}\n{}", text_of(body, "text_1")?, text_of(body, "text_2")?))
            }
            other => Err(shape(format!("the mock engine has no {other}"))),
        },
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
        Input::Call { url, body } => called(plain, model, url, body, prompt),
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

/// A server's answer to a request.
fn called(
    plain: Completion,
    model: &str,
    url: &str,
    body: &Map<String, Value>,
    prompt: &str,
) -> Result<Completion, EngineFailure> {
    let named = body.get("model").and_then(Value::as_str);
    if named.is_some_and(|named| named != model) {
        return Err(EngineFailure::invalid(
            "MODEL_MISMATCH",
            format!("the body's model is not the run's, {model:?}"),
        ));
    }
    let text = format!("MOCK:{prompt}");
    let tokens = if ["/v1/embeddings", "/v1/score"].contains(&url) { 0 } else { words(&text) };
    let answer = match url {
        "/v1/embeddings" => json!({
            "object": "list",
            "data": [{"index": 0, "object": "embedding", "embedding": vector(prompt)}],
        }),
        "/v1/score" => json!({
            "object": "list",
            "data": [{"index": 0, "object": "score", "score": vector(prompt)[0]}],
        }),
        "/v1/completions" => json!({
            "object": "text_completion",
            "choices": [{"index": 0, "text": text, "finish_reason": "stop"}],
        }),
        _ => json!({
            "object": "chat.completion",
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }],
        }),
    };
    let id = blake3::hash(prompt.as_bytes()).to_hex();
    let mut full = Map::new();
    full.insert("id".to_owned(), format!("mock-{}", &id[..16]).into());
    full.insert("model".to_owned(), model.into());
    if let Value::Object(answer) = answer {
        full.extend(answer);
    }
    let (prompt_tokens, total) = (plain.prompt_tokens, plain.prompt_tokens + tokens);
    full.insert(
        "usage".to_owned(),
        json!({"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "total_tokens": total}),
    );
    let request_id = format!("mock-batch-{}", &id[..16]);
    let response = json!({"status_code": 200, "request_id": request_id, "body": full});
    let extra = json!({ "response": response }).to_string();
    Ok(Completion { completion_tokens: tokens, extra, ..plain })
}

/// Numbers from 0 to 1, derived from a text.
fn vector(text: &str) -> [f64; DIMENSIONS] {
    let hash = blake3::hash(text.as_bytes());
    std::array::from_fn(|at| f64::from(hash.as_bytes()[at]) / 256.0)
}

fn words(text: &str) -> u64 {
    text.split_whitespace().count() as u64
}

fn shape(message: impl Into<String>) -> EngineFailure {
    EngineFailure::invalid("ROW_SHAPE", message)
}

fn text_of(body: &Map<String, Value>, name: &str) -> Result<String, EngineFailure> {
    let text = body.get(name).and_then(Value::as_str).map(str::to_owned);
    text.ok_or_else(|| shape(format!("the body's {name} is not a text")))
}

/// The content of a user's last message: a text, or the texts of its parts.
fn last_user_text(messages: &[Value]) -> Result<String, EngineFailure> {
    let last = messages.iter().rev().find(|m| m.get("role") == Some(&Value::from("user")));
    match last.and_then(|message| message.get("content")) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            Ok(parts.iter().filter_map(|p| p.get("text").and_then(Value::as_str)).collect())
        }
        _ => Err(shape("no user message has content")),
    }
}
