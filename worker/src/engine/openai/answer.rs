//! Owns: what a server's answer means for a row: a completion with its extra fields, or a failure with its class.
//!
//! Invariant: the answer to a request of the OpenAI Batch format is passed on byte for byte, except that surrounding
//! space is trimmed and line breaks become spaces, because a result must fit into one line of an output. The numbers
//! of a vector are finite.
//! Absent: sending requests.

use reqwest::StatusCode;
use rollout_proto::v1::FailureClass;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::engine::{Completion, EngineFailure};

/// Bytes of a server's own message that a failure quotes.
const QUOTE_BYTES_MAX: usize = 400;

#[derive(Deserialize)]
struct CompletionBody<'a> {
    #[serde(borrow)]
    choices: Vec<Choice<'a>>,
    #[serde(default, deserialize_with = "or_nothing")]
    usage: Usage,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    message: Option<Message>,
    #[serde(default)]
    finish_reason: Option<String>,
    #[serde(default)]
    stop_reason: Option<Value>,
    #[serde(borrow, default)]
    logprobs: Option<&'a RawValue>,
    #[serde(borrow, default)]
    prompt_logprobs: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Usage {
    #[serde(deserialize_with = "or_nothing")]
    prompt_tokens: u64,
    #[serde(deserialize_with = "or_nothing")]
    completion_tokens: u64,
    /// What the route for responses calls the tokens of the prompt.
    #[serde(deserialize_with = "or_nothing")]
    input_tokens: u64,
    /// What it calls the tokens of the completion.
    #[serde(deserialize_with = "or_nothing")]
    output_tokens: u64,
}

/// Servers that do not count say `null`.
fn or_nothing<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

/// One of several completions.
#[derive(Serialize)]
struct One<'a> {
    index: usize,
    text: &'a str,
    finish_reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct Extra<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    completions: Vec<One<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct Called<'a> {
    status_code: u16,
    request_id: &'a str,
    body: &'a RawValue,
}

#[derive(Deserialize)]
struct Vectors<'a> {
    #[serde(borrow)]
    data: Vec<Vector<'a>>,
    #[serde(default, deserialize_with = "or_nothing")]
    usage: Usage,
}

#[derive(Deserialize)]
struct Vector<'a> {
    #[serde(borrow)]
    embedding: &'a RawValue,
}

fn bad(what: impl std::fmt::Display) -> EngineFailure {
    let message = format!("the engine's answer {what}");
    EngineFailure::new(FailureClass::Transient, "ENGINE_BAD_ANSWER", message)
}

fn unreadable(error: serde_json::Error) -> EngineFailure {
    bad(format!("cannot be read: {error}"))
}

fn json<T: Serialize>(value: &T) -> Result<String, EngineFailure> {
    serde_json::to_string(value).map_err(|error| bad(format!("cannot be written: {error}")))
}

/// An answer without line breaks. JSON allows them only between tokens, where a space means the same.
pub(super) fn in_one_line(mut bytes: Vec<u8>) -> Vec<u8> {
    for byte in bytes.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')) {
        *byte = b' ';
    }
    bytes
}

/// The answer to a prompt or to messages.
pub(super) fn completion(bytes: &[u8]) -> Result<Completion, EngineFailure> {
    let answer: CompletionBody<'_> = serde_json::from_slice(bytes).map_err(unreadable)?;
    let mut texts = Vec::with_capacity(answer.choices.len());
    for choice in &answer.choices {
        let message = || choice.message.as_ref().map(|m| m.content.as_deref().unwrap_or_default());
        texts.push(choice.text.as_deref().or_else(message).ok_or_else(|| bad("has no text"))?);
    }
    let (Some(first), Some(text)) = (answer.choices.first(), texts.first()) else {
        return Err(bad("has no choice"));
    };
    let reason = |choice: &'_ Choice<'_>| choice.finish_reason.clone().unwrap_or_default();
    let reasons: Vec<String> = answer.choices.iter().map(reason).collect();
    let all = answer.choices.iter().enumerate().map(|(index, choice)| One {
        index,
        text: texts[index],
        finish_reason: &reasons[index],
        stop_reason: choice.stop_reason.as_ref(),
        logprobs: choice.logprobs,
    });
    let extra = Extra {
        completions: if texts.len() > 1 { all.collect() } else { Vec::new() },
        logprobs: first.logprobs,
        prompt_logprobs: first.prompt_logprobs,
    };
    let extra = json(&extra)?;
    Ok(Completion {
        text: (*text).to_owned(),
        finish_reason: reasons[0].clone(),
        prompt_tokens: answer.usage.prompt_tokens,
        completion_tokens: answer.usage.completion_tokens,
        extra: if extra == "{}" { String::new() } else { extra },
    })
}

/// The answer to a request for a vector.
pub(super) fn embedding(bytes: &[u8]) -> Result<Completion, EngineFailure> {
    let answer: Vectors<'_> = serde_json::from_slice(bytes).map_err(unreadable)?;
    let vector = answer.data.first().ok_or_else(|| bad("has no vector"))?;
    if let Err(error) = serde_json::from_str::<Vec<f64>>(vector.embedding.get()) {
        let message = format!("the vector is not of finite numbers: {error}");
        return Err(EngineFailure::invalid("RESULT_NOT_FINITE", message));
    }
    Ok(Completion {
        finish_reason: "stop".to_owned(),
        prompt_tokens: answer.usage.prompt_tokens,
        extra: format!("{{\"embedding\":{}}}", vector.embedding.get()),
        ..Completion::default()
    })
}

