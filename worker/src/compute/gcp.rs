//! Owns: Google Compute Engine's metadata service: preemption, maintenance that ends an instance, and its description.
//!
//! Invariant: an answer without `Metadata-Flavor: Google` is ignored. A value is reported once, and the wait for the
//! next starts from its entity tag, so no change between two requests is missed.
//! Absent: maintenance that migrates the instance live, which is logged and drains nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use reqwest::{Method, StatusCode};
use tokio::time::Instant;

use super::metadata::{Metadata, MetadataError, MetadataResponse};
use super::metadata_failures::MetadataFailures;
use super::{ComputeHint, Notice, as_label, notice_times};

const INSTANCE: &str = "/computeMetadata/v1/instance/";
const FLAVOR: (&str, &str) = ("metadata-flavor", "Google");
/// How long the service holds a request while the value does not change.
const HOLD: Duration = Duration::from_secs(60);
/// How long it may take beyond that.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// The pause between two requests to a service that does not hold them.
const PACE: Duration = Duration::from_secs(1);
const ETAG_BYTES_MAX: usize = 128;

/// One watched value.
struct Watched {
    name: &'static str,
    expected: &'static [&'static str],
    etag: Option<String>,
    value: Option<&'static str>,
    asked_at: Option<Instant>,
    failures: MetadataFailures,
}

pub(super) struct Gcp {
    metadata: Metadata,
    preempted: Watched,
    maintenance: Watched,
}

impl Watched {
    fn new(name: &'static str, expected: &'static [&'static str]) -> Self {
        let failures = MetadataFailures::new(notice_times::GCP.lead / 8);
        Self { name, expected, etag: None, value: None, asked_at: None, failures }
    }

    /// Resolves with the first value, and then whenever it changes.
    async fn changed(&mut self, metadata: &Metadata) -> &'static str {
        loop {
            if let Some(asked_at) = self.asked_at {
                tokio::time::sleep_until(asked_at + PACE).await;
            }
            self.asked_at = Some(Instant::now());
            match self.poll(metadata).await {
                Ok(value) => {
                    self.failures.record_success();
                    if self.value.replace(value) != Some(value) {
                        return value;
                    }
                }
                Err(error) => tokio::time::sleep(self.failures.record_failure(&error)).await,
            }
        }
    }

    async fn poll(&mut self, metadata: &Metadata) -> Result<&'static str, MetadataError> {
        let (path, limit) = match &self.etag {
            Some(etag) => {
                let hold = HOLD.as_secs();
                let wait = format!("?wait_for_change=true&timeout_sec={hold}&last_etag={etag}");
                (format!("{}{wait}", self.name), HOLD + ANSWER_LIMIT)
            }
            None => (self.name.to_owned(), ANSWER_LIMIT),
        };
        let answer = get(metadata, &path, limit).await?;
        let value = self.expected.iter().find(|expected| **expected == answer.body.trim());
        let value = value.ok_or_else(|| answer.garbled("no value that is known"))?;
        self.etag = answer.header("etag").filter(|etag| usable(etag)).map(str::to_owned);
        Ok(value)
    }
}

/// Whether an entity tag can be sent back in a query unchanged.
fn usable(etag: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    !etag.is_empty() && etag.len() <= ETAG_BYTES_MAX && etag.chars().all(plain)
}

async fn get(
    metadata: &Metadata,
    path: &str,
    limit: Duration,
) -> Result<MetadataResponse, MetadataError> {
    let path = format!("{INSTANCE}{path}");
    let answer = metadata.send(Method::GET, &path, &[FLAVOR], limit).await?;
    if answer.status != StatusCode::OK {
        return Err(answer.unexpected());
    }
    match answer.header(FLAVOR.0) {
        Some(flavor) if flavor == FLAVOR.1 => Ok(answer),
        _ => Err(answer.garbled("not from Google's metadata service")),
    }
}

impl Gcp {
    pub(super) fn new(endpoint: &str) -> anyhow::Result<Self> {
        Ok(Self {
            metadata: Metadata::new(endpoint)?,
            preempted: Watched::new("preempted", &["FALSE", "TRUE"]),
            maintenance: Watched::new(
                "maintenance-event",
                &["NONE", "MIGRATE_ON_HOST_MAINTENANCE", "TERMINATE_ON_HOST_MAINTENANCE"],
            ),
        })
    }

    /// Whether this service answers.
    pub(super) async fn is_here(&self) -> bool {
        get(&self.metadata, "id", ANSWER_LIMIT).await.is_ok()
    }

    async fn notice(&mut self) -> Notice {
        loop {
            let value = tokio::select! {
                value = self.preempted.changed(&self.metadata) => value,
                value = self.maintenance.changed(&self.metadata) => value,
            };
            let goes = |times: notice_times::NoticeTimes, what: &str| Notice::Goes {
                within: times.budget,
                what: what.to_owned(),
            };
            match value {
                "TRUE" => return goes(notice_times::GCP, "preempted"),
                "TERMINATE_ON_HOST_MAINTENANCE" => {
                    return goes(notice_times::GCP_MAINTENANCE, "host maintenance (terminate)");
                }
                "MIGRATE_ON_HOST_MAINTENANCE" => {
                    return Notice::MayGo { what: "host maintenance (migrate)".to_owned() };
                }
                _ => {}
            }
        }
    }

    async fn all_labels(&mut self) -> BTreeMap<String, String> {
        let mut labels = BTreeMap::new();
        for (name, path) in [
            ("zone", "zone"),
            ("instance_type", "machine-type"),
            ("instance_id", "id"),
            ("lifecycle", "scheduling/preemptible"),
        ] {
            let answer = match get(&self.metadata, path, ANSWER_LIMIT).await {
                Ok(answer) => answer,
                Err(error) => {
                    tracing::warn!(%error, "cannot read the description of this instance");
                    break;
                }
            };
            // Zones and types are paths: projects/123/zones/us-central1-a.
            let last = answer.body.trim().rsplit('/').next().unwrap_or_default();
            let value = match (name, last) {
                ("lifecycle", "TRUE") => "spot",
                ("lifecycle", _) => "on-demand",
                _ => last,
            };
            labels.extend(as_label(value).map(|value| (name.to_owned(), value)));
        }
        labels
    }
}

impl ComputeHint for Gcp {
    fn next(&mut self) -> BoxFuture<'_, Notice> {
        self.notice().boxed()
    }

    fn labels(&mut self) -> BoxFuture<'_, BTreeMap<String, String>> {
        self.all_labels().boxed()
    }
}

#[cfg(test)]
mod tests;
