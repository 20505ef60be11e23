//! Tests of the engine against a server that the test starts.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::map_response;
use axum::routing::post;
use axum::{Json, Router};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::config::EngineKind;
use crate::engine::test_row;
use crate::run::{RunInfo, Task};

type SentRequests = Arc<Mutex<Vec<(String, Value)>>>;

async fn answer(
    State(seen): State<SentRequests>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> (StatusCode, Json<Value>) {
    let key = headers.get("authorization").and_then(|v| v.to_str().ok()).unwrap_or_default();
    seen.lock().push((key.to_owned(), body.clone()));
    let usage = json!({"prompt_tokens": 3, "completion_tokens": 5});
    if body["model"] == "unknown" {
        return (StatusCode::NOT_FOUND, Json(json!({"error": {"message": "no such model"}})));
    }
    if let Some(n) = body.get("n").and_then(Value::as_u64) {
        let choice = |index| json!({"index": index, "text": format!("t{index}"), "finish_reason": "stop", "logprobs": {"tokens": []}});
        let choices: Vec<Value> = (0..n).map(choice).collect();
        return (StatusCode::OK, Json(json!({"choices": choices, "usage": usage})));
    }
    if let Some(messages) = body.get("messages") {
        let text = format!("chat {}", messages[0]["content"].as_str().unwrap_or_default());
        let choice =
            json!({"message": {"role": "assistant", "content": text}, "finish_reason": "length"});
        return (StatusCode::OK, Json(json!({"choices": [choice], "usage": usage})));
    }
    let prompt = body["prompt"].as_str().unwrap_or_default().to_owned();
    match prompt.strip_prefix("status ").and_then(|status| status.parse::<u16>().ok()) {
        Some(status) => {
            (StatusCode::from_u16(status).unwrap(), Json(json!({"error": {"message": "no"}})))
        }
        None if prompt == "slow" => std::future::pending().await,
        None if prompt == "strange" => (StatusCode::OK, Json(json!({"choices": []}))),
        None => {
            let choice = json!({"text": format!("text {prompt}"), "finish_reason": "stop"});
            (StatusCode::OK, Json(json!({"choices": [choice], "usage": usage})))
        }
    }
}

async fn embed(Json(body): Json<Value>) -> (StatusCode, Json<Value>) {
    match body["input"].as_str() {
        Some("") => (StatusCode::BAD_REQUEST, Json(json!({"error": {"code": 400}}))),
        _ => {
            let data = json!([{"index": 0, "embedding": [0.5, 1.0]}]);
            (StatusCode::OK, Json(json!({"data": data, "usage": {"prompt_tokens": 2}})))
        }
    }
}

/// Hosted servers answer with JSON of many lines.
async fn in_lines(response: axum::response::Response) -> axum::response::Response {
    let (head, body) = response.into_parts();
    let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let text = serde_json::to_string_pretty(&value).unwrap().replace('\n', "\r\n");
    let mut response = axum::response::Response::new(text.into());
    *response.status_mut() = head.status;
    response
}

async fn server() -> (String, SentRequests) {
    let seen = SentRequests::default();
    let app = Router::new()
        .route("/v1/completions", post(answer))
        .route("/v1/chat/completions", post(answer))
        .route("/v1/embeddings", post(embed))
        .layer(map_response(in_lines))
        .with_state(seen.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, seen)
}

fn engine(url: &str) -> OpenAiEngine {
    let mut config = EngineConfig::new(EngineKind::Openai);
    config.base_url = url.to_owned();
    config.timeout_ms = 500;
    let mut engine = OpenAiEngine::new(&config).unwrap();
    engine.api_key = Some("secret".to_owned());
    engine
}

fn row(body: Value) -> EngineRow {
    let mut run = RunInfo::for_test(1);
    run.sampling = serde_json::from_str(r#"{"temperature":0.5,"max_tokens":7}"#).unwrap();
    test_row(run, 0, &body.to_string())
}

#[tokio::test]
async fn prompts_and_messages_go_to_their_own_paths_with_the_runs_sampling() {
    let (url, seen) = server().await;
    let engine = engine(&url);
    let text = engine.run(row(json!({"prompt": "hi", "other": 1}))).await.unwrap();
    assert_eq!((text.text.as_str(), text.finish_reason.as_str()), ("text hi", "stop"));
    assert_eq!((text.prompt_tokens, text.completion_tokens), (3, 5));
    let messages = json!([{"role": "user", "content": "hello"}]);
    let chat = engine.run(row(json!({"messages": messages}))).await.unwrap();
    assert_eq!((chat.text.as_str(), chat.finish_reason.as_str()), ("chat hello", "length"));
    let seen = seen.lock();
    assert_eq!(seen[0].0, "Bearer secret");
    let expected = json!({"model": "m", "prompt": "hi", "temperature": 0.5, "max_tokens": 7});
    assert_eq!(seen[0].1, expected);
    let expected = json!({"model": "m", "messages": messages, "temperature": 0.5, "max_tokens": 7});
    assert_eq!(seen[1].1, expected);
}

#[tokio::test]
async fn refusals_are_the_rows_fault_and_all_else_is_worth_another_try() {
    let (url, _) = server().await;
    let engine = engine(&url);
    for (prompt, class, code) in [
        ("status 400", FailureClass::InvalidRow, "ENGINE_REFUSED_ROW"),
        ("status 422", FailureClass::InvalidRow, "ENGINE_REFUSED_ROW"),
        ("status 429", FailureClass::Transient, "ENGINE_OVERLOADED"),
        ("status 503", FailureClass::Transient, "ENGINE_UNAVAILABLE"),
        ("status 500", FailureClass::Transient, "ENGINE_ERROR"),
        ("strange", FailureClass::Transient, "ENGINE_BAD_ANSWER"),
        ("slow", FailureClass::Transient, "ENGINE_TIMEOUT"),
    ] {
        let failure = engine.run(row(json!({"prompt": prompt}))).await.unwrap_err();
        assert_eq!((failure.class, &*failure.code), (class, code), "{prompt}: {}", failure.message);
        assert!(!failure.unreachable);
    }
}

#[tokio::test]
async fn a_server_without_the_model_stops_its_slot_and_blames_no_row() {
    let list = || async { Json(json!({"data": [{"id": "a"}, {"id": "b"}]})) };
    let missing = || async { (StatusCode::NOT_FOUND, Json(json!({"error": "no such model"}))) };
    let app = Router::new()
        .route("/v1/models", axum::routing::get(list))
        .route("/v1/completions", post(missing));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let mut engine = engine(&url);
    engine.models = vec!["m@main".to_owned()];
    assert_eq!(engine.probe().await, Ok(()), "it may take any name");
    let failure = engine.run(row(json!({"prompt": "hi"}))).await.unwrap_err();
    assert_eq!((failure.unreachable, &*failure.code), (true, "ENGINE_REFUSES"));
    let why = engine.probe().await.unwrap_err();
    assert!(why.ends_with("it serves a, b, not m@main"), "{why}");
    engine.models = vec!["b".to_owned()];
    assert_eq!(engine.probe().await, Ok(()));
}

#[tokio::test]
async fn an_unreachable_server_is_distinguished() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let engine = engine(&url);
    let failure = engine.run(row(json!({"prompt": "x"}))).await.unwrap_err();
    assert_eq!((failure.class, &*failure.code), (FailureClass::Transient, "ENGINE_UNREACHABLE"));
    assert!(failure.unreachable);
    assert!(engine.probe().await.is_err());
    let (url, _) = server().await;
    assert_eq!(
        super::OpenAiEngine { base_url: url.parse().unwrap(), ..engine }.probe().await,
        Ok(())
    );
}

#[tokio::test]
async fn a_row_cannot_send_the_key_to_another_server() {
    let (own, _) = server().await;
    let (other, heard) = server().await;
    let other = other.trim_start_matches("http://");
    let engine = engine(&own);
    for url in [
        format!("@{other}/v1/completions"),
        format!("http://{other}/v1/completions"),
        format!("//{other}/v1/completions"),
        "/v1/../v1/completions".to_owned(),
        "/v1/completions?x=1".to_owned(),
        "/v1/models".to_owned(),
        String::new(),
    ] {
        let body = json!({"prompt": "hi"});
        let call = json!({"custom_id": "c", "method": "POST", "url": url, "body": body});
        let failure = engine.run(task(Task::Openai, call)).await.unwrap_err();
        assert_eq!((failure.class, &*failure.code), (FailureClass::InvalidRow, "UNKNOWN_URL"));
    }
    assert!(heard.lock().is_empty());
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let (other, heard) = server().await;
    let to = format!("{other}/v1/completions");
    let redirect = move || async move { axum::response::Redirect::temporary(&to) };
    let app = Router::new().route("/v1/completions", post(redirect));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let failure = engine(&own).run(row(json!({"prompt": "hi"}))).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::Transient, "{}", failure.message);
    assert!(heard.lock().is_empty());
}