/// The answer to a request of the OpenAI Batch format; an error fails the row, with the answer as its message.
pub(super) fn called(
    status: StatusCode,
    request_id: &str,
    bytes: &[u8],
) -> Result<Completion, EngineFailure> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct BodyUsage {
        usage: Option<Usage>,
    }
    let body: &RawValue = match serde_json::from_slice(bytes) {
        Ok(body) => body,
        Err(_) if !status.is_success() => {
            let by_request = is_of_the_call(status);
            return Err(EngineFailure { by_request, ..refusal(status, bytes) });
        }
        Err(error) => return Err(unreadable(error)),
    };
    let response = json(&Called { status_code: status.as_u16(), request_id, body })?;
    let extra = format!("{{\"response\":{response}}}");
    if !status.is_success() {
        let by_request = is_of_the_call(status);
        return Err(EngineFailure { message: extra, by_request, ..refusal(status, bytes) });
    }
    let usage = serde_json::from_str::<BodyUsage>(body.get()).unwrap_or_default().usage;
    let usage = usage.unwrap_or_default();
    Ok(Completion {
        finish_reason: "stop".to_owned(),
        prompt_tokens: usage.prompt_tokens.max(usage.input_tokens),
        completion_tokens: usage.completion_tokens.max(usage.output_tokens),
        extra,
        ..Completion::default()
    })
}

/// Whether a server refuses a path or a body that a row chose. It may accept all other rows.
fn is_of_the_call(status: StatusCode) -> bool {
    status.is_client_error() && !matches!(status.as_u16(), 401 | 403 | 408 | 429)
}

/// A refusal, by its status.
pub(super) fn refusal(status: StatusCode, body: &[u8]) -> EngineFailure {
    let quote = String::from_utf8_lossy(&body[..body.len().min(QUOTE_BYTES_MAX)]);
    let message = format!("the engine answers {status}: {}", quote.trim());
    let (class, code) = match status.as_u16() {
        400 | 413 | 422 => (FailureClass::InvalidRow, "ENGINE_REFUSED_ROW"),
        429 => (FailureClass::Transient, "ENGINE_OVERLOADED"),
        503 => (FailureClass::Transient, "ENGINE_UNAVAILABLE"),
        _ => (FailureClass::Transient, "ENGINE_ERROR"),
    };
    EngineFailure::new(class, code, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_that_is_not_of_finite_numbers_is_the_rows_failure() {
        for vector in ["[0.5,null]", "[[0.5]]", "null", "\"AAAA\"", "[1e999]"] {
            let answer = format!("{{\"data\":[{{\"embedding\":{vector}}}]}}");
            let failure = embedding(answer.as_bytes()).unwrap_err();
            assert_eq!(failure.class, FailureClass::InvalidRow, "{vector}");
            assert_eq!(failure.code, "RESULT_NOT_FINITE", "{vector}");
        }
        let done = embedding(br#"{"data":[{"embedding":[ 0.50,1]}]}"#).unwrap();
        assert_eq!(done.extra, r#"{"embedding":[ 0.50,1]}"#, "as it came");
    }

    #[test]
    fn a_path_that_a_server_does_not_know_says_nothing_about_the_server() {
        let of = |status: u16, body: &[u8]| {
            called(StatusCode::from_u16(status).unwrap(), "", body).unwrap_err().by_request
        };
        for body in [&b"{}"[..], b"no JSON"] {
            assert!(of(404, body) && of(405, body) && of(400, body));
            assert!(!of(500, body) && !of(502, body) && !of(429, body) && !of(401, body));
        }
    }

    #[test]
    fn a_server_that_counts_no_tokens_gives_a_result_all_the_same() {
        for usage in ["null", r#"{"prompt_tokens":null}"#, "{}"] {
            let answer = format!(r#"{{"choices":[{{"text":"a"}}],"usage":{usage}}}"#);
            let done = completion(answer.as_bytes()).unwrap();
            assert_eq!((&*done.text, done.prompt_tokens, done.completion_tokens), ("a", 0, 0));
            let answer = format!(r#"{{"data":[{{"embedding":[1]}}],"usage":{usage}}}"#);
            assert_eq!(embedding(answer.as_bytes()).unwrap().prompt_tokens, 0);
        }
    }

    #[test]
    fn tokens_of_a_response_are_counted_under_their_own_names() {
        let of = |usage: &str| {
            let body = format!(r#"{{"usage":{usage}}}"#);
            let done = called(StatusCode::OK, "", body.as_bytes()).unwrap();
            (done.prompt_tokens, done.completion_tokens)
        };
        assert_eq!(of(r#"{"prompt_tokens":3,"completion_tokens":5}"#), (3, 5));
        assert_eq!(of(r#"{"input_tokens":3,"output_tokens":5,"total_tokens":8}"#), (3, 5));
        assert_eq!(of(r#"{"input_tokens":null}"#), (0, 0));
    }
}
