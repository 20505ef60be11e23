//! Owns: linearizable reads, many callers for one round of the quorum.
//!
//! Invariant: a caller is answered by a round that began after it asked.
//! Absent: what is read.

use std::sync::Arc;

use openraft::ReadPolicy;
use openraft::errors::{LinearizableReadError, RaftError};
use tokio::sync::{mpsc, oneshot};

use crate::errors::NotLeader;
use crate::running::Running;

/// Callers that may wait; more wait to get in.
const WAITING_MAX: usize = 16_384;

type Caller = oneshot::Sender<Result<u64, NotLeader>>;

/// Where callers ask.
#[derive(Clone)]
pub(crate) struct ReadQueue(mpsc::Sender<Caller>);

impl ReadQueue {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Caller>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Self(sender), receiver)
    }

    /// The index that this member has applied, which includes everything acknowledged before the call.
    pub(crate) async fn read(&self) -> Result<u64, NotLeader> {
        let (answer, answered) = oneshot::channel();
        self.0.send(answer).await.map_err(|_| NotLeader { leader: None })?;
        answered.await.unwrap_or(Err(NotLeader { leader: None }))
    }
}

/// Serves the queue: everyone who waits shares the next round.
pub(crate) async fn serve(running: Arc<Running>, mut queue: mpsc::Receiver<Caller>) {
    let mut callers = Vec::new();
    while queue.recv_many(&mut callers, WAITING_MAX).await > 0 {
        let result = confirm(&running).await.map(|(_, index)| index);
        for caller in callers.drain(..) {
            // A caller that went away needs no answer.
            drop(caller.send(result.clone()));
        }
    }
}

/// Confirms with a quorum that this member leads and waits until it has applied everything committed before; the
/// term that leads and the index.
pub(crate) async fn confirm(running: &Running) -> Result<(u64, u64), NotLeader> {
    match running.raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
        Ok(read) => Ok((read.committed_leader_id().term, read.index())),
        Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
            Err(NotLeader { leader: forward.leader_node })
        }
        Err(error) => {
            tracing::debug!(%error, "leadership was not confirmed");
            Err(NotLeader { leader: None })
        }
    }
}