#[test]
fn the_configured_server_is_a_plain_address() {
    let read = |text: &str| server_url(text).map(String::from);
    assert_eq!(read("http://h:8000/v1/"), Ok("http://h:8000/".to_owned()));
    assert_eq!(read("https://h/api/v1"), Ok("https://h/api".to_owned()));
    for bad in ["h:8000", "ftp://h", "http://", "http://h?x", "http://h#x", "http://a:b@h"] {
        assert!(read(bad).is_err(), "{bad}");
    }
}

fn task(task: Task, body: Value) -> EngineRow {
    test_row(RunInfo { task, ..RunInfo::for_test(1) }, 0, &body.to_string())
}

fn extra(done: &Completion) -> Value {
    in_one_line(&done.extra)
}

/// The value after it was put on one line of an output, however the server formatted it.
fn in_one_line(text: &str) -> Value {
    assert!(!text.contains(['\n', '\r']), "{text}");
    serde_json::from_str(text).unwrap()
}

#[tokio::test]
async fn a_rows_own_parameters_and_adapter_are_sent_and_n_completions_come_back() {
    let (url, seen) = server().await;
    let engine = engine(&url);
    let body = json!({"prompt": "hi", "sampling_params": {"n": 2, "max_tokens": 9}, "lora": "l"});
    let done = engine.run(row(body)).await.unwrap();
    let expected =
        json!({"model": "l", "prompt": "hi", "temperature": 0.5, "max_tokens": 9, "n": 2});
    assert_eq!(seen.lock()[0].1, expected);
    assert_eq!(done.text, "t0");
    assert_eq!(extra(&done)["completions"][1]["text"], "t1");
    assert_eq!(extra(&done)["logprobs"], json!({"tokens": []}));
    let failure = engine.run(row(json!({"prompt": "hi", "lora": "unknown"}))).await.unwrap_err();
    assert_eq!((failure.class, &*failure.code), (FailureClass::InvalidRow, "UNKNOWN_LORA"));
}

