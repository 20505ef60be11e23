//! The notification and its signature, as <https://www.standardwebhooks.com> specifies.
//!
//! *Invariant:* one end of one run has one id, whichever leader sends it and however often. Numbers of 64 bits are
//! strings.

use anyhow::{Context, Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use rollout_ledger::DueWebhook;
use rollout_ledger::view::{RunState, RunView};
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Shorter secrets can be guessed.
const SECRET_BYTES_MIN: usize = 24;

/// The key that a secret stands for: `whsec_` and base64, or the text itself.
pub(super) fn key(secret: &str) -> Result<hmac::Key> {
    let bytes = match secret.strip_prefix("whsec_") {
        Some(base64) => STANDARD.decode(base64).context("the text after whsec_ is not base64")?,
        None => secret.as_bytes().to_vec(),
    };
    ensure!(bytes.len() >= SECRET_BYTES_MIN, "a secret has at least {SECRET_BYTES_MIN} bytes");
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
}

pub(super) fn signature(key: &hmac::Key, id: &str, timestamp: &str, body: &str) -> String {
    let tag = hmac::sign(key, format!("{id}.{timestamp}.{body}").as_bytes());
    format!("v1,{}", STANDARD.encode(tag))
}

/// The id of one end of one run.
pub(super) fn id(cluster: &str, webhook: DueWebhook) -> String {
    format!("run_{cluster}_{}_{}", webhook.run, webhook.index)
}

pub(super) fn body(cluster: &str, run: &RunView) -> String {
    let state = match run.state {
        RunState::Finished => "finished",
        RunState::Cancelled => "cancelled",
        RunState::DeadlineExceeded => "deadline_exceeded",
        // Only an ended run has a due notification. It may be in deletion by now.
        RunState::Running | RunState::Paused | RunState::Deleting => "ended",
    };
    let counts = &run.counts;
    let message = json!({
        "type": "run.ended",
        "timestamp": rfc3339(run.finished_wall_ms),
        "data": {
            "cluster": cluster,
            "namespace": run.namespace,
            "run": run.name,
            "state": state,
            "reason": run.reason,
            "rows": run.rows.to_string(),
            "done": counts.done.to_string(),
            "failed": counts.failed.to_string(),
            "tokensIn": counts.tokens_in.to_string(),
            "tokensOut": counts.tokens_out.to_string(),
            "createdAt": rfc3339(run.created_wall_ms),
            "finishedAt": rfc3339(run.finished_wall_ms),
        },
    });
    message.to_string()
}

fn rfc3339(wall_ms: u64) -> String {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(wall_ms) * 1_000_000);
    at.ok().and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_ledger::id::{LedgerMs, RunNo};
    use rollout_ledger::view::Counts;
    use rollout_ledger::{RunSpec, WebhookState};
    use std::fmt::Write as _;

    const CLUSTER: &str = "0123456789abcdef0123456789abcdef";

    fn ended(state: RunState) -> RunView {
        RunView {
            run: RunNo(300),
            namespace: "team-a".into(),
            name: "eval".into(),
            state,
            reason: "why".into(),
            spec: RunSpec::default(),
            spec_digest: [0; 32],
            rows: 300,
            pending: 0,
            counts: Counts {
                done: 298,
                failed: 2,
                tokens_in: 70_000,
                tokens_out: 70_001,
                ..Counts::default()
            },
            segments: 1,
            sealed: None,
            input_closed: true,
            canary_rows: 0,
            created_wall_ms: 1_700_000_000_123,
            finished_wall_ms: 1_700_000_060_000,
            workers: 0,
            ended_index: 70_000,
            folder: "eval/0123456789abcdef-0000000000000001".into(),
            webhook: WebhookState::default(),
        }
    }

    /// Receivers read them.
    #[test]
    fn the_notification_of_each_end_is_kept() {
        let states = [
            RunState::Finished,
            RunState::Cancelled,
            RunState::DeadlineExceeded,
            RunState::Deleting,
        ];
        let key = key("a text of at least twenty-four bytes").expect("a secret");
        let due = DueWebhook { run: RunNo(300), index: 70_000, since: LedgerMs(1) };
        let id = id(CLUSTER, due);
        let mut text = format!("{id}\n");
        for state in states {
            let body = body(CLUSTER, &ended(state));
            let signature = signature(&key, &id, "1700000060", &body);
            // invariant: writing to a string does not fail.
            let _ = writeln!(text, "\n{body}\n{signature}");
        }
        rollout_recorded::check(
            concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/webhooks.txt"),
            &text,
        );
    }

    /// Test vectors of other implementations, to check that their receivers accept these messages.
    #[test]
    fn signatures_are_those_of_the_standard() {
        for (secret, id, timestamp, body, expected) in [
            (
                "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
                "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk",
                "1649367553",
                r#"{"email":"test@example.com","username":"test_user"}"#,
                "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=",
            ),
            (
                "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
                "msg_p5jXN8AQM9LWM0D4loKWxJek",
                "1614265330",
                r#"{"test": 2432232314}"#,
                "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
            ),
        ] {
            let key = key(secret).expect("a secret");
            assert_eq!(signature(&key, id, timestamp, body), expected);
        }
    }

    #[test]
    fn a_short_or_broken_secret_is_refused() {
        for bad in ["", "short", "whsec_", "whsec_AAAA", "whsec_!!!!not base64!!!!!!!!!!!!!!!!!"] {
            assert!(key(bad).is_err(), "{bad}");
        }
        assert!(key("a text of at least twenty-four bytes").is_ok());
    }
}
