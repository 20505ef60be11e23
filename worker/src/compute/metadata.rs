//! Owns: one HTTP request to a metadata service, and its bounded answer.
//!
//! Invariant: an answer is at most [`BODY_BYTES_MAX`] long and came from the requested address in time: redirects are
//! not followed, and proxies of the environment are not used.
//! Absent: what the answer means.

use std::time::Duration;

use anyhow::Context;
use reqwest::header::HeaderMap;
use reqwest::redirect::Policy;
use reqwest::{Client, Method, StatusCode};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

/// Far more than any relevant answer.
const BODY_BYTES_MAX: usize = 16 << 10;
/// Bytes of an answer that are logged.
const QUOTE_CHARS_MAX: usize = 80;
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// An error of a metadata service.
#[derive(Debug, thiserror::Error)]
pub(super) enum MetadataError {
    /// No complete answer in time.
    #[error("{url}: {reason}")]
    Unreachable { url: String, reason: String },
    /// An unexpected status.
    #[error("{url}: answers with status {status}")]
    Status { url: String, status: StatusCode },
    /// An answer over the bound.
    #[error("{url}: answers with more than {BODY_BYTES_MAX} bytes")]
    TooLong { url: String },
    /// An answer that such a service would not give.
    #[error("{url}: answers {quote:?}, which is {why}")]
    Garbled { url: String, quote: String, why: &'static str },
}

#[derive(Debug)]
pub(super) struct MetadataResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: String,
    url: String,
}

impl MetadataResponse {
    /// An answer with this body, sent at this date.
    #[cfg(feature = "fuzzing")]
    pub(super) fn of(date: &[u8], body: &[u8]) -> Self {
        let mut headers = HeaderMap::new();
        if let Ok(date) = reqwest::header::HeaderValue::from_bytes(date) {
            headers.insert(reqwest::header::DATE, date);
        }
        let body = String::from_utf8_lossy(body).into_owned();
        Self { status: StatusCode::OK, headers, body, url: String::new() }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The service's time, or else this host's.
    pub(super) fn now(&self) -> OffsetDateTime {
        let date = self.header("date").and_then(|date| OffsetDateTime::parse(date, &Rfc2822).ok());
        date.unwrap_or_else(OffsetDateTime::now_utc)
    }

    pub(super) fn garbled(&self, why: &'static str) -> MetadataError {
        let quote = self.body.chars().take(QUOTE_CHARS_MAX).collect();
        MetadataError::Garbled { url: self.url.clone(), quote, why }
    }

    /// The error of an answer whose status was not expected.
    pub(super) fn unexpected(&self) -> MetadataError {
        MetadataError::Status { url: self.url.clone(), status: self.status }
    }
}

#[derive(Debug)]
pub(super) struct Metadata {
    client: Client,
    base: String,
}

impl Metadata {
    pub(super) fn new(endpoint: &str) -> anyhow::Result<Self> {
        let client = Client::builder()
            .redirect(Policy::none())
            .no_proxy()
            .connect_timeout(CONNECT_LIMIT)
            .build()
            .context("cannot set up the HTTP client for the cloud's metadata service")?;
        Ok(Self { client, base: endpoint.trim_end_matches('/').to_owned() })
    }

    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, &str)],
        limit: Duration,
    ) -> Result<MetadataResponse, MetadataError> {
        let url = format!("{}{path}", self.base);
        let mut request = self.client.request(method, &url).timeout(limit);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let unreachable = |error: reqwest::Error| MetadataError::Unreachable {
            url: url.clone(),
            reason: reason(&error),
        };
        let mut response = request.send().await.map_err(unreachable)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            if body.len() + chunk.len() > BODY_BYTES_MAX {
                return Err(MetadataError::TooLong { url });
            }
            body.extend_from_slice(&chunk);
        }
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok(MetadataResponse { status, headers, body, url })
    }
}

/// The innermost reason, without the address, which the caller names.
fn reason(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "no answer in time".to_owned();
    }
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
