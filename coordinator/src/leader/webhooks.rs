//! Calls a run's completion webhook when the run has ended: a signed HTTP request, repeated until it is acknowledged.
//!
//! *Invariant:* requests go only to origins that the configuration lists, redirections are not followed, and no proxy
//! is used: a URL from a user reaches nothing that an operator did not name. A webhook stays due in the ledger
//! until its delivery is logged, so a new leader sends again what the old one may have sent: at least once, under the
//! same id.
//!
//! Absent: calls before a run's end, and results. The receiver requests results itself.

mod message;

use crate::leader::ledger_read::ReadLedger;
use crate::leader::retries::Retries;
use crate::leader::state::LeaderState;
use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use metrics::counter;
use reqwest::redirect::Policy;
use ring::hmac;
use rollout_config::coordinator::WebhookSettings;
use rollout_ledger::{DueWebhook, OpKind, op};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use url::{Origin, Url};

/// How often the leader checks for due webhooks.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How long a receiver may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Pause after the first failure. It doubles with each failure, up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// Ledger time after which a webhook is given up.
const GIVE_UP_AFTER_MS: u64 = 24 * 60 * 60 * 1000;
/// Concurrent requests, and requests in one round.
const AT_A_TIME: usize = 8;
const IN_ONE_ROUND: usize = 16;
/// HTTP status of a receiver that wants no more calls.
const GONE: u16 = 410;

/// Calls completion webhooks: the HTTP client, the signing key and the allowed origins.
pub(crate) struct Webhooks {
    http: reqwest::Client,
    key: hmac::Key,
    allow: BTreeSet<String>,
}

impl Webhooks {
    /// Reads the secret; `None` if no origin is listed, so that nothing is ever sent.
    pub(crate) fn open(settings: &WebhookSettings) -> Result<Option<Self>> {
        if settings.allow.is_empty() {
            return Ok(None);
        }
        let Some(path) = &settings.secret_file else {
            bail!("secret_file is missing: receivers could not verify the sender");
        };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("secret_file {}", path.display()))?;
        let key =
            message::key(text.trim()).with_context(|| format!("secret_file {}", path.display()))?;
        let allow =
            settings.allow.iter().map(|origin| parse_origin(origin)).collect::<Result<_>>()?;
        // Requests go exactly where a run's URL points: no redirection, no proxy from the environment.
        let http = reqwest::Client::builder()
            .redirect(Policy::none())
            .no_proxy()
            .timeout(ANSWER_WITHIN)
            .build()
            .context("cannot make an HTTP client")?;
        Ok(Some(Self { http, key, allow }))
    }

    /// Refuses a URL whose origin is not listed.
    pub(crate) fn admit(&self, url: &str) -> Result<Url, String> {
        let parsed = Url::parse(url).map_err(|error| format!("notify url {url}: {error}"))?;
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err("a notify url with a user or a password is refused".into());
        }
        let origin = parsed.origin();
        match origin.is_tuple() && self.allow.contains(&origin.ascii_serialization()) {
            true => Ok(parsed),
            false => Err(format!(
                "{} is not among the origins that [webhooks] allow lists on the members",
                origin.ascii_serialization()
            )),
        }
    }

    async fn send(&self, url: &str, id: &str, body: String) -> Outcome {
        let url = match self.admit(url) {
            Ok(url) => url,
            Err(why) => return Outcome::Again(why),
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let timestamp = now.as_secs().to_string();
        let signature = message::signature(&self.key, id, &timestamp, &body);
        let request = self
            .http
            .post(url)
            .header("content-type", "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", signature)
            .body(body);
        match request.send().await {
            Ok(answer) if answer.status().is_success() => Outcome::Acknowledged,
            Ok(answer) if answer.status().as_u16() == GONE => {
                Outcome::Never("the receiver answered 410 Gone".into())
            }
            Ok(answer) => Outcome::Again(format!("it answered {}", answer.status())),
            // The error's own text contains the URL, which may have a token in it.
            Err(error) => Outcome::Again(error.without_url().to_string()),
        }
    }
}

/// An origin as the configuration lists it: scheme, host and port, nothing more.
fn parse_origin(text: &str) -> Result<String> {
    let url = Url::parse(text).with_context(|| format!("allow: {text:?}"))?;
    ensure!(matches!(url.scheme(), "https" | "http"), "allow: {text:?} is neither https nor http");
    let bare = matches!(url.path(), "" | "/") && url.query().is_none() && url.username().is_empty();
    ensure!(bare, "allow: {text:?} is more than a scheme, a host and a port");
    match url.origin() {
        origin @ Origin::Tuple(..) => Ok(origin.ascii_serialization()),
        Origin::Opaque(_) => bail!("allow: {text:?} names no host"),
    }
}

enum Outcome {
    Acknowledged,
    Again(String),
    Never(String),
}

