//! Owns: what only a leader does: it proposes commands, and confirms that it leads.
//!
//! Invariant: a command is proposed for one term; an error says whether it may have been applied.
//! Absent: the meaning of a command; the ledger interprets it.

use bytes::Bytes;
use openraft::errors::{ClientWriteError, ForwardReason};
use openraft::impls::ProgressResponder;
use rollout_ledger::Reply;
use rollout_ledger::seeded::{Bug, seeded};

use super::Node;
use crate::consensus::leadership::Leadership;
use crate::consensus::quorum::{self, LEASES_AWAITED, QuorumLoss};
use crate::consensus::reads;
use crate::errors::{NotLeader, ProposeError};
use crate::types::Command;

impl Node {
    /// Proposes a command, if this member still leads in term `epoch`, and waits until it is applied here. Returns
    /// its log index and the ledger's replies.
    ///
    /// If a leader's lease has lapsed because its machine is busy for a moment, the call waits for it, two leases at
    /// most. Concurrent proposals are applied in any order.
    pub async fn propose(
        &self,
        epoch: u64,
        command: Vec<u8>,
    ) -> Result<(u64, Vec<Reply>), ProposeError> {
        let max = self.inner.config.command_bytes_max;
        if command.len() > max {
            return Err(ProposeError::TooLarge { bytes: command.len(), max });
        }
        let Some(running) = self.running() else {
            return Err(match *self.inner.leadership.borrow() {
                Leadership::Stopped => ProposeError::Stopped,
                _ => ProposeError::NotLeader { leader: None },
            });
        };
        let command = Command(Bytes::from(command));
        let lease = running.config.lease();
        let give_up = std::time::Instant::now() + LEASES_AWAITED * lease;
        loop {
            let (responder, answer) = ProgressResponder::complete_only();
            let write = running.raft.write(command.clone());
            let write = if seeded(Bug::EpochUnchecked) { write } else { write.with_leader(epoch) };
            let write = write.responder(responder);
            if write.await.is_err() {
                return Err(ProposeError::Stopped);
            }
            match answer.await {
                Ok(Ok(response)) => return Ok((response.log_id.index(), response.data.0)),
                // Refused before it was appended: it is safe to propose it again.
                Ok(Err(ClientWriteError::ForwardToLeader(forward))) => {
                    let late = std::time::Instant::now() >= give_up;
                    if forward.reason != ForwardReason::LeaseExpired || late {
                        return Err(ProposeError::NotLeader { leader: forward.leader_node });
                    }
                    tokio::time::sleep(lease / 10).await;
                }
                // Discarded, superseded by a snapshot, or consensus ended: others may have committed it.
                Ok(Err(_)) | Err(_) => return Err(ProposeError::Unknown),
            }
        }
    }

    /// Confirms with a quorum that this member leads, waits until it has applied everything committed before, and
    /// returns the term in which it leads.
    pub async fn barrier(&self) -> Result<u64, NotLeader> {
        Ok(reads::confirm(&*self.leading()?).await?.0)
    }

    /// For a linearizable read: returns once this member has applied everything that was acknowledged before the
    /// call, with the index up to which that is. Concurrent callers share one round of the quorum.
    pub async fn read_index(&self) -> Result<u64, NotLeader> {
        let running = self.leading()?;
        running.reads.read(&running).await
    }

    /// True while a quorum has acknowledged this leader within the lease, so no other member can have been elected.
    /// Cheap enough to ask for every message.
    pub fn lease_valid(&self) -> bool {
        self.running().is_some_and(|running| quorum::lease_valid(&running))
    }

    /// Returns once this leader has been without a quorum for so long that its proposals in progress must be treated
    /// as in doubt: two leases beyond its own. Time in which this process stalled counts once at most. Never returns
    /// at a healthy leader.
    pub async fn quorum_lost(&self) {
        let Some(running) = self.running() else { return };
        let mut loss = QuorumLoss::new(&running);
        while !loss.for_leases(LEASES_AWAITED, || !quorum::lease_valid(&running)).await {}
    }
}
