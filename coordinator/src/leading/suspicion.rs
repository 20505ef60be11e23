//! Which workers are suspect: those of which nothing was heard for too long, until they are heard again.
//!
//! *Invariant:* however many fall silent at once, each is named in a command that consensus takes, by what it holds and no
//! more: nobody stays in its place for the sake of what others hold.

use super::Leading;
use crate::command_size;
use crate::ledger_read::ReadLedger;
use rollout_ledger::id::SessionId;
use rollout_ledger::seeded::{Bug, seeded};
use rollout_ledger::view::WorkerState;
use rollout_ledger::{Body, Op, OpKind};
use rollout_raft::ProposeError;
use std::collections::BTreeSet;
use std::time::Duration;

impl Leading {
    /// Proposes whose silence has begun or ended.
    pub(super) async fn look_at_workers(&self) {
        let workers: Vec<(SessionId, WorkerState)> = self.node.ledger(|l| {
            let sessions = l.worker_sessions().into_iter();
            sessions.filter_map(|id| Some((id, l.worker_state(id)?))).collect()
        });
        let mut failure = Duration::from_millis(self.workers.failure_ms);
        if seeded(Bug::LeaseLapsesEarly) {
            failure /= 10;
        }
        let ops = workers.iter().filter_map(|&(session, state)| {
            let silent = self.liveness.silence(session) >= failure;
            match state {
                WorkerState::Ready | WorkerState::Draining if silent => {
                    tracing::warn!(%session, "a worker is silent: suspect");
                    Some(self.suspect(session))
                }
                WorkerState::Suspect { .. } if !silent && self.liveness.was_heard(session) => {
                    tracing::info!(%session, "a suspect worker is back");
                    Some(OpKind::Unsuspect { session }.into())
                }
                _ => None,
            }
        });
        for ops in command_size::in_commands(ops) {
            match self.proposer.command(Body::Ops(ops)).await {
                Ok(_) => {}
                // It stays as it is, at every look, and its rows with it.
                Err(error @ ProposeError::TooLarge { .. }) => {
                    tracing::error!(%error, "a worker holds too much to be suspect");
                }
                Err(error) => tracing::debug!(%error, "workers' states were not applied"),
            }
            self.wake();
        }
        let alive: BTreeSet<SessionId> = workers.iter().map(|w| w.0).collect();
        self.liveness.retain(|id| alive.contains(&id));
        self.stealing.retain(|id| alive.contains(&id));
    }

    /// That a worker is silent, and what it may run.
    fn suspect(&self, session: SessionId) -> Op {
        let grace_ms = self.workers.started_grace_ms;
        if !self.liveness.was_heard(session) {
            // Of one that this leader never heard, nobody knows what it runs: anything that it has.
            let started = self.node.ledger(|l| l.held_rows(session));
            return OpKind::Suspect { session, started, grace_ms }.into();
        }
        let (started, unheard) = (self.liveness.started(session), self.unheard(session));
        match unheard.is_empty() {
            true => OpKind::Suspect { session, started, grace_ms }.into(),
            false => OpKind::SuspectUnheard { session, started, unheard, grace_ms }.into(),
        }
    }
}
