//! Owns: the mock engine's answers to requests of the OpenAI API, each in the shape of its route.
//!
//! Invariant: the same request gives the same answer everywhere, so times of creation are 0. A generated text is
//! `MOCK:` and the last text of the user.
//! Absent: streams, and all parameters of a request except `top_n` of rerank.

use serde_json::{Map, Value, json};

use super::answers::{last_user_text, shape, vector, words};
use crate::engine::{Completion, EngineFailure};

/// The routes that the mock serves, as its slot reports them.
pub(super) const SERVED: [&str; 9] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/score",
    "/v1/rerank",
    "/score",
    "/rerank",
    "/pooling",
];
/// Texts of one list in a request; OpenAI's own bound for embeddings.
const TEXTS_MAX: usize = 2048;
/// The names of the two sides of a score, in vLLM's forms of the request.
const SIDES: [(&str, &str); 3] =
    [("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2")];

type Body = Map<String, Value>;

/// What the shape of an answer depends on.
#[derive(Clone, Copy)]
enum Route {
    Chat,
    Completions,
    Embeddings,
    Responses,
    Score,
    Rerank,
    Pooling,
}

impl Route {
    fn of(url: &str) -> Result<Self, EngineFailure> {
        Ok(match url {
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completions,
            "/v1/embeddings" => Self::Embeddings,
            "/v1/responses" => Self::Responses,
            "/v1/score" | "/score" => Self::Score,
            "/v1/rerank" | "/rerank" => Self::Rerank,
            "/pooling" => Self::Pooling,
            other => {
                let shown: String = other.chars().take(200).collect();
                let message = format!("the mock engine has no {shown:?}");
                return Err(EngineFailure::invalid("UNKNOWN_URL", message));
            }
        })
    }

    /// The texts that the request is about: the last one of the user, or all of its lists.
    fn texts(self, body: &Body) -> Result<Vec<String>, EngineFailure> {
        match self {
            Self::Chat => Ok(vec![messages(body, "messages")?]),
            Self::Completions => texts(body, "prompt"),
            Self::Embeddings | Self::Pooling if body.contains_key("messages") => {
                Ok(vec![messages(body, "messages")?])
            }
            Self::Embeddings | Self::Pooling => texts(body, "input"),
            Self::Responses => match body.get("input") {
                Some(Value::String(text)) => Ok(vec![text.clone()]),
                _ => Ok(vec![messages(body, "input")?]),
            },
            Self::Score => {
                let (queries, documents) = sides(body)?;
                Ok([queries, documents].concat())
            }
            Self::Rerank => {
                let query = texts(body, "query")?;
                Ok([query, texts(body, "documents")?].concat())
            }
        }
    }
}

/// All texts of a request, each on its own line.
pub(super) fn prompt_of(url: &str, body: &Body) -> Result<String, EngineFailure> {
    Ok(Route::of(url)?.texts(body)?.join("\n"))
}

/// A server's answer to a request. `plain` has the tokens of its prompt.
pub(super) fn called(
    plain: Completion,
    model: &str,
    url: &str,
    body: &Body,
    prompt: &str,
) -> Result<Completion, EngineFailure> {
    let named = body.get("model").and_then(Value::as_str);
    if named.is_some_and(|named| named != model) {
        return Err(EngineFailure::invalid(
            "MODEL_MISMATCH",
            format!("the body's model is not the run's, {model:?}"),
        ));
    }
    let route = Route::of(url)?;
    let texts = route.texts(body)?;
    let said = texts.iter().map(|text| format!("MOCK:{text}"));
    let said: Vec<String> = match route {
        Route::Chat | Route::Completions | Route::Responses => said.collect(),
        _ => Vec::new(),
    };
    let completion_tokens = said.iter().map(|text| words(text)).sum();
    let hash = blake3::hash(prompt.as_bytes()).to_hex();
    let id = &hash[..16];
    let answer = match route {
        Route::Chat => chat(&said),
        Route::Completions => completions(&said),
        Route::Responses => response(&said, id),
        Route::Embeddings => vectors(&texts, "embedding", "embedding"),
        Route::Pooling => vectors(&texts, "pooling", "data"),
        Route::Score => scores(body)?,
        Route::Rerank => ranks(body, &texts)?,
    };
    let usage = usage(route, plain.prompt_tokens, completion_tokens);
    let mut full = json!({"id": format!("mock-{id}"), "model": model, "usage": usage});
    if let (Value::Object(full), Value::Object(answer)) = (&mut full, answer) {
        full.extend(answer);
    }
    let request_id = format!("mock-batch-{id}");
    let response = json!({"status_code": 200, "request_id": request_id, "body": full});
    let extra = json!({ "response": response }).to_string();
    Ok(Completion { completion_tokens, extra, ..plain })
}

fn usage(route: Route, input: u64, output: u64) -> Value {
    let total = input + output;
    match route {
        Route::Responses => json!({
            "input_tokens": input,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": total,
        }),
        Route::Rerank => json!({"prompt_tokens": input, "total_tokens": total}),
        _ => json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": total}),
    }
}

