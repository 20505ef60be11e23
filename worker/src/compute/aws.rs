//! Owns: EC2's instance metadata service, version 2: interruptions of spot instances, and the description of the
//! instance.
//!
//! Invariant: every request carries a session token. Without a token no request is sent, so version 1 is never used.
//! Absent: a drain for a rebalance recommendation. It says only that an interruption is likelier and gives no time,
//! and the machine may run on for days.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::metadata::{Metadata, MetadataError, MetadataResponse};
use super::metadata_failures::MetadataFailures;
use super::{ComputeHint, Notice, as_label, notice_times};

const TOKEN_PATH: &str = "/latest/api/token";
const TOKEN_HEADER: &str = "x-aws-ec2-metadata-token";
const TTL_HEADER: &str = "x-aws-ec2-metadata-token-ttl-seconds";
/// The longest lifetime that the service grants.
const TTL_SECONDS: u64 = 21_600;
const TOKEN_BYTES_MAX: usize = 1024;
const ACTION_PATH: &str = "/latest/meta-data/spot/instance-action";
const REBALANCE_PATH: &str = "/latest/meta-data/events/recommendations/rebalance";
const LABELS: [(&str, &str); 4] = [
    ("zone", "/latest/meta-data/placement/availability-zone"),
    ("instance_type", "/latest/meta-data/instance-type"),
    ("instance_id", "/latest/meta-data/instance-id"),
    ("lifecycle", "/latest/meta-data/instance-life-cycle"),
];
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Characters of an action's name that are logged.
const ACTION_CHARS_MAX: usize = 32;

struct Token {
    text: String,
    /// Well before it expires.
    renew_at: Instant,
}

pub(super) struct Aws {
    metadata: Metadata,
    poll: Duration,
    token: Option<Token>,
    /// The interruption that was reported.
    reported: Option<String>,
    /// Whether a rebalance recommendation was reported.
    advised: bool,
    failures: MetadataFailures,
}

#[derive(Deserialize)]
struct Action {
    action: String,
    #[serde(default)]
    time: String,
}

impl Aws {
    pub(super) fn new(endpoint: &str, poll: Duration) -> anyhow::Result<Self> {
        Ok(Self {
            metadata: Metadata::new(endpoint)?,
            poll,
            token: None,
            reported: None,
            advised: false,
            failures: MetadataFailures::new(notice_times::AWS.lead / 8),
        })
    }

    /// Whether this service answers.
    pub(super) async fn is_here(&mut self) -> bool {
        self.token().await.is_ok()
    }

    async fn token(&mut self) -> Result<String, MetadataError> {
        if let Some(token) = &self.token
            && Instant::now() < token.renew_at
        {
            return Ok(token.text.clone());
        }
        let ttl = TTL_SECONDS.to_string();
        let headers = [(TTL_HEADER, &*ttl)];
        let answer = self.metadata.send(Method::PUT, TOKEN_PATH, &headers, ANSWER_LIMIT).await?;
        if answer.status != StatusCode::OK {
            return Err(answer.unexpected());
        }
        let text = answer.body.trim();
        let printable = text.chars().all(|c| c.is_ascii_graphic());
        if text.is_empty() || text.len() > TOKEN_BYTES_MAX || !printable {
            return Err(answer.garbled("no token"));
        }
        let granted = answer.header(TTL_HEADER).and_then(|ttl| ttl.parse().ok());
        let lives = Duration::from_secs(granted.unwrap_or(TTL_SECONDS).min(TTL_SECONDS));
        let text = text.to_owned();
        self.token = Some(Token { text: text.clone(), renew_at: Instant::now() + lives * 3 / 4 });
        Ok(text)
    }

    /// The value at a path; nothing if the service reports that there is none.
    async fn get(&mut self, path: &str) -> Result<Option<MetadataResponse>, MetadataError> {
        let answer = self.get_with_token(path).await?;
        let answer = match answer.status {
            // The token may have expired early: the machine slept, or the service was restarted.
            StatusCode::UNAUTHORIZED => {
                self.token = None;
                self.get_with_token(path).await?
            }
            _ => answer,
        };
        match answer.status {
            StatusCode::OK => Ok(Some(answer)),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(answer.unexpected()),
        }
    }

    async fn get_with_token(&mut self, path: &str) -> Result<MetadataResponse, MetadataError> {
        let token = self.token().await?;
        self.metadata.send(Method::GET, path, &[(TOKEN_HEADER, &token)], ANSWER_LIMIT).await
    }

    async fn poll(&mut self) -> Result<Option<Notice>, MetadataError> {
        if let Some(answer) = self.get(ACTION_PATH).await? {
            let notice = interruption(&answer)?;
            if self.reported.as_ref() != Some(&answer.body) {
                self.reported = Some(answer.body);
                return Ok(Some(notice));
            }
        }
        if self.advised {
            return Ok(None);
        }
        // A failed request for advice must not delay the request for interruptions.
        let advice = self.get(REBALANCE_PATH).await.unwrap_or_else(|error| {
            tracing::debug!(%error, "no rebalance recommendations");
            None
        });
        self.advised = advice.is_some();
        Ok(advice.map(|_| Notice::MayGo { what: "rebalance recommendation".to_owned() }))
    }

    async fn notice(&mut self) -> Notice {
        loop {
            let wait = match self.poll().await {
                Ok(found) => {
                    self.failures.record_success();
                    if let Some(notice) = found {
                        return notice;
                    }
                    self.poll
                }
                Err(error) => self.failures.record_failure(&error),
            };
            tokio::time::sleep(wait).await;
        }
    }

    async fn all_labels(&mut self) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::new();
        for (name, path) in LABELS {
            match self.get(path).await {
                Ok(answer) => {
                    let value = answer.and_then(|answer| as_label(&answer.body));
                    labels.extend(value.map(|value| (name.to_owned(), value)));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot read the description of this instance");
                    break;
                }
            }
        }
        labels
    }
}

impl ComputeHint for Aws {
    fn next(&mut self) -> BoxFuture<'_, Notice> {
        self.notice().boxed()
    }

    fn labels(&mut self) -> BoxFuture<'_, BTreeMap<String, String>> {
        self.all_labels().boxed()
    }
}

/// Reads an interruption. Its time is compared with the service's own clock, as the answer's `Date` gives it, or else
/// with this host's. An interruption without a readable time counts as just begun.
pub(super) fn interruption(answer: &MetadataResponse) -> Result<Notice, MetadataError> {
    let action: Action =
        serde_json::from_str(&answer.body).map_err(|_| answer.garbled("no instance action"))?;
    let name: String = action.action.chars().take(ACTION_CHARS_MAX).collect();
    let now = answer.now();
    let within = match OffsetDateTime::parse(&action.time, &Rfc3339) {
        Ok(end) => notice_times::AWS.within(end, now),
        Err(_) => notice_times::AWS.budget,
    };
    Ok(Notice::Goes { within, what: format!("spot interruption ({name})") })
}

#[cfg(test)]
mod tests;
