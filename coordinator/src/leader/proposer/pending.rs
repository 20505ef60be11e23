//! Bundles that are merged into the next command, and the callers that get its replies.
//!
//! *Invariant:* the operations of a bundle stay together and in order, and each caller gets the replies to its own
//! operations. A bundle that does not fit goes first into the next command.
//!
//! Absent: when the command is proposed; see the parent module.

use super::queue::{Bundle, Room};
use super::{Applied, LogPosition, ProposeResult};
use crate::leader::command_size::Weight;
use rollout_ledger::{Reply, ScopedOp};
use rollout_raft::ProposeError;
use tokio::sync::{mpsc, oneshot};

/// Bundles for the next command, and the one that did not fit into it.
#[derive(Default)]
pub(super) struct Pending {
    bundles: Vec<Bundle>,
    weight: Weight,
    spare: Option<Bundle>,
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.bundles.is_empty()
    }

    fn is_full(&self) -> bool {
        self.spare.is_some()
    }

    /// Whether it justifies a command of its own while others are in flight.
    pub(super) fn is_large(&self) -> bool {
        self.is_full() || self.weight.is_large()
    }

    /// Adds a bundle, or keeps it for the next command when it does not fit.
    pub(super) fn push(&mut self, bundle: Bundle) {
        let weight = self.weight.and(bundle.weight);
        if !weight.fits() && !self.is_empty() {
            self.spare = Some(bundle);
            return;
        }
        self.weight = weight;
        self.bundles.push(bundle);
    }

    /// Adds queued bundles, up to a command's bounds.
    pub(super) fn fill(&mut self, queue: &mut mpsc::Receiver<Bundle>) {
        while !self.is_full() {
            let Ok(bundle) = queue.try_recv() else { return };
            self.push(bundle);
        }
    }

    /// The next command's operations and their callers. Drops bundles whose callers are gone: they were never
    /// proposed.
    pub(super) fn take(&mut self) -> (Vec<Waiting>, Vec<ScopedOp>) {
        let taken = std::mem::take(self);
        if let Some(bundle) = taken.spare {
            self.push(bundle);
        }
        let mut ops = Vec::with_capacity(taken.weight.ops);
        let mut merged = Vec::with_capacity(taken.bundles.len());
        for bundle in taken.bundles.into_iter().filter(|bundle| !bundle.answer.is_closed()) {
            let Bundle { answer, room, scope, ops: own, .. } = bundle;
            merged.push(Waiting { ops: own.len(), answer, _room: room });
            ops.extend(own.into_iter().map(|op| ScopedOp { scope: scope.clone(), op }));
        }
        (merged, ops)
    }
}

/// The caller of a bundle that was proposed.
pub(super) struct Waiting {
    ops: usize,
    answer: oneshot::Sender<ProposeResult>,
    /// Held until it is answered.
    _room: Room,
}

