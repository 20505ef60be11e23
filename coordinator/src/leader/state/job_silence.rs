//! Which processes of training jobs are lost: participants and trainers that were silent for too long.
//!
//! *Invariant:* a command stays within the bounds of `command_size`, however many processes fall silent at once.
//! Absent: trainers in clusters of lower versions, whose keep-alives are in the log.

use super::LeaderState;
use crate::leader::command_size;
use crate::leader::keep_alives::Silent;
use crate::leader::ledger_read::ReadLedger;
use rollout_ledger::id::SessionId;
use rollout_ledger::{Body, Ledger, Op, OpKind, op};
use std::collections::BTreeSet;

impl LeaderState {
    /// Reports processes of training jobs as lost after too long a silence.
    pub(super) async fn look_at_jobs(&self) {
        let all: Vec<(SessionId, u64)> =
            self.node.ledger(|l| l.keep_alives().chain(l.trainer_keep_alives()).collect());
        let silent = self.keep_alives.silent(&all, self.now());
        if silent.is_empty() {
            return;
        }
        let ops = self.node.ledger(|l| losses(l, &silent));
        for ops in command_size::in_commands(ops) {
            if let Err(error) = self.proposer.command(Body::Ops(ops)).await {
                tracing::debug!(%error, "the loss of processes of jobs was not applied");
            }
        }
    }
}

/// The operations that lose these processes. One that is gone meanwhile needs none.
fn losses(ledger: &Ledger, silent: &[Silent]) -> Vec<Op> {
    let (participants, others): (Vec<Silent>, Vec<Silent>) =
        silent.iter().copied().partition(|one| ledger.participant(one.incarnation).is_some());
    let lost = participants.into_iter().map(|Silent { incarnation, silent_ms }| {
        tracing::warn!(ticket = %incarnation, "a participant of a job is silent: lost");
        OpKind::LoseParticipant(op::LoseParticipant { incarnation, silent_ms })
    });
    let trainers: BTreeSet<SessionId> = others.iter().map(|one| one.incarnation).collect();
    let jobs = ledger.trainers_with(&trainers).into_iter().map(|(job, trainers)| {
        for (name, incarnation) in &trainers {
            let job = &job.job;
            tracing::warn!(job, trainer = name, ticket = %incarnation, "a trainer is silent: lost");
        }
        OpKind::LoseTrainers(op::LoseTrainers { job, trainers })
    });
    lost.chain(jobs).map(Op::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader::state::test_leader::{Alone, PATIENCE};
    use rollout_config::coordinator::Workers;
    use rollout_ledger::{
        JobName, LossPolicy, Reply, SILENT_TRAINERS_VERSION, TrainerDecl, TrainerOp, limits,
    };
    use std::time::Duration;

    fn job() -> JobName {
        JobName { namespace: "default".into(), job: "sft".into() }
    }

    async fn join(alone: &Alone, name: &str) -> SessionId {
        let trainer = TrainerDecl {
            name: name.into(),
            host: "h".into(),
            instance: 1,
            // Longer than this test may be kept from running.
            keep_alive_ms: 3 * limits::KEEP_ALIVE_MIN_MS,
        };
        let join = TrainerOp::Join { job: job(), trainer, on_loss: LossPolicy::Continue };
        let Reply::Joined { incarnation, .. } = alone.op(OpKind::Trainer(join)).await else {
            panic!("it joins");
        };
        incarnation
    }

    fn is_lost(alone: &Alone, name: &str, incarnation: SessionId) -> bool {
        let asked = [(name.to_owned(), incarnation)];
        let present = alone.leading.node.ledger(|l| Some(l.trainers_present(&job(), &asked)));
        present.expect("a ledger").expect("a job") == [false]
    }

    #[tokio::test]
    async fn a_silent_trainer_is_lost_and_one_that_is_heard_stays() {
        let alone = Alone::of_version(SILENT_TRAINERS_VERSION, Workers::default()).await;
        let (silent, heard) = (join(&alone, "silent").await, join(&alone, "heard").await);
        let lost = async {
            while !is_lost(&alone, "silent", silent) {
                alone.leading.keep_alives.record_message(heard, alone.leading.now());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, lost).await.expect("it is lost");
        assert!(!is_lost(&alone, "heard", heard));
        alone.end().await;
    }
}
