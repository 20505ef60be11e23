//! Owns: the findings of `infer batch --dry-run`, as human-readable text or as JSON for programs.
//!
//! Invariant: the JSON lists the same errors and warnings as stderr does, at most [`LISTED_MAX`] of each, with the
//! count of all.
//! Absent: finding them (`dry_run`).

use std::path::Path;

use rollout_batch::export::owner::Claim;
use rollout_batch::input::files::InputFile;
use rollout_batch::input::scan::{LineError, Scan};
use rollout_batch::submission::spec;
use rollout_batch::submission::speed::Speed;
use rollout_batch::submission::tokens::Counted;
use rollout_proto::v1;
use serde::Serialize;

use super::report;
use crate::output::{Report, u64_string};

/// The maximum of listed errors, and of listed warnings.
pub(super) const LISTED_MAX: usize = 1000;

/// The run that would be submitted, and its problems.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Plan {
    namespace: Option<String>,
    run: String,
    model: String,
    revision: String,
    task: String,
    model_id: String,
    /// Engine settings, JSON.
    options: String,
    /// Sampling parameters, JSON.
    sampling: String,
    files: usize,
    #[serde(serialize_with = "u64_string")]
    bytes: u64,
    #[serde(serialize_with = "u64_string")]
    rows: u64,
    /// Rows that equal an earlier one.
    #[serde(serialize_with = "u64_string")]
    repeated: u64,
    segments: u32,
    output: String,
    /// None if tokens were not counted.
    tokens: Option<Tokens>,
    errors: Vec<InputMessage>,
    #[serde(serialize_with = "u64_string")]
    error_count: u64,
    warnings: Vec<InputMessage>,
    #[serde(serialize_with = "u64_string")]
    warning_count: u64,
    /// The same, human-readable.
    #[serde(skip)]
    pub(super) text: String,
}

/// The token counts of an input.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Tokens {
    #[serde(serialize_with = "u64_string")]
    prompts: u64,
    #[serde(serialize_with = "u64_string")]
    longest: u64,
    #[serde(serialize_with = "u64_string")]
    completions_max: u64,
    /// Rows whose completion has no bound of its own.
    #[serde(serialize_with = "u64_string")]
    unbounded: u64,
    /// None if the speed is unknown.
    estimated_seconds: Option<u64>,
    problems: Vec<Problem>,
    #[serde(serialize_with = "u64_string")]
    problem_count: u64,
}

/// A row that the model would not accept.
#[derive(Debug, Serialize)]
struct Problem {
    row: u64,
    code: String,
    message: String,
}

/// A message about a line of the input.
#[derive(Debug, Serialize)]
struct InputMessage {
    file: String,
    /// The row of a Parquet file; null for a message about the whole file.
    line: Option<u64>,
    /// Null for a row of a table.
    column: Option<usize>,
    message: String,
}

impl Plan {
    pub(super) fn new(
        claim: &Claim,
        run_spec: &v1::RunSpec,
        (files, scan): (&[InputFile], &Scan),
        output: &Path,
    ) -> Self {
        let engine = run_spec.engine.clone().unwrap_or_default();
        let messages = |notes: &[LineError]| {
            notes.iter().take(LISTED_MAX).map(|note| InputMessage::of(note, files)).collect()
        };
        Self {
            namespace: claim.namespace.clone(),
            run: claim.run.clone(),
            model: engine.model,
            revision: engine.revision,
            task: engine.task,
            model_id: spec::model_id(run_spec).to_hex(),
            options: engine.options_json,
            sampling: run_spec.sampling_json.clone(),
            files: files.len(),
            bytes: files.iter().map(|file| file.bytes).sum(),
            rows: scan.rows,
            repeated: scan.repeated,
            segments: scan.segments,
            output: output.display().to_string(),
            tokens: None,
            errors: messages(&scan.errors),
            error_count: scan.error_count,
            warnings: messages(&scan.warnings),
            warning_count: scan.warning_count,
            text: report::plan(&claim.run, run_spec, files, scan, output),
        }
    }

    /// Adds the token counts. `room` is the limit of the workers' engines, and `speed` the measured speed with its run.
    pub(super) fn counted(
        &mut self,
        counted: &Counted,
        room: Option<u64>,
        speed: Option<(String, Speed)>,
    ) {
        let time =
            speed.as_ref().map(|(_, speed)| speed.estimate(counted.rows, counted.prompt_tokens));
        let problem = |problem: &rollout_batch::submission::tokens::Problem| Problem {
            row: problem.row,
            code: problem.code.clone(),
            message: problem.message.clone(),
        };
        self.tokens = Some(Tokens {
            prompts: counted.prompt_tokens,
            longest: counted.longest,
            completions_max: counted.completion_tokens_max,
            unbounded: counted.unbounded,
            estimated_seconds: time.map(|time| time.as_secs()),
            problems: counted.problems.iter().map(problem).collect(),
            problem_count: counted.problem_count,
        });
        self.text += &report::tokens(counted, room, speed);
    }
}

impl InputMessage {
    fn of(note: &LineError, files: &[InputFile]) -> Self {
        let file = files.get(note.file as usize).map(|file| file.path.display().to_string());
        Self {
            file: file.unwrap_or_default(),
            line: Some(note.line).filter(|line| *line > 0),
            column: Some(note.column).filter(|column| *column > 0),
            message: note.message.clone(),
        }
    }
}

impl Report for Plan {
    const KIND: &'static str = "BatchPlan";

    fn table(&self) -> String {
        self.text.clone()
    }
}
