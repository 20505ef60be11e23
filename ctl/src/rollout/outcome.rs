//! Owns: the final message of `infer batch`, `export` and `verify`, as human-readable text or as JSON for programs.
//!
//! Invariant: with `-o json`, stdout has one document, or one per line for several runs, and nothing else; the text
//! about a written output goes to stderr. The JSON is versioned like that of `rolloutctl`.
//! Absent: commands that fail; they print the reason on stderr, and their exit status gives its kind.

use super::error::CommandError;
use std::path::Path;

use clap::ValueEnum;
use rollout_batch::export::ReadOutcome;
use rollout_batch::export::failures::FailureKind;
use rollout_batch::export::layout::Layout;
use rollout_batch::submission::error::{BatchError, ROWS_FAILED};
use serde::Serialize;

use crate::output::{self, Format, Report, count, counted, u64_string};
use crate::stdio::to_stderr;

/// How a command says what came of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum OutcomeFormat {
    /// Human-readable lines. Not a stable format
    #[default]
    Table,
    /// One JSON document on stdout: `{"apiVersion", "kind", "asOf", "data"}`. Stable within v1
    Json,
}

impl OutcomeFormat {
    /// Prints a report to stdout.
    pub(super) fn print<R: Report>(self, report: &R) -> Result<(), CommandError> {
        output::emit(self.format(), report).map_err(unprinted)
    }

    /// Prints one of several reports to stdout; a JSON document is then one line.
    pub(super) fn print_next<R: Report>(self, report: &R) -> Result<(), CommandError> {
        output::emit_next(self.format(), report).map_err(unprinted)
    }

    fn format(self) -> Format {
        match self {
            Self::Table => Format::Table,
            Self::Json => Format::Json,
        }
    }

    /// Prints the report of a written output: JSON on stdout, or text on stderr.
    pub(super) fn print_written<R: Report>(self, report: &R) -> Result<(), CommandError> {
        match self {
            Self::Json => self.print(report),
            Self::Table => {
                to_stderr(&report.table());
                Ok(())
            }
        }
    }
}

fn unprinted(error: anyhow::Error) -> CommandError {
    let source = std::io::Error::other(error);
    BatchError::Output { path: "standard output".into(), source }.into()
}

/// A run's written output.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Written {
    #[serde(serialize_with = "u64_string")]
    rows: u64,
    #[serde(serialize_with = "u64_string")]
    done: u64,
    #[serde(serialize_with = "u64_string")]
    failed: u64,
    /// Rows without an outcome, which are omitted.
    #[serde(serialize_with = "u64_string")]
    open: u64,
    #[serde(serialize_with = "u64_string")]
    prompt_tokens: u64,
    #[serde(serialize_with = "u64_string")]
    completion_tokens: u64,
    /// The completions file; its name has a `*` if there are shards.
    completions: String,
    /// The file of rows that failed permanently, if any did.
    errors: Option<String>,
    /// Why rows failed, the most common reason first.
    failures: Vec<FailureKind>,
}

impl Written {
    pub(super) fn new(read: &ReadOutcome, dir: &Path, layout: &Layout) -> Self {
        let totals = read.totals;
        let path = |name: String| dir.join(name).display().to_string();
        Self {
            rows: totals.rows,
            done: totals.done,
            failed: totals.failed,
            open: totals.open,
            prompt_tokens: totals.prompt_tokens,
            completion_tokens: totals.completion_tokens,
            completions: path(layout.completions()),
            errors: (totals.failed > 0).then(|| path(layout.errors())),
            failures: read.failures.kinds(),
        }
    }

    /// The exit status of the command that wrote it.
    pub(super) fn exit_code(&self) -> u8 {
        if self.failed > 0 { ROWS_FAILED } else { 0 }
    }

    fn text(&self, run: &str) -> String {
        let (rows, done) = (counted(self.rows, "row"), counted(self.done, "completion"));
        let mut text = format!("run {run}: {rows}, {done} in {}", self.completions);
        if let Some(errors) = &self.errors {
            text += &format!(", {} failed for good in {errors}", counted(self.failed, "row"));
        }
        if self.open > 0 {
            text += &format!(", {} without an outcome left out", counted(self.open, "row"));
        }
        if self.prompt_tokens.max(self.completion_tokens) > 0 {
            let (prompts, completions) = (count(self.prompt_tokens), count(self.completion_tokens));
            text += &format!("; tokens: {prompts} in, {completions} out");
        }
        text.push('\n');
        if let Some(kind) = self.failures.first() {
            text += &commonest(kind);
        }
        text
    }
}

