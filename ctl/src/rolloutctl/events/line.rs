//! One event, human-readable and for programs.
//!
//! Invariant: names, not numbers, wherever a name is known; JSON has every field.

use rollout_proto::v1;
use serde::Serialize;

use crate::output::{Report, count, u64_string};

/// A slot, or a worker as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Slot {
    worker: String,
    #[serde(serialize_with = "u64_string")]
    session: u64,
    slot: Option<u32>,
}

impl std::fmt::Display for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.worker.is_empty() {
            true => write!(f, "session {}", self.session)?,
            false => f.write_str(&self.worker)?,
        }
        self.slot.map_or(Ok(()), |slot| write!(f, "/{slot}"))
    }
}

/// Rows as ranges: first row and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Range {
    #[serde(serialize_with = "u64_string")]
    start: u64,
    len: u32,
}

/// The printed form of an event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventLine {
    #[serde(serialize_with = "u64_string")]
    index: u64,
    position: u32,
    #[serde(serialize_with = "u64_string")]
    wall_ms: u64,
    /// The same as RFC 3339, in UTC; None if there is none.
    at: Option<String>,
    kind: String,
    namespace: String,
    who: Option<Slot>,
    victim: Option<Slot>,
    run: String,
    #[serde(serialize_with = "u64_string")]
    attempt: u64,
    #[serde(serialize_with = "u64_string")]
    lost_attempt: u64,
    rows: Vec<Range>,
    for_good: Vec<Range>,
    class: String,
    code: String,
    reason: String,
    #[serde(serialize_with = "u64_string")]
    coord_epoch: u64,
    job: String,
    subject: String,
    #[serde(serialize_with = "u64_string")]
    round: u64,
}

fn ranges(rows: Option<v1::Rows>) -> Vec<Range> {
    let rows = rows.unwrap_or_default();
    rows.starts.into_iter().zip(rows.lens).map(|(start, len)| Range { start, len }).collect()
}

impl From<v1::Event> for EventLine {
    fn from(event: v1::Event) -> Self {
        let slot = |s: v1::EventSlot| Slot { worker: s.worker, session: s.session, slot: s.slot };
        let run = match (event.run_name.is_empty(), event.run) {
            (true, 0) => String::new(),
            (true, number) => format!("number {number}"),
            (false, _) => event.run_name,
        };
        Self {
            index: event.index,
            position: event.position,
            wall_ms: event.wall_ms,
            at: (event.wall_ms > 0).then(|| wall(event.wall_ms)),
            kind: event.kind,
            namespace: event.namespace,
            who: event.slot.map(slot),
            victim: event.victim.map(slot),
            run,
            attempt: event.attempt,
            lost_attempt: event.lost_attempt,
            rows: ranges(event.rows),
            for_good: ranges(event.for_good),
            class: event.class,
            code: event.code,
            reason: event.reason,
            coord_epoch: event.coord_epoch,
            job: event.job,
            subject: event.subject,
            round: event.round,
        }
    }
}

/// Ranges shown; the rest is counted.
const RANGES_SHOWN: usize = 6;

fn rows_text(rows: &[Range]) -> String {
    let total: u64 = rows.iter().map(|r| u64::from(r.len)).sum();
    let each = rows.iter().take(RANGES_SHOWN).map(|r| match r.len {
        1 => r.start.to_string(),
        len => format!("{}-{}", r.start, r.start + u64::from(len) - 1),
    });
    let mut text = each.collect::<Vec<_>>().join(",");
    if rows.len() > RANGES_SHOWN {
        text += ",...";
    }
    match total {
        1 => format!("row {text}"),
        total => format!("rows {text} ({})", count(total)),
    }
}

fn nonzero(number: u64) -> String {
    if number == 0 { String::new() } else { number.to_string() }
}

impl EventLine {
    /// The event, in words.
    fn what(&self) -> String {
        let mut text = String::new();
        if self.coord_epoch > 0 {
            text += &format!("epoch {}", self.coord_epoch);
        }
        if !self.job.is_empty() {
            text += &format!("job {}", self.job);
            for part in [self.subject.clone(), nonzero(self.round)] {
                if !part.is_empty() {
                    text += &format!(" {part}");
                }
            }
        }
        if !self.run.is_empty() {
            text += &format!("run {}", self.run);
        }
        if !self.rows.is_empty() {
            text += &format!(": {}", rows_text(&self.rows));
        }
        if let Some(victim) = &self.victim {
            text += &format!(" of {victim}");
        }
        if !self.class.is_empty() {
            text += &format!(": {} {}", self.class, self.code);
        }
        if !self.for_good.is_empty() {
            text += &format!(", for good {}", rows_text(&self.for_good));
        }
        if !self.reason.is_empty() && self.reason != "claim" {
            let lead = if text.is_empty() { "" } else { " " };
            text += &format!("{lead}({})", self.reason);
        }
        text
    }
}

