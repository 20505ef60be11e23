//! Owns: an HTTP server in the test's own process that answers with a closure.
//!
//! Invariant: it ends when it is dropped.
//! Absent: any cloud's protocol.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::response::Response;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub(super) struct Server {
    pub(super) endpoint: String,
    task: JoinHandle<()>,
}

impl Server {
    pub(super) async fn start<F, Answer>(answer: F) -> Self
    where
        F: Fn(Request) -> Answer + Clone + Send + Sync + 'static,
        Answer: Future<Output = Response> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let task = tokio::spawn(async move {
            axum::serve(listener, Router::new().fallback(answer)).await.unwrap();
        });
        Self { endpoint, task }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// State that a server and its test share.
pub(super) type Shared<T> = Arc<Mutex<T>>;

pub(super) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

pub(super) fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> Response {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(body.to_owned().into()).unwrap()
}

/// Waits for a condition, within a generous limit.
pub(super) async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}: not within a minute");
        tokio::time::sleep(Duration::from_millis(2)).await; // The poll; the condition decides.
    }
}
