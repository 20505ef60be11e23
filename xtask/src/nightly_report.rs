//! Owns: the report of a nightly run: a page in `docs/nightly`, its line in the index there, and a copy for a release.
//!
//! Invariant: the page is written anew after each item. An interrupted run leaves a page that says what it did not reach.
//! Absent: what is run, and the text of the page (`nightly_page`).

use crate::nightly_page::{Conditions, Entry, Findings, Outcome, page};
use crate::run::output;
use crate::workspace::Workspace;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The reports of one day: later ones get a number.
const OF_A_DAY_MAX: u32 = 100;

/// A second file with the same page, under another title.
pub(crate) struct ReportCopy {
    pub(crate) path: PathBuf,
    pub(crate) title: String,
}

pub(crate) struct NightlyReport {
    folder: PathBuf,
    name: String,
    conditions: Conditions,
    entries: Vec<Entry>,
    copy: Option<ReportCopy>,
}

impl NightlyReport {
    /// Begins the page of today.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn begin(
        workspace: &Workspace,
        entries: Vec<Entry>,
        copy: Option<ReportCopy>,
    ) -> Result<Self> {
        let folder = workspace.root.join("docs/nightly");
        let mut date = Command::new("date");
        date.args(["-u", "+%Y-%m-%d"]);
        let name = free_name(&folder, &output(date)?)?;
        let report = Self { folder, name, conditions: conditions(workspace), entries, copy };
        report.write()?;
        Ok(report)
    }

    /// Records how an item ended, and writes the page.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn set(
        &mut self,
        place: usize,
        outcome: Outcome,
        took: Duration,
        findings: Findings,
    ) -> Result<()> {
        let entry = self.entries.get_mut(place).context("the report has no such entry")?;
        (entry.outcome, entry.took, entry.findings) = (outcome, took, findings);
        println!("-- {}: {}", entry.name, entry.result());
        self.write()
    }

    /// Prints what was not run, then what failed. Returns whether nothing failed.
    pub(crate) fn end(self) -> bool {
        println!("\n== nightly: {}", self.page_path().display());
        if let Some(copy) = &self.copy {
            println!("== copy: {}", copy.path.display());
        }
        let mut failed = Vec::new();
        for entry in &self.entries {
            match &entry.outcome {
                Outcome::Passed { not_run } => {
                    not_run.iter().for_each(|part| println!("NOT RUN: {}: {part}", entry.name));
                }
                Outcome::NotRun(reason) => println!("NOT RUN: {}: {reason}", entry.name),
                Outcome::Failed(problem) => failed.push(format!("{}: {problem}", entry.name)),
            }
        }
        let passed = failed.is_empty();
        println!("== nightly {}", if passed { "PASSED" } else { "FAILED" });
        failed.iter().for_each(|failure| println!("  {failure}"));
        passed
    }

    fn page_path(&self) -> PathBuf {
        self.folder.join(format!("{}.md", self.name))
    }

    fn write(&self) -> Result<()> {
        let title = format!("Nightly run of {}", self.name);
        self.write_page(&self.page_path(), &title)?;
        if let Some(ReportCopy { path, title }) = &self.copy {
            self.write_page(path, title)?;
        }
        let index = self.folder.join("README.md");
        let text = std::fs::read_to_string(&index).with_context(|| index.display().to_string())?;
        let text = indexed(&text, &self.name, &self.summary());
        std::fs::write(&index, text).with_context(|| index.display().to_string())
    }

    fn write_page(&self, path: &Path, title: &str) -> Result<()> {
        let page = page(title, &self.conditions, &self.entries);
        std::fs::write(path, page).with_context(|| path.display().to_string())
    }

    fn summary(&self) -> String {
        let count =
            |is: fn(&Outcome) -> bool| self.entries.iter().filter(|e| is(&e.outcome)).count();
        let passed = count(|outcome| matches!(outcome, Outcome::Passed { .. }));
        let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
        let not_run = count(|outcome| matches!(outcome, Outcome::NotRun(_)));
        format!("{passed} passed, {failed} failed, {not_run} not run")
    }
}

/// The index with the line of a report, which replaces the one it had.
fn indexed(index: &str, name: &str, summary: &str) -> String {
    let begin = format!("- [{name}]({name}.md)");
    let kept: Vec<&str> = index.lines().filter(|line| !line.starts_with(&begin)).collect();
    format!("{}\n{begin}: {summary}\n", kept.join("\n"))
}

fn free_name(folder: &Path, today: &str) -> Result<String> {
    let numbered = (2..OF_A_DAY_MAX).map(|number| format!("{today}-{number}"));
    let mut names = std::iter::once(today.to_owned()).chain(numbered);
    let free = names.find(|name| !folder.join(format!("{name}.md")).exists());
    free.with_context(|| format!("{} has {OF_A_DAY_MAX} reports of {today}", folder.display()))
}

/// The commit and this machine.
pub(crate) fn conditions(workspace: &Workspace) -> Conditions {
    let commit = workspace.commit.clone().unwrap_or_else(|| "unknown".to_owned());
    Conditions { commit, machine: machine() }
}

/// A sentence about this machine.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let memory =
        kib.map_or_else(|| "unknown memory".to_owned(), |kib| format!("{} GiB", kib >> 20));
    let mut uname = Command::new("uname");
    uname.arg("-sr");
    let kernel = output(uname).unwrap_or_else(|_| "unknown system".to_owned());
    format!("Machine: {cores} cores, {memory}, {kernel}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_replaces_its_line_in_the_index_and_keeps_the_others() {
        let index = "# Nightly runs\n\n- [2026-11-26](2026-11-26.md): a\n";
        let once = indexed(index, "2026-11-27", "1 passed");
        assert_eq!(once, format!("{index}- [2026-11-27](2026-11-27.md): 1 passed\n"));
        let again = indexed(&once, "2026-11-27", "2 passed");
        assert_eq!(again, format!("{index}- [2026-11-27](2026-11-27.md): 2 passed\n"));
        // The second report of a day has a line of its own.
        let second = indexed(&again, "2026-11-27-2", "3 passed");
        assert_eq!(second, format!("{again}- [2026-11-27-2](2026-11-27-2.md): 3 passed\n"));
    }

    #[test]
    fn a_copy_follows_the_page_and_a_failure_fails_the_report() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("README.md"), "# Nightly runs\n").unwrap();
        let entries = ["soak", "fuzz", "latency"].map(|name| Entry::not_run(name, "interrupted"));
        let mut report = NightlyReport {
            folder: folder.path().to_owned(),
            name: "2026-11-27".into(),
            conditions: Conditions { commit: "4f2c".into(), machine: "Machine: 2 cores.".into() },
            entries: entries.into(),
            copy: Some(ReportCopy { path: at("verification.md"), title: "Verification".into() }),
        };
        let took = Duration::from_secs(7);
        let passed = Outcome::Passed { not_run: Vec::new() };
        report.set(0, passed, took, Findings::default()).unwrap();
        report.set(1, Outcome::Failed("no".into()), took, Findings::default()).unwrap();
        assert_eq!(report.summary(), "1 passed, 1 failed, 1 not run");
        let page = std::fs::read_to_string(at("2026-11-27.md")).unwrap();
        let copy = std::fs::read_to_string(at("verification.md")).unwrap();
        assert_eq!(page.replace("# Nightly run of 2026-11-27", "# Verification"), copy);
        assert!(copy.contains("| latency | NOT RUN: interrupted | 0 |"), "{copy}");
        assert!(!report.end());
    }
}
