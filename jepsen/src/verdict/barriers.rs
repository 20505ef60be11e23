//! Checks the answers at barriers: no participant passes before all have arrived, all get the same final answer, and
//! a barrier fails only for a reason.
//!
//! *Invariant:* an arrival counts from its answer on, but only if the generation was still waiting then. That is
//! certain once a participant that asked later was answered that it waits. An arrival stops counting if its
//! participant comes again as another process while the generation waits: that voids it.

use super::silences::Signs;
use super::values::text;
use crate::operations::{Operation, Outcome};
use crate::value::Value;
use crate::workload::barrier::TIMEOUT_MS;
use std::collections::{BTreeMap, BTreeSet};

/// Participants of each barrier in the workload.
const MEMBERS: usize = 3;
/// A participant that is heard more often than this is not lost; the workload allows a silence of 1.5 s.
const PATIENCE_NS: u64 = 1_400_000_000;
/// The timeout, minus the possible difference of clocks.
const TIMEOUT_NS: u64 = (TIMEOUT_MS - 1000) * 1_000_000;

/// What became of an arrival.
#[derive(Clone, Copy)]
struct Arrival {
    called_at: u64,
    answered_at: Option<u64>,
}

/// The start of a participant's new process.
#[derive(Clone, Copy)]
struct ProcessStart {
    called_at: u64,
    /// `None`: it may not have registered.
    answered_at: Option<u64>,
}

/// The process starts of each participant.
type ProcessStarts<'a> = BTreeMap<&'a str, Vec<ProcessStart>>;

/// What is known of one generation.
#[derive(Default)]
struct Generation<'a> {
    arrivals: BTreeMap<&'a str, Vec<Arrival>>,
    /// When the participants asked that were answered that it waits.
    waits: Vec<u64>,
    /// Its end: the answer, the participant, and when it asked and was answered.
    ends: Vec<(&'a Value, &'a str, u64, u64)>,
}

fn names(value: Option<&Value>) -> Vec<&str> {
    match value {
        Some(Value::List(names)) => names.iter().map(|name| text(Some(name))).collect(),
        _ => Vec::new(),
    }
}

