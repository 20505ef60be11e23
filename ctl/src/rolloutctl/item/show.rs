//! A row in words, and as JSON.

use rollout_proto::v1;
use rollout_storage::{BlobError, BlobStore};
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::text::Text;
use crate::output::counted;
use crate::output::u64_string;

/// One row.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Item {
    #[serde(serialize_with = "u64_string")]
    pub(super) row: u64,
    pub(super) segment: u32,
    pub(super) state: &'static str,
    /// The worker that holds it, or that made its result after others had failed.
    pub(super) worker: Option<String>,
    pub(super) slot: Option<u32>,
    /// `index.position` of the log, as events show it.
    pub(super) attempt: Option<String>,
    /// The slot that also runs it, at a run's tail.
    pub(super) duplicate: Option<Holder>,
    pub(super) waits_seconds: Option<f64>,
    /// Slots that failed it, by `WORKER/SLOT`: they get it only if no other slot fits, for this long.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) avoids: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) avoids_seconds: Option<f64>,
    /// The object with its result, and the row in it.
    pub(super) part: Option<String>,
    pub(super) part_row: Option<u32>,
    /// When the result was accepted, for a row that failed before.
    pub(super) done_at: Option<String>,
    /// The number of rows in its trial, including this one.
    #[serde(serialize_with = "u64_string")]
    pub(super) trial_rows: u64,
    pub(super) strikes: u32,
    pub(super) history: Vec<Try>,
}

/// A slot that holds a row.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Holder {
    pub(super) worker: String,
    pub(super) slot: u32,
    pub(super) attempt: String,
}

/// One failed attempt.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Try {
    pub(super) at: Option<String>,
    pub(super) worker: String,
    pub(super) attempt: String,
    pub(super) class: String,
    pub(super) code: String,
    pub(super) message: String,
    pub(super) ruling: &'static str,
    /// Rows that ran when the engine died, if its death is the cause.
    pub(super) among: Option<u32>,
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) exception: Option<String>,
    /// A longer text, such as the engine's last output.
    pub(super) text: Option<Text>,
}

fn some(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

/// Each log entry reserves this many position numbers.
const POSITIONS_PER_ENTRY: u64 = 1 << 13;

fn attempt(number: u64) -> String {
    format!("{}.{}", number / POSITIONS_PER_ENTRY, number % POSITIONS_PER_ENTRY)
}

fn state(state: v1::ItemState) -> &'static str {
    match state {
        v1::ItemState::Pending => "pending",
        v1::ItemState::Waiting => "waiting",
        v1::ItemState::Running => "running",
        v1::ItemState::Done => "done",
        v1::ItemState::Failed => "failed",
        v1::ItemState::Unspecified => "unknown",
    }
}

fn time(wall_ms: u64) -> Option<String> {
    let nanos = i128::from(wall_ms) * 1_000_000;
    let at = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok();
    at.and_then(|at| at.format(&Rfc3339).ok())
}

impl From<v1::Item> for Item {
    fn from(wire: v1::Item) -> Self {
        let is = wire.state();
        let (running, done) = (is == v1::ItemState::Running, is == v1::ItemState::Done);
        let has_attempt = running || done && wire.attempt > 0;
        Self {
            row: wire.row,
            segment: wire.segment,
            state: state(is),
            worker: has_attempt.then_some(wire.worker),
            slot: running.then_some(wire.slot),
            attempt: has_attempt.then(|| attempt(wire.attempt)),
            done_at: (wire.done_wall_ms > 0).then(|| time(wire.done_wall_ms)).flatten(),
            duplicate: wire.duplicate.map(|holder| Holder {
                worker: holder.worker,
                slot: holder.slot,
                attempt: attempt(holder.attempt),
            }),
            waits_seconds: (is == v1::ItemState::Waiting).then(|| wire.waits_ms as f64 / 1000.0),
            avoids_seconds: (!wire.avoids.is_empty()).then(|| wire.avoids_ms as f64 / 1000.0),
            avoids: wire.avoids.iter().map(|at| format!("{}/{}", at.worker, at.slot)).collect(),
            part: wire.part.map(|part| part.key),
            part_row: done.then_some(wire.part_row),
            trial_rows: wire.trial_rows,
            strikes: wire.strikes,
            history: wire.history.into_iter().map(Try::from).collect(),
        }
    }
}

