//! Which workers are suspect: those that were silent for too long, until they are heard again.
//!
//! *Invariant:* however many workers fall silent at once, the leader's commands name each of them. A command ends or
//! revives at most [`limits::TICK_ATTEMPTS_MAX`] attempts, or those of one worker, so that members hold their ledgers'
//! locks for a short time. The leader drops a worker's heartbeats when its session has ended, and not before.

use super::LeaderState;
use crate::leader::command_size;
use crate::leader::ledger_read::ReadLedger;
use crate::leader::worker_liveness::return_time;
use rollout_ledger::id::SessionId;
use rollout_ledger::seeded::{Bug, seeded};
use rollout_ledger::view::WorkerState;
use rollout_ledger::{Body, Op, OpKind, limits, op};
use rollout_raft::ProposeError;
use std::time::Duration;

impl LeaderState {
    /// Proposes the workers whose silence has begun or ended.
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
        let times = (failure, return_time(workers.len()));
        let ops = workers.iter().filter_map(|&(session, state)| {
            let silent = self.liveness.is_silent(session, now, times);
            match state {
                WorkerState::Ready | WorkerState::Draining if silent => {
                    tracing::warn!(%session, "a worker is silent: suspect");
                    Some((self.suspect(session), self.attempts_of(session)))
                }
                WorkerState::Suspect { .. } if !silent && self.liveness.has_record(session) => {
                    tracing::info!(%session, "a suspect worker is back");
                    let back = OpKind::Unsuspect(op::Unsuspect { session }).into();
                    Some((back, self.attempts_of(session)))
                }
                _ => None,
            }
        });
        for ops in by_attempts(ops).into_iter().flat_map(command_size::in_commands) {
            match self.proposer.command(Body::Ops(ops)).await {
                Ok(_) => {}
                // The worker keeps its state and its rows, at every check.
                Err(error @ ProposeError::TooLarge { .. }) => {
                    tracing::error!(%error, "cannot mark a worker suspect: it holds too many rows");
                }
                Err(error) => tracing::debug!(%error, "workers' states were not applied"),
            }
            self.wake();
        }
        self.forget_ended();
    }

    fn attempts_of(&self, session: SessionId) -> usize {
        self.node.ledger(|l| l.attempts_of(session))
    }

    /// Forgets sessions that have ended, and the backlogs of suspect ones. It reads the ledger again, under its lock:
    /// a worker that registered after the check began may have been heard.
    fn forget_ended(&self) {
        self.node.ledger(|l| {
            let lives = |session| l.worker_state(session).is_some();
            self.liveness.retain(lives);
            // A silent worker answers no question, and its last report is no backlog to wait for.
            self.stealing.retain(|session| {
                let state = l.worker_state(session);
                matches!(state, Some(WorkerState::Ready | WorkerState::Draining))
            });
        });
    }

    /// The operation that makes a silent worker suspect, with the rows that it may run.
    fn suspect(&self, session: SessionId) -> Op {
        let grace_ms = self.workers.started_grace_ms;
        if self.liveness.started_at(session).is_none() {
            // Without a heartbeat to this leader, the worker may be running any of its rows. It may have registered
            // and wait, among thousands, to open its stream.
            let started = self.node.ledger(|l| l.held_rows(session));
            return OpKind::Suspect(op::Suspect { session, started, grace_ms }).into();
        }
        let (started, unreported_starts) =
            (self.liveness.started(session), self.unreported_starts(session));
        match unreported_starts.is_empty() {
            true => OpKind::Suspect(op::Suspect { session, started, grace_ms }).into(),
            false => OpKind::SuspectWithUnreportedStarts(op::SuspectWithUnreportedStarts {
                session,
                started,
                unreported_starts,
                grace_ms,
            })
            .into(),
        }
    }
}