#[tokio::test]
async fn vectors_come_back_and_requests_of_the_batch_format_are_passed_on_as_they_are() {
    let (url, _) = server().await;
    let engine = engine(&url);
    let done = engine.run(task(Task::Embed, json!({"prompt": "a"}))).await.unwrap();
    assert_eq!((extra(&done), done.prompt_tokens), (json!({"embedding": [0.5, 1.0]}), 2));
    let call = |input: &str, model: &str| {
        let body = json!({"input": input, "model": model});
        json!({"custom_id": "c", "method": "POST", "url": "/v1/embeddings", "body": body})
    };
    let done = engine.run(task(Task::Openai, call("a", "m"))).await.unwrap();
    let response = &extra(&done)["response"];
    assert_eq!(response["status_code"], 200);
    assert_eq!(response["body"]["data"][0]["embedding"], json!([0.5, 1.0]));
    let failure = engine.run(task(Task::Openai, call("", "m"))).await.unwrap_err();
    assert_eq!(failure.class, FailureClass::InvalidRow);
    let told = in_one_line(&failure.message);
    assert_eq!(told["response"]["status_code"], 400);
    assert_eq!(told["response"]["body"], json!({"error": {"code": 400}}));
    let failure = engine.run(task(Task::Openai, call("a", "other"))).await.unwrap_err();
    assert_eq!((failure.class, &*failure.code), (FailureClass::InvalidRow, "MODEL_MISMATCH"));
}

#[tokio::test]
async fn the_routes_of_a_server_are_those_that_it_describes() {
    let routes = |engine: &OpenAiEngine| engine.loaded().map(|all| all.versions["routes"].clone());
    let (url, seen) = server().await;
    let silent = engine(&url);
    assert_eq!(routes(&silent), None, "before the first probe");
    assert_eq!(silent.probe().await, Ok(()));
    let assumed = "/v1/chat/completions /v1/completions /v1/embeddings";
    assert_eq!(routes(&silent).as_deref(), Some(assumed));
    assert!(seen.lock().is_empty(), "a probe costs no request of a model");

    let paths = json!({"/v1/responses": {"post": {}}, "/v1/models": {"get": {}}});
    let described = move || async move { Json(json!({ "paths": paths })) };
    let app = Router::new().route("/openapi.json", axum::routing::get(described));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let mut engine = engine(&url);
    assert_eq!(engine.probe().await, Ok(()));
    assert_eq!(routes(&engine).as_deref(), Some("/v1/responses"));
    server.abort();
    assert!(server.await.is_err());
    engine.client = Client::new(); // Without a connection to the server that was stopped.
    engine.look_at_routes().await;
    assert_eq!(routes(&engine).as_deref(), Some("/v1/responses"), "what it said before stays");
}
