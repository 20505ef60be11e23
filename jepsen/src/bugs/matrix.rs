//! The results of the seeded-bug runs, kept from call to call and printed as a table.
//!
//! *Invariant:* only a violation counts as finding a bug. Runs that ended as `unknown` or could not be made are
//! counted as such; a bug that no run found, and of which a run could not be made, is measured again by the next
//! call. All reported results come from the same programs and the same plan: results that an earlier call measured
//! under other conditions are dropped.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const ROWS: &str = "matrix.jsonl";
const TABLE: &str = "matrix.md";
/// Characters of an alarm that the table shows.
const ALARM_CHARS: usize = 110;

/// Maps a phrase of an alarm to the part of the suite that raises it.
const CHECKERS: &[(&str, &str)] = &[
    ("no order of its operations", "search"),
    ("different states at log index", "digests"),
    ("was heard all the time", "leases"),
    ("nothing became of", "drain"),
    ("was refused: ", "refusals"),
    ("had ended, but", "sessions"),
    ("was not refused in epoch", "epochs"),
    (" got session ", "sessions"),
    ("were answered as the creator of", "create races"),
    ("which no request created", "create races"),
    ("batch-", "outputs"),
    ("the image of", "image"),
    (", repeated, was answered", "repeats"),
    ("panicked", "panic"),
    (" crashed with ", "panic"),
    (" ended itself with ", "deaths"),
    ("back to", "epochs"),
    ("and said epoch", "epochs"),
    ("in the same term", "leaders"),
    ("no write succeeded", "recovery"),
    (" received rank ", "rounds"),
    (" has the members ", "rounds"),
    ("was a member of round", "rounds"),
    ("after it was closed", "rounds"),
    (" passed barrier ", "barriers"),
    (", and others with ", "barriers"),
    ("lineage", "lineages"),
    (" (line", "replay"),
    ("that the log does not explain", "replay"),
    ("places that are out of order", "replay"),
    ("two requests stand at", "replay"),
];

/// How one run ended.
pub(super) enum Outcome {
    /// Without an alarm.
    Pass,
    /// With these alarms.
    Violation(Vec<String>),
    /// Too little happened.
    Unknown(String),
    /// The run could not be made.
    Broken(String),
}

#[derive(Deserialize)]
struct SavedVerdict {
    violations: Vec<String>,
    doubts: Vec<String>,
}

impl Outcome {
    /// Reads the outcome from the exit status of a run and the verdict that it left.
    pub(super) fn of(status: Option<i32>, dir: &Path) -> Result<Self> {
        let verdict = || -> Result<SavedVerdict> {
            let json = std::fs::read(dir.join("verdict.json")).context("the verdict")?;
            Ok(serde_json::from_slice(&json)?)
        };
        Ok(match status {
            Some(0) => Self::Pass,
            Some(1) => Self::Violation(verdict()?.violations),
            Some(2) => Self::Unknown(verdict()?.doubts.join("; ")),
            Some(other) => Self::Broken(format!("exit status {other}")),
            None => Self::Broken("it did not end".into()),
        })
    }

    pub(super) fn text(&self) -> String {
        match self {
            Self::Pass => "pass".into(),
            Self::Violation(alarms) => format!("violation: {}", short(alarms)),
            Self::Unknown(why) => format!("unknown: {why}"),
            Self::Broken(why) => format!("the run could not be made: {why}"),
        }
    }
}

fn short(alarms: &[String]) -> String {
    let first = alarms.first().and_then(|alarm| alarm.lines().next()).unwrap_or_default();
    match first.char_indices().nth(ALARM_CHARS) {
        Some((end, _)) => format!("{}...", &first[..end]),
        None => first.to_owned(),
    }
}

/// The programs and plan with which a row was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Conditions {
    pub(super) seeds: u64,
    pub(super) secs: u64,
    pub(super) workloads: Vec<String>,
    pub(super) nemesis: String,
    /// Digests of the member's program, and of this one, which injects the faults and judges.
    pub(super) member: String,
    pub(super) suite: String,
}

/// The digest of a program.
///
/// # Errors
/// When it cannot be read.
pub(super) fn digest(program: &Path) -> Result<String> {
    let file = std::fs::File::open(program).with_context(|| program.display().to_string())?;
    Ok(blake3::Hasher::new().update_reader(file)?.finalize().to_hex()[..16].to_owned())
}

/// The alarms that found a bug.
#[derive(Serialize, Deserialize)]
pub(super) struct Detection {
    pub(super) seed: u64,
    pub(super) workload: String,
    pub(super) alarms: Vec<String>,
}

