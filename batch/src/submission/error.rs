//! Owns: why work on a batch ends early, and the exit status of a command that ends for it.
//!
//! Invariant: if the user can fix the problem, the text says how.
//! Absent: rows that failed permanently; those are results.

use std::io;
use std::path::{Path, PathBuf};

use rollout_proto::{ClientError, ErrorCode, v1};
use rollout_storage::BlobError;

use super::config::ConfigError;
use crate::canonical::CanonicalError;
use crate::hint::namespace_flag;
use crate::input::files::FilesError;
use crate::input::scan::ScanError;
use crate::quantities::counted;

#[cfg(test)]
mod golden;

/// The exit status of a command that succeeded although rows failed permanently. No failure has it.
pub const ROWS_FAILED: u8 = 10;

/// Why work on a batch failed.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// The batch file.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The name of a run's next revision.
    #[error("{0}")]
    Name(String),
    /// The list of input files.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// Sampling parameters or options that are not valid JSON.
    #[error("sampling or model options: {0}")]
    Json(#[from] CanonicalError),
    /// Reading the input.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// Invalid rows; each was reported.
    #[error("the input has {}, nothing was submitted", counted(*count, "error"))]
    Input {
        /// The number of invalid rows.
        count: u64,
    },
    /// The second reading found another input than the first.
    #[error("the input changed while it was read, nothing was appended")]
    InputChanged,
    /// Nothing to do.
    #[error("the input has no rows, nothing was submitted")]
    Empty,
    /// The object store, while writing.
    #[error("the object store {url} refuses a segment, nothing was submitted: {source}")]
    Upload {
        /// The store.
        url: String,
        source: BlobError,
    },
    /// The object store.
    #[error(transparent)]
    Store(#[from] BlobError),
    /// The cluster's refusal, or that it is unreachable.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The run exists and differs.
    #[error("run {name:?} {what}; {advice}")]
    Conflict {
        /// The run.
        name: String,
        /// How it differs.
        what: &'static str,
        advice: String,
    },
    /// The command needs a revision while an earlier one runs.
    #[error(
        "run {name:?} is still running with another input, model, sampling or limits ({done} of {} decided); wait \
         for its end, or add --replace, which cancels it and reuses the results of its finished rows",
        counted(*rows, "row")
    )]
    Revised {
        /// The running run.
        name: String,
        /// Its rows with an outcome.
        done: u64,
        rows: u64,
    },
    /// A file of the output directory.
    #[error("output {}: {source}", path.display())]
    Output {
        /// The file or directory.
        path: PathBuf,
        source: io::Error,
    },
    /// The batch file requires more workers than are ready.
    #[error(
        "[workers] count = {expected}, and {ready} of the namespace's workers are ready; nothing was submitted. A batch file \
         starts no workers: start them (`rollout dev --workers {expected}` on this machine), or leave count out. With \
         --workers {expected} this is a warning"
    )]
    FewWorkers {
        /// How many it requires.
        expected: u32,
        /// How many are ready.
        ready: usize,
    },
    /// The output directory belongs to another run.
    #[error("output {}: {what}; give another directory, or add --overwrite", dir.display())]
    OutputTaken {
        dir: PathBuf,
        /// Its owner.
        what: String,
    },
    /// The cluster's or the store's answers contradict each other.
    #[error("run {name:?}: {message}")]
    Inconsistent {
        /// The run.
        name: String,
        /// The contradiction.
        message: String,
    },
    /// The run was cancelled.
    #[error("run {name:?} was cancelled: {reason}")]
    Cancelled {
        /// The run.
        name: String,
        /// The reason, if one was given.
        reason: String,
    },
    /// The run's deadline ended it.
    #[error(
        "RO-2016: run {name:?} was ended by its deadline: {done} of {} have a result or failed for good; \
         `rollout export {name} --output DIR --partial{}` writes them",
        counted(*rows, "row"),
        namespace_flag(namespace)
    )]
    DeadlineExceeded {
        namespace: String,
        /// The run.
        name: String,
        /// Its rows with an outcome.
        done: u64,
        rows: u64,
    },
    /// The run has not ended, and partial results were not requested.
    #[error("run {name:?} has {} without an outcome; wait for its end, or add --partial", counted(*open, "row"))]
    NotEnded {
        /// The run.
        name: String,
        /// Rows without an outcome.
        open: u64,
    },
    /// Every row has an outcome, and more rows may come.
    #[error(
        "the input of run {name:?} is open for more rows; close it with `rollout run close {name}{}`, or add --partial",
        namespace_flag(namespace)
    )]
    InputOpen {
        namespace: String,
        /// The run.
        name: String,
    },
    /// The run accepts more rows and has some that this input lacks.
    #[error(
        "run {name:?} is open and has rows that this input lacks; add --keep-open to append the missing rows, or \
         close it with `rollout run close {name}{}`",
        namespace_flag(namespace)
    )]
    OpenWithOthers {
        namespace: String,
        /// The run.
        name: String,
    },
}

