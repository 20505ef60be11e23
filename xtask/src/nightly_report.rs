//! Owns: the report of a nightly run: a page in `docs/nightly`, and its line in the index there.
//!
//! Invariant: the page is written anew after each item. An interrupted run leaves a page that says what it did not reach.
//! Absent: what is run.

use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The reports of one day: later ones get a number.
const OF_A_DAY_MAX: u32 = 100;

/// How an item ended.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    /// It passed, apart from these parts that this machine cannot run.
    Passed {
        not_run: Vec<String>,
    },
    Failed(String),
    NotRun(String),
}

/// A line of the report.
#[derive(Debug)]
pub(crate) struct Entry {
    name: String,
    command: String,
    outcome: Outcome,
    took: Duration,
}

impl Entry {
    pub(crate) fn not_run(name: &str, command: String, reason: &str) -> Self {
        let outcome = Outcome::NotRun(reason.to_owned());
        Self { name: name.to_owned(), command, outcome, took: Duration::ZERO }
    }
}

pub(crate) struct NightlyReport {
    folder: PathBuf,
    name: String,
    commit: String,
    machine: String,
    entries: Vec<Entry>,
}

impl NightlyReport {
    /// Begins the page of today.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn begin(workspace: &Workspace, entries: Vec<Entry>) -> Result<Self> {
        let folder = workspace.root.join("docs/nightly");
        let today = output("date", &["-u", "+%Y-%m-%d"])?;
        let name = free_name(&folder, &today)?;
        let commit = workspace.commit.clone().unwrap_or_else(|| "unknown".to_owned());
        let report = Self { folder, name, commit, machine: machine(), entries };
        report.write()?;
        Ok(report)
    }

    /// Records how an item ended, and writes the page.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn set(&mut self, place: usize, outcome: Outcome, took: Duration) -> Result<()> {
        let entry = self.entries.get_mut(place).context("the report has no such entry")?;
        (entry.outcome, entry.took) = (outcome, took);
        println!("-- {}: {}", entry.name, result(&entry.outcome));
        self.write()
    }

    /// Prints what was not run, then what failed. Returns whether nothing failed.
    pub(crate) fn end(self) -> bool {
        println!("\n== nightly: {}", self.page_path().display());
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
        let path = self.page_path();
        std::fs::write(&path, self.page()).with_context(|| path.display().to_string())?;
        let index = self.folder.join("README.md");
        let text = std::fs::read_to_string(&index).with_context(|| index.display().to_string())?;
        let text = indexed(&text, &self.name, &self.summary());
        std::fs::write(&index, text).with_context(|| index.display().to_string())
    }

    fn page(&self) -> String {
        let Self { name, commit, machine, .. } = self;
        let mut page = format!("# Nightly run of {name}\n\nCommit `{commit}`.\n\n{machine}\n\n");
        page.push_str("| name | result | seconds | command |\n| --- | --- | --- | --- |\n");
        for Entry { name, command, outcome, took } in &self.entries {
            let (result, seconds) = (cell(&result(outcome)), took.as_secs());
            // Writing to a string cannot fail.
            let _ = writeln!(page, "| {name} | {result} | {seconds} | `{command}` |");
        }
        page
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

fn result(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Passed { not_run } if not_run.is_empty() => "passed".to_owned(),
        Outcome::Passed { not_run } => format!("passed; NOT RUN: {}", not_run.join("; ")),
        Outcome::Failed(problem) => format!("FAILED: {problem}"),
        Outcome::NotRun(reason) => format!("NOT RUN: {reason}"),
    }
}

/// A text as a cell of a table: without what Markdown would read as its own.
fn cell(text: &str) -> String {
    let plain = |c: char| {
        if matches!(c, '|' | '\n' | '\r' | '`' | '[' | ']' | '<' | '>') { ' ' } else { c }
    };
    text.chars().map(plain).collect()
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

/// A sentence about this machine.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let memory =
        kib.map_or_else(|| "unknown memory".to_owned(), |kib| format!("{} GiB", kib >> 20));
    let kernel = output("uname", &["-sr"]).unwrap_or_else(|_| "unknown system".to_owned());
    format!("Machine: {cores} cores, {memory}, {kernel}.")
}

fn output(program: &str, args: &[&str]) -> Result<String> {
    let out = Command::new(program).args(args).output().with_context(|| program.to_owned())?;
    ensure!(out.status.success(), "{program} failed: {}", out.status);
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
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
    fn the_page_says_of_each_item_how_it_ended() {
        let outcomes = [
            Outcome::Passed { not_run: vec!["a | b".into()] },
            Outcome::Failed("exit status: 2".into()),
            Outcome::NotRun("no root".into()),
        ];
        let entry = |(outcome, name): (Outcome, &str)| {
            let took = Duration::from_secs(7);
            Entry { name: name.into(), command: format!("make {name}"), outcome, took }
        };
        let report = NightlyReport {
            folder: PathBuf::new(),
            name: "2026-11-27".into(),
            commit: "4f2c".into(),
            machine: "Machine: 2 cores.".into(),
            entries: outcomes.into_iter().zip(["soak", "fuzz", "latency"]).map(entry).collect(),
        };
        let page = report.page();
        assert!(page.contains("| soak | passed; NOT RUN: a   b | 7 | `make soak` |"), "{page}");
        assert!(page.contains("| fuzz | FAILED: exit status: 2 | 7 | `make fuzz` |"), "{page}");
        assert!(page.contains("| latency | NOT RUN: no root | 7 | `make latency` |"), "{page}");
        assert_eq!(report.summary(), "1 passed, 1 failed, 1 not run");
        assert!(!report.end());
    }
}
