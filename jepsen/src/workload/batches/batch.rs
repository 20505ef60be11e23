//! One batch: its rows, its spec and input files, and its output.
//!
//! *Invariant:* several batches may use one name, one after another; their keys, numbers, prompts and specs differ.

use crate::expected_outcome::ExpectedOutcome;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

pub(super) struct Batch {
    /// Its key in the history.
    pub(super) key: String,
    /// Its run.
    pub(super) name: String,
    /// Decides the expected outcomes of its rows.
    pub(super) number: u64,
    pub(super) rows: u64,
    dir: PathBuf,
    max_tokens: u64,
}

impl Batch {
    pub(super) fn new(dir: &Path, number: u64, rows: u64) -> Self {
        let name = format!("batch-{number}");
        let (key, dir) = (name.clone(), dir.to_owned());
        Self { key, name, number, rows, dir, max_tokens: 16 }
    }

    /// Another batch, with another number, that takes the name of this one once this one is gone.
    pub(super) fn next(&self, number: u64) -> Self {
        let (key, name) = (format!("{}-by-{number}", self.name), self.name.clone());
        Self { key, name, number, rows: self.rows, dir: self.dir.clone(), max_tokens: 17 }
    }

    /// The output directory of the client's `nth` call that starts over.
    pub(super) fn output(&self, nth: u32) -> PathBuf {
        self.dir.join(format!("{}-out-{nth}", self.key))
    }

    pub(super) fn log(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.key))
    }

    /// Writes its input, and its batch file for the `nth` output.
    pub(super) fn write(&self, nth: u32) -> Result<PathBuf> {
        let Self { key, name, number, .. } = self;
        let mut text = String::new();
        for row in 0..self.rows {
            let prompt = ExpectedOutcome::of(*number, row).prompt(*number, row);
            writeln!(text, r#"{{"id":"{name}-{row}","prompt":"{prompt}"}}"#)?;
        }
        let input = self.dir.join(format!("{key}.jsonl"));
        std::fs::write(&input, text)?;
        let config = self.dir.join(format!("{key}-{nth}.toml"));
        let (output, max_tokens) = (self.output(nth), self.max_tokens);
        let text = format!(
            "[model]\nuri = \"mock/tiny\"\n[sampling]\nmax_tokens = {max_tokens}\n[input]\nglob = {input:?}\n\
             [output]\ndir = {output:?}\n[run]\nfailures_max = 1000000\n"
        );
        std::fs::write(&config, text)?;
        Ok(config)
    }
}

/// Every line of an output: its row, its outcome, its text, and the part that it is in.
pub(super) fn lines(output: &Path) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    for (file, state) in [("completions.jsonl", "done"), ("errors.jsonl", "failed")] {
        let path = output.join(file);
        // If no row failed, there is no error file.
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).context("a line of the output")?;
            let id = line["id"].as_str().unwrap_or_default();
            let row: i64 = id.rsplit('-').next().and_then(|row| row.parse().ok()).unwrap_or(-1);
            let text = match state {
                "done" => &line["completion"],
                _ => &line["error"]["class"],
            };
            let part = line["completion_blob_id"].as_str().unwrap_or_default();
            found.push(json!([row, state, text.as_str().unwrap_or_default(), part]));
        }
    }
    Ok(found)
}
