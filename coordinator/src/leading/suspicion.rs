//! Which workers are suspect: those of which nothing was heard for too long, until they are heard again.
//!
//! *Invariant:* however many fall silent at once, each is named in a command that consensus takes, by what it holds and no
//! more: nobody stays in its place for the sake of what others hold. Whoever was heard is forgotten when its session has
//! ended, and not before.

use super::Leading;
use crate::command_size;
use crate::ledger_read::ReadLedger;
use rollout_ledger::id::SessionId;
use rollout_ledger::seeded::{Bug, seeded};
use rollout_ledger::view::WorkerState;
use rollout_ledger::{Body, Op, OpKind};
use rollout_raft::ProposeError;
use std::time::Duration;

impl Leading {
    /// Proposes whose silence has begun or ended.
    pub(super) async fn look_at_workers(&self) {
        let mut failure = Duration::from_millis(self.workers.failure_ms);
        if seeded(Bug::LeaseLapsesEarly) {
            failure /= 10;
        }
        self.look_for_silence(failure).await;
    }

    async fn look_for_silence(&self, failure: Duration) {
        let workers: Vec<(SessionId, WorkerState)> = self.node.ledger(|l| {
            let sessions = l.worker_sessions().into_iter();
            sessions.filter_map(|id| Some((id, l.worker_state(id)?))).collect()
        });
        let now = self.now();
        let ops = workers.iter().filter_map(|&(session, state)| {
            let silent = self.liveness.silence(session, now) >= failure;
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
        self.forget_ended();
    }

    /// Forgets sessions that are in the ledger no more. It is asked now, while nothing can be applied: whoever has
    /// registered since the look began may have been heard.
    fn forget_ended(&self) {
        self.node.ledger(|l| {
            let lives = |session| l.worker_state(session).is_some();
            self.liveness.retain(lives);
            self.stealing.retain(lives);
        });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Workers;
    use crate::leading::alone::Alone;

    #[tokio::test]
    async fn a_worker_that_registers_while_others_become_suspect_is_not_forgotten() {
        // By the leader's own looks nobody is silent.
        let workers = Workers { failure_ms: 3_600_000, ..Workers::default() };
        let alone = Alone::leading(workers).await;
        let leading = &alone.leading;
        alone.register("silent", 1).await;
        let ended = alone.register("ended", 1).await;
        leading.liveness.heard(ended, leading.now());
        // As far as the command that makes the silent one suspect, which is under way now.
        let mut look = Box::pin(leading.look_for_silence(Duration::ZERO));
        let under_way = futures::poll!(&mut look);
        assert!(under_way.is_pending(), "there is somebody to be suspect");
        alone.op(OpKind::Deregister { session: ended }).await;
        let newcomer = alone.register("newcomer", 1).await;
        leading.liveness.heard(newcomer, leading.now());
        look.await;
        assert!(leading.liveness.was_heard(newcomer));
        assert!(!leading.liveness.was_heard(ended), "its session has ended");
        alone.end().await;
    }
}
