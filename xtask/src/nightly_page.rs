//! Owns: the page of a nightly run: what ran, for how long, where, what the kill matrix found, and the figures.
//!
//! Invariant: each entry is in the table, with its result or with the reason why it was not run. The page says so if a
//! run left no kill matrix or no figures.
//! Absent: files.

mod reading;

pub(crate) use reading::read;
use std::fmt::Write as _;
use std::time::Duration;

/// The target of the Makefile that measures which seeded bugs the fault tests find.
pub(crate) const KILL_MATRIX: &str = "kill-matrix";
/// What the targets of the benchmarks begin with.
const BENCHMARKS: &str = "bench";

// The results.
const PASSED: &str = "passed";
const PASSED_IN_PART: &str = "passed; NOT RUN: ";
const FAILED: &str = "FAILED: ";
const NOT_RUN: &str = "NOT RUN: ";

// The fixed parts of a page, by which `read` finds the others.
const COMMIT_BEGIN: &str = "Commit `";
const COMMIT_END: &str = "`.";
const RUNS_TOOK: &str = " The runs took ";
const TABLE: &str = "| name | result | seconds | command |\n| --- | --- | --- | --- |\n";
const MATRIX: &str = "\n## Kill matrix\n\n";
const NO_MATRIX: &str = "There is none: see the result in the table.\n";
const FIGURES: &str = "\n## Figures\n";
const END_OF_FIGURES: &str = "\n```\n";

fn begin_of_figures(name: &str) -> String {
    format!("\n`make {name}`:\n\n```jsonl\n")
}

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

/// What an item left for the page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    /// The kill matrix, a table in Markdown.
    pub(crate) matrix: Option<String>,
    /// Lines of JSON.
    pub(crate) figures: Vec<String>,
}

/// An item: a line of the table.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// A target of the Makefile.
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
    pub(crate) findings: Findings,
}

impl Entry {
    pub(crate) fn not_run(name: &str, reason: &str) -> Self {
        let (took, findings) = (Duration::ZERO, Findings::default());
        Self { name: name.to_owned(), outcome: Outcome::NotRun(reason.to_owned()), took, findings }
    }

    pub(crate) fn result(&self) -> String {
        match &self.outcome {
            Outcome::Passed { not_run } if not_run.is_empty() => PASSED.to_owned(),
            Outcome::Passed { not_run } => format!("{PASSED_IN_PART}{}", not_run.join("; ")),
            Outcome::Failed(problem) => format!("{FAILED}{problem}"),
            Outcome::NotRun(reason) => format!("{NOT_RUN}{reason}"),
        }
    }
}

/// What all entries have in common.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Conditions {
    pub(crate) commit: String,
    /// A sentence.
    pub(crate) machine: String,
}

pub(crate) fn page(title: &str, conditions: &Conditions, entries: &[Entry]) -> String {
    let Conditions { commit, machine } = conditions;
    let total: Duration = entries.iter().map(|entry| entry.took).sum();
    let hours = total.as_secs_f64() / 3600.0;
    let mut page = format!(
        "# {title}\n\n{COMMIT_BEGIN}{commit}{COMMIT_END}\n\n{machine}{RUNS_TOOK}{hours:.1} hours.\n\n{TABLE}"
    );
    for entry in entries {
        let (name, seconds) = (&entry.name, entry.took.as_secs());
        let result = plain(&entry.result(), &['|', '\n']);
        // Writing to a string cannot fail.
        let _ = writeln!(page, "| {name} | {result} | {seconds} | `make {name}` |");
    }
    page.push_str(MATRIX);
    for entry in entries.iter().filter(|entry| entry.name == KILL_MATRIX) {
        match &entry.findings.matrix {
            Some(matrix) => page.push_str(&plain(matrix, &[])),
            None => page.push_str(NO_MATRIX),
        }
    }
    page.push_str(FIGURES);
    for Entry { name, findings, .. } in entries.iter().filter(|entry| is_benchmark(&entry.name)) {
        let figures = &findings.figures;
        if figures.is_empty() {
            let none = format!("\n`make {name}` has no figures: see the result in the table.\n");
            page.push_str(&none);
        } else {
            page.push_str(&begin_of_figures(name));
            page.push_str(&figures.join("\n"));
            page.push_str(END_OF_FIGURES);
        }
    }
    page
}

pub(crate) fn is_benchmark(name: &str) -> bool {
    name.starts_with(BENCHMARKS)
}

/// A text without what Markdown would read as its own, and without these.
fn plain(text: &str, more: &[char]) -> String {
    let is_special = |c: char| matches!(c, '\r' | '`' | '[' | ']' | '<' | '>') || more.contains(&c);
    text.chars().map(|c| if is_special(c) { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, outcome: Outcome, findings: Findings) -> Entry {
        Entry { name: name.into(), outcome, took: Duration::from_secs(1800), findings }
    }

    fn of(entries: &[Entry]) -> String {
        let conditions = Conditions { commit: "4f2c".into(), machine: "Machine: 2 cores.".into() };
        page("A title", &conditions, entries)
    }

    #[test]
    fn the_page_says_of_each_item_how_it_ended() {
        let passed = Outcome::Passed { not_run: vec!["a | b".into()] };
        let page = of(&[
            entry("soak", passed, Findings::default()),
            entry("fuzz", Outcome::Failed("exit status: 2".into()), Findings::default()),
            entry("latency", Outcome::NotRun("no root".into()), Findings::default()),
        ]);
        assert!(page.starts_with("# A title\n\nCommit `4f2c`.\n\nMachine: 2 cores. "), "{page}");
        assert!(page.contains("The runs took 1.5 hours."), "{page}");
        assert!(page.contains("| soak | passed; NOT RUN: a   b | 1800 | `make soak` |"), "{page}");
        assert!(page.contains("| fuzz | FAILED: exit status: 2 | 1800 | `make fuzz` |"), "{page}");
        assert!(page.contains("| latency | NOT RUN: no root | 1800 | `make latency` |"), "{page}");
    }

    #[test]
    fn the_page_has_the_kill_matrix_and_the_figures_or_says_that_there_are_none() {
        let passed = || Outcome::Passed { not_run: Vec::new() };
        let matrix = Some("| bug | found |\n|---|---|\n| stale-read | seed 1: `[x]` |\n".into());
        let figures = vec!["{\"a\":1}".into(), "{\"a\":2}".into()];
        let page = of(&[
            entry(KILL_MATRIX, passed(), Findings { matrix, figures: Vec::new() }),
            entry("bench", passed(), Findings { matrix: None, figures }),
            entry("bench-vllm", Outcome::NotRun("no vLLM".into()), Findings::default()),
        ]);
        assert!(page.contains("\n## Kill matrix\n\n| bug | found |\n"), "{page}");
        assert!(page.contains("| stale-read | seed 1:   x   |\n"), "{page}");
        let block = "\n`make bench`:\n\n```jsonl\n{\"a\":1}\n{\"a\":2}\n```\n";
        assert!(page.contains(block), "{page}");
        assert!(page.contains("`make bench-vllm` has no figures"), "{page}");
        let none = of(&[Entry::not_run(KILL_MATRIX, "not selected")]);
        assert!(none.contains("There is none"), "{none}");
    }
}
