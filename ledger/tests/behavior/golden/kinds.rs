//! The kinds of commands that need golden bytes.
//!
//! *Invariant:* [`ALL`] has every kind of every type that a command contains. When the ledger gains a kind, this file
//! does not compile until the kind is listed, and then the test fails until a golden command contains it.

use super::{commands, unapplied};
use rollout_ledger::{
    BarrierMembers, BatchStatus, Body, CheckpointOp, Command, DatasetOp, FailureClass, FilePurpose,
    KeyRole, LeaderCause, LossPolicy, MemberOp, OpKind, Policy, RevocationOp, Revoked, RunAction,
    SettingOp, ShardOp, StoreOp, TokenOp, TokenRole, TrainerOp, op,
};
use std::collections::BTreeSet;

type Names = BTreeSet<&'static str>;

/// Defines a function per type that names the kind of a value, and the list of all kinds.
macro_rules! kinds {
    ($($name:ident($kind:ident): $($variant:ident)+;)*) => {
        $(fn $name(value: &$kind) -> &'static str {
            match value {
                $($kind::$variant { .. } => {
                    concat!(stringify!($kind), "::", stringify!($variant))
                })+
            }
        })*

        /// Every kind.
        const ALL: &[&str] = &[$($(concat!(stringify!($kind), "::", stringify!($variant))),+),*];
    };
}

kinds! {
    body(Body): OpenEpoch Ops Tick DigestAt SetVersion ScopedOps;
    op(OpKind): OpenClient CreateRun AddSegments CloseInput ControlRun Register Deregister Suspect Unsuspect Drain Claim
        Complete Fail Nack SetNamespace Steal ClaimSpeculatively EngineDied Cordon RetryRows ReuseResults Seal DeleteRun ForgetRun Store
        DropStore Join Participate Leave LoseParticipant CloseRendezvous Arrive AbortBarrier Dataset Trainer Shard Checkpoint
        Swept SetQuota SettleWebhook Token SuspectWithUnreportedStarts Revocation Member RoundStore Setting SetDeadline LoseTrainers
        SetWeight CreateApiKey RevokeApiKey CreateFile DeleteFile CreateUpload AddUploadPart CompleteUpload CancelUpload
        ForgetContent CreateBatch AssignBatch AddBatchSegments FailBatch StartBatch CancelBatch FinishBatch;
    batch_status(BatchStatus): Validating Failed InProgress Finalizing Completed Expired Cancelling Cancelled;
    file_purpose(FilePurpose): Batch BatchOutput UserData;
    run_action(RunAction): Pause Resume Cancel;
    failure(FailureClass): InvalidRow Transient OutOfMemory EngineDied InputUnreadable StoreRefused;
    store_op(StoreOp): Set Add CompareSet Append Delete Push Pop;
    barrier_members(BarrierMembers): Members Count Round;
    policy(Policy): Fail Shrink;
    dataset(DatasetOp): Create Delete;
    trainer(TrainerOp): Join Keep Leave Recover DeleteJob;
    loss(LossPolicy): Recover Continue;
    shard(ShardOp): Claim Finish Release;
    checkpoint(CheckpointOp): Begin Report Abort Retain Label Forget;
    token(TokenOp): Create Revoke Spend;
    token_role(TokenRole): Worker Client;
    key_role(KeyRole): Viewer Client Admin;
    revocation(RevocationOp): Revoke Withdraw;
    revoked(Revoked): Everyone Identity;
    member(MemberOp): Leads Started Stopped Unreachable Reachable Removed;
    setting(SettingOp): CordonAfter;
    leader_cause(LeaderCause): First Requested Stopping SlowDisk FullDisk Removal ConnectionsLost ElectionTimeout Again;
}

/// The kinds in an operation.
fn of_op(kind: &OpKind, names: &mut Names) {
    names.insert(op(kind));
    match kind {
        OpKind::ControlRun(op::ControlRun { action, .. }) => {
            names.insert(run_action(action));
        }
        OpKind::Fail(op::Fail { class, .. }) | OpKind::EngineDied(op::EngineDied { class, .. }) => {
            names.insert(failure(class));
        }
        OpKind::Store(op::UseStore { ops, .. })
        | OpKind::RoundStore(op::UseRoundStore { ops, .. }) => {
            names.extend(ops.iter().map(store_op));
        }
        OpKind::Arrive(op::Arrive { spec, .. }) => {
            names.extend([barrier_members(&spec.members), policy(&spec.policy)]);
        }
        OpKind::Dataset(inner) => {
            names.insert(dataset(inner));
        }
        OpKind::Trainer(inner) => {
            names.insert(trainer(inner));
            if let TrainerOp::Join { on_loss, .. } | TrainerOp::Recover { on_loss, .. } = inner {
                names.insert(loss(on_loss));
            }
        }
        OpKind::Shard(inner) => {
            names.insert(shard(inner));
        }
        OpKind::Checkpoint(inner) => {
            names.insert(checkpoint(inner));
        }
        OpKind::Token(inner) => {
            names.insert(token(inner));
            if let TokenOp::Create { spec, .. } = inner {
                names.insert(token_role(&spec.role));
            }
        }
        OpKind::CreateApiKey(op::CreateApiKey { spec, .. }) => {
            names.insert(key_role(&spec.role));
        }
        OpKind::FinishBatch(op::FinishBatch { ends_as, .. }) => {
            names.insert(batch_status(ends_as));
        }
        OpKind::CreateFile(op::CreateFile { spec, .. })
        | OpKind::CreateUpload(op::CreateUpload { spec, .. }) => {
            names.insert(file_purpose(&spec.purpose));
        }
        OpKind::Revocation(inner) => {
            let (RevocationOp::Revoke { whose, .. } | RevocationOp::Withdraw { whose, .. }) = inner;
            names.extend([revocation(inner), revoked(whose)]);
        }
        OpKind::Member(inner) => {
            names.insert(member(inner));
            if let MemberOp::Leads { cause, .. } = inner {
                names.insert(leader_cause(cause));
            }
        }
        OpKind::Setting(inner) => {
            names.insert(setting(inner));
        }
        // Nothing in it has kinds.
        _ => {}
    }
}

fn of(command: &Command, names: &mut Names) {
    names.insert(body(&command.body));
    command.body.ops().for_each(|op| of_op(&op.kind, names));
}

#[test]
fn every_kind_of_command_has_bytes_that_are_kept() {
    let mut names = Names::new();
    for (_, command) in commands::all().into_iter().chain(unapplied::all()) {
        of(&command, &mut names);
    }
    let missing: Vec<_> = ALL.iter().filter(|name| !names.contains(*name)).collect();
    assert!(
        missing.is_empty(),
        "no golden command has {missing:?}: add one to golden/unapplied.rs"
    );
}