impl Report for EventLine {
    const KIND: &'static str = "Event";

    fn table(&self) -> String {
        let place = format!("{}:{}", self.index, self.position);
        let who = match &self.who {
            Some(slot) => slot.to_string(),
            // A member of the cluster.
            None if self.job.is_empty() && !self.subject.is_empty() => self.subject.clone(),
            None => "-".to_owned(),
        };
        let line = format!(
            "{place:<12} {}  {:<17} {who:<10} {}",
            wall(self.wall_ms),
            self.kind,
            self.what()
        );
        format!("{}\n", line.trim_end())
    }
}

/// The time in UTC, to the millisecond.
fn wall(wall_ms: u64) -> String {
    let nanos = i128::from(wall_ms) * 1_000_000;
    match time::OffsetDateTime::from_unix_timestamp_nanos(nanos) {
        Ok(at) => format!(
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
            at.year(),
            u8::from(at.month()),
            at.day(),
            at.hour(),
            at.minute(),
            at.second(),
            at.millisecond()
        ),
        Err(_) => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(worker: &str) -> v1::EventSlot {
        v1::EventSlot { worker: worker.into(), session: 9, slot: Some(1) }
    }

    #[test]
    fn an_event_reads_as_a_sentence_with_names() {
        let stolen = v1::Event {
            index: 120,
            position: 3,
            wall_ms: 1_795_000_000_123,
            kind: "stolen".into(),
            slot: Some(slot("w3")),
            victim: Some(slot("")),
            run_name: "nightly".into(),
            rows: Some(v1::Rows::from_ranges([(4, 3), (9, 1)])),
            ..v1::Event::default()
        };
        assert_eq!(
            EventLine::from(stolen).table(),
            "120:3        2026-11-18T11:06:40.123Z  stolen            w3/1       run nightly: rows \
             4-6,9 (4) of session 9/1\n"
        );
        let failed = v1::Event {
            kind: "failed".into(),
            slot: Some(slot("w1")),
            run: 7,
            rows: Some(v1::Rows::from_rows([5])),
            for_good: Some(v1::Rows::from_rows([5])),
            class: "invalid_row".into(),
            code: "too_long".into(),
            ..v1::Event::default()
        };
        let text = EventLine::from(failed).table();
        assert!(
            text.ends_with("run number 7: row 5: invalid_row too_long, for good row 5\n"),
            "{text}"
        );
    }

    #[test]
    fn an_event_of_a_member_names_it_and_the_cause() {
        let changed = v1::Event {
            index: 7,
            wall_ms: 1_795_000_000_123,
            kind: "leader_changed".into(),
            subject: "c2".into(),
            coord_epoch: 4,
            code: "stopping".into(),
            reason: "c1 transferred leadership: it was stopping".into(),
            ..v1::Event::default()
        };
        assert_eq!(
            EventLine::from(changed).table(),
            "7:0          2026-11-18T11:06:40.123Z  leader_changed    c2         epoch 4 (c1 \
             transferred leadership: it was stopping)\n"
        );
    }

    #[test]
    fn long_lists_of_rows_are_cut_and_counted() {
        let rows: Vec<Range> = (0..50).map(|i| Range { start: i * 2, len: 1 }).collect();
        assert_eq!(rows_text(&rows), "rows 0,2,4,6,8,10,... (50)");
    }

    #[test]
    fn output_matches_the_golden_file() {
        let event = v1::Event {
            index: 120,
            position: 3,
            wall_ms: 1_795_000_000_123,
            kind: "stolen".into(),
            slot: Some(slot("w3")),
            victim: Some(slot("w1")),
            run_name: "nightly".into(),
            rows: Some(v1::Rows::from_ranges([(4, 3), (9, 1)])),
            ..v1::Event::default()
        };
        crate::golden::report("event.txt", &EventLine::from(event));
    }
}