/// Calls due webhooks, for as long as the epoch lasts.
pub(crate) async fn deliver(leader: Arc<LeaderState>, hooks: Option<Arc<Webhooks>>) {
    let mut retries = Retries::new(PAUSE, PAUSE_MAX);
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let due = leader.node.ledger(|l| l.webhooks_due());
        retries.keep(&due);
        let ready = retries.ready(due, IN_ONE_ROUND);
        let round: Vec<(DueWebhook, Outcome)> = futures::stream::iter(ready)
            .map(|webhook| {
                let (leader, hooks) = (leader.clone(), hooks.clone());
                async move { (webhook, send(&leader, hooks.as_deref(), webhook).await) }
            })
            .buffer_unordered(AT_A_TIME)
            .collect()
            .await;
        for (webhook, outcome) in round {
            settle(&leader, &mut retries, webhook, outcome).await;
        }
    }
}

async fn send(leader: &LeaderState, hooks: Option<&Webhooks>, webhook: DueWebhook) -> Outcome {
    let Some(hooks) = hooks else {
        return Outcome::Again("this member's configuration has no [webhooks] allow".into());
    };
    let Some(run) = leader.node.ledger(|l| l.run_view(webhook.run)) else {
        return Outcome::Again("the run is gone".into());
    };
    let id = message::id(&leader.cluster_id, webhook);
    hooks.send(&run.spec.notify_url, &id, message::body(&leader.cluster_id, &run)).await
}

async fn settle(
    leader: &LeaderState,
    retries: &mut Retries<DueWebhook>,
    webhook: DueWebhook,
    outcome: Outcome,
) {
    let overdue = leader.now().0.saturating_sub(webhook.since.0) >= GIVE_UP_AFTER_MS;
    let delivered = match outcome {
        Outcome::Acknowledged => true,
        Outcome::Never(why) => {
            tracing::warn!(run = %webhook.run, why, "completion webhook given up; will not retry");
            false
        }
        Outcome::Again(why) if overdue => {
            tracing::warn!(run = %webhook.run, why, "completion webhook given up after a day");
            false
        }
        Outcome::Again(why) => {
            let (count, pause) = retries.failed(webhook);
            let (run, pause_s) = (webhook.run, pause.as_secs());
            tracing::warn!(%run, tries = count, why, pause_s, "completion webhook failed; will retry");
            counter!("rollout_webhooks_total", "outcome" => "failed").increment(1);
            return;
        }
    };
    let outcome = if delivered { "delivered" } else { "given_up" };
    counter!("rollout_webhooks_total", "outcome" => outcome).increment(1);
    let DueWebhook { run, index, .. } = webhook;
    match leader.applied(OpKind::SettleWebhook(op::SettleWebhook { run, index, delivered })).await {
        Ok(()) => tracing::info!(%run, outcome, "completion webhook settled"),
        // This leader or the next one sends it again.
        Err(error) => {
            tracing::warn!(%run, %error, "could not log the outcome of a completion webhook; will retry");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hooks(allow: &[&str]) -> Result<Option<Webhooks>> {
        let dir = tempfile::tempdir()?;
        let secret_file = Some(dir.path().join("secret"));
        std::fs::write(dir.path().join("secret"), "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD\n")?;
        let allow = allow.iter().map(|origin| (*origin).to_owned()).collect();
        Webhooks::open(&WebhookSettings { secret_file, allow })
    }

    #[test]
    fn only_listed_origins_are_asked() {
        let hooks = hooks(&["https://hooks.example.com", "http://127.0.0.1:9000/"]);
        let hooks = hooks.expect("good").expect("some");
        for good in [
            "https://hooks.example.com/a?b=c",
            "https://HOOKS.example.com:443/",
            "http://127.0.0.1:9000/x",
        ] {
            assert!(hooks.admit(good).is_ok(), "{good}");
        }
        for bad in [
            "http://hooks.example.com/",
            "https://hooks.example.com:8443/",
            "https://hooks.example.com.evil.example/",
            "https://hooks.example.com@evil.example/",
            "https://user@hooks.example.com/",
            "http://169.254.169.254/latest/meta-data",
            "http://127.0.0.1/",
            "http://localhost:9000/",
            "file:///etc/passwd",
            "hooks.example.com",
            "",
        ] {
            assert!(hooks.admit(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn unusable_settings_are_refused_and_without_settings_nothing_is_sent() {
        assert!(hooks(&[]).expect("good").is_none());
        for bad in ["https://h.example/path", "ftp://h.example", "h.example", "https://u@h.example"]
        {
            assert!(hooks(&[bad]).is_err(), "{bad}");
        }
        let without =
            WebhookSettings { secret_file: None, allow: vec!["https://h.example".into()] };
        assert!(Webhooks::open(&without).is_err());
    }
}