impl Detection {
    fn checkers(&self) -> String {
        let checker = |alarm: &String| {
            let first = alarm.lines().next().unwrap_or_default();
            CHECKERS.iter().find(|c| first.contains(c.0)).map_or("rules", |c| c.1)
        };
        let mut all: Vec<&str> = self.alarms.iter().map(checker).collect();
        all.sort_unstable();
        all.dedup();
        all.join(", ")
    }
}

/// One bug.
#[derive(Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) bug: String,
    pub(super) found: Option<Detection>,
    pub(super) runs: u64,
    pub(super) broken: u64,
    pub(super) unknown: u64,
    pub(super) secs: u64,
    /// The budget ended first.
    pub(super) cut: bool,
    /// Rows of an older format have none, and are ignored.
    #[serde(default)]
    pub(super) conditions: Conditions,
}

impl Row {
    pub(super) fn new(bug: &str, conditions: Conditions) -> Self {
        let bug = bug.to_owned();
        Self { bug, found: None, runs: 0, broken: 0, unknown: 0, secs: 0, cut: false, conditions }
    }

    /// The row for a terminal.
    pub(super) fn line(&self) -> String {
        let cells = self.cells();
        format!("==> {}: {} after {} s  {}  {}", self.bug, cells[1], self.secs, cells[3], cells[4])
    }

    fn cells(&self) -> [String; 5] {
        let (seed, by, alarm) = match &self.found {
            Some(found) => {
                let seed = format!("seed {}, {}", found.seed, found.workload);
                (seed, found.checkers(), short(&found.alarms))
            }
            None if self.cut => {
                (format!("not found in {} runs, cut short", self.runs), "".into(), "".into())
            }
            None => (format!("not found in {} runs", self.runs), "".into(), "".into()),
        };
        let doubts = match (self.unknown, self.broken) {
            (0, 0) => alarm,
            (unknown, broken) => {
                format!("{alarm} ({unknown} runs unknown, {broken} could not be made)")
            }
        };
        [self.bug.clone(), seed, format!("{} s", self.secs), by, doubts.trim().to_owned()]
    }
}

/// All of them.
pub(super) struct Matrix {
    dir: PathBuf,
    rows: Vec<Row>,
}

impl Matrix {
    /// Loads the results of an earlier call under the conditions that `of` gives for each bug. Also returns how many
    /// rows were dropped because they were measured under other conditions.
    pub(super) fn open(dir: &Path, of: impl Fn(&str) -> Conditions) -> Result<(Self, usize)> {
        let mut rows: Vec<Row> = match std::fs::read_to_string(dir.join(ROWS)) {
            Ok(text) => text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error).context(ROWS),
        };
        let before = rows.len();
        rows.retain(|row| row.conditions == of(&row.bug));
        let forgotten = before - rows.len();
        Ok((Self { dir: dir.to_owned(), rows }, forgotten))
    }

    /// Whether the bug needs no more runs: it was run to the end and every run could be made, or one found it.
    pub(super) fn is_decided(&self, bug: &str) -> bool {
        let decided = |row: &Row| !row.cut && (row.broken == 0 || row.found.is_some());
        self.rows.iter().any(|row| row.bug == bug && decided(row))
    }

    /// Adds a bug, replacing the row of an earlier call.
    pub(super) fn add(&mut self, row: Row) -> Result<()> {
        self.rows.retain(|old| old.bug != row.bug);
        self.rows.push(row);
        let mut text = String::new();
        for row in &self.rows {
            writeln!(text, "{}", serde_json::to_string(row)?)?;
        }
        std::fs::write(self.dir.join(ROWS), text).context(ROWS)
    }

    /// The table in Markdown.
    pub(super) fn table(&self) -> String {
        let mut text =
            String::from("| bug | found | after | by | alarm |\n|---|---|---|---|---|\n");
        for row in &self.rows {
            let cells = row.cells().map(|cell| cell.replace('|', "/"));
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        text
    }

    /// Writes the table beside the rows.
    pub(super) fn write(&self) -> Result<PathBuf> {
        let path = self.dir.join(TABLE);
        std::fs::write(&path, self.table())?;
        Ok(path)
    }

    /// The exit status documented at `Args`, for the requested bugs and the clean build.
    pub(super) fn status(&self, wanted: impl Fn(&str) -> bool) -> u8 {
        let rows: Vec<&Row> = self.rows.iter().filter(|row| wanted(&row.bug)).collect();
        if rows.iter().any(|row| row.bug == super::CLEAN && row.found.is_some()) {
            return 1;
        }
        let missed = |row: &&Row| match row.bug == super::CLEAN {
            // A run that is no pass does not vindicate the clean build either.
            true => row.unknown > 0 || row.broken > 0 || row.cut,
            false => row.found.is_none() || row.cut,
        };
        if rows.iter().any(missed) { 2 } else { 0 }
    }
}

#[cfg(test)]
mod tests;
