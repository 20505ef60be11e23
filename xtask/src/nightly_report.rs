//! Owns: the file of a report: a page in `docs/nightly` and its line in the index there, or the report of a release.
//!
//! Invariant: the page is written anew after each item. An interrupted run leaves a page that says what it did not reach.
//! The report of a release changes no tracked file: the commit would be dirty for the next part of the report.
//! Absent: what is run, and the text of the page (`nightly_page`).

use crate::nightly_page::{Conditions, Entry, Findings, Outcome, page, read};
use crate::run::output;
use crate::workspace::Workspace;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The reports of one day: later ones get a number.
const OF_A_DAY_MAX: u32 = 100;

/// Where a report is written.
pub(crate) struct ReportFile {
    path: PathBuf,
    title: String,
    /// The name in the index of its folder; none for the report of a release.
    listed: Option<String>,
}

impl ReportFile {
    /// The next page of today in `docs/nightly`.
    ///
    /// # Errors
    /// When there are too many.
    pub(crate) fn of_today(workspace: &Workspace) -> Result<Self> {
        let folder = workspace.root.join("docs/nightly");
        let mut date = Command::new("date");
        date.args(["-u", "+%Y-%m-%d"]);
        let name = free_name(&folder, &output(date)?)?;
        let (path, title) = (folder.join(format!("{name}.md")), format!("Nightly run of {name}"));
        Ok(Self { path, title, listed: Some(name) })
    }

    pub(crate) fn of_release(path: PathBuf, title: String) -> Self {
        Self { path, title, listed: None }
    }

    /// The entries that are in the file, if they are of this commit and this machine.
    ///
    /// # Errors
    /// When the file is not a report.
    pub(crate) fn earlier(&self, conditions: &Conditions) -> Result<Vec<Entry>> {
        if !self.path.exists() {
            return Ok(Vec::new());
        }
        let path = self.path.display();
        let text = std::fs::read_to_string(&self.path).with_context(|| path.to_string())?;
        let (of, entries) = read(&text).with_context(|| format!("{path} is not a report"))?;
        if of == *conditions {
            return Ok(entries);
        }
        println!("{path} is of another commit or machine: its results are replaced");
        Ok(Vec::new())
    }
}

pub(crate) struct NightlyReport {
    file: ReportFile,
    conditions: Conditions,
    entries: Vec<Entry>,
}

impl NightlyReport {
    /// Begins a report, and writes its page.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn begin(
        file: ReportFile,
        conditions: Conditions,
        entries: Vec<Entry>,
    ) -> Result<Self> {
        let report = Self { file, conditions, entries };
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
        println!("\n== nightly: {}", self.file.path.display());
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

    fn write(&self) -> Result<()> {
        let ReportFile { path, title, listed } = &self.file;
        let page = page(title, &self.conditions, &self.entries);
        std::fs::write(path, page).with_context(|| path.display().to_string())?;
        let Some(name) = listed else { return Ok(()) };
        let index = path.with_file_name("README.md");
        let text = std::fs::read_to_string(&index).with_context(|| index.display().to_string())?;
        let text = indexed(&text, name, &self.summary());
        std::fs::write(&index, text).with_context(|| index.display().to_string())
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

    fn conditions() -> Conditions {
        Conditions { commit: "4f2c".into(), machine: "Machine: 2 cores.".into() }
    }

    /// Three items: one passed, one failed, and one did not run.
    fn reported(file: ReportFile) -> NightlyReport {
        let entries = ["soak", "fuzz", "latency"].map(|name| Entry::not_run(name, "interrupted"));
        let mut report = NightlyReport::begin(file, conditions(), entries.into()).unwrap();
        let took = Duration::from_secs(7);
        let passed = Outcome::Passed { not_run: Vec::new() };
        report.set(0, passed, took, Findings::default()).unwrap();
        report.set(1, Outcome::Failed("no".into()), took, Findings::default()).unwrap();
        report
    }

    #[test]
    fn a_nightly_report_is_listed_and_a_failure_fails_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("README.md"), "# Nightly runs\n").unwrap();
        let (path, title) = (at("2026-11-27.md"), "Nightly run".to_owned());
        let report = reported(ReportFile { path, title, listed: Some("2026-11-27".into()) });
        let page = std::fs::read_to_string(at("2026-11-27.md")).unwrap();
        assert!(page.contains("| latency | NOT RUN: interrupted | 0 |"), "{page}");
        let index = std::fs::read_to_string(at("README.md")).unwrap();
        let line = "- [2026-11-27](2026-11-27.md): 1 passed, 1 failed, 1 not run\n";
        assert_eq!(index, format!("# Nightly runs\n{line}"));
        assert!(!report.end());
    }

    #[test]
    fn the_report_of_a_release_is_one_file_that_keeps_results_of_the_same_commit_and_machine() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("verification.md");
        let file = || ReportFile::of_release(path.clone(), "Verification".into());
        assert!(file().earlier(&conditions()).unwrap().is_empty());
        reported(file());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let results = |conditions: &Conditions| -> Vec<String> {
            file().earlier(conditions).unwrap().iter().map(Entry::result).collect()
        };
        let expected = ["passed", "FAILED: no", "NOT RUN: interrupted"];
        assert_eq!(results(&conditions()), expected);
        assert!(results(&Conditions { commit: "4f2c-dirty".into(), ..conditions() }).is_empty());
        assert!(results(&Conditions { machine: "Another.".into(), ..conditions() }).is_empty());
        std::fs::write(&path, "a").unwrap();
        assert!(file().earlier(&conditions()).is_err());
    }
}
