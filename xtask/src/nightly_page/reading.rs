//! Owns: reading the page of a nightly run.
//!
//! Invariant: what it reads makes the same page again. A text that is no such page is an error.
//! Absent: files.

use super::{
    COMMIT_BEGIN, COMMIT_END, Conditions, END_OF_FIGURES, Entry, FAILED, FIGURES, Findings,
    KILL_MATRIX, MATRIX, NO_MATRIX, NOT_RUN, Outcome, PASSED, PASSED_IN_PART, RUNS_TOOK, TABLE,
    begin_of_figures,
};
use anyhow::{Context as _, Result};
use std::time::Duration;

/// The conditions and the entries of a page.
///
/// # Errors
/// When the text is no page of a nightly run.
pub(crate) fn read(page: &str) -> Result<(Conditions, Vec<Entry>)> {
    let (head, rest) = page.split_once(TABLE).context("there is no table of results")?;
    let (table, rest) = rest.split_once(MATRIX).context("there is no kill matrix")?;
    let (matrix, figures) = rest.split_once(FIGURES).context("there are no figures")?;
    let conditions = conditions(head).context("there is no commit or no machine")?;
    let entry = |line: &str| -> Result<Entry> {
        let mut entry = entry(line).with_context(|| format!("this is no result: {line}"))?;
        if entry.name == KILL_MATRIX && matrix != NO_MATRIX {
            entry.findings.matrix = Some(matrix.to_owned());
        }
        entry.findings.figures = figures_of(&entry.name, figures);
        Ok(entry)
    };
    Ok((conditions, table.lines().map(entry).collect::<Result<_>>()?))
}

fn conditions(head: &str) -> Option<Conditions> {
    let commit =
        head.lines().find_map(|line| line.strip_prefix(COMMIT_BEGIN)?.strip_suffix(COMMIT_END))?;
    let (machine, _) = head.lines().find_map(|line| line.split_once(RUNS_TOOK))?;
    Some(Conditions { commit: commit.to_owned(), machine: machine.to_owned() })
}

/// The entry of a line of the table.
fn entry(line: &str) -> Option<Entry> {
    let cells: Vec<&str> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
    let &[name, result, seconds, _command] = cells.as_slice() else { return None };
    Some(Entry {
        name: name.to_owned(),
        outcome: outcome(result)?,
        took: Duration::from_secs(seconds.parse().ok()?),
        findings: Findings::default(),
    })
}

fn outcome(result: &str) -> Option<Outcome> {
    if result == PASSED {
        Some(Outcome::Passed { not_run: Vec::new() })
    } else if let Some(parts) = result.strip_prefix(PASSED_IN_PART) {
        Some(Outcome::Passed { not_run: vec![parts.to_owned()] })
    } else if let Some(problem) = result.strip_prefix(FAILED) {
        Some(Outcome::Failed(problem.to_owned()))
    } else {
        Some(Outcome::NotRun(result.strip_prefix(NOT_RUN)?.to_owned()))
    }
}

/// The lines of JSON of a benchmark.
fn figures_of(name: &str, figures: &str) -> Vec<String> {
    let after = figures.split_once(&begin_of_figures(name)).map_or("", |(_, after)| after);
    let lines = after.split_once(END_OF_FIGURES).map_or("", |(lines, _)| lines);
    lines.lines().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::super::page;
    use super::*;

    fn conditions() -> Conditions {
        Conditions { commit: "4f2c".into(), machine: "Machine: 2 cores.".into() }
    }

    fn entry(name: &str, outcome: Outcome, findings: Findings) -> Entry {
        Entry { name: name.into(), outcome, took: Duration::from_secs(1800), findings }
    }

    fn passed() -> Outcome {
        Outcome::Passed { not_run: Vec::new() }
    }

    /// Of one item for each kind of result.
    fn whole_page() -> String {
        let matrix = Some("| bug | found |\n|---|---|\n| stale-read | seed 1 |\n".into());
        let figures = vec!["{\"a\":1}".into(), "{\"a\":2}".into()];
        let in_part = Outcome::Passed { not_run: vec!["a | b".into(), "c".into()] };
        let entries = [
            entry("soak", passed(), Findings::default()),
            entry("gc", in_part, Findings::default()),
            entry("fuzz", Outcome::Failed("exit status: 2".into()), Findings::default()),
            entry("latency", Outcome::NotRun("no root".into()), Findings::default()),
            entry("bench", passed(), Findings { matrix: None, figures }),
            entry("bench-vllm", Outcome::NotRun("no vLLM".into()), Findings::default()),
            entry(KILL_MATRIX, passed(), Findings { matrix, figures: Vec::new() }),
        ];
        page("A title", &conditions(), &entries)
    }

    #[test]
    fn what_is_read_makes_the_same_page_again() {
        let none = [Entry::not_run(KILL_MATRIX, "not selected")];
        let pages = [whole_page(), page("A title", &conditions(), &none)];
        for text in pages {
            let (conditions, entries) = read(&text).unwrap();
            assert_eq!(conditions.commit, "4f2c");
            assert_eq!(page("A title", &conditions, &entries), text);
        }
    }

    #[test]
    fn results_figures_and_the_kill_matrix_are_read() {
        let (_, entries) = read(&whole_page()).unwrap();
        let results: Vec<String> = entries.iter().map(Entry::result).collect();
        assert_eq!(results[..2], ["passed", "passed; NOT RUN: a   b; c"]);
        assert!(
            matches!(&entries[2].outcome, Outcome::Failed(problem) if problem == "exit status: 2")
        );
        assert!(matches!(&entries[3].outcome, Outcome::NotRun(reason) if reason == "no root"));
        assert_eq!(entries[4].findings.figures, ["{\"a\":1}", "{\"a\":2}"]);
        assert!(entries[5].findings.figures.is_empty());
        assert!(entries[6].findings.matrix.as_ref().unwrap().contains("| stale-read | seed 1 |"));
        assert_eq!(entries[6].took, Duration::from_secs(1800));
    }

    #[test]
    fn a_text_that_is_no_page_is_refused() {
        let page = whole_page();
        for (part, other) in [
            ("| name | result |", "| name |"),
            ("## Kill matrix", "## Matrix"),
            ("## Figures", "## Numbers"),
            ("Commit `4f2c`.", "Commit 4f2c."),
            ("| passed | 1800 |", "| good | 1800 |"),
            ("| passed | 1800 |", "| passed | long |"),
            ("| passed | 1800 |", "| passed |"),
        ] {
            assert!(page.contains(part), "{part}");
            assert!(read(&page.replacen(part, other, 1)).is_err(), "{other}");
        }
    }
}
