//! A batch of OpenAI's API: what its client asked for, its stage, and how it ended.
//!
//! *Invariant:* a batch is validated as a whole before it has a run, so no row runs before the whole file is valid. It
//! has a run from then on, and when the run has ended, it gets its output files and ends in one operation. An end never
//! changes. `completed + failed == total` at each end.
//!
//! While a batch has work for a member (validation, or writing its output files), the leader assigns it to one. Each
//! assignment gives a fence, a later one a greater fence, and the ledger refuses operations with any other fence.
//!
//! Absent: the status of a batch that has a run, which follows from that of the run (`batch_view.rs`); the segments of
//! a batch in validation, which have records of their own (`batch_image.rs`).

use crate::kernel::id::{BatchFence, LedgerMs, RunNo};
use crate::kernel::limits;
use crate::kernel::names::check_name;
use crate::kernel::reply::Rejection;
use crate::machine::version_gate::came_with;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The prefix of the id of a batch.
pub const BATCH_ID_PREFIX: &str = "batch_";
/// The metadata key whose value makes the creation of a batch idempotent for as long as the batch exists.
pub const ROLLOUT_KEY: &str = "rollout.key";

/// The statuses of OpenAI's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum BatchStatus {
    /// Its file is being read, and no row runs.
    Validating,
    /// Its file is invalid. An end.
    Failed,
    /// Its rows run.
    InProgress,
    /// No row runs any more, and its output files are being written.
    Finalizing,
    /// Every row has an outcome. An end.
    Completed,
    /// Its completion window has passed. An end.
    Expired,
    /// Its client has cancelled it, and its output files are being written.
    Cancelling,
    /// Its client has cancelled it. An end.
    Cancelled,
}

came_with!(BatchStatus, BATCH_STATUSES, {
    5: BatchStatus::Validating | BatchStatus::Failed | BatchStatus::InProgress
        | BatchStatus::Finalizing | BatchStatus::Completed | BatchStatus::Expired
        | BatchStatus::Cancelling | BatchStatus::Cancelled,
});

impl BatchStatus {
    /// Its name in OpenAI's API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Validating => "validating",
            Self::Failed => "failed",
            Self::InProgress => "in_progress",
            Self::Finalizing => "finalizing",
            Self::Completed => "completed",
            Self::Expired => "expired",
            Self::Cancelling => "cancelling",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for BatchStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A batch as its client described it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchSpec {
    /// The path that its lines call, such as `/v1/chat/completions`.
    pub endpoint: String,
    /// The id of its input file.
    pub input_file: String,
    /// Its completion window as it was sent, such as `24h`.
    pub completion_window: String,
    /// The same in ledger time from its creation: the deadline of its run.
    pub window_ms: u64,
    /// At most 16 pairs.
    pub metadata: BTreeMap<String, String>,
    /// Ledger time from its end for which its output files and its record are kept; 0 for the default.
    pub output_ttl_ms: u64,
    /// Canonical JSON of settings of its run that OpenAI's API does not have. The ledger does not read it.
    pub options_json: String,
}

impl BatchSpec {
    pub(super) fn check(&self) -> Result<(), Rejection> {
        let short = [&self.endpoint, &self.input_file, &self.completion_window];
        if short.iter().any(|text| text.is_empty() || text.len() > limits::NAME_BYTES_MAX) {
            let max = limits::NAME_BYTES_MAX;
            return Err(Rejection::Invalid(format!(
                "endpoint, input file and completion window have 1 to {max} bytes"
            )));
        }
        if !limits::BATCH_WINDOW_MS.contains(&self.window_ms) {
            let (min, max) = (limits::BATCH_WINDOW_MS.start(), limits::BATCH_WINDOW_MS.end());
            return Err(Rejection::Invalid(format!("a completion window has {min} to {max} ms")));
        }
        if self.output_ttl_ms != 0 && !limits::FILE_TTL_MS.contains(&self.output_ttl_ms) {
            let (min, max) = (limits::FILE_TTL_MS.start(), limits::FILE_TTL_MS.end());
            return Err(Rejection::Invalid(format!("output is kept for {min} to {max} ms")));
        }
        if self.options_json.len() > limits::BATCH_OPTIONS_BYTES_MAX {
            let max = limits::BATCH_OPTIONS_BYTES_MAX;
            return Err(Rejection::Invalid(format!("options have at most {max} bytes")));
        }
        self.check_metadata()
    }

    fn check_metadata(&self) -> Result<(), Rejection> {
        if self.metadata.len() > limits::METADATA_PAIRS_MAX {
            let max = limits::METADATA_PAIRS_MAX;
            return Err(Rejection::Invalid(format!("metadata has at most {max} pairs")));
        }
        let (key_max, value_max) =
            (limits::METADATA_KEY_CHARS_MAX, limits::METADATA_VALUE_CHARS_MAX);
        let fits = |text: &str, max: usize| text.chars().nth(max).is_none();
        match self.metadata.iter().all(|(key, value)| fits(key, key_max) && fits(value, value_max))
        {
            true => Ok(()),
            false => Err(Rejection::Invalid(format!(
                "a key of metadata has at most {key_max} characters, and a value {value_max}"
            ))),
        }
    }

    /// The client's own idempotency key.
    pub(super) fn rollout_key(&self) -> Option<&str> {
        self.metadata.get(ROLLOUT_KEY).map(String::as_str)
    }

    /// How long its record is kept after its end.
    pub(super) fn ttl_ms(&self) -> u64 {
        match self.output_ttl_ms {
            0 => *limits::FILE_TTL_MS.end(),
            ms => ms,
        }
    }