/// Answers each caller of a command with its own replies, or with the error.
pub(super) fn distribute(merged: Vec<Waiting>, result: Result<(u64, Vec<Reply>), ProposeError>) {
    match result {
        Ok((index, replies)) => {
            let mut replies = replies.into_iter();
            let mut position = 0;
            for Waiting { ops, answer, .. } in merged {
                let (at, replies) =
                    (LogPosition { index, position }, replies.by_ref().take(ops).collect());
                let _ = answer.send(Ok(Applied { at, replies }));
                position += ops as u32;
            }
        }
        Err(error) => {
            for waiting in merged {
                let _ = waiting.answer.send(Err(error.clone()));
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::leader::command_size::BYTES_MAX;
    use rollout_ledger::id::{CoordEpoch, LedgerMs, SessionId, SlotNo, SlotRef};
    use rollout_ledger::{Body, Command, EngineSpec, Op, OpKind, RunSpec, Scope, limits, op};
    use std::sync::Arc;
    use tokio::sync::Semaphore;

    fn room() -> Room {
        Room::of(Arc::new(Semaphore::new(1)).try_acquire_owned().expect("there is room"))
    }

    /// A bundle whose caller waits forever.
    fn bundle(ops: Vec<Op>) -> Bundle {
        let (answer, waits) = oneshot::channel();
        std::mem::forget(waits);
        Bundle { weight: Weight::of(&ops), ops, scope: Scope::All, answer, room: room() }
    }

    /// A bundle with one claim.
    pub(in crate::leader::proposer) fn claim(rows_max: u32) -> Bundle {
        let slot = SlotRef { session: SessionId(1), slot: SlotNo(0) };
        bundle(vec![OpKind::Claim(op::Claim { slot, instance: 1, seq: 1, rows_max }).into()])
    }

    /// A run in which every field that a user chooses has its maximum length.
    fn large_run(name: usize) -> Bundle {
        let json = || "x".repeat(limits::JSON_BYTES_MAX);
        let spec = RunSpec {
            engine: EngineSpec { model: "m".into(), options_json: json(), ..EngineSpec::default() },
            options_json: json(),
            weight: 1,
            attempts_max: 1,
            ..RunSpec::default()
        };
        assert_eq!(spec.check(), Ok(()));
        let (name, folder) = (name.to_string(), format!("{name}/own"));
        let (namespace, spec) = ("default".to_owned(), Box::new(spec));
        bundle(vec![OpKind::CreateRun(op::CreateRun { namespace, name, spec, folder }).into()])
    }

    /// The size of one run is no reason to refuse others that are created at the same time.
    #[test]
    fn merged_operations_of_any_size_form_commands_that_consensus_accepts() {
        let (queue, mut bundles) = mpsc::channel(64);
        for name in 0..40 {
            assert!(queue.try_send(large_run(name)).is_ok(), "there is room");
        }
        let (mut pending, mut commands, mut proposed) = (Pending::default(), 0, 0);
        loop {
            pending.fill(&mut bundles);
            if pending.is_empty() {
                break;
            }
            let (merged, ops) = pending.take();
            (commands, proposed) = (commands + 1, proposed + merged.len());
            let command = Command {
                epoch: CoordEpoch(u64::MAX),
                at: LedgerMs(u64::MAX),
                wall_ms: u64::MAX,
                body: Body::scoped(ops),
            };
            let bytes = command.encode().len();
            assert!(bytes <= BYTES_MAX + 64, "{bytes} bytes of {} bundles", merged.len());
        }
        assert_eq!(proposed, 40);
        assert!(commands < 40, "as many as fit go together");
    }

    #[test]
    fn waiting_bundles_are_merged_up_to_the_bound_and_the_rest_keep_their_order() {
        let (queue, mut bundles) = mpsc::channel(16);
        for rows in [1000, 2000, 1000, 500] {
            queue.try_send(claim(rows)).ok();
        }
        let mut pending = Pending::default();
        pending.fill(&mut bundles);
        assert!(pending.is_full(), "the fourth waits for the next command");
        let (merged, ops) = pending.take();
        assert_eq!((merged.len(), ops.len()), (3, 3));
        let (merged, _) = pending.take();
        assert_eq!(merged.len(), 1);
        assert!(pending.is_empty());
    }

    #[test]
    fn each_bundle_of_a_command_learns_its_own_position_and_replies() {
        let (first, mut one) = oneshot::channel();
        let (second, mut two) = oneshot::channel();
        let replies = vec![Reply::Ok, Reply::Retried { rows: 1 }, Reply::Retried { rows: 2 }];
        let waiting = |ops, answer| Waiting { ops, answer, _room: room() };
        distribute(vec![waiting(1, first), waiting(2, second)], Ok((7, replies.clone())));
        let (one, two) = (one.try_recv().unwrap().unwrap(), two.try_recv().unwrap().unwrap());
        assert_eq!(
            (one.at, &one.replies[..]),
            (LogPosition { index: 7, position: 0 }, &replies[..1])
        );
        assert_eq!(
            (two.at, &two.replies[..]),
            (LogPosition { index: 7, position: 1 }, &replies[1..])
        );
    }

    #[test]
    fn a_bundle_whose_caller_has_gone_is_not_proposed() {
        let (answer, replies) = oneshot::channel();
        let mut pending = Pending::default();
        pending.push(Bundle { answer, ..claim(1) });
        pending.push(claim(2));
        drop(replies);
        let (merged, ops) = pending.take();
        let ops: Vec<Op> = ops.into_iter().map(|scoped| scoped.op).collect();
        assert_eq!((merged.len(), ops), (1, claim(2).ops));
    }

    #[test]
    fn each_operation_keeps_the_scope_of_its_bundle() {
        let team = || Scope::Namespaces(vec!["team".into()]);
        let mut pending = Pending::default();
        pending.push(claim(1));
        pending.push(Bundle { scope: team(), ..claim(2) });
        let (_, ops) = pending.take();
        let scopes: Vec<Scope> = ops.iter().map(|scoped| scoped.scope.clone()).collect();
        assert_eq!(scopes, [Scope::All, team()]);
        assert!(matches!(Body::scoped(ops), Body::ScopedOps(_)));
    }

    #[test]
    fn a_bundle_over_the_bound_goes_alone() {
        let mut pending = Pending::default();
        [claim(10_000), claim(1)].into_iter().for_each(|bundle| pending.push(bundle));
        assert_eq!(pending.take().0.len(), 1);
    }
}
