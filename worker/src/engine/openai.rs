//! Owns: rows as requests to a server that speaks the OpenAI HTTP API (vLLM, SGLang, llama.cpp, hosted ones).
//!
//! Invariant: a refusal of the request itself (400, 413, 422) is the row's fault; every other failure is worth
//! another try. An answer is at most [`ANSWER_BYTES_MAX`] bytes.
//! Absent: retries (the ledger counts those) and streaming of tokens.

use std::time::Duration;

use anyhow::Context;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use rollout_proto::v1::FailureClass;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Completion, Engine, EngineFailure, EngineRow, Prompt};
use crate::config::EngineConfig;

const ANSWER_BYTES_MAX: usize = 15 << 20;
/// Bytes of a server's own words in a failure's message.
const QUOTE_BYTES_MAX: usize = 400;
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

pub(super) struct OpenAiEngine {
    client: Client,
    base_url: String,
    api_key: Option<String>,
    timeout: Duration,
    served_model: Option<String>,
}

#[derive(Deserialize)]
struct Answer {
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    message: Option<Message>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    content: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
}

impl OpenAiEngine {
    pub(super) fn new(config: &EngineConfig) -> anyhow::Result<Self> {
        let api_key = match &config.api_key_env {
            Some(name) => Some(std::env::var(name).with_context(|| {
                format!("engine.api_key_env names {name}, which is not in the environment")
            })?),
            None => None,
        };
        let client = Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .pool_max_idle_per_host(config.concurrency as usize)
            .build()
            .context("cannot set up the HTTP client")?;
        Ok(Self {
            client,
            base_url: config.base_url.trim_end_matches('/').trim_end_matches("/v1").to_owned(),
            api_key,
            timeout: Duration::from_millis(config.timeout_ms),
            served_model: config.served_model.clone(),
        })
    }

    fn authorized(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.api_key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// The path and body of a row's request: what the run's sampling sets, with model and prompt over it.
    fn request(
        &self,
        row: &EngineRow,
    ) -> Result<(&'static str, Map<String, Value>), EngineFailure> {
        let mut body = row.run.sampling.clone();
        let model = self.served_model.as_ref().unwrap_or(&row.run.model);
        body.insert("model".to_owned(), Value::from(model.as_str()));
        let path = match row.prompt()? {
            Prompt::Text(text) => {
                body.insert("prompt".to_owned(), Value::from(text));
                "/v1/completions"
            }
            Prompt::Messages(messages) => {
                body.insert("messages".to_owned(), Value::from(messages));
                "/v1/chat/completions"
            }
        };
        Ok((path, body))
    }

    async fn complete(&self, row: EngineRow) -> Result<Completion, EngineFailure> {
        let (path, body) = self.request(&row)?;
        let url = format!("{}{path}", self.base_url);
        let request = self.authorized(self.client.post(url)).json(&body).timeout(self.timeout);
        let response = request.send().await.map_err(of_transport)?;
        let status = response.status();
        let bytes = read(response).await?;
        if !status.is_success() {
            return Err(of_status(status, &bytes));
        }
        completion(&bytes)
    }

    async fn models(&self) -> Result<(), String> {
        let url = format!("{}/v1/models", self.base_url);
        let request = self.authorized(self.client.get(&url)).timeout(PROBE_TIMEOUT);
        let status = match request.send().await {
            Ok(response) => response.status(),
            Err(error) => return Err(format!("{url}: {}", cause(&error))),
        };
        // A server without that page is there all the same.
        match status {
            status if status.is_success() => Ok(()),
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Ok(()),
            status => Err(format!("{url} answers {status}")),
        }
    }
}

impl Engine for OpenAiEngine {
    fn run(&self, row: EngineRow) -> BoxFuture<'_, Result<Completion, EngineFailure>> {
        self.complete(row).boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), String>> {
        self.models().boxed()
    }
}

async fn read(response: Response) -> Result<Vec<u8>, EngineFailure> {
    let mut bytes = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(of_transport)?;
        if bytes.len() + chunk.len() > ANSWER_BYTES_MAX {
            let message = format!("the engine's answer is over {ANSWER_BYTES_MAX} bytes");
            return Err(EngineFailure::invalid("ENGINE_ANSWER_TOO_LARGE", message));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn completion(bytes: &[u8]) -> Result<Completion, EngineFailure> {
    let bad = |what: String| EngineFailure::new(FailureClass::Transient, "ENGINE_BAD_ANSWER", what);
    let answer: Answer = serde_json::from_slice(bytes)
        .map_err(|error| bad(format!("the engine's answer cannot be read: {error}")))?;
    let choice = answer.choices.into_iter().next();
    let choice = choice.ok_or_else(|| bad("the engine's answer has no choice".to_owned()))?;
    let text = choice.text.or_else(|| choice.message.map(|m| m.content.unwrap_or_default()));
    let text = text.ok_or_else(|| bad("the engine's answer has no text".to_owned()))?;
    let usage = answer.usage.unwrap_or(Usage { prompt_tokens: 0, completion_tokens: 0 });
    Ok(Completion {
        text,
        finish_reason: choice.finish_reason.unwrap_or_default(),
        prompt_tokens: usage.prompt_tokens,
        completion_tokens: usage.completion_tokens,
    })
}

fn of_status(status: StatusCode, body: &[u8]) -> EngineFailure {
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

fn of_transport(error: reqwest::Error) -> EngineFailure {
    let code = match (error.is_timeout(), error.is_connect()) {
        (_, true) => "ENGINE_UNREACHABLE",
        (true, false) => "ENGINE_TIMEOUT",
        (false, false) => "ENGINE_BROKE_OFF",
    };
    let mut failure = EngineFailure::new(FailureClass::Transient, code, cause(&error));
    failure.unreachable = error.is_connect();
    failure
}

/// An error with what lies below it, where the reason usually is.
fn cause(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(error) = below {
        text = format!("{text}: {error}");
        below = error.source();
    }
    text
}

#[cfg(test)]
mod tests;