/// The findings, and the number of passed generations.
pub(super) fn broken(operations: &[Operation]) -> (Vec<String>, usize) {
    let mut generations: BTreeMap<&str, Generation<'_>> = BTreeMap::new();
    let mut signs: Signs<&str> = Signs::default();
    let mut starts = ProcessStarts::default();
    for operation in operations {
        let key = operation.key.as_deref().unwrap_or_default();
        let (who, called_at) = (text(Some(&operation.input)), operation.called_at);
        let answer = match &operation.outcome {
            Outcome::Answered { value, at, .. } => Some((value, *at)),
            Outcome::Unknown => None,
        };
        match (&*operation.f, answer) {
            ("arrive", _) => {
                let answered_at = answer.map(|answer| answer.1);
                let arrivals = &mut generations.entry(key).or_default().arrivals;
                arrivals.entry(who).or_default().push(Arrival { called_at, answered_at });
                answered_at.into_iter().for_each(|at| signs.add(who, called_at, at));
            }
            ("pass", Some((Value::Text(_), _))) => {
                generations.entry(key).or_default().waits.push(called_at);
            }
            ("pass", Some((outcome, at))) => {
                generations.entry(key).or_default().ends.push((outcome, who, called_at, at));
            }
            ("alive", Some((gone, at))) if *gone == Value::text("") => {
                signs.add(who, called_at, at);
            }
            ("come", _) => {
                let answered_at = answer.map(|answer| answer.1);
                starts.entry(who).or_default().push(ProcessStart { called_at, answered_at });
                answered_at.into_iter().for_each(|at| signs.add(who, called_at, at));
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    let mut passed = 0;
    for (key, generation) in &generations {
        generation.judge(key, (&signs, &starts), &mut found);
        passed += usize::from(generation.is_open());
    }
    (found, passed)
}

impl Generation<'_> {
    fn is_open(&self) -> bool {
        self.ends.iter().any(|(outcome, ..)| names(Some(outcome)).first() == Some(&"open"))
    }

    fn judge(
        &self,
        key: &str,
        (signs, starts): (&Signs<&str>, &ProcessStarts<'_>),
        found: &mut Vec<String>,
    ) {
        let Some((first, ..)) = self.ends.first() else { return };
        for (outcome, who, _, at) in &self.ends {
            if outcome != first {
                found.push(format!(
                    "barrier {key} answered {who} with {outcome}, and others with {first}"
                ));
            }
            if self.waits.iter().any(|asked_at| asked_at > at) {
                found.push(format!(
                    "barrier {key} waited again after it answered {who} with {outcome}"
                ));
            }
            let Value::List(parts) = outcome else { continue };
            match text(parts.first()) {
                "open" => self.opened(key, (who, *at), parts, starts, found),
                _ => self.failed(key, (who, *at), parts, starts, found),
            }
        }
        let first_arrival = self.arrivals.values().flatten().map(|arrival| arrival.called_at).min();
        let first_end = self.ends.iter().map(|end| end.3).min();
        if let (Some(from), Some(until)) = (first_arrival, first_end) {
            self.gone(key, signs, (from, until), found);
        }
    }

    fn opened(
        &self,
        key: &str,
        (who, at): (&str, u64),
        outcome: &[Value],
        starts: &ProcessStarts<'_>,
        found: &mut Vec<String>,
    ) {
        let (members, without) = (names(outcome.get(1)), names(outcome.get(2)));
        let all: BTreeSet<&str> = members.iter().chain(&without).copied().collect();
        let n = members.len();
        if all.len() != MEMBERS || all.len() != n + without.len() {
            found.push(format!(
                "{who} passed barrier {key} with {n} of {MEMBERS}: {members:?} without {without:?}"
            ));
        }
        if !key.starts_with("soft/") && !without.is_empty() {
            found.push(format!("{who} passed barrier {key}, which may not shrink: {without:?}"));
        }
        for member in members {
            let arrivals = self.arrivals.get(member).into_iter().flatten();
            let called: Vec<u64> = arrivals.map(|arrival| arrival.called_at).collect();
            if called.iter().all(|called| *called > at) {
                found.push(format!("{who} passed barrier {key} before {member} had arrived"));
            } else if called.iter().all(|called| self.is_void(member, *called, starts)) {
                found.push(format!(
                    "{who} passed barrier {key} by an arrival of {member} before it came anew"
                ));
            }
        }
        for name in self.counted(starts).into_iter().filter(|name| !all.contains(name)) {
            found.push(format!("{who} passed barrier {key} without {name}, who had arrived"));
        }
    }

    /// Until when the generation certainly waited.
    fn waited(&self) -> u64 {
        self.waits.iter().max().copied().unwrap_or(0)
    }

    /// Whether an arrival certainly did not count: its participant had started a new process while the generation
    /// still waited.
    fn is_void(&self, name: &str, called_at: u64, starts: &ProcessStarts<'_>) -> bool {
        starts.get(name).into_iter().flatten().any(|start| {
            let came = start.answered_at.is_some_and(|came| came < self.waited());
            start.called_at > called_at && came
        })
    }

    /// The participants whose arrival certainly counted: it was answered while the generation waited, and no new
    /// process can have come under the name before the generation ended.
    fn counted(&self, starts: &ProcessStarts<'_>) -> BTreeSet<&str> {
        let ended = self.ends.iter().map(|end| end.3).min().unwrap_or(u64::MAX);
        let counts = |name: &str, arrival: &Arrival| {
            let in_time = arrival.answered_at.is_some_and(|answered| answered < self.waited());
            let between = arrival.called_at..ended;
            let mut all = starts.get(name).into_iter().flatten();
            in_time && !all.any(|start| between.contains(&start.called_at))
        };
        let all = self.arrivals.iter();
        let all = all.filter(|(name, arrivals)| arrivals.iter().any(|a| counts(name, a)));
        all.map(|(name, _)| *name).collect()
    }

    fn failed(
        &self,
        key: &str,
        (who, at): (&str, u64),
        outcome: &[Value],
        starts: &ProcessStarts<'_>,
        found: &mut Vec<String>,
    ) {
        let (why, participant, host) =
            (text(outcome.get(1)), text(outcome.get(2)), text(outcome.get(3)));
        let missing = names(outcome.get(4));
        match why {
            "lost" if host != format!("host-of-{participant}") => {
                found.push(format!("barrier {key} failed for {participant}, said to be on {host}"));
            }
            "lost" => {}
            "timed_out" => {
                let arrivals = self.arrivals.values().flatten();
                let first = arrivals.map(|arrival| arrival.called_at).min();
                if first.is_none_or(|first| at < first + TIMEOUT_NS) {
                    found.push(format!("barrier {key} told {who} too early that it timed out"));
                }
            }
            other => found.push(format!("barrier {key} failed as {other}, which nobody did")),
        }
        for name in self.counted(starts).into_iter().filter(|name| missing.contains(name)) {
            found.push(format!("barrier {key} failed without {name}, who had arrived"));
        }
    }

    /// Checks that a participant that was heard from the first arrival to the end is not reported as lost.
    fn gone(
        &self,
        key: &str,
        signs: &Signs<&str>,
        (from, until): (u64, u64),
        found: &mut Vec<String>,
    ) {
        let Some((Value::List(outcome), ..)) = self.ends.first() else { return };
        let gone = match text(outcome.first()) {
            "open" => names(outcome.get(2)),
            _ if text(outcome.get(1)) == "lost" => vec![text(outcome.get(2))],
            _ => Vec::new(),
        };
        for name in gone {
            let of = key.split('/').next().unwrap_or_default();
            if !name.starts_with(of) {
                found
                    .push(format!("barrier {key} did not wait for {name}, who is said to be lost"));
            } else if signs.throughout(&name, from, until, PATIENCE_NS) {
                found.push(format!("{name} was lost to barrier {key}, and was heard all the time"));
            }
        }
    }
}

#[cfg(test)]
mod tests;
