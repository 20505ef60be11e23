//! Owns: `cargo xtask nightly`: which long tests and benchmarks there are, and what this machine cannot run.
//!
//! Invariant: each one is in the report, with its result, or with the reason why it was not run. One that fails keeps no
//! other from running.
//! Absent: the report's files; that is `nightly_report`.

use crate::libtest;
use crate::nightly_page::{Entry, Findings, KILL_MATRIX, Outcome, is_benchmark, page};
use crate::nightly_report::{NightlyReport, ReportFile, conditions};
use crate::run::watched;
use crate::seeded;
use crate::workspace::Workspace;
use anyhow::{Result, ensure};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

/// Time to find out whether something can run: an environment of Python may have to be made.
const NEEDS_LIMIT: Duration = Duration::from_secs(60 * 60);
/// The figures of one item that the report contains.
const FIGURES_MAX: usize = 1000;

/// Something that takes long: a target of the Makefile.
struct Item {
    target: &'static str,
    hours: u64,
    /// A script for bash. If it fails, the item is not run, and the last line that it printed is the reason.
    needs: &'static str,
}

const VLLM: &str = "bash tests/vllm/setup.sh >/dev/null";
const TORCH: &str = r#"[ -n "${ROLLOUT_TORCH_PYTHON:-}" ] || bash tests/torch/setup.sh >/dev/null"#;
/// Clean roots of Debian. The scripts of the items look too, but they exit with 0, as if they had passed.
const ROOT: &str = r#". tests/debian_root.sh; not_run() { echo "$*"; exit 1; }; needs_root"#;
const REDIS: &str =
    r#"type -P redis-server >/dev/null || { echo "redis-server is not installed"; exit 1; }"#;

const fn item(target: &'static str, hours: u64, needs: &'static str) -> Item {
    Item { target, hours, needs }
}

/// Short ones first: a machine that is taken away has then run the most.
const ITEMS: &[Item] = &[
    item("latency", 2, ""),
    item("soak", 2, ""),
    item("gc", 2, ""),
    item("test-ops", 4, ""),
    item("test-upgrade", 4, ""),
    item("test-images", 2, ROOT),
    item("test-preflight-demo", 4, ROOT),
    item("test-install", 4, ROOT),
    item("test-slurm", 4, ROOT),
    item("test-systemd", 4, ROOT),
    item("test-torch", 4, TORCH),
    item("test-vllm", 4, VLLM),
    item("bench", 4, ""),
    item("bench-costs", 2, ""),
    item("bench-redis", 2, REDIS),
    item("bench-torch", 2, TORCH),
    item("bench-vllm", 4, VLLM),
    item("jepsen-nightly", 6, ""),
    item("fuzz", 6, ""),
    item(KILL_MATRIX, 24, ""),
];

#[derive(Debug, clap::Args)]
pub(crate) struct NightlyArgs {
    /// Run only this one, a target of the Makefile; repeatable
    #[arg(long, value_name = "TARGET")]
    only: Vec<String>,
    /// List what there is, and run nothing
    #[arg(long)]
    list: bool,
}

/// Runs what the arguments select. Returns whether nothing failed.
///
/// # Errors
/// When a name is unknown, or the report cannot be written.
pub(crate) fn run(workspace: &Workspace, args: &NightlyArgs) -> Result<bool> {
    if args.list {
        ITEMS.iter().for_each(|item| println!("{}", item.target));
        return Ok(true);
    }
    run_selected(workspace, &args.only, ReportFile::of_today(workspace)?)
}

/// Runs the items with these names, or all if there is no name, and writes the report after each. Returns whether the
/// report has no failure.
///
/// # Errors
/// When a name is unknown, or the report cannot be written.
pub(crate) fn run_selected(
    workspace: &Workspace,
    only: &[String],
    file: ReportFile,
) -> Result<bool> {
    for only in only {
        let known = ITEMS.iter().any(|item| item.target == only);
        ensure!(known, "nothing is named {only}; `cargo xtask nightly --list` lists the names");
    }
    let is_selected = |item: &Item| only.is_empty() || only.iter().any(|only| only == item.target);
    let conditions = conditions(workspace);
    let earlier = file.earlier(&conditions)?;
    let entries = ITEMS.iter().map(|item| before(item, is_selected(item), &earlier)).collect();
    let mut report = NightlyReport::begin(file, conditions, entries)?;
    for (place, item) in ITEMS.iter().enumerate().filter(|(_, item)| is_selected(item)) {
        let (outcome, took, findings) = one(workspace, item);
        report.set(place, outcome, took, findings)?;
    }
    Ok(report.end())
}

/// The entry of an item before anything runs. An item that is not selected keeps its earlier result.
fn before(item: &Item, selected: bool, earlier: &[Entry]) -> Entry {
    if selected {
        return Entry::not_run(item.target, "the run was interrupted before it");
    }
    let found = earlier.iter().find(|entry| entry.name == item.target);
    found.map_or_else(|| Entry::not_run(item.target, "not selected"), Entry::clone)
}

/// The page if nothing runs, for this reason.
pub(crate) fn page_without_runs(workspace: &Workspace, title: &str, reason: &str) -> String {
    let entries: Vec<Entry> =
        ITEMS.iter().map(|item| Entry::not_run(item.target, reason)).collect();
    page(title, &conditions(workspace), &entries)
}

