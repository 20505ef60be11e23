//! The errors of a trainer.

use rollout_proto::{ClientError, ErrorCode};
use rollout_storage::BlobError;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The cluster refused, or was unreachable.
    #[error(transparent)]
    Cluster(#[from] ClientError),
    /// The store refused, or its bytes are wrong.
    #[error(transparent)]
    Store(#[from] BlobError),
    /// A checkpoint does not match its manifest.
    #[error("{0}")]
    Damaged(String),
    /// The trainer was lost before its part of a checkpoint was durable, so the part is no longer needed.
    #[error("the trainer must recover, and abandons its part of the checkpoint")]
    Lost,
    /// The writer's task ended before it finished.
    #[error("the checkpoint's writer ended early")]
    WriterEnded,
}

impl TrainError {
    /// The cluster's refusal.
    fn code(&self) -> Option<ErrorCode> {
        match self {
            TrainError::Cluster(error) => error.code(),
            _ => None,
        }
    }

    /// Whether the trainer must recover: the others have, or a trainer was lost with state that the others may not
    /// have.
    pub fn has_to_recover(&self) -> bool {
        matches!(self, TrainError::Lost)
            || matches!(self.code(), Some(ErrorCode::IncarnationVoid | ErrorCode::NeedsRecovery))
    }

    /// Whether the checkpoint of this request is no longer open: a later one was complete first, or it was aborted,
    /// and the cluster may have forgotten it by now. The rank's part is then no longer needed.
    pub fn checkpoint_is_over(&self) -> bool {
        matches!(self.code(), Some(ErrorCode::CheckpointClosed | ErrorCode::CheckpointNotFound))
    }

    /// Whether the same request may still succeed: only time is needed.
    pub fn may_pass(&self) -> bool {
        matches!(self, TrainError::Cluster(error) if error.may_pass())
    }
}