    /// Bytes of its texts, which have no other common bound.
    fn text_bytes(&self) -> usize {
        let pairs = self.metadata.iter().map(|(key, value)| key.len() + value.len());
        pairs.sum::<usize>() + self.options_json.len()
    }
}

/// Something wrong with a batch's file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchError {
    /// Machine-readable, such as `duplicate_custom_id`.
    pub code: String,
    /// The reason, human-readable.
    pub message: String,
    /// The field of the line that is wrong, if it is one.
    pub param: Option<String>,
    /// The line, from 1, if it is about one.
    pub line: Option<u64>,
}

impl BatchError {
    pub(super) fn check(&self) -> Result<(), Rejection> {
        let param = self.param.as_deref().unwrap_or_default();
        let names = self.code.len().max(param.len()) <= limits::NAME_BYTES_MAX;
        match names && self.message.len() <= limits::REASON_BYTES_MAX {
            true => Ok(()),
            false => Err(Rejection::Invalid(format!(
                "an error's code and param have at most {} bytes, and its message {}",
                limits::NAME_BYTES_MAX,
                limits::REASON_BYTES_MAX
            ))),
        }
    }

    fn text_bytes(&self) -> usize {
        self.code.len() + self.message.len() + self.param.as_ref().map_or(0, String::len)
    }
}

/// Tokens of all rows together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchUsage {
    /// Prompt tokens.
    pub input_tokens: u64,
    /// Of these, from a cache.
    pub cached_tokens: u64,
    /// Generated tokens.
    pub output_tokens: u64,
    /// Of these, for reasoning.
    pub reasoning_tokens: u64,
}

/// How far the validation of a batch's file has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchCursor {
    /// The first byte of the file that is in no segment yet.
    pub offset: u64,
    /// Lines before it, blank ones included.
    pub lines: u64,
    /// Rows in segments.
    pub rows: u64,
}

/// What happens to a batch now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stage {
    /// A member reads its file.
    Validating(BatchCursor),
    /// It has a run, and no output files yet.
    Started(Started),
    /// It has ended.
    Ended(Box<BatchEnd>),
}

/// A batch with a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Started {
    pub(super) run: RunNo,
    pub(super) in_progress_ms: u64,
    /// When it was cancelled through OpenAI's API.
    pub(super) cancelling_ms: Option<u64>,
}

/// The end of a batch, and what its record keeps of its run. Times are wall times in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BatchEnd {
    pub(super) status: BatchStatus,
    pub(super) at: LedgerMs,
    /// The log index of its end.
    pub(super) index: u64,
    pub(super) ended_ms: u64,
    pub(super) run: Option<RunNo>,
    pub(super) in_progress_ms: Option<u64>,
    pub(super) finalizing_ms: Option<u64>,
    pub(super) cancelling_ms: Option<u64>,
    pub(super) expires_ms: Option<u64>,
    pub(super) total: u64,
    pub(super) completed: u64,
    pub(super) usage: Option<BatchUsage>,
    pub(super) output_file: Option<String>,
    pub(super) error_file: Option<String>,
    pub(super) errors: Vec<BatchError>,
}

/// A batch: one record of the image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Batch {
    pub(super) id: String,
    pub(super) namespace: String,
    /// The id of the API key that created it; empty for none.
    pub(super) key: String,
    /// Of the request that created it.
    pub(super) body_hash: [u8; 32],
    /// Of the namespace and the idempotency key of that request.
    pub(super) idempotency: Option<[u8; 32]>,
    pub(super) spec: BatchSpec,
    /// The folder of the objects of its run within the namespace.
    pub(super) folder: String,
    pub(super) created_ms: u64,
    pub(super) created_at: LedgerMs,
    /// The member that has its present work.
    pub(super) owner: Option<u64>,
    /// The last fence; 0 before the first.
    pub(super) fence: BatchFence,
    /// The model of its rows, once it is known.
    pub(super) model: String,
    pub(super) stage: Stage,
}

impl Batch {
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Ended(_))
    }

    /// The run of a batch that has one, even if the run is gone.
    pub(super) fn run(&self) -> Option<RunNo> {
        match &self.stage {
            Stage::Validating(_) => None,
            Stage::Started(started) => Some(started.run),
            Stage::Ended(end) => end.run,
        }
    }

    /// Until when it counts for its idempotency key.
    pub(super) fn remembered_until(&self) -> LedgerMs {
        LedgerMs(self.created_at.0.saturating_add(limits::IDEMPOTENCY_MS))
    }

    /// When its record is removed, if it has ended. Not before its idempotency key is forgotten.
    pub(super) fn kept_until(&self) -> Option<LedgerMs> {
        let Stage::Ended(end) = &self.stage else { return None };
        let kept = LedgerMs(end.at.0.saturating_add(self.spec.ttl_ms()));
        Some(kept.max(self.remembered_until()))
    }

    /// When a completion window of this length ends, in wall time; `None` if it is 0, which means no end.
    pub(super) fn expires_ms(&self, window_ms: u64) -> Option<u64> {
        (window_ms > 0).then(|| self.created_ms.saturating_add(window_ms))
    }

    /// Bytes of texts in its record.
    pub(super) fn text_bytes(&self) -> u64 {
        let errors = match &self.stage {
            Stage::Ended(end) => end.errors.iter().map(BatchError::text_bytes).sum(),
            _ => 0,
        };
        (self.spec.text_bytes() + errors) as u64
    }
}

/// Refuses an id that is not that of a batch.
pub(super) fn check_batch_id(id: &str) -> Result<(), Rejection> {
    crate::openai::content::check_id(BATCH_ID_PREFIX, id)
}

/// Refuses the id of an API key that cannot be one.
pub(super) fn check_key(key: &str) -> Result<(), Rejection> {
    if key.is_empty() { Ok(()) } else { check_name("key's", key) }
}