fn commonest(kind: &FailureKind) -> String {
    let id = kind.example_id.as_ref().map(|id| format!(" (id {id})")).unwrap_or_default();
    let (rows, row) = (counted(kind.rows, "row"), kind.example_row);
    format!(
        "  most common failure: {} ({}), {rows}; for example row {row}{id}: {}\n",
        kind.code, kind.class, kind.example_message
    )
}

/// The result of `infer batch`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BatchOutcome {
    pub(super) namespace: String,
    pub(super) run: String,
    /// None with `--detach`: the run was submitted and continues.
    pub(super) written: Option<Written>,
}

impl Report for BatchOutcome {
    const KIND: &'static str = "BatchOutcome";

    fn table(&self) -> String {
        match &self.written {
            Some(written) => written.text(&self.run),
            None => format!("{}\n", self.run),
        }
    }
}

/// The result of `export`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExportOutcome {
    pub(super) namespace: String,
    pub(super) run: String,
    pub(super) written: Written,
}

impl Report for ExportOutcome {
    const KIND: &'static str = "ExportOutcome";

    fn table(&self) -> String {
        self.written.text(&self.run)
    }
}

/// The result of `verify`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct VerifyOutcome {
    pub(super) namespace: String,
    pub(super) run: String,
    #[serde(serialize_with = "u64_string")]
    pub(super) rows: u64,
    #[serde(serialize_with = "u64_string")]
    pub(super) done: u64,
    #[serde(serialize_with = "u64_string")]
    pub(super) failed: u64,
    pub(super) segments: u32,
    #[serde(serialize_with = "u64_string")]
    pub(super) parts: u64,
    /// blake3 over the segments' digests in order, in hexadecimal digits.
    pub(super) input_digest: String,
    /// The directory whose files were compared, if any.
    pub(super) output: Option<String>,
}

impl Report for VerifyOutcome {
    const KIND: &'static str = "VerifyOutcome";

    fn table(&self) -> String {
        let mut text = String::new();
        let mut line = |what: &str, value: String| text += &format!("{what:<13} {value}\n");
        line("run", self.run.clone());
        line("rows", format!("{}  (each once)", self.rows));
        line("completions", self.done.to_string());
        line("failed", self.failed.to_string());
        line("segments", format!("{}  (all digests correct)", self.segments));
        line("parts", format!("{}  (all digests correct)", self.parts));
        line("input digest", self.input_digest.clone());
        if let Some(dir) = &self.output {
            line("output", format!("{dir}  (byte for byte)"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_batch::export::Totals;

    fn written(failed: u64) -> Written {
        let totals = Totals { rows: 8, done: 8 - failed, failed, ..Totals::default() };
        let totals = Totals { prompt_tokens: 1_200, completion_tokens: 90, ..totals };
        let read = ReadOutcome { totals, ..ReadOutcome::default() };
        let mut written = Written::new(&read, Path::new("out"), &Layout::default());
        if failed > 0 {
            written.failures.push(FailureKind {
                class: "transient".into(),
                code: "RO-7001".into(),
                rows: failed,
                example_row: 1,
                example_id: Some("\"own-1\"".into()),
                example_message: "the engine says no".into(),
            });
        }
        written
    }

    #[test]
    fn the_outcome_of_each_command_reads_so() {
        let (namespace, run) = ("default".to_owned(), "eval".to_owned());
        let batch =
            |written| BatchOutcome { namespace: namespace.clone(), run: run.clone(), written };
        crate::golden::report("batch-outcome.txt", &batch(Some(written(1))));
        crate::golden::report("batch-detached.txt", &batch(None));
        let export =
            ExportOutcome { namespace: namespace.clone(), run: run.clone(), written: written(0) };
        crate::golden::report("export-outcome.txt", &export);
        let verify = VerifyOutcome {
            namespace,
            run,
            rows: 8,
            done: 7,
            failed: 1,
            segments: 1,
            parts: 2,
            input_digest: "ab".repeat(32),
            output: Some("out".into()),
        };
        crate::golden::report("verify-outcome.txt", &verify);
    }

    #[test]
    fn only_rows_that_failed_for_good_have_that_exit_status() {
        assert_eq!((written(0).exit_code(), written(3).exit_code()), (0, 10));
    }
}