fn chat(said: &[String]) -> Value {
    let choice = |(index, text): (usize, &String)| {
        json!({
            "index": index,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        })
    };
    let choices: Vec<Value> = said.iter().enumerate().map(choice).collect();
    json!({"object": "chat.completion", "created": 0, "choices": choices})
}

fn completions(said: &[String]) -> Value {
    let choice = |(index, text)| json!({"index": index, "text": text, "finish_reason": "stop"});
    let choices: Vec<Value> = said.iter().enumerate().map(choice).collect();
    json!({"object": "text_completion", "created": 0, "choices": choices})
}

fn response(said: &[String], id: &str) -> Value {
    let text = |text| json!({"type": "output_text", "text": text, "annotations": []});
    let content: Vec<Value> = said.iter().map(text).collect();
    json!({
        "object": "response",
        "created_at": 0,
        "status": "completed",
        "error": null,
        "incomplete_details": null,
        "output": [{
            "type": "message",
            "id": format!("mock-message-{id}"),
            "status": "completed",
            "role": "assistant",
            "content": content,
        }],
    })
}

/// A list with the vector of each text; `object` is the kind of its entries, `name` that of their vectors.
fn vectors(texts: &[String], object: &str, name: &str) -> Value {
    let entry = |(index, text): (usize, &String)| json!({"index": index, "object": object, name: vector(text)});
    let data: Vec<Value> = texts.iter().enumerate().map(entry).collect();
    json!({"object": "list", "created": 0, "data": data})
}

/// One query is compared with each document; otherwise each query with its own document.
fn scores(body: &Body) -> Result<Value, EngineFailure> {
    let (queries, documents) = sides(body)?;
    if queries.len() != 1 && queries.len() != documents.len() {
        let message = "the body has several queries, but not one document for each";
        return Err(shape(message));
    }
    let pairs = queries.iter().cycle().zip(&documents);
    let scores = pairs.map(|(query, document)| score(query, document)).enumerate();
    let entry = |(index, score)| json!({"index": index, "object": "score", "score": score});
    let data: Vec<Value> = scores.map(entry).collect();
    Ok(json!({"object": "list", "created": 0, "data": data}))
}

/// The documents, the best first. `texts` are the query and the documents.
fn ranks(body: &Body, texts: &[String]) -> Result<Value, EngineFailure> {
    let top = match body.get("top_n") {
        None | Some(Value::Null) => 0,
        Some(n) => n.as_u64().ok_or_else(|| shape("the body's top_n is not a number"))?,
    };
    let (query, documents) = texts.split_first().ok_or_else(|| shape("the body has no query"))?;
    let scored = documents.iter().enumerate();
    let mut scored: Vec<(usize, &String, f64)> =
        scored.map(|(index, document)| (index, document, score(query, document))).collect();
    scored.sort_by(|one, other| other.2.total_cmp(&one.2).then(one.0.cmp(&other.0)));
    if top > 0 {
        scored.truncate(usize::try_from(top).unwrap_or(usize::MAX));
    }
    let result = |(index, text, score)| json!({"index": index, "document": {"text": text}, "relevance_score": score});
    let results: Vec<Value> = scored.into_iter().map(result).collect();
    Ok(json!({ "results": results }))
}

fn score(query: &str, document: &str) -> f64 {
    vector(&format!("{query}\n{document}"))[0]
}

fn sides(body: &Body) -> Result<(Vec<String>, Vec<String>), EngineFailure> {
    let (one, other) = SIDES
        .into_iter()
        .find(|(name, _)| body.contains_key(*name))
        .ok_or_else(|| shape("the body has neither text_1, queries nor data_1"))?;
    Ok((texts(body, one)?, texts(body, other)?))
}

fn messages(body: &Body, name: &str) -> Result<String, EngineFailure> {
    match body.get(name) {
        Some(Value::Array(messages)) => last_user_text(messages),
        _ => Err(shape(format!("the body has no {name}"))),
    }
}

/// A text, or a list of 1 to [`TEXTS_MAX`] texts.
fn texts(body: &Body, name: &str) -> Result<Vec<String>, EngineFailure> {
    let of = |value: &Value| value.as_str().map(str::to_owned);
    let texts = match body.get(name) {
        Some(Value::Array(list)) if list.len() > TEXTS_MAX => {
            return Err(shape(format!("the body's {name} has over {TEXTS_MAX} texts")));
        }
        Some(Value::Array(list)) => list.iter().map(of).collect::<Option<Vec<String>>>(),
        Some(value) => of(value).map(|text| vec![text]),
        None => None,
    };
    let found = texts.filter(|texts| !texts.is_empty());
    found.ok_or_else(|| shape(format!("the body's {name} is neither a text nor a list of texts")))
}

#[cfg(test)]
mod tests;