impl From<v1::FailedTry> for Try {
    fn from(wire: v1::FailedTry) -> Self {
        let ruling = match wire.ruling() {
            v1::Ruling::Excused => "excused",
            v1::Ruling::Suspect => "suspect",
            v1::Ruling::Strike => "strike",
            v1::Ruling::Final => "final",
            v1::Ruling::Poison => "poison",
            v1::Ruling::Unspecified => "unknown",
        };
        let evidence = wire.evidence.unwrap_or_default();
        Self {
            at: time(wire.wall_ms),
            worker: wire.worker,
            attempt: attempt(wire.attempt),
            class: wire.class,
            code: wire.code,
            message: wire.message,
            ruling,
            among: (wire.among > 0).then_some(wire.among),
            exit_code: evidence.exit_code,
            signal: evidence.signal,
            exception: some(evidence.exception),
            text: evidence.text.map(Text::from),
        }
    }
}

impl Item {
    /// Reads the texts of its history, each only once.
    pub(super) async fn read_texts(&mut self, store: Result<BlobStore, BlobError>) {
        let mut read: Vec<Text> = Vec::new();
        for text in self.history.iter_mut().filter_map(|failed| failed.text.as_mut()) {
            match (read.iter().find(|done| done.key == text.key), &store) {
                (Some(done), _) => *text = done.clone(),
                (None, Ok(store)) => {
                    text.read(store).await;
                    read.push(text.clone());
                }
                (None, Err(error)) => text.problem = Some(error.to_string()),
            }
        }
    }

    /// Which slot holds it, what it waits for, or where its result is.
    pub(super) fn place(&self) -> String {
        let mut text = match (&self.worker, self.waits_seconds, &self.part) {
            (Some(worker), _, Some(part)) => {
                let attempt = self.attempt.as_deref().unwrap_or("-");
                let at = self.done_at.as_deref().unwrap_or("-");
                let row = self.part_row.unwrap_or(0);
                format!("{part} row {row}, by {worker} (attempt {attempt}) at {at}")
            }
            (Some(worker), _, None) => {
                let attempt = self.attempt.as_deref().unwrap_or("-");
                format!("{worker}/{} (attempt {attempt})", self.slot.unwrap_or(0))
            }
            (None, Some(seconds), _) => format!("for {seconds:.1}s more"),
            (None, None, Some(part)) => format!("{part} row {}", self.part_row.unwrap_or(0)),
            (None, None, None) => String::new(),
        };
        if let Some(Holder { worker, slot, attempt }) = &self.duplicate {
            text.push_str(&format!(", and {worker}/{slot} (attempt {attempt})"));
        }
        let mut add = |what: String| {
            let comma = if text.is_empty() { "" } else { ", " };
            text.push_str(&format!("{comma}{what}"));
        };
        if self.trial_rows > 0 {
            add(format!("on trial ({})", counted(self.trial_rows, "row")));
        }
        if let Some(seconds) = self.avoids_seconds {
            add(format!("avoids {} for {seconds:.0}s at most", self.avoids.join(" and ")));
        }
        if text.is_empty() { "-".into() } else { text }
    }
}

impl Try {
    /// The evidence that decided the failure's class.
    pub(super) fn evidence(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.exit_code.map(|code| format!("exit {code}")));
        parts.extend(self.signal.map(|signal| format!("signal {signal}")));
        parts.extend(self.exception.clone());
        parts.extend(
            self.text.as_ref().map(|text| format!("{} of text", counted(text.bytes, "byte"))),
        );
        if parts.is_empty() { "-".into() } else { parts.join(", ") }
    }

    /// The consequence for the row.
    pub(super) fn meaning(&self) -> String {
        match self.among {
            Some(among) => format!("{} (one of {among})", self.ruling),
            None => self.ruling.into(),
        }
    }
}
