//! Owns: linearizable reads: many callers share one confirmation that this member leads.
//!
//! Invariant: a caller is answered by a confirmation that began after it asked. An idle queue delays nothing: its
//! caller gets a confirmation of its own; callers that come while one is in progress share the next. No timer.
//! Absent: what is read; when no quorum needs to be asked, see `lease`.

use std::sync::Arc;

use openraft::ReadPolicy;
use openraft::errors::{LinearizableReadError, RaftError};
use openraft::raft::linearizable_read::LinearizerOption;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};

use crate::consensus::running::Running;
use crate::errors::NotLeader;

/// Callers at a time; more wait to get in.
const CALLERS_MAX: usize = 16_384;
/// The most concurrent confirmations. One that fails, after a lease, delays only callers that wait behind all of
/// them.
const ROUNDS_MAX: usize = 4;

type Caller = oneshot::Sender<Result<u64, NotLeader>>;

#[derive(Default)]
struct Rounds {
    under_way: usize,
    waiting: Vec<Caller>,
}

/// The queue of callers. Clones share it.
#[derive(Clone)]
pub(crate) struct ReadQueue {
    rounds: Arc<Mutex<Rounds>>,
    room: Arc<Semaphore>,
    /// The runtime on which confirmations for others continue.
    runtime: Handle,
}

impl ReadQueue {
    /// Must be called on the runtime of consensus.
    pub(crate) fn new() -> Self {
        let room = Arc::new(Semaphore::new(CALLERS_MAX));
        Self { rounds: Arc::default(), room, runtime: Handle::current() }
    }

    /// The index that this member has applied, which includes everything acknowledged before the call.
    pub(crate) async fn read(&self, running: &Arc<Running>) -> Result<u64, NotLeader> {
        let Ok(_room) = self.room.acquire().await else { return Err(NotLeader { leader: None }) };
        let answered = {
            let mut rounds = self.rounds.lock();
            match rounds.under_way < ROUNDS_MAX {
                true => {
                    rounds.under_way += 1;
                    None
                }
                false => {
                    let (answer, answered) = oneshot::channel();
                    rounds.waiting.push(answer);
                    Some(answered)
                }
            }
        };
        match answered {
            Some(answered) => answered.await.unwrap_or(Err(NotLeader { leader: None })),
            None => {
                let _turn = ConfirmationSlot { queue: self.clone(), running: running.clone() };
                confirm_read(running).await
            }
        }
    }
}

/// A slot among the running confirmations. When it is dropped, waiting reads get the next one.
struct ConfirmationSlot {
    queue: ReadQueue,
    running: Arc<Running>,
}

impl Drop for ConfirmationSlot {
    fn drop(&mut self) {
        let mut rounds = self.queue.rounds.lock();
        rounds.waiting.retain(|caller| !caller.is_closed());
        if rounds.waiting.is_empty() {
            rounds.under_way -= 1;
            return;
        }
        let callers = std::mem::take(&mut rounds.waiting);
        drop(rounds);
        let turn = ConfirmationSlot { queue: self.queue.clone(), running: self.running.clone() };
        self.queue.runtime.spawn(async move {
            let result = confirm_read(&turn.running).await;
            for caller in callers {
                // A caller that went away needs no answer.
                drop(caller.send(result.clone()));
            }
            drop(turn);
        });
    }
}

/// Confirms reads requested before the call.
async fn confirm_read(running: &Running) -> Result<u64, NotLeader> {
    let round = running.read_lease.begin(running);
    let (term, index) = confirm_by(running, round.option()).await?;
    if !round.covers(term) {
        // It was elected again meanwhile.
        return confirm(running).await.map(|(_, index)| index);
    }
    running.read_lease.confirm(&round);
    Ok(index)
}

/// Confirms with a quorum that this member leads and waits until it has applied everything committed before; the
/// term that leads and the index.
pub(crate) async fn confirm(running: &Running) -> Result<(u64, u64), NotLeader> {
    confirm_by(running, ReadPolicy::ReadIndex.into()).await
}

async fn confirm_by(running: &Running, option: LinearizerOption) -> Result<(u64, u64), NotLeader> {
    match running.raft.ensure_linearizable(option).await {
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
