//! Owns: rows as requests to a server with the OpenAI HTTP API (vLLM, SGLang, llama.cpp, hosted ones).
//!
//! Invariant: a refusal of the request itself (400, 413, 422) is the row's fault; every other failure may be retried.
//! An answer is at most [`ANSWER_BYTES_MAX`] bytes. The API key goes to the configured server and nowhere else: a row
//! chooses one of [`CALL_PATHS`], never a host, and redirects are not followed.
//! Absent: retries (the ledger counts those) and streaming of tokens.

mod answer;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod routes;

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use parking_lot::Mutex;
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use rollout_engine_protocol::Loaded;
use rollout_proto::v1::FailureClass;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::request::{Input, Request};
use super::{Completion, Engine, EngineFailure, EngineRow, timed};
use crate::config::{EngineConfig, server_url};
use crate::offer;

const ANSWER_BYTES_MAX: usize = 15 << 20;
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// Paths that a row of the OpenAI Batch format may call: those of OpenAI's batch API, vLLM's batch runner and vLLM's
/// server that take one JSON object and answer with one.
const CALL_PATHS: [&str; 10] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/moderations",
    "/v1/rerank",
    "/v1/responses",
    "/v1/score",
    "/pooling",
    "/rerank",
    "/score",
];

pub(super) struct OpenAiEngine {
    client: Client,
    /// Its path ends without a slash and without `/v1`.
    base_url: Url,
    api_key: Option<String>,
    timeout: Duration,
    served_model: Option<String>,
    /// The models that the slot offers.
    models: Vec<String>,
    /// It refused a row for a reason on the server's side, not the row's.
    doubted: AtomicBool,
    /// The routes that the server serves, once it was probed.
    routes: Mutex<Option<Vec<&'static str>>>,
}

