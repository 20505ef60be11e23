//! What one check found.

use serde::Serialize;

use super::round_trips::RoundTrips;
use crate::output::{Report, Table};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Ok,
    Warn,
    Fail,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    /// The name of the check, one word.
    pub(super) check: &'static str,
    pub(super) found: String,
    pub(super) why: Option<String>,
    pub(super) todo: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { level: Level::Ok, check, found: found.into(), why: None, todo: None }
    }

    pub(super) fn warn(
        check: &'static str,
        found: impl Into<String>,
        why: impl Into<String>,
        todo: impl Into<String>,
    ) -> Self {
        let (why, todo) = (Some(why.into()), Some(todo.into()));
        Self { level: Level::Warn, check, found: found.into(), why, todo }
    }

    pub(super) fn fail(
        check: &'static str,
        found: impl Into<String>,
        why: impl Into<String>,
        todo: impl Into<String>,
    ) -> Self {
        Self { level: Level::Fail, ..Self::warn(check, found, why, todo) }
    }
}

/// All lines.
#[derive(Debug, Serialize)]
pub(super) struct Findings {
    ok: usize,
    warnings: usize,
    failed: usize,
    findings: Vec<Finding>,
    #[serde(rename = "roundTrips", skip_serializing_if = "Option::is_none")]
    round_trips: Option<RoundTrips>,
}

impl Findings {
    pub(super) fn new(findings: Vec<Finding>) -> Self {
        let count = |level| findings.iter().filter(|finding| finding.level == level).count();
        let (ok, warnings, failed) = (count(Level::Ok), count(Level::Warn), count(Level::Fail));
        Self { ok, warnings, failed, findings, round_trips: None }
    }

    /// Adds the members' measurements, for programs; in human-readable output they are among the findings.
    pub(super) fn with_round_trips(self, round_trips: Option<RoundTrips>) -> Self {
        Self { round_trips, ..self }
    }

    pub(super) fn worst(&self) -> Level {
        self.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok)
    }

    pub(super) fn summary(&self) -> String {
        let plural = if self.warnings == 1 { "" } else { "s" };
        format!("{} ok, {} warning{plural}, {} failed", self.ok, self.warnings, self.failed)
    }
}

impl Report for Findings {
    const KIND: &'static str = "Doctor";

    fn table(&self) -> String {
        let mut table = Table::new(&["", "CHECK", "FOUND", "WHY IT MATTERS", "WHAT TO DO"]);
        for finding in &self.findings {
            let level = match finding.level {
                Level::Ok => "ok",
                Level::Warn => "warn",
                Level::Fail => "FAIL",
            };
            table.row([
                level.to_owned(),
                finding.check.to_owned(),
                finding.found.clone(),
                finding.why.clone().unwrap_or_default(),
                finding.todo.clone().unwrap_or_default(),
            ]);
        }
        format!("{table}{}\n", self.summary())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_decides_and_every_line_that_is_not_good_says_what_to_do() {
        let findings = Findings::new(vec![
            Finding::ok("clock", "synchronized"),
            Finding::warn(
                "zones",
                "c1 and c2 are in a",
                "one zone's loss stops the cluster",
                "spread them",
            ),
        ]);
        assert_eq!(
            (findings.worst(), findings.summary().as_str()),
            (Level::Warn, "1 ok, 1 warning, 0 failed")
        );
        crate::golden::report("doctor.txt", &findings);
        let table = findings.table();
        assert!(table.contains("warn  zones  c1 and c2 are in a"), "{table}");
        assert!(table.contains("spread them"), "{table}");
        assert_eq!(Findings::new(Vec::new()).worst(), Level::Ok);
    }
}
