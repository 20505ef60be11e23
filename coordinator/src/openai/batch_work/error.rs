//! Why the work on a batch did not reach its end.

use rollout_ledger::{BatchError, limits};
use rollout_storage::BlobError;

/// Why work ended early.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkError {
    /// The work is no longer this member's.
    #[error("another member has the work, or there is none")]
    Lost,
    /// The batch fails with this error.
    #[error("{}: {}", .0.code, .0.message)]
    Invalid(BatchError),
    /// Something that may pass.
    #[error("{0}")]
    Failed(String),
}

impl WorkError {
    pub(super) fn failed(error: impl std::fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }

    /// The store did not give content that the batch needs. Content that is missing or damaged ends the batch: it does
    /// not come back.
    pub(super) fn reading(error: &BlobError) -> Self {
        match error {
            BlobError::Missing { .. } | BlobError::Corrupt { .. } => {
                tracing::error!(%error, "content of a batch cannot be read");
                let message =
                    "the stored content of the batch cannot be read: it is missing or damaged";
                Self::Invalid(of_batch("content_unreadable", message))
            }
            error => Self::failed(error),
        }
    }
}

/// An error about the batch as a whole.
pub(super) fn of_batch(code: &str, message: &str) -> BatchError {
    let message = shortened(message);
    BatchError { code: code.to_owned(), message, param: None, line: None }
}

/// A message within the ledger's bound.
pub(super) fn shortened(message: &str) -> String {
    message[..message.floor_char_boundary(limits::REASON_BYTES_MAX)].to_owned()
}