/// A server's list of models.
#[derive(Deserialize)]
struct Models<'a> {
    #[serde(borrow)]
    data: Vec<Model<'a>>,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
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
            .redirect(Policy::none())
            .build()
            .context("cannot set up the HTTP client")?;
        Ok(Self {
            client,
            base_url: server_url(&config.base_url).map_err(anyhow::Error::msg)?,
            api_key,
            timeout: Duration::from_millis(config.timeout_ms),
            served_model: config.served_model.clone(),
            models: config.models.clone(),
            doubted: AtomicBool::new(false),
            routes: Mutex::default(),
        })
    }

    /// A path of the API on the configured server.
    fn at(&self, path: &str) -> Url {
        let mut url = self.base_url.clone();
        url.set_path(&format!("{}{path}", url.path().trim_end_matches('/')));
        url
    }

    fn authorized(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.api_key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    /// The path and body of a row's request: its sampling, overridden by model and prompt.
    fn call(
        &self,
        run_model: &str,
        request: Request,
    ) -> Result<(String, Map<String, Value>), EngineFailure> {
        let Request { input, sampling, template, lora, embeds } = request;
        let mut body = if embeds { Map::new() } else { sampling };
        let served = self.served_model.as_deref().unwrap_or(run_model);
        // A server like vLLM's exposes an adapter as a model.
        let named = lora.unwrap_or_else(|| served.to_owned());
        body.insert("model".to_owned(), named.into());
        // As vLLM's and SGLang's servers accept them; other servers refuse unknown fields.
        if !template.is_empty() && matches!(input, Input::Messages(_)) {
            body.insert("chat_template_kwargs".to_owned(), template.into());
        }
        let (path, name, value) = match input {
            Input::Text(text) if embeds => ("/v1/embeddings", "input", text.into()),
            Input::Text(text) => ("/v1/completions", "prompt", text.into()),
            Input::Messages(messages) if embeds => ("/v1/embeddings", "messages", messages.into()),
            Input::Messages(messages) => ("/v1/chat/completions", "messages", messages.into()),
            Input::Pair { .. } => {
                let message = "the engine openai does not support the task score";
                return Err(EngineFailure::invalid("TASK_UNKNOWN", message));
            }
            Input::Call { url, mut body } => {
                if body.get("model").is_some_and(|named| named != run_model) {
                    let message = format!("the body's model is not the run's, {run_model:?}");
                    return Err(EngineFailure::invalid("MODEL_MISMATCH", message));
                }
                if !CALL_PATHS.contains(&url.as_str()) {
                    let shown: String = url.chars().take(200).collect();
                    let paths = CALL_PATHS.join(", ");
                    let message = format!("the row's url is {shown:?}, not one of {paths}");
                    return Err(EngineFailure::invalid("UNKNOWN_URL", message));
                }
                body.insert("model".to_owned(), served.into());
                return Ok((url, body));
            }
        };
        body.insert(name.to_owned(), value);
        Ok((path.to_owned(), body))
    }

    async fn complete(&self, row: EngineRow) -> Result<Completion, EngineFailure> {
        let request = row.request()?;
        let (embeds, with_lora) = (request.embeds, request.lora.is_some());
        let called = matches!(request.input, Input::Call { .. });
        let (path, body) = self.call(&row.run.model, request)?;
        let request =
            self.authorized(self.client.post(self.at(&path))).json(&body).timeout(self.timeout);
        let response = request.send().await.map_err(of_transport)?;
        let status = response.status();
        let id = response.headers().get("x-request-id").and_then(|id| id.to_str().ok());
        let id = id.unwrap_or_default().to_owned();
        let bytes = answer::in_one_line(read(response).await?);
        match status {
            _ if called => answer::called(status, &id, &bytes),
            StatusCode::NOT_FOUND if with_lora => {
                let failure = answer::refusal(status, &bytes);
                Err(EngineFailure::invalid("UNKNOWN_LORA", failure.message))
            }
            status if !status.is_success() => Err(self.refused(status, &bytes)),
            _ if embeds => answer::embedding(&bytes),
            _ => answer::completion(&bytes),
        }
    }

    /// A server that refuses the key, or does not know the path or the model, refuses every row: the slot stops, and
    /// the row is not blamed.
    fn refused(&self, status: StatusCode, bytes: &[u8]) -> EngineFailure {
        let mut failure = answer::refusal(status, bytes);
        if matches!(status.as_u16(), 401 | 403 | 404 | 405) {
            failure.code = "ENGINE_REFUSES".into();
            failure.unreachable = true;
            self.doubted.store(true, Ordering::Relaxed);
        }
        failure
    }

    /// Which of the slot's models the server lacks, once it has refused a row. Before that it may be a server that
    /// accepts any name.
    fn missing_model(&self, bytes: &[u8]) -> Option<String> {
        if !self.doubted.load(Ordering::Relaxed) {
            return None;
        }
        let listed: Models = serde_json::from_slice(bytes).ok()?;
        let ids: Vec<&str> = listed.data.iter().map(|model| model.id.as_ref()).collect();
        let offered = |name: &String| ids.contains(&name.split('@').next().unwrap_or(name));
        let served = match &self.served_model {
            Some(name) => ids.contains(&name.as_str()),
            None => self.models.iter().any(|name| name == "*" || offered(name)),
        };
        if ids.is_empty() || served {
            self.doubted.store(false, Ordering::Relaxed);
            return None;
        }
        let wanted = self.served_model.clone().unwrap_or_else(|| self.models.join(", "));
        let shown: Vec<&str> = ids.into_iter().take(8).collect();
        Some(format!("it serves {}, not {wanted}", shown.join(", ")))
    }

    async fn look_at_models(&self) -> Result<(), String> {
        let url = self.at("/v1/models");
        let request = self.authorized(self.client.get(url.clone())).timeout(PROBE_TIMEOUT);
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => return Err(format!("{url}: {}", cause(&error))),
        };
        // A server without that page is reachable all the same.
        match response.status() {
            status if status.is_success() => {
                let bytes = read(response).await.map_err(|failure| failure.message)?;
                self.missing_model(&bytes).map_or(Ok(()), |why| Err(format!("{url}: {why}")))
            }
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => Ok(()),
            status => Err(format!("{url} answers {status}")),
        }
    }
}

impl Engine for OpenAiEngine {
    fn run(&self, row: EngineRow) -> BoxFuture<'_, Result<Completion, EngineFailure>> {
        timed(row.run.attempt_timeout, self.complete(row)).boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), String>> {
        async {
            self.look_at_models().await?;
            self.look_at_routes().await;
            Ok(())
        }
        .boxed()
    }

    fn loaded(&self) -> Option<Loaded> {
        self.routes.lock().as_deref().map(offer::routes_only)
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

/// An error with its causes, which usually contain the reason.
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
