//! What all work on batches needs: the ledger, the store, memory, and a directory for temporary files.

use super::error::{WorkError, of_batch};
use super::memory::Memory;
use crate::grpc::BATCH_CALLER;
use crate::openai::error::ApiError;
use crate::openai::state::ApiState;
use rollout_ledger::{BatchTask, OpKind, OpenAiRefusal, Rejection, Reply};
use rollout_proto::{Identity, Role};
use std::path::PathBuf;
use std::sync::Arc;

/// Shared by all tasks of a member.
pub(super) struct Context {
    pub(super) api: Arc<ApiState>,
    /// For ids that do not fit into memory. Their files have no name, so they are gone with the process.
    pub(super) temp_dir: PathBuf,
    pub(super) memory: Memory,
}

impl Context {
    pub(super) fn new(api: Arc<ApiState>, temp_dir: PathBuf) -> Arc<Self> {
        Arc::new(Self { api, temp_dir, memory: Memory::default() })
    }

    /// Applies an operation of a task, within the namespace of its batch.
    ///
    /// # Errors
    /// [`WorkError::Invalid`] with the ledger's reason if it refuses the operation for good.
    pub(super) async fn apply(&self, task: &BatchTask, op: OpKind) -> Result<(), WorkError> {
        let who = Identity {
            role: Role::Client,
            name: format!("{BATCH_CALLER}{}", task.batch),
            namespaces: vec![task.namespace.clone()],
        };
        let refused = match self.api.propose(who, op).await {
            Ok(Reply::Rejected(Rejection::OpenAi(why))) if is_lost(&why) => {
                return Err(WorkError::Lost);
            }
            // An operation of an earlier task of this member has arrived late.
            Ok(Reply::Rejected(why @ Rejection::SegmentConflict { .. })) => {
                return Err(WorkError::failed(why));
            }
            Ok(Reply::Rejected(why)) => ApiError::from(&why),
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        match refused.status().is_server_error() {
            true => Err(WorkError::failed(refused)),
            false => Err(WorkError::Invalid(of_batch(refused.code(), &refused.to_string()))),
        }
    }
}

/// Whether the batch has no such work for this member any more.
fn is_lost(why: &OpenAiRefusal) -> bool {
    matches!(
        why,
        OpenAiRefusal::BatchFenceStale { .. }
            | OpenAiRefusal::BatchOtherEnd { .. }
            | OpenAiRefusal::BatchEnded { .. }
            | OpenAiRefusal::BatchUnknown(_)
    )
}
