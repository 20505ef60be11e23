//! Owns: the times of the stages of a command, what failed, and what was not run.
//!
//! Invariant: what failed is printed last, so that the end of a shortened log names it.
//! Absent: deciding what a failure is.

use crate::libtest;
use crate::run::watched;
use anyhow::Result;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Names a file to which failures are appended: the gate prints those of all its stages last.
pub(crate) const FAILURES: &str = "ROLLOUT_FAILURES";

pub(crate) struct Report {
    title: &'static str,
    begun: Instant,
    stages: Vec<(String, Duration, String)>,
    failures: Vec<String>,
    not_run: Vec<String>,
}

impl Report {
    pub(crate) fn begin(title: &'static str) -> Self {
        Self {
            title,
            begun: Instant::now(),
            stages: Vec::new(),
            failures: Vec::new(),
            not_run: Vec::new(),
        }
    }

    /// Notes that a stage took so long.
    pub(crate) fn stage(&mut self, name: &str, took: Duration, note: String) {
        println!("-- {name}: {} {note}", seconds(took));
        self.stages.push((name.to_owned(), took, note));
    }

    pub(crate) fn fail(&mut self, what: String) {
        println!("-- FAILED: {what}");
        self.failures.push(what);
    }

    pub(crate) fn not_run(&mut self, what: String) {
        if !self.not_run.contains(&what) {
            self.not_run.push(what);
        }
    }

    /// What was not run so far.
    pub(crate) fn all_not_run(&self) -> &[String] {
        &self.not_run
    }

    /// Runs a command as a stage: it fails with the command. Returns whether it passed.
    pub(crate) fn step(&mut self, name: &str, command: Command, limit: Duration) -> bool {
        println!("-- {name}");
        let begun = Instant::now();
        let mut reasons = Vec::new();
        let mut look = |line: &str| reasons.extend(libtest::not_run(line).map(str::to_owned));
        let ended = watched(command, limit, &mut look);
        let problem = match ended {
            Ok(ended) => ended.problem(),
            Err(error) => Some(format!("{error:#}")),
        };
        self.ended(name, begun.elapsed(), problem, reasons)
    }

    /// Notes how a command ended, and what it did not run. Returns whether it passed.
    pub(crate) fn ended(
        &mut self,
        name: &str,
        took: Duration,
        problem: Option<String>,
        not_run: Vec<String>,
    ) -> bool {
        not_run.into_iter().for_each(|reason| self.not_run(reason));
        self.stage(name, took, String::new());
        let passed = problem.is_none();
        if let Some(problem) = problem {
            self.fail(format!("{name}: {problem}"));
        }
        passed
    }

    /// Does something as a stage: it fails with an error. Returns the result, if there is one.
    pub(crate) fn try_stage<T>(
        &mut self,
        name: &str,
        work: impl FnOnce() -> Result<T>,
    ) -> Option<T> {
        println!("-- {name}");
        let begun = Instant::now();
        let done = work();
        self.stage(name, begun.elapsed(), String::new());
        match done {
            Ok(done) => Some(done),
            Err(error) => {
                self.fail(format!("{name}: {error:#}"));
                None
            }
        }
    }

    /// Prints the times, what was not run, and what failed. Returns whether everything passed.
    pub(crate) fn end(self) -> bool {
        println!("\n== {}: {}", self.title, seconds(self.begun.elapsed()));
        for (name, took, note) in &self.stages {
            println!("{:>10}  {name}  {note}", seconds(*took));
        }
        for what in &self.not_run {
            println!("NOT RUN: {what}");
        }
        if self.failures.is_empty() {
            println!("== {} PASSED", self.title);
        } else {
            println!("== {} FAILED: {} failures", self.title, self.failures.len());
        }
        for what in &self.failures {
            println!("  {what}");
        }
        if let Some(path) = std::env::var_os(FAILURES).filter(|path| !path.is_empty())
            && let Err(error) = self.append(Path::new(&path))
        {
            eprintln!("xtask: cannot write {}: {error}", Path::new(&path).display());
        }
        self.failures.is_empty()
    }

    fn append(&self, path: &Path) -> std::io::Result<()> {
        let mut file = File::options().create(true).append(true).open(path)?;
        self.failures.iter().try_for_each(|what| writeln!(file, "{}: {what}", self.title))
    }
}

fn seconds(took: Duration) -> String {
    format!("{:.1} s", took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn step(program: &str, args: &[&str]) -> Report {
        let mut report = Report::begin("test");
        let mut command = Command::new(program);
        command.args(args);
        let passed = report.step("stage", command, LIMIT);
        assert_eq!(passed, report.failures.is_empty());
        report
    }

    #[test]
    fn a_stage_that_fails_or_cannot_start_fails_the_report() {
        assert!(step("true", &[]).end());
        assert!(!step("false", &[]).end());
        assert!(!step("/no/such/program", &[]).end());
    }

    #[test]
    fn a_check_that_a_stage_did_not_run_is_listed_once() {
        let report = step(
            "sh",
            &[
                "-c",
                "echo 'NOT RUN: example of a unit test'; echo 'NOT RUN: example of a unit test'; echo b",
            ],
        );
        assert_eq!(report.all_not_run(), ["example of a unit test"]);
        assert!(report.end());
    }

    #[test]
    fn work_that_fails_fails_the_report() {
        let mut report = Report::begin("test");
        assert_eq!(report.try_stage("good", || Ok(7)), Some(7));
        assert_eq!(report.try_stage::<()>("bad", || Err(anyhow::anyhow!("no"))), None);
        assert!(!report.end());
    }
}
