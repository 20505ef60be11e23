//! Apply cost: which commands may take long to apply, however few bytes they have, because their cost grows with the
//! state.
//!
//! *Invariant:* each kind is here by name: a new one does not compile without.
//! Absent: commands that take long because of their bytes, and how the caller of `apply` handles heavy commands.

use crate::machine::command::{Body, Command, Op, OpKind};
use crate::training::shard::ShardOp;
use crate::training::trainer::TrainerOp;

impl Command {
    /// Whether applying it may take milliseconds though it has few bytes.
    pub fn is_heavy(&self) -> bool {
        match &self.body {
            Body::Tick | Body::OpenEpoch => true,
            Body::DigestAt | Body::SetVersion(_) => false,
            Body::Ops(ops) => ops.iter().any(grows_with_state),
        }
    }
}

fn grows_with_state(op: &Op) -> bool {
    match &op.kind {
        // All rows of a run, all runs of a worker, all keys of a store, all waits of a job.
        OpKind::CloseInput { .. }
        // All open runs and cohorts of a namespace.
        | OpKind::CreateRun { .. }
        | OpKind::ControlRun { .. }
        | OpKind::RetryRows { .. }
        | OpKind::Seal { .. }
        | OpKind::DeleteRun { .. }
        | OpKind::ForgetRun { .. }
        | OpKind::Register(_)
        | OpKind::Deregister { .. }
        | OpKind::Suspect { .. }
        | OpKind::SuspectUnheard { .. }
        | OpKind::Unsuspect { .. }
        | OpKind::DropStore { .. }
        | OpKind::CloseRendezvous { .. }
        | OpKind::AbortBarrier { .. }
        // All shards of a job.
        | OpKind::Checkpoint(_)
        | OpKind::Trainer(
            TrainerOp::Join { .. }
            | TrainerOp::Leave(_)
            | TrainerOp::Recover { .. }
            | TrainerOp::DeleteJob(_),
        )
        | OpKind::Shard(ShardOp::Claim { .. })
        // All slots.
        | OpKind::Setting(_) => true,
        OpKind::OpenClient { .. }
        | OpKind::AddSegments { .. }
        | OpKind::Drain { .. }
        | OpKind::Claim { .. }
        | OpKind::Complete { .. }
        | OpKind::Fail { .. }
        | OpKind::Nack { .. }
        | OpKind::SetNamespace { .. }
        | OpKind::Steal { .. }
        | OpKind::Duplicate { .. }
        | OpKind::EngineDied { .. }
        | OpKind::Cordon { .. }
        | OpKind::Carry { .. }
        | OpKind::Store { .. }
        | OpKind::RoundStore { .. }
        | OpKind::Join { .. }
        | OpKind::Participate { .. }
        | OpKind::Leave { .. }
        | OpKind::LoseParticipant { .. }
        | OpKind::Arrive { .. }
        | OpKind::Dataset(_)
        | OpKind::Trainer(TrainerOp::Keep { .. })
        | OpKind::Shard(ShardOp::Finish { .. } | ShardOp::Release { .. })
        | OpKind::Swept { .. }
        | OpKind::SetQuota(_)
        | OpKind::Noticed { .. }
        | OpKind::Token(_)
        | OpKind::Revocation(_)
        | OpKind::Member(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::id::{CoordEpoch, LedgerMs, SessionId};

    #[test]
    fn what_does_much_is_heavy_however_few_its_bytes() {
        let heavy =
            |body| Command { epoch: CoordEpoch(1), at: LedgerMs(0), wall_ms: 0, body }.is_heavy();
        let ops = |kinds: Vec<OpKind>| Body::Ops(kinds.into_iter().map(Op::from).collect());
        let session = SessionId(1);
        let leave = || OpKind::Leave { ticket: session };
        assert!(heavy(Body::Tick));
        assert!(heavy(ops(vec![leave(), OpKind::Unsuspect { session }])));
        assert!(!heavy(ops(vec![leave()])));
        let (namespace, name, spec, folder) = Default::default();
        assert!(heavy(ops(vec![OpKind::CreateRun { namespace, name, spec, folder }])));
        assert!(!heavy(Body::DigestAt));
    }
}