/// Splits operations, each of which ends or revives the given number of attempts, so that no group exceeds
/// [`limits::TICK_ATTEMPTS_MAX`], unless it has only one operation.
fn by_attempts(ops: impl IntoIterator<Item = (Op, usize)>) -> Vec<Vec<Op>> {
    let mut all: Vec<Vec<Op>> = Vec::new();
    let mut together = 0;
    for (op, attempts) in ops {
        together += attempts;
        match all.last_mut() {
            Some(last) if together <= limits::TICK_ATTEMPTS_MAX => last.push(op),
            _ => {
                together = attempts;
                all.push(vec![op]);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader::state::test_leader::{PATIENCE, TestLeader};
    use rollout_config::coordinator::Workers;
    use rollout_ledger::id::{SegmentNo, SlotNo, SlotRef};
    use rollout_ledger::{BlobRef, EngineSpec, Reply, RunSpec, SegmentDecl};

    #[test]
    fn workers_that_hold_many_attempts_become_suspect_in_several_commands() {
        let op =
            |session| Op::from(OpKind::Unsuspect(op::Unsuspect { session: SessionId(session) }));
        let max = limits::TICK_ATTEMPTS_MAX;
        let held = [1, max - 1, 1, max + 5, 0, max, 0, 0];
        let ops: Vec<(Op, usize)> = (0..).map(op).zip(held).collect();
        let commands = by_attempts(ops.clone());
        let lens: Vec<usize> = commands.iter().map(Vec::len).collect();
        assert_eq!(lens, [2, 1, 1, 4], "what one holds is the most that it is over that");
        let whole: Vec<Op> = ops.into_iter().map(|op| op.0).collect();
        assert_eq!(commands.concat(), whole, "each is named, in its order");
        assert!(by_attempts([]).is_empty());
    }

    #[tokio::test]
    async fn a_worker_that_registers_while_others_become_suspect_is_not_forgotten() {
        // The leader's own checks find no silent worker.
        let workers = Workers { failure_ms: 3_600_000, ..Workers::default() };
        let leader = TestLeader::start(workers).await;
        let leader_state = &leader.state;
        let silent = leader.register("silent", 1).await;
        leader_state.liveness.heartbeat(silent, leader_state.now(), (Vec::new(), 1));
        let ended = leader.register("ended", 1).await;
        leader_state.liveness.record_message(ended, leader_state.now());
        // Runs until the command that makes the silent worker suspect is in flight.
        let mut look = Box::pin(leader_state.look_for_silence(Duration::ZERO));
        let under_way = futures::poll!(&mut look);
        assert!(under_way.is_pending(), "a worker becomes suspect");
        leader.op(OpKind::Deregister(op::Deregister { session: ended })).await;
        let new_worker = leader.register("newcomer", 1).await;
        leader_state.liveness.record_message(new_worker, leader_state.now());
        look.await;
        assert!(leader_state.liveness.has_record(new_worker));
        assert!(!leader_state.liveness.has_record(ended), "its session has ended");
        leader.end().await;
    }

    #[tokio::test]
    async fn a_worker_that_registered_again_and_has_no_stream_yet_keeps_its_started_rows() {
        let workers = Workers { failure_ms: 3_600_000, ..Workers::default() };
        let leader = TestLeader::start(workers).await;
        let leader_state = &leader.state;
        let session = leader.register("w", 1).await;
        let engine = EngineSpec { model: "m".into(), ..EngineSpec::default() };
        let spec = RunSpec { engine, weight: 1, attempts_max: 1, ..RunSpec::default() };
        let (namespace, name, folder) = ("default".to_owned(), "r".to_owned(), "r/own".to_owned());
        let create =
            OpKind::CreateRun(op::CreateRun { namespace, name, spec: Box::new(spec), folder });
        let Reply::Run { run, .. } = leader.op(create).await else { panic!("no run") };
        let segment = SegmentDecl { number: SegmentNo(0), rows: 4, blob: BlobRef::default() };
        leader.op(OpKind::AddSegments(op::AddSegments { run, segments: vec![segment] })).await;
        let slot = SlotRef { session, slot: SlotNo(0) };
        leader.op(OpKind::Claim(op::Claim { slot, instance: 1, seq: 1, rows_max: 4 })).await;
        // After an election the worker has registered again with all its rows, and waits, among thousands, to open its
        // stream.
        leader_state.liveness.record_message(session, leader_state.now());
        let suspected = async {
            loop {
                leader_state.look_for_silence(Duration::ZERO).await;
                let state = leader_state.node.ledger(|l| l.worker_state(session));
                if matches!(state, Some(WorkerState::Suspect { .. })) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, suspected).await.expect("it is suspect");
        let counts = leader_state.node.ledger(|l| l.run_view(run).expect("a run").counts);
        assert_eq!(counts.running, 4, "they would run twice");
        leader.end().await;
    }
}