impl BatchError {
    /// 1 failed, 2 usage or input, 3 unavailable, 4 not found, 5 conflict, 7 TLS or permission, 8 outcome unknown;
    /// never [`ROWS_FAILED`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_)
            | Self::Name(_)
            | Self::Files(_)
            | Self::Json(_)
            | Self::Input { .. }
            | Self::InputChanged
            | Self::Empty => 2,
            Self::Store(BlobError::Url { .. }) => 2,
            Self::Client(error) => error.exit_code(),
            Self::Conflict { .. }
            | Self::OutputTaken { .. }
            | Self::FewWorkers { .. }
            | Self::Revised { .. }
            | Self::NotEnded { .. }
            | Self::InputOpen { .. }
            | Self::DeadlineExceeded { .. }
            | Self::OpenWithOthers { .. } => 5,
            Self::Upload { source, .. } | Self::Store(source) if source.retryable() => 3,
            Self::Scan(_)
            | Self::Upload { .. }
            | Self::Store(_)
            | Self::Output { .. }
            | Self::Inconsistent { .. }
            | Self::Cancelled { .. } => 1,
        }
    }

    /// A file of the output directory cannot be used.
    pub(crate) fn output(path: &Path, source: io::Error) -> Self {
        Self::Output { path: path.to_owned(), source }
    }

    /// If the run ended before every row had an outcome, the reason why that is not a success.
    pub fn of_end(run: &v1::RunSummary) -> Option<Self> {
        let (namespace, name) = (run.namespace.clone(), run.name.clone());
        match run.state() {
            v1::RunState::Cancelled => Some(Self::Cancelled { name, reason: run.reason.clone() }),
            v1::RunState::DeadlineExceeded => {
                let counts = run.counts.unwrap_or_default();
                let done = counts.done + counts.failed;
                Some(Self::DeadlineExceeded { namespace, name, done, rows: counts.rows })
            }
            _ => None,
        }
    }

    /// A refusal of the cluster, worded for a user who submits.
    pub(super) fn of_submission(name: &str, error: ClientError) -> Self {
        let (what, advice) = match error.code() {
            Some(ErrorCode::RunSpecConflict) => (
                "exists with another model, sampling, store or bounds",
                "without --resume, the command makes it a revision of that run",
            ),
            Some(
                ErrorCode::SegmentConflict | ErrorCode::InputMismatch | ErrorCode::InputClosed,
            ) => (
                "exists with another input",
                "repeat the command without --resume: it makes this input a revision of that run",
            ),
            Some(ErrorCode::RunEnded) => (
                "was cancelled",
                "repeat the command without --resume: it begins the next revision",
            ),
            Some(ErrorCode::DeadlineExceeded) => (
                "was ended by its deadline",
                "repeat the command without --resume: it begins the next revision",
            ),
            _ => return Self::Client(error),
        };
        Self::Conflict { name: name.to_owned(), what, advice: advice.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_to_give_next_is_whole_and_names_the_namespace() {
        let told = |namespace: &str| {
            let run = v1::RunSummary {
                namespace: namespace.into(),
                name: "eval".into(),
                state: v1::RunState::DeadlineExceeded as i32,
                ..v1::RunSummary::default()
            };
            BatchError::of_end(&run).unwrap().to_string()
        };
        let said = told("team-a");
        let command = "`rollout export eval --output DIR --partial --namespace team-a`";
        assert!(said.contains(command), "{said}");
        let said = told("default");
        assert!(said.contains("`rollout export eval --output DIR --partial`"), "{said}");

        let (namespace, name) = ("team-a".to_owned(), "eval".to_owned());
        let open = BatchError::InputOpen { namespace: namespace.clone(), name: name.clone() };
        for error in [open, BatchError::OpenWithOthers { namespace, name }] {
            let said = error.to_string();
            assert!(said.contains("`rollout run close eval --namespace team-a`"), "{said}");
        }
    }
}
