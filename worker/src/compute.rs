//! Owns: what a cloud reports about this machine: notices of its end, and its description.
//!
//! Invariant: no answer or failure of a metadata service ends the worker or blocks it for long. Only a notice drains
//! it, and never for longer than its provider's budget.
//! Absent: draining. A notice is one more drain request, beside those of signals and leaders.

mod aws;
mod azure;
mod gcp;
mod metadata;
mod metadata_failures;
mod notice_times;

#[cfg(test)]
mod fake;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::BoxFuture;

use self::aws::Aws;
use self::azure::Azure;
use self::gcp::Gcp;
use crate::config::{ComputeConfig, ComputeProvider, Config};
use crate::drain::{DrainOrder, Drains};

/// All clouds answer at this link-local address.
const LINK_LOCAL: &str = "http://169.254.169.254";
/// How long a worker that must detect its cloud waits for an answer.
const PROBE_LIMIT: Duration = Duration::from_secs(1);
/// How long a start waits for the machine's description.
const LABELS_LIMIT: Duration = Duration::from_secs(2);
/// Bytes of a label's value, as the ledger bounds them.
const LABEL_BYTES_MAX: usize = 128;

/// A cloud's notice about the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The machine ends. A drain must be done within this time, which leaves part of the provider's notice.
    Goes {
        /// The time that a drain may take.
        within: Duration,
        /// Human-readable.
        what: String,
    },
    /// The machine may end; the notice gives no time.
    MayGo {
        /// Human-readable.
        what: String,
    },
}

/// A source of notices that this machine will end.
pub trait ComputeHint: Send {
    /// Resolves with the next notice, and with each notice only once. It is cancel-safe.
    fn next(&mut self) -> BoxFuture<'_, Notice>;

    /// The machine's description, as far as it is available: `zone`, `instance_type`, `instance_id`, `lifecycle`.
    fn labels(&mut self) -> BoxFuture<'_, BTreeMap<String, String>>;
}

/// The cloud that this machine is in.
pub struct Cloud {
    provider: ComputeProvider,
    hint: Box<dyn ComputeHint>,
    labels: BTreeMap<String, String>,
}

impl Cloud {
    /// Finds the cloud that the configuration names, or the one that answers, if any. Takes at most three seconds.
    /// Fails only if no HTTP client can be set up.
    pub async fn find(config: &ComputeConfig) -> anyhow::Result<Option<Self>> {
        let endpoint = config.endpoint.as_deref().unwrap_or(LINK_LOCAL);
        let poll = Duration::from_millis(config.poll_ms);
        let mut aws = Aws::new(endpoint, poll)?;
        let mut azure = Azure::new(endpoint, poll)?;
        let gcp = Gcp::new(endpoint)?;
        let provider = match config.provider {
            ComputeProvider::Auto => probe(&mut aws, &mut azure, &gcp).await,
            named => named,
        };
        let mut hint: Box<dyn ComputeHint> = match provider {
            ComputeProvider::Aws => Box::new(aws),
            ComputeProvider::Gcp => Box::new(gcp),
            ComputeProvider::Azure => Box::new(azure),
            _ => return Ok(None),
        };
        let labels = tokio::time::timeout(LABELS_LIMIT, hint.labels()).await.unwrap_or_default();
        tracing::info!(provider = provider.name(), ?labels, "watching for notices from the cloud");
        Ok(Some(Self { provider, hint, labels }))
    }

    /// Adds the machine's description to the worker's labels. A configured label of the same name stays.
    pub fn label(&self, config: &mut Config) {
        for (name, value) in &self.labels {
            config.labels.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }

    /// Turns notices into drain requests, forever.
    pub async fn watch(mut self, drains: Drains) {
        let provider = self.provider.name();
        loop {
            let notice = self.hint.next().await;
            let kind = match &notice {
                Notice::Goes { .. } => "goes",
                Notice::MayGo { .. } => "may_go",
            };
            metrics::counter!("rollout_worker_compute_notices_total", "kind" => kind).increment(1);
            match notice {
                Notice::Goes { within, what } => {
                    let within_ms = within.as_millis() as u64;
                    tracing::warn!(provider, what, within_ms, "the cloud reclaims this machine");
                    drains.request(DrainOrder::gone_within(within, format!("{provider}: {what}")));
                }
                Notice::MayGo { what } => {
                    tracing::warn!(provider, what, "the cloud may reclaim this machine");
                }
            }
        }
    }
}

/// Asks every metadata service for its cloud.
async fn probe(aws: &mut Aws, azure: &mut Azure, gcp: &Gcp) -> ComputeProvider {
    let (is_aws, is_azure, is_gcp) = tokio::join!(
        tokio::time::timeout(PROBE_LIMIT, aws.is_here()),
        tokio::time::timeout(PROBE_LIMIT, azure.is_here()),
        tokio::time::timeout(PROBE_LIMIT, gcp.is_here()),
    );
    let is = |answers: Result<bool, tokio::time::error::Elapsed>| answers.unwrap_or(false);
    let found = match (is(is_gcp), is(is_azure), is(is_aws)) {
        // Google's answers carry Google's header, and only Azure describes the machine in its way.
        (true, ..) => ComputeProvider::Gcp,
        (_, true, _) => ComputeProvider::Azure,
        (_, _, true) => ComputeProvider::Aws,
        _ => ComputeProvider::None,
    };
    match found {
        ComputeProvider::None => tracing::info!("no cloud's metadata service answers here"),
        found => tracing::info!(provider = found.name(), "a cloud's metadata service answers here"),
    }
    found
}

/// The value, if it is a valid label: short and printable.
fn as_label(text: &str) -> Option<String> {
    let text = text.trim();
    let fits = !text.is_empty() && text.len() <= LABEL_BYTES_MAX;
    (fits && text.chars().all(|c| c.is_ascii_graphic())).then(|| text.to_owned())
}
