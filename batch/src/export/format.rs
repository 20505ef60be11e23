//! Owns: the formats of an output: its files, and how a row becomes a line of one.
//!
//! Invariant: equal runs give equal bytes in each of them.
//! Absent: where files go (`output_sink`), and how many rows each has (`output`).

mod openai;
#[cfg(feature = "tables")]
mod table;

use rollout_proto::v1;
use serde::{Deserialize, Serialize};

pub use self::openai::{OpenaiLines, Unfinished};
#[cfg(feature = "tables")]
pub(super) use self::table::{Schema, Table, Types};
use super::row::{Outcome, RowFormat};
use crate::canonical::CanonicalError;
use crate::input::task::Task;
use crate::submission::spec;

/// The format of an output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum OutputFormat {
    /// JSON lines in rollout's format: completions.jsonl and errors.jsonl.
    #[default]
    Jsonl,
    /// Lines of the OpenAI Batch format: output.jsonl and errors.jsonl.
    OpenaiBatch,
    /// Tables: completions.parquet and errors.parquet.
    Parquet,
}

impl OutputFormat {
    /// The default format for the output of a task.
    pub fn of_task(task: Task) -> Self {
        match task {
            Task::Openai => Self::OpenaiBatch,
            _ => Self::Jsonl,
        }
    }

    /// The default format for the output of a run.
    pub fn of_spec(spec: &v1::RunSpec) -> Self {
        Self::of_task(Task::of(spec.engine.as_ref().map_or("", |engine| &engine.task)))
    }

    /// Refuses a format that the task's rows cannot have.
    pub fn check(self, task: Task) -> Result<(), String> {
        match (self, task) {
            (Self::OpenaiBatch, Task::Openai) | (Self::Jsonl | Self::Parquet, _) => Ok(()),
            (Self::OpenaiBatch, _) => {
                Err("openai-batch is for an input in the OpenAI Batch format".to_owned())
            }
        }
    }

    /// The name of the completions files, without extension.
    pub fn completions(self) -> &'static str {
        match self {
            Self::Jsonl | Self::Parquet => "completions",
            Self::OpenaiBatch => "output",
        }
    }

    /// The name of the errors files, without extension.
    pub fn errors(self) -> &'static str {
        "errors"
    }

    /// The extension of its files.
    pub fn ending(self) -> &'static str {
        match self {
            Self::Jsonl | Self::OpenaiBatch => "jsonl",
            Self::Parquet => "parquet",
        }
    }
}

/// Writes the lines of one run.
#[derive(Debug)]
pub enum Lines {
    /// The native format.
    Rows(RowFormat),
    /// Of the OpenAI Batch format.
    Openai(OpenaiLines),
}

impl Lines {
    /// Those of a run of this spec.
    ///
    /// # Errors
    /// The spec has sampling parameters or options that are not valid.
    pub fn new(spec: &v1::RunSpec, format: OutputFormat) -> Result<Self, CanonicalError> {
        Ok(match format {
            OutputFormat::Jsonl | OutputFormat::Parquet => {
                Self::Rows(RowFormat::new(spec, spec::model_id(spec))?)
            }
            OutputFormat::OpenaiBatch => Self::Openai(OpenaiLines::default()),
        })
    }

    /// Whether the format uses the long text of a failure.
    pub(super) fn wants_evidence(&self) -> bool {
        matches!(self, Self::Openai(_))
    }

    /// Appends a row's line. An error says what is not valid JSON.
    pub(super) fn write(
        &self,
        out: &mut String,
        item_id: [u8; 32],
        input: &[u8],
        outcome: &Outcome<'_>,
    ) -> Result<(), String> {
        match self {
            Self::Rows(rows) => rows.write(out, item_id, input, outcome),
            Self::Openai(lines) => lines.write(out, item_id, input, outcome),
        }
    }

    /// Appends the line of a row without an outcome, if the format has one.
    pub(super) fn write_unfinished(
        &self,
        out: &mut String,
        item_id: [u8; 32],
        input: &[u8],
    ) -> Result<(), String> {
        match self {
            Self::Rows(_) => Ok(()),
            Self::Openai(lines) => lines.write_unfinished(out, item_id, input),
        }
    }

    /// Appends the line of a row whose outcome does not fit into its file.
    pub(super) fn write_left_out(
        &self,
        out: &mut String,
        item_id: [u8; 32],
        input: &[u8],
    ) -> Result<(), String> {
        match self {
            Self::Rows(_) => Err("this format has no line without an outcome".to_owned()),
            Self::Openai(lines) => lines.write_left_out(out, item_id, input),
        }
    }

    /// Appends the line of a failed row whose input is no longer readable.
    pub(super) fn write_without_input(
        &self,
        out: &mut String,
        failure: &v1::FailedRow,
    ) -> Result<(), String> {
        match self {
            Self::Rows(rows) => rows.write_without_input(out, failure),
            Self::Openai(lines) => {
                lines.write_without_input(out, failure);
                Ok(())
            }
        }
    }
}
