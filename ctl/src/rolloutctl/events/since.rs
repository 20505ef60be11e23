//! Which events are shown: from a position, a time or an age on, and the last of them.
//!
//! Invariant: at most [`TAIL_MAX`] events are held. From the first event that is late enough, all are shown: members'
//! clocks may differ, positions do not. Members also omit events that are too old, except members of an older build.

use std::collections::VecDeque;
use std::time::Duration;

use rollout_batch::event_stream::LogPosition;
use rollout_proto::v1;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::connect::parse_duration;

/// The most events of `--tail`.
pub(super) const TAIL_MAX: u32 = 100_000;

/// Where a reader wants to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Since {
    Position(LogPosition),
    /// This long before now.
    Age(Duration),
    /// At this time, in milliseconds since 1970.
    Moment(u64),
}

impl Since {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if let Ok(position) = parse_position(text) {
            return Ok(Self::Position(position));
        }
        if let Ok(age) = parse_duration(text) {
            return Ok(Self::Age(age));
        }
        let moment = OffsetDateTime::parse(text, &Rfc3339).ok();
        let wall_ms =
            moment.and_then(|at| u64::try_from(at.unix_timestamp_nanos() / 1_000_000).ok());
        wall_ms.map(Self::Moment).ok_or_else(|| {
            format!("{text} is not a log index, INDEX:POS, an age such as 5m, or a time such as 2026-11-22T05:31:07Z")
        })
    }
}

fn parse_position(text: &str) -> Result<LogPosition, String> {
    let (index, position) = text.split_once(':').unwrap_or((text, "0"));
    let bad = |_| format!("{text} is neither a log index nor INDEX:POS");
    Ok(LogPosition { index: index.parse().map_err(bad)?, position: position.parse().map_err(bad)? })
}

/// Selects the events to show.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    /// Until an event is at least this recent, none is shown.
    not_before_ms: Option<u64>,
    /// How many of the last events are shown, and the latest ones read so far.
    tail: Option<(usize, VecDeque<v1::Event>)>,
}

impl Chosen {
    pub(super) fn new(since: Option<Since>, tail: Option<u32>, now_ms: u64) -> Self {
        let not_before_ms = match since {
            Some(Since::Age(age)) => {
                Some(now_ms.saturating_sub(u64::try_from(age.as_millis()).unwrap_or(u64::MAX)))
            }
            Some(Since::Moment(at)) => Some(at),
            Some(Since::Position(_)) | None => None,
        };
        Self { not_before_ms, tail: tail.map(|most| (most as usize, VecDeque::new())) }
    }

    /// The wall time before which nothing is shown; 0 if there is none, or no longer.
    pub(super) fn not_before_ms(&self) -> u64 {
        self.not_before_ms.unwrap_or(0)
    }

    /// Whether only the last of the present events are shown.
    pub(super) fn has_tail(&self) -> bool {
        self.tail.is_some()
    }

    /// The events, among the next ones, that are shown now.
    pub(super) fn take(&mut self, mut events: Vec<v1::Event>) -> Vec<v1::Event> {
        if let Some(not_before) = self.not_before_ms {
            match events.iter().position(|event| event.wall_ms >= not_before) {
                Some(first) => {
                    events.drain(..first);
                    self.not_before_ms = None;
                }
                None => events.clear(),
            }
        }
        let Some((most, kept)) = &mut self.tail else { return events };
        for event in events {
            kept.push_back(event);
            if kept.len() > *most {
                kept.pop_front();
            }
        }
        Vec::new()
    }

    /// The last events; from now on every event is shown.
    pub(super) fn end_tail(&mut self) -> Vec<v1::Event> {
        self.tail.take().map(|(_, kept)| kept.into()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(walls: &[u64]) -> Vec<v1::Event> {
        let event = |wall_ms: &u64| v1::Event { wall_ms: *wall_ms, ..v1::Event::default() };
        walls.iter().map(event).collect()
    }

    fn walls(events: &[v1::Event]) -> Vec<u64> {
        events.iter().map(|event| event.wall_ms).collect()
    }

    #[test]
    fn a_beginning_is_a_position_an_age_or_a_moment() {
        let position = |index, position| Ok(Since::Position(LogPosition { index, position }));
        assert_eq!(Since::parse("12"), position(12, 0));
        assert_eq!(Since::parse("12:7"), position(12, 7));
        assert_eq!(Since::parse("5m"), Ok(Since::Age(Duration::from_secs(300))));
        assert_eq!(Since::parse("1970-01-01T00:00:01.5Z"), Ok(Since::Moment(1_500)));
        for bad in ["", "12:", "x", "5 fortnights", "1969-01-01T00:00:00Z"] {
            assert!(Since::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn events_from_the_first_late_enough_one_on_are_shown() {
        let age = Some(Since::Age(Duration::from_secs(1)));
        let mut chosen = Chosen::new(age, None, 1_100);
        assert!(chosen.take(events(&[1, 99])).is_empty());
        assert_eq!(chosen.not_before_ms(), 100);
        assert_eq!(walls(&chosen.take(events(&[50, 100, 98]))), [100, 98]);
        assert_eq!(walls(&chosen.take(events(&[97, 200]))), [97, 200]);
        assert_eq!(chosen.not_before_ms(), 0);
    }

    #[test]
    fn a_tail_is_the_last_ones_and_then_all() {
        let mut chosen = Chosen::new(Some(Since::Moment(2)), Some(2), 0);
        assert!(chosen.has_tail());
        for part in [&[1, 2][..], &[3, 4, 5]] {
            assert!(chosen.take(events(part)).is_empty());
        }
        assert_eq!(walls(&chosen.end_tail()), [4, 5]);
        assert_eq!(walls(&chosen.take(events(&[6]))), [6]);
    }
}
