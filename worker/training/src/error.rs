//! The errors of a trainer.

use rollout_proto::{ClientError, ErrorCode};
use rollout_storage::BlobError;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The cluster refused, or could not be reached.
    #[error(transparent)]
    Cluster(#[from] ClientError),
    /// The store refused, or has other bytes than it should.
    #[error(transparent)]
    Store(#[from] BlobError),
    /// A checkpoint is not what it says.
    #[error("{0}")]
    Damaged(String),
    /// The trainer was lost before its part of a checkpoint was durable: nobody needs that any more.
    #[error("the trainer must recover, and abandons its part of the checkpoint")]
    Lost,
    /// The writer's task ended before its work.
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

    /// Whether the trainer has to recover: the others have, or a trainer was lost with what the others may not have.
    pub fn has_to_recover(&self) -> bool {
        matches!(self, TrainError::Lost)
            || matches!(self.code(), Some(ErrorCode::TrainerLeftBehind | ErrorCode::LineageTorn))
    }

    /// Whether the checkpoint that this was asked of is open no more: a later one was complete before, or it was given up,
    /// and the cluster may have forgotten it by now. Nobody needs the part of a rank that is told so.
    pub fn checkpoint_is_over(&self) -> bool {
        matches!(self.code(), Some(ErrorCode::CheckpointClosed | ErrorCode::CheckpointNotFound))
    }

    /// Whether the same request may yet be answered: nothing but time is in its way.
    pub fn may_pass(&self) -> bool {
        matches!(self, TrainError::Cluster(error) if error.may_pass())
    }
}
