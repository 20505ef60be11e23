//! One run as every verb shows it.
//!
//! Invariant: times are RFC 3339 in JSON and relative in tables; a waiting run shows what it waits for.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rollout_proto::v1;
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::output::counted;
use crate::output::u64_string;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::rolloutctl) struct Run {
    pub(in crate::rolloutctl) run: u32,
    pub(in crate::rolloutctl) namespace: String,
    pub(in crate::rolloutctl) name: String,
    pub(in crate::rolloutctl) state: &'static str,
    pub(in crate::rolloutctl) reason: Option<String>,
    pub(in crate::rolloutctl) blocked: Option<String>,
    pub(in crate::rolloutctl) model: String,
    pub(in crate::rolloutctl) priority: u32,
    pub(in crate::rolloutctl) workers: u32,
    pub(in crate::rolloutctl) segments: u32,
    pub(in crate::rolloutctl) input_closed: bool,
    /// Its rows have left the ledger for a manifest object.
    pub(in crate::rolloutctl) sealed: bool,
    /// The state of its completion webhook, if its user requested one: due, delivered or given_up.
    pub(in crate::rolloutctl) notice: Option<String>,
    pub(in crate::rolloutctl) created_at: Option<String>,
    pub(in crate::rolloutctl) finished_at: Option<String>,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) canary_rows: u64,
    pub(in crate::rolloutctl) counts: Counts,
    #[serde(skip)]
    pub(in crate::rolloutctl) created_wall_ms: u64,
}

/// The rows of a run by state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::rolloutctl) struct Counts {
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) rows: u64,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) pending: u64,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) running: u64,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) waiting: u64,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) done: u64,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) failed: u64,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) retries: u64,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) returned: u64,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) stolen: u64,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) duplicated: u64,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) tokens_in: u64,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) tokens_out: u64,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) dropped: u64,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) carried: u64,
}

impl Counts {
    /// Rows with an outcome.
    pub(in crate::rolloutctl) fn decided(&self) -> u64 {
        self.done + self.failed
    }

    /// Rows with an outcome as a share of all rows, in whole percent, rounded down: 100 means all. They may all have
    /// failed.
    pub(in crate::rolloutctl) fn percent(&self) -> u64 {
        (self.decided() * 100).checked_div(self.rows).unwrap_or(0)
    }
}

impl Run {
    /// Whether it will not change any more.
    pub(in crate::rolloutctl) fn ended(&self) -> bool {
        matches!(self.state, "finished" | "cancelled" | "deadline exceeded" | "deleting")
    }

    /// Why it makes no progress, if something blocks it.
    pub(in crate::rolloutctl) fn why(&self) -> String {
        let canary = (self.canary_rows > 0 && self.state == "running")
            .then(|| format!("in its canary: the first {}", counted(self.canary_rows, "row")));
        let all = [&self.reason, &self.blocked, &canary];
        all.into_iter().flatten().cloned().collect::<Vec<_>>().join("; ")
    }
}

impl From<v1::RunSummary> for Run {
    fn from(wire: v1::RunSummary) -> Self {
        let counts = wire.counts.unwrap_or_default();
        Self {
            state: state(wire.state),
            run: wire.run,
            namespace: wire.namespace,
            name: wire.name,
            reason: Some(wire.reason).filter(|text| !text.is_empty()),
            blocked: Some(wire.blocked).filter(|text| !text.is_empty()),
            model: wire.model,
            priority: wire.priority,
            workers: wire.workers,
            canary_rows: wire.canary_rows,
            segments: wire.segments,
            input_closed: wire.input_closed,
            sealed: wire.manifest.is_some(),
            notice: Some(wire.notice).filter(|notice| !notice.is_empty()),
            created_at: rfc3339(wire.created_wall_ms),
            finished_at: rfc3339(wire.finished_wall_ms),
            created_wall_ms: wire.created_wall_ms,
            counts: Counts {
                rows: counts.rows,
                pending: counts.pending,
                running: counts.running,
                waiting: counts.waiting,
                done: counts.done,
                failed: counts.failed,
                retries: counts.retries,
                returned: counts.returned,
                stolen: counts.stolen,
                duplicated: counts.duplicated,
                tokens_in: counts.tokens_in,
                tokens_out: counts.tokens_out,
                dropped: counts.dropped,
                carried: counts.carried,
            },
        }
    }
}

fn state(wire: i32) -> &'static str {
    match v1::RunState::try_from(wire) {
        Ok(v1::RunState::Running) => "running",
        Ok(v1::RunState::Paused) => "paused",
        Ok(v1::RunState::Cancelled) => "cancelled",
        Ok(v1::RunState::Finished) => "finished",
        Ok(v1::RunState::Deleting) => "deleting",
        Ok(v1::RunState::DeadlineExceeded) => "deadline exceeded",
        Ok(v1::RunState::Unspecified) | Err(_) => "unknown",
    }
}

fn rfc3339(wall_ms: u64) -> Option<String> {
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(wall_ms)).filter(|_| wall_ms > 0)?;
    OffsetDateTime::from(at).format(&Rfc3339).ok()
}

/// Wall time in milliseconds since 1970.
pub(in crate::rolloutctl) fn now_wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
pub(in crate::rolloutctl) fn sample() -> Run {
    Run::from(v1::RunSummary {
        run: 7,
        namespace: "default".into(),
        name: "nightly-eval".into(),
        state: v1::RunState::Running as i32,
        model: "qwen2.5-7b".into(),
        counts: Some(v1::RunCounts {
            rows: 1_000_000,
            pending: 285_461,
            running: 4_096,
            waiting: 31,
            done: 710_410,
            failed: 2,
            ..v1::RunCounts::default()
        }),
        ..v1::RunSummary::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_is_100_only_when_every_row_has_an_outcome_and_a_canary_is_shown() {
        let mut counts = Counts { rows: 1_000, done: 998, failed: 1, ..Counts::default() };
        assert_eq!(counts.percent(), 99);
        counts.failed = 2;
        assert_eq!(counts.percent(), 100);
        let run = Run { canary_rows: 50, ..sample() };
        assert_eq!(run.why(), "in its canary: the first 50 rows");
        assert_eq!(Counts::default().percent(), 0);
    }
}
