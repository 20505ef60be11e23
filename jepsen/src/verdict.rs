//! Judges a recorded run: the history by a search, everything else by rules, and whether enough happened for a pass
//! to mean anything.
//!
//! *Invariant:* a violation is reported only on evidence in the record, and a pass only if every rule was applied and
//! every coverage minimum was reached. Everything else is `unknown`.

mod barriers;
mod batch_requests;
mod continue_on_loss;
mod coverage;
mod create_races;
mod deaths;
mod generations;
mod histories;
mod incarnations;
mod leases;
mod rounds;
mod rows;
mod rules;
mod silences;
mod submissions;
mod values;

pub(crate) use coverage::bands;
pub use coverage::{Coverage, Minimum};

use crate::events::{self, Event, EventKind};
use crate::formats::{Format, events as format_events};
use crate::operations::{Operation, pair};
use crate::recorder::{EVENTS, HISTORY};
use anyhow::{Context, Result};
use serde::Serialize;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// The verdict on a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// No rule was broken, and enough happened.
    Pass,
    /// A rule was broken.
    Violation,
    /// Too little happened, or a budget ended first. No pass.
    Unknown,
}

impl Verdict {
    /// Its exit status.
    pub fn status(self) -> u8 {
        match self {
            Verdict::Pass => 0,
            Verdict::Violation => 1,
            Verdict::Unknown => 2,
        }
    }
}

/// A verdict and what led to it.
#[derive(Debug, Serialize)]
pub struct Judged {
    /// See there.
    pub verdict: Verdict,
    /// The broken rules, in words.
    pub violations: Vec<String>,
    /// The reasons why it is no pass.
    pub doubts: Vec<String>,
    /// What happened.
    pub coverage: Coverage,
    /// Of the search: operations, of unknown outcome, keys, configurations.
    pub operations: usize,
    /// See `operations`.
    pub unanswered: usize,
    /// See `operations`.
    pub keys: usize,
    /// See `operations`.
    pub configurations: u64,
    /// The keys that no order explains.
    pub violated_keys: Vec<String>,
}

/// A run as it was recorded.
pub struct Recorded {
    /// Its history.
    pub operations: Vec<Operation>,
    pub events: Vec<Event>,
}

impl Recorded {
    /// Reads the files of a run.
    ///
    /// # Errors
    /// When they cannot be read or understood.
    pub fn read(dir: &Path) -> Result<Self> {
        let open = |name: &str| {
            let path = dir.join(name);
            File::open(&path).map(BufReader::new).with_context(|| path.display().to_string())
        };
        let operations = pair(format_events(Format::Jsonl, open(HISTORY)?)).context(HISTORY)?;
        let events = events::read(open(EVENTS)?).context(EVENTS)?;
        Ok(Self { operations, events })
    }

    /// The plan of the run.
    pub fn plan(&self) -> (&str, &[String], u64, u64) {
        let plan = self.events.iter().find_map(|event| match &event.what {
            EventKind::Plan { workload, nemesis, seed, secs } => {
                Some((workload.as_str(), nemesis.as_slice(), *seed, *secs))
            }
            _ => None,
        });
        plan.unwrap_or(("?", &[], 0, 0))
    }
}

/// Judges it.
///
/// # Errors
/// An operation that the model cannot understand.
pub fn judged(run: &Recorded) -> Result<Judged> {
    let found = histories::judged(run.plan().0, &run.operations)?;
    let mut violations = rules::broken(&run.events);
    violations.extend(deaths::broken(&run.events));
    violations.extend(leases::broken(&run.events, &run.operations));
    violations.extend(found.violations);
    let mut doubts = found.doubts;
    let (replayed, ordered) = (found.replayed, found.ordered);
    let coverage = Coverage { replayed, ordered, ..Coverage::of(run) };
    doubts.extend(coverage.missing(run));
    let verdict = match (violations.is_empty(), doubts.is_empty()) {
        (false, _) => Verdict::Violation,
        (true, true) => Verdict::Pass,
        (true, false) => Verdict::Unknown,
    };
    Ok(Judged {
        verdict,
        violations,
        doubts,
        coverage,
        operations: found.operations,
        unanswered: found.unanswered,
        keys: found.keys,
        configurations: found.configurations,
        violated_keys: found.violated_keys,
    })
}

#[cfg(test)]
mod tests;