fn one(workspace: &Workspace, item: &Item) -> (Outcome, Duration, Findings) {
    println!("-- {}", item.target);
    let mut findings = Findings::default();
    if let Some(reason) = missing(workspace, item) {
        return (Outcome::NotRun(reason), Duration::ZERO, findings);
    }
    let (begun, begun_at) = (Instant::now(), SystemTime::now());
    let mut parts: Vec<String> = Vec::new();
    let figures = &mut findings.figures;
    let mut look = |line: &str| {
        if let Some(reason) = libtest::not_run(line)
            && !parts.iter().any(|part| part == reason)
        {
            parts.push(reason.to_owned());
        }
        if is_benchmark(item.target) && is_figure(line) && figures.len() < FIGURES_MAX {
            figures.push(line.to_owned());
        }
    };
    let limit = Duration::from_secs(item.hours * 60 * 60);
    let ended = watched(make(workspace, item.target), limit, &mut look);
    let problem = match ended {
        Ok(ended) => ended.problem(),
        Err(error) => Some(format!("{error:#}")),
    };
    let problem = problem.or_else(|| control(workspace, item));
    let outcome = match problem {
        Some(problem) => Outcome::Failed(problem),
        None => Outcome::Passed { not_run: parts },
    };
    if item.target == KILL_MATRIX {
        let table = workspace.target.join("kill-matrix/matrix.md");
        findings.matrix = written_since(&table, begun_at);
    }
    (outcome, begun.elapsed(), findings)
}

/// Whether a benchmark has printed figures: an object of JSON in one line.
fn is_figure(line: &str) -> bool {
    line.starts_with('{') && serde_json::from_str::<Value>(line).is_ok()
}

/// The text of a file, unless it is older: then an earlier run wrote it.
fn written_since(path: &Path, begun: SystemTime) -> Option<String> {
    let written = std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()?;
    if written < begun { None } else { std::fs::read_to_string(path).ok() }
}

/// Why an item cannot run on this machine.
fn missing(workspace: &Workspace, item: &Item) -> Option<String> {
    if item.needs.is_empty() {
        return None;
    }
    let mut last = String::new();
    let mut look = |line: &str| {
        if !line.trim().is_empty() {
            last = line.trim().to_owned();
        }
    };
    let ended = watched(workspace.script(item.needs, &[]), NEEDS_LIMIT, &mut look);
    match ended {
        Ok(ended) => ended.problem().map(|problem| if last.is_empty() { problem } else { last }),
        Err(error) => Some(format!("{error:#}")),
    }
}

/// A build with seeded bugs contains their names: otherwise a release without them would prove nothing.
fn control(workspace: &Workspace, item: &Item) -> Option<String> {
    if item.target != KILL_MATRIX {
        return None;
    }
    let program = workspace.target.join("seeded-bugs/debug/rollout-coordinator");
    let checked =
        seeded::names(&workspace.root).and_then(|names| seeded::check_seeded(&program, &names));
    checked.err().map(|error| format!("{error:#}"))
}

/// A target of the Makefile, as a person makes it: not as a part of the `make` that may have started this. It gets the
/// commit, because the report changes a tracked file.
fn make(workspace: &Workspace, target: &str) -> Command {
    let mut command = workspace.command("make", &[target]);
    workspace.name_commit(&mut command);
    for variable in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES"] {
        command.env_remove(variable);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_is_a_target_of_the_makefile_and_listed_once() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Makefile");
        let makefile = std::fs::read_to_string(path).unwrap();
        for item in ITEMS {
            let is_it = |line: &str| line.split_once(':').is_some_and(|of| of.0 == item.target);
            assert!(makefile.lines().any(is_it), "the Makefile has no target {}", item.target);
            let same = ITEMS.iter().filter(|other| other.target == item.target);
            assert_eq!(same.count(), 1, "{}", item.target);
        }
    }

    #[test]
    fn the_benchmarks_and_the_kill_matrix_are_items() {
        assert!(ITEMS.iter().any(|item| item.target == KILL_MATRIX));
        assert!(ITEMS.iter().filter(|item| is_benchmark(item.target)).count() >= 4);
    }

    #[test]
    fn only_an_item_that_is_not_selected_keeps_its_earlier_result() {
        let passed = Outcome::Passed { not_run: Vec::new() };
        let earlier = [Entry { outcome: passed, ..Entry::not_run("soak", "") }];
        let result = |name: &'static str, selected: bool| {
            before(&item(name, 1, ""), selected, &earlier).result()
        };
        assert_eq!(result("soak", false), "passed");
        assert_eq!(result("soak", true), "NOT RUN: the run was interrupted before it");
        assert_eq!(result("gc", false), "NOT RUN: not selected");
    }

    #[test]
    fn figures_are_lines_of_json() {
        assert!(is_figure("{\"bench\":\"apply\"}"));
        for line in ["-- rolloutctl -o jsonl bench apply", "{", "{a}", "[1]", ""] {
            assert!(!is_figure(line), "{line}");
        }
    }

    #[test]
    fn a_matrix_that_an_earlier_run_wrote_is_not_that_of_this_run() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "| bug |").unwrap();
        let minute = Duration::from_secs(60);
        let now = SystemTime::now();
        assert_eq!(written_since(file.path(), now - minute).as_deref(), Some("| bug |"));
        assert_eq!(written_since(file.path(), now + minute), None);
        assert_eq!(written_since(Path::new("/no/such/file"), now - minute), None);
    }
}
