//! A batch as a user submits it, and the checks of its output.

use crate::fleet::Fleet;
use crate::process::Process;
use crate::wait::eventually_or_show;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Time limit of a test's batch.
const PATIENCE: Duration = Duration::from_secs(240);

/// A submitted batch, followed by its own `rollout infer batch` process.
pub struct Batch {
    pub name: String,
    pub input: PathBuf,
    /// The output directory.
    pub output: PathBuf,
    pub rows: u64,
    process: Process,
}

/// A run's counts of rows by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub rows: u64,
    pub pending: u64,
    pub running: u64,
    pub waiting: u64,
    pub done: u64,
    pub failed: u64,
    pub returned: u64,
}

/// The executions of a run's mock engines, from their side files.
#[derive(Clone, Debug, Default)]
pub struct Executions {
    /// Executions that were started.
    pub started: u64,
    /// Attempts under which each row was started.
    pub attempts: BTreeMap<u64, Vec<u64>>,
}

impl Batch {
    /// Writes `rows` prompts and submits them. `lines` are added to the configuration.
    ///
    /// # Errors
    /// When a file cannot be written or the process not be started.
    pub fn submit(fleet: &Fleet, name: &str, rows: u64, lines: &str) -> Result<Self> {
        let input = fleet.path(&format!("{name}.jsonl"));
        let mut out = BufWriter::new(File::create(&input)?);
        for row in 0..rows {
            let tag = row * 7919 % 1009;
            writeln!(out, r#"{{"id":"{name}-{row}","prompt":"say {row} to {name}","tag":{tag}}}"#)?;
        }
        out.flush()?;
        Self::submit_file(fleet, name, input, rows, lines)
    }

    /// Writes `rows` prompts, those in `asks` with a request to the mock engine, and submits them. `lines` are added
    /// to the configuration.
    ///
    /// # Errors
    /// When a file cannot be written or the process not be started.
    pub fn submit_asking(
        fleet: &Fleet,
        name: &str,
        rows: u64,
        asks: &[(u64, &str)],
        lines: &str,
    ) -> Result<Self> {
        let mut text = String::new();
        for row in 0..rows {
            let ask = asks.iter().find(|ask| ask.0 == row).map_or("", |ask| ask.1);
            writeln!(text, r#"{{"id":"{name}-{row}","prompt":"say {row} {ask}"}}"#)?;
        }
        let input = fleet.path(&format!("{name}.jsonl"));
        std::fs::write(&input, text)?;
        Self::submit_file(fleet, name, input, rows, lines)
    }

    /// Submits an existing file.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn submit_file(
        fleet: &Fleet,
        name: &str,
        input: PathBuf,
        rows: u64,
        lines: &str,
    ) -> Result<Self> {
        let output = fleet.path(&format!("{name}-out"));
        let mut text = String::new();
        if !lines.contains("[model]") {
            text.push_str("[model]\nuri = \"mock/tiny\"\n");
        }
        if !lines.contains("[sampling]") {
            text.push_str("[sampling]\nmax_tokens = 16\n");
        }
        writeln!(text, "[input]\nglob = {input:?}")?;
        writeln!(text, "[output]\ndir = {output:?}\n{lines}")?;
        let config = fleet.path(&format!("{name}.batch.toml"));
        std::fs::write(&config, text)?;
        let config = config.to_string_lossy().into_owned();
        // The fleet may have no leader for longer than a user would wait.
        let args = ["infer", "batch", "--config", &config, "--name", name, "--timeout", "90s"];
        let log = fleet.path(&format!("{name}.batch.log"));
        let process = Process::start(fleet.rollout(&args), &log)?;
        Ok(Self { name: name.into(), input, output, rows, process })
    }

    /// The user's own process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The run's counts, once it exists and a member reports them.
    pub fn counts(&self, fleet: &Fleet) -> Option<Counts> {
        let run = fleet.ctl_json(&["--timeout", "5s", "run", "describe", &self.name]).ok()?;
        let counts = run.get("run")?.get("counts")?;
        let get = |key: &str| counts.get(key)?.as_str()?.parse().ok();
        Some(Counts {
            rows: get("rows")?,
            pending: get("pending")?,
            running: get("running")?,
            waiting: get("waiting")?,
            done: get("done")?,
            failed: get("failed")?,
            returned: get("returned")?,
        })
    }

    /// Waits until `look` accepts the run's counts.
    pub fn until(&self, fleet: &Fleet, what: &str, look: impl Fn(&Counts) -> bool) -> Counts {
        eventually_or_show(what, PATIENCE, |seen| {
            let counts = self.counts(fleet);
            *seen = counts.map_or("nobody can say".into(), |c| format!("{c:?}"));
            counts.filter(|c| look(c))
        })
    }

    /// Waits until the user's command succeeds, and checks its output row by row.
    ///
    /// # Errors
    /// When it fails, or a row is missing, duplicated, out of order or wrong.
    pub fn finish(&mut self, fleet: &Fleet) -> Result<()> {
        let status = self.process.wait(PATIENCE).with_context(|| fleet.logs())?;
        ensure!(status.success(), "rollout infer batch: {status}{}", fleet.logs());
        self.check_output()
    }

    /// Checks that the output has each input row exactly once, in order, unchanged, with the mock's answer.
    ///
    /// # Errors
    /// The first row for which that is wrong.
    pub fn check_output(&self) -> Result<()> {
        let given = BufReader::new(File::open(&self.input)?).lines();
        let path = self.output.join("completions.jsonl");
        let mut got = BufReader::new(File::open(&path).context("completions.jsonl")?).lines();
        let mut rows = 0;
        for line in given {
            let given: Value = serde_json::from_str(&line?)?;
            let line =
                got.next().with_context(|| format!("the output ends after {rows} rows"))??;
            let got: Value = serde_json::from_str(&line)?;
            for (key, value) in given.as_object().into_iter().flatten() {
                ensure!(got.get(key) == Some(value), "row {rows}: {key} is {:?}", got.get(key));
            }
            let last = || given["messages"].as_array()?.last()?["content"].as_str();
            let asked = given["prompt"].as_str().or_else(last).unwrap_or_default();
            let expected = format!("MOCK:{asked}");
            ensure!(got["completion"] == expected, "row {rows}: {}", got["completion"]);
            rows += 1;
        }
        ensure!(got.next().is_none(), "the output has more rows than the input");
        ensure!(rows == self.rows, "{rows} rows of {}", self.rows);
        Ok(())
    }
}

impl Executions {
    /// Reads the side files of these workers.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn read(paths: &[PathBuf]) -> Result<Self> {
        let mut all = Self::default();
        for path in paths {
            for line in BufReader::new(File::open(path)?).lines() {
                let line = line?;
                let fields: Vec<&str> = line.split(' ').collect();
                let [_, row, attempt, "started"] = fields[..] else { continue };
                all.started += 1;
                all.attempts.entry(row.parse()?).or_default().push(attempt.parse()?);
            }
        }
        Ok(all)
    }
}
