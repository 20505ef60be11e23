//! The results of all runs: lines for the terminal, an HTML page, and a file for programs.

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The page's name in the matrix's directory.
pub(super) const PAGE: &str = "index.html";
const FILE: &str = "index.json";
/// The heading above the lines of cells.
pub(super) const HEADING: &str =
    "run                                verdict      secs  operations  leaders  faults  what";

/// One run.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Cell {
    name: String,
    workload: String,
    nemesis: String,
    seed: u64,
    /// `pass`, `violation`, `unknown`, or `broken`: the run itself could not be made.
    verdict: &'static str,
    secs: u64,
    operations: u64,
    leader_changes: u64,
    faults: u64,
    violations: Vec<String>,
    doubts: Vec<String>,
}

/// All runs so far.
pub(super) struct Index {
    dir: PathBuf,
    /// Pairs of a workload and a kind of faults that should have a run.
    wanted: Vec<(String, String)>,
    cells: Vec<Cell>,
}

impl Cell {
    /// Reads the results in `dir` of a run that ended with `status` (`None`: it was stopped).
    pub(super) fn of(
        name: String,
        workload: &str,
        nemesis: &str,
        seed: u64,
        status: Option<i32>,
        dir: &Path,
        took: Duration,
    ) -> Result<Self> {
        let recorded = std::fs::read(dir.join("verdict.json")).ok();
        let recorded: Value = match recorded {
            Some(bytes) => serde_json::from_slice(&bytes)?,
            None => Value::Null,
        };
        let verdict = match status {
            Some(0) => "pass",
            Some(1) => "violation",
            Some(2) => "unknown",
            _ => "broken",
        };
        let texts = |key: &str| -> Vec<String> {
            let texts = recorded[key].as_array().into_iter().flatten();
            texts.filter_map(|text| text.as_str().map(str::to_owned)).collect()
        };
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let faults = recorded["coverage"]["faults"].as_object();
        Ok(Self {
            name,
            workload: workload.into(),
            nemesis: nemesis.into(),
            seed,
            verdict,
            secs: took.as_secs(),
            operations: number(&recorded["operations"]),
            leader_changes: number(&recorded["coverage"]["leader_changes"]),
            faults: faults.into_iter().flatten().map(|(_, count)| number(count)).sum(),
            violations: texts("violations"),
            doubts: texts("doubts"),
        })
    }

    fn what(&self) -> &str {
        let first = self.violations.first().or(self.doubts.first());
        first.and_then(|text| text.lines().next()).unwrap_or_default()
    }

    /// The line for the terminal, below [`HEADING`].
    pub(super) fn line(&self) -> String {
        let Self { name, verdict, secs, operations, leader_changes, faults, .. } = self;
        let what: String = self.what().chars().take(100).collect();
        format!(
            "{name:<34} {verdict:<11} {secs:>5} {operations:>11} {leader_changes:>8} {faults:>7}  {what}"
        )
        .trim_end()
        .to_owned()
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl Index {
    /// An index of runs below `dir`; each of these pairs of a workload and a kind of faults should have a run.
    pub(super) fn new(dir: &Path, wanted: Vec<(String, String)>) -> Self {
        Self { dir: dir.to_owned(), wanted, cells: Vec::new() }
    }

    /// The pairs without a run.
    pub(super) fn without_a_run(&self) -> Vec<&(String, String)> {
        let is = |cell: &Cell, pair: &(String, String)| {
            cell.workload == pair.0 && cell.nemesis == pair.1 && cell.verdict != "broken"
        };
        self.wanted.iter().filter(|pair| !self.cells.iter().any(|cell| is(cell, pair))).collect()
    }

    /// Adds a run, and rewrites the page and the file.
    ///
    /// # Errors
    /// When they cannot be written.
    pub(super) fn add(&mut self, cell: Cell) -> Result<()> {
        self.cells.push(cell);
        self.cells.sort_by(|a, b| a.name.cmp(&b.name)); // Those of several lanes end in any order.
        std::fs::write(self.dir.join(FILE), serde_json::to_vec_pretty(&self.cells)?)?;
        std::fs::write(self.dir.join(PAGE), self.page())?;
        Ok(())
    }

    fn count(&self, verdict: &str) -> usize {
        self.cells.iter().filter(|cell| cell.verdict == verdict).count()
    }

    /// One sentence that sums up all runs.
    pub(super) fn summary(&self) -> String {
        format!(
            "{} runs: {} passed, {} violations, {} unknown, {} could not be made; {} of {} pairs had no run",
            self.cells.len(),
            self.count("pass"),
            self.count("violation"),
            self.count("unknown"),
            self.count("broken"),
            self.without_a_run().len(),
            self.wanted.len()
        )
    }

    /// The exit status: a violation is certain, so it wins. `all_pairs`: each pair must have a run.
    pub(super) fn status(&self, all_pairs: bool) -> u8 {
        let whole = !all_pairs || self.without_a_run().is_empty();
        match (self.count("violation"), whole && self.count("pass") == self.cells.len()) {
            (1.., _) => 1,
            (0, false) => 2,
            (0, true) => 0,
        }
    }

    fn page(&self) -> String {
        let mut page = String::from(
            "<!doctype html><meta charset=\"utf-8\"><title>rollout-jepsen matrix</title><style>\
             body{font:14px sans-serif;margin:2em}td,th{padding:.2em .8em;text-align:left}\
             .pass{color:#228833}.violation{color:#ee6677;font-weight:bold}.unknown,.broken{color:#aa7700}\
             </style>",
        );
        let _ = write!(page, "<h1>{}</h1>", escaped(&self.summary()));
        page += "<table><tr><th>run<th>workload<th>faults<th>seed<th>verdict<th>seconds\
                 <th>operations<th>leader changes<th>proven faults<th>what</tr>";
        for cell in &self.cells {
            let Cell { name, workload, nemesis, seed, verdict, secs, operations, .. } = cell;
            let _ = write!(
                page,
                "<tr><td><a href=\"{name}/report.html\">{name}</a><td>{workload}<td>{nemesis}<td>\
                 {seed}<td class=\"{verdict}\">{verdict}<td>{secs}<td>{operations}<td>{}<td>{}<td>\
                 {}</tr>",
                cell.leader_changes,
                cell.faults,
                escaped(cell.what())
            );
        }
        page += "</table>";
        for (workload, kind) in self.without_a_run() {
            let _ = write!(page, "<p>no run of {workload} under {kind}</p>");
        }
        page
    }
}
