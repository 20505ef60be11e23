//! Which processes of training jobs are lost: participants and trainers that were silent for too long.
//!
//! *Invariant:* a command stays within the bounds of `command_size`, however many processes fall silent at once.
//! Absent: trainers in clusters of lower versions, whose keep-alives are in the log.

use super::LeaderState;
use crate::leader::command_size;
use crate::leader::job_liveness::{JobsState, SilentProcess};
use crate::leader::ledger_read::ReadLedger;
use rollout_ledger::id::SessionId;
use rollout_ledger::{Body, JobName, Ledger, Op, OpKind, Rejection, Reply, limits, op};
use std::collections::BTreeSet;

impl LeaderState {
    /// Reports processes of training jobs as lost after too long a silence.
    pub(super) async fn look_at_jobs(&self) {
        let changed = self.node.ledger(|l| {
            let state = JobsState::of(l);
            let is_behind = self.keep_alives.is_behind(state, self.now());
            let all = || l.keep_alives().chain(l.trainer_keep_alives()).collect::<Vec<_>>();
            is_behind.then(|| (state, all()))
        });
        if let Some((state, all)) = changed {
            self.keep_alives.read(&all, state, self.now());
        }
        let silent = self.keep_alives.silent(self.now());
        if silent.is_empty() {
            return;
        }
        let ops = self.node.ledger(|l| losses(l, &silent));
        for ops in command_size::in_commands(ops) {
            match self.proposer.command(Body::Ops(ops)).await {
                Ok((_, replies)) => {
                    // The ledger refuses them at every check, so their processes keep what they hold.
                    for reason in rejections(&replies) {
                        tracing::error!(%reason, "could not expire silent processes; will retry");
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "could not expire silent processes");
                }
            }
        }
    }
}

/// Why the ledger refused operations, for each that it refused.
fn rejections(replies: &[Reply]) -> impl Iterator<Item = &Rejection> {
    replies.iter().filter_map(|reply| match reply {
        Reply::Rejected(why) => Some(why),
        _ => None,
    })
}

/// The operations that lose these trainers of a job: the ledger refuses more than [`limits::TRAINERS_MAX`] in one.
fn lose_trainers(job: &JobName, trainers: &[(String, SessionId)]) -> Vec<OpKind> {
    let operations = trainers.chunks(limits::TRAINERS_MAX).map(|trainers| {
        OpKind::LoseTrainers(op::LoseTrainers { job: job.clone(), trainers: trainers.to_vec() })
    });
    operations.collect()
}

/// The operations that lose these processes. One that is gone meanwhile needs none.
fn losses(ledger: &Ledger, silent: &[SilentProcess]) -> Vec<Op> {
    let (participants, others): (Vec<SilentProcess>, Vec<SilentProcess>) =
        silent.iter().copied().partition(|one| ledger.participant(one.incarnation).is_some());
    let lost = participants.into_iter().map(|SilentProcess { incarnation, silent_ms }| {
        tracing::warn!(%incarnation, "a participant of a job is silent and counts as lost");
        OpKind::LoseParticipant(op::LoseParticipant { incarnation, silent_ms })
    });
    let trainers: BTreeSet<SessionId> = others.iter().map(|one| one.incarnation).collect();
    let jobs = ledger.trainers_with(&trainers).into_iter().flat_map(|(job, trainers)| {
        for (name, incarnation) in &trainers {
            let job = &job.job;
            tracing::warn!(job, trainer = name, %incarnation, "a trainer is silent and counts as lost");
        }
        lose_trainers(&job, &trainers)
    });
    lost.chain(jobs).map(Op::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader::state::test_leader::{PATIENCE, TestLeader};
    use rollout_config::coordinator::Workers;
    use rollout_ledger::{LossPolicy, SILENT_TRAINERS_VERSION, TrainerDecl, TrainerOp};
    use std::time::Duration;

    fn job() -> JobName {
        JobName { namespace: "default".into(), job: "sft".into() }
    }

    async fn join(leader: &TestLeader, name: &str) -> SessionId {
        let trainer = TrainerDecl {
            name: name.into(),
            host: "h".into(),
            instance: 1,
            // Longer than this test may be kept from running.
            keep_alive_ms: 3 * limits::KEEP_ALIVE_MIN_MS,
        };
        let join = TrainerOp::Join { job: job(), trainer, on_loss: LossPolicy::Continue };
        let Reply::Joined { incarnation, .. } = leader.op(OpKind::Trainer(join)).await else {
            panic!("it joins");
        };
        incarnation
    }

    fn is_lost(leader: &TestLeader, name: &str, incarnation: SessionId) -> bool {
        let asked = [(name.to_owned(), incarnation)];
        let present = leader.state.node.ledger(|l| Some(l.trainers_present(&job(), &asked)));
        present.expect("a ledger").expect("a job") == [false]
    }

    #[test]
    fn however_many_trainers_of_a_job_are_silent_no_operation_is_refused_for_their_number() {
        let most = limits::TRAINERS_MAX;
        let all: Vec<_> = (0..=most).map(|n| (format!("t{n}"), SessionId(n as u64))).collect();
        let sizes = |trainers: &[(String, SessionId)]| {
            let operations = lose_trainers(&job(), trainers).into_iter();
            let sizes = operations.map(|kind| match kind {
                OpKind::LoseTrainers(lost) => lost.trainers.len(),
                other => panic!("{other:?}"),
            });
            sizes.collect::<Vec<_>>()
        };
        assert_eq!(sizes(&all), [most, 1]);
        assert_eq!(sizes(&all[..most]), [most]);
    }

    #[tokio::test]
    async fn an_operation_that_the_ledger_refuses_is_told_from_one_that_it_applied() {
        let leader = TestLeader::start_version(SILENT_TRAINERS_VERSION, Workers::default()).await;
        let incarnation = join(&leader, "t").await;
        let lost =
            |trainers| Op::from(OpKind::LoseTrainers(op::LoseTrainers { job: job(), trainers }));
        let all = vec![("t".to_owned(), incarnation); limits::TRAINERS_MAX + 1];
        let ops = vec![lost(all), lost(vec![("t".to_owned(), incarnation)])];
        let applied = leader.state.proposer.command(Body::Ops(ops)).await;
        let (_, replies) = applied.expect("it is applied");
        let refused: Vec<&Rejection> = rejections(&replies).collect();
        assert!(matches!(refused[..], [Rejection::Limit { .. }]), "{replies:?}");
        assert!(is_lost(&leader, "t", incarnation));
        leader.end().await;
    }

    #[tokio::test]
    async fn a_silent_trainer_is_lost_and_one_that_is_heard_stays() {
        let leader = TestLeader::start_version(SILENT_TRAINERS_VERSION, Workers::default()).await;
        let (silent, heard) = (join(&leader, "silent").await, join(&leader, "heard").await);
        let lost = async {
            while !is_lost(&leader, "silent", silent) {
                leader.state.keep_alives.record_message(heard, leader.state.now());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, lost).await.expect("it is lost");
        assert!(!is_lost(&leader, "heard", heard));
        leader.end().await;
    }
}
