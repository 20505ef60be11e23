//! The names of all commands, and which of them a reply grants.
//!
//! *Invariant:* every variant has a name and is in the list: a new one does not compile until it has a name here, and
//! fails the test of random stories until they reach it.

use rollout_ledger::{
    Body, CheckpointOp, DatasetOp, FailureClass, MemberOp, OpKind, Reply, RevocationOp, RunAction,
    SettingOp, ShardOp, StoreOp, TokenOp, TrainerOp, op,
};
use std::collections::BTreeMap;

/// Defines a function from a value to its name, and the list of all names, from one table. No wildcard covers a
/// variant.
macro_rules! names {
    ($name:ident, $all:ident, $kind:ty, { $($pattern:pat => $text:literal,)* }) => {
        fn $name(value: &$kind) -> &'static str {
            match value { $($pattern => $text,)* }
        }
        const $all: &[&str] = &[$($text),*];
    };
}

names!(body, BODIES, Body, {
    Body::OpenEpoch => "open epoch",
    Body::Ops(_) => "operations",
    Body::Tick => "tick",
    Body::DigestAt => "digest at",
    Body::SetVersion(_) => "set version",
    Body::ScopedOps(_) => "operations in scopes",
});

names!(op, OPS, OpKind, {
    OpKind::OpenClient(_) => "open client",
    OpKind::CreateRun(_) => "create run",
    OpKind::AddSegments(_) => "add segments",
    OpKind::CloseInput(_) => "close input",
    OpKind::ControlRun(op::ControlRun { action: RunAction::Pause, .. }) => "pause",
    OpKind::ControlRun(op::ControlRun { action: RunAction::Resume, .. }) => "resume",
    OpKind::ControlRun(op::ControlRun { action: RunAction::Cancel, .. }) => "cancel",
    OpKind::Register(_) => "register",
    OpKind::Deregister(_) => "deregister",
    OpKind::Suspect(_) => "suspect",
    OpKind::SuspectWithUnreportedStarts(_) => "suspect unheard",
    OpKind::Unsuspect(_) => "unsuspect",
    OpKind::Drain(_) => "drain",
    OpKind::Claim(_) => "claim",
    OpKind::Complete(_) => "complete",
    OpKind::Fail(op::Fail { class: FailureClass::InvalidRow, .. }) => "fail: invalid row",
    OpKind::Fail(op::Fail { class: FailureClass::Transient, .. }) => "fail: transient",
    OpKind::Fail(op::Fail { class: FailureClass::OutOfMemory, .. }) => "fail: out of memory",
    OpKind::Fail(op::Fail { class: FailureClass::EngineDied, .. }) => "fail: engine died",
    OpKind::Fail(op::Fail { class: FailureClass::InputUnreadable, .. }) => "fail: input unreadable",
    OpKind::Fail(op::Fail { class: FailureClass::StoreRefused, .. }) => "fail: store refused",
    OpKind::Nack(_) => "nack",
    OpKind::SetNamespace(_) => "set namespace",
    OpKind::Steal(_) => "steal",
    OpKind::ClaimSpeculatively(_) => "duplicate",
    OpKind::EngineDied(_) => "engine died",
    OpKind::Cordon(op::Cordon { cordoned: true, .. }) => "cordon",
    OpKind::Cordon(op::Cordon { cordoned: false, .. }) => "uncordon",
    OpKind::RetryRows(op::RetryRows { rows: None, .. }) => "retry all",
    OpKind::RetryRows(op::RetryRows { rows: Some(_), .. }) => "retry rows",
    OpKind::ReuseResults(_) => "carry",
    OpKind::Seal(_) => "seal",
    OpKind::Swept(_) => "swept",
    OpKind::DeleteRun(_) => "delete run",
    OpKind::ForgetRun(_) => "forget run",
    OpKind::Store(_) => "store",
    OpKind::DropStore(_) => "drop store",
    OpKind::RoundStore(_) => "store of a member",
    OpKind::Join(_) => "join",
    OpKind::Participate(_) => "participate",
    OpKind::Leave(_) => "leave",
    OpKind::LoseParticipant(_) => "lose participant",
    OpKind::CloseRendezvous(_) => "close rendezvous",
    OpKind::Arrive(_) => "arrive",
    OpKind::AbortBarrier(_) => "abort barrier",
    OpKind::Dataset(DatasetOp::Create { .. }) => "create dataset",
    OpKind::Dataset(DatasetOp::Delete { .. }) => "delete dataset",
    OpKind::Trainer(TrainerOp::Join { .. }) => "join training",
    OpKind::Trainer(TrainerOp::Keep { .. }) => "keep trainers",
    OpKind::Trainer(TrainerOp::Leave(_)) => "leave training",
    OpKind::Trainer(TrainerOp::Recover { .. }) => "recover",
    OpKind::Trainer(TrainerOp::DeleteJob(_)) => "delete training",
    OpKind::Shard(ShardOp::Claim { .. }) => "claim shard",
    OpKind::Shard(ShardOp::Finish { .. }) => "finish shard",
    OpKind::Shard(ShardOp::Release { .. }) => "release shard",
    OpKind::Checkpoint(CheckpointOp::Begin { .. }) => "begin checkpoint",
    OpKind::Checkpoint(CheckpointOp::Report { .. }) => "report checkpoint",
    OpKind::Checkpoint(CheckpointOp::Abort { .. }) => "abort checkpoint",
    OpKind::Checkpoint(CheckpointOp::Retain { .. }) => "retain checkpoints",
    OpKind::Checkpoint(CheckpointOp::Label { .. }) => "label checkpoint",
    OpKind::Checkpoint(CheckpointOp::Forget { .. }) => "forget checkpoint",
    OpKind::SetQuota(_) => "set quota",
    OpKind::SettleWebhook(_) => "noticed",
    OpKind::Token(TokenOp::Create { .. }) => "create token",
    OpKind::Token(TokenOp::Revoke { .. }) => "revoke token",
    OpKind::Token(TokenOp::Spend(_)) => "spend token",
    OpKind::Revocation(RevocationOp::Revoke { .. }) => "revoke certificates",
    OpKind::Revocation(RevocationOp::Withdraw { .. }) => "withdraw a revocation",
    OpKind::Member(MemberOp::Leads { .. }) => "member leads",
    OpKind::Member(MemberOp::Started { .. }) => "member started",
    OpKind::Member(MemberOp::Stopped { .. }) => "member stopped",
    OpKind::Member(MemberOp::Unreachable { .. }) => "member unreachable",
    OpKind::Member(MemberOp::Reachable { .. }) => "member reachable",
    OpKind::Member(MemberOp::Removed { .. }) => "member removed",
    OpKind::Setting(SettingOp::CordonAfter(_)) => "set cordon-after",
    OpKind::SetDeadline(_) => "set deadline",
    OpKind::LoseTrainers(_) => "lose trainers",
    OpKind::SetWeight(_) => "set weight",
    OpKind::CreateApiKey(_) => "create API key",
    OpKind::RevokeApiKey(_) => "revoke API key",
    OpKind::CreateFile(_) => "create file",
    OpKind::DeleteFile(_) => "delete file",
    OpKind::CreateUpload(_) => "create upload",
    OpKind::AddUploadPart(_) => "add part",
    OpKind::CompleteUpload(_) => "complete upload",
    OpKind::CancelUpload(_) => "cancel upload",
    OpKind::CreateBatch(_) => "create batch",
    OpKind::AssignBatch(_) => "assign batch",
    OpKind::AddBatchSegments(_) => "add batch segments",
    OpKind::FailBatch(_) => "fail batch",
    OpKind::StartBatch(_) => "start batch",
    OpKind::CancelBatch(_) => "cancel batch",
    OpKind::FinishBatch(_) => "finish batch",
    OpKind::ForgetContent(_) => "forget content",
});

names!(store_op, STORE_OPS, StoreOp, {
    StoreOp::Set { .. } => "set",
    StoreOp::Add { .. } => "add",
    StoreOp::CompareSet { .. } => "compare and set",
    StoreOp::Append { .. } => "append",
    StoreOp::Delete { .. } => "delete",
    StoreOp::Push { .. } => "push",
    StoreOp::Pop { .. } => "pop",
});

/// The commands of [`OPS`] that have dry runs: those that administrators' requests cause.
const DRY_RUNS: &[&str] = &[
    "pause",
    "resume",
    "cancel",
    "drain",
    "cordon",
    "uncordon",
    "retry all",
    "retry rows",
    "set deadline",
    "set weight",
    "delete run",
    "close rendezvous",
    "abort barrier",
    "create dataset",
    "delete dataset",
    "delete training",
    "abort checkpoint",
    "retain checkpoints",
    "label checkpoint",
    "set quota",
    "create token",
    "revoke token",
    "create API key",
    "revoke API key",
    "revoke certificates",
    "withdraw a revocation",
    "set cordon-after",
];

/// Whether an operation of this kind has a dry run.
pub(crate) fn has_dry_run(kind: &OpKind) -> bool {
    DRY_RUNS.contains(&op(kind))
}

#[test]
fn dry_runs_are_of_commands() {
    let unknown: Vec<_> = DRY_RUNS.iter().filter(|name| !OPS.contains(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

/// How often each command was given, and how often it was granted.
#[derive(Debug, Default)]
pub(crate) struct Commands(BTreeMap<&'static str, (u64, u64)>);

impl Commands {
    pub(crate) fn count(&mut self, command: &Body, replies: &[Reply]) {
        let first = replies.first().is_some_and(granted);
        let is_ops = matches!(command, Body::Ops(_) | Body::ScopedOps(_));
        self.add(body(command), first || is_ops);
        for (given, reply) in command.ops().zip(replies) {
            self.add(op(&given.kind), granted(reply));
            if let OpKind::Store(op::UseStore { ops, .. }) = &given.kind {
                ops.iter().for_each(|given| self.add(store_op(given), granted(reply)));
            }
        }
    }

    fn add(&mut self, name: &'static str, granted: bool) {
        let count = self.0.entry(name).or_default();
        *count = (count.0 + 1, count.1 + u64::from(granted));
    }

    pub(crate) fn unite(&mut self, others: Self) {
        for (name, (given, granted)) in others.0 {
            let count = self.0.entry(name).or_default();
            *count = (count.0 + given, count.1 + granted);
        }
    }

    /// The commands that were never granted.
    pub(crate) fn never_granted(&self) -> Vec<&'static str> {
        let all = [BODIES, OPS, STORE_OPS].concat();
        let count = |name: &str| self.0.get(name).map_or(0, |count| count.1);
        all.into_iter().filter(|name| count(name) == 0).collect()
    }
}

/// Whether the request was granted, at least in part.
fn granted(reply: &Reply) -> bool {
    match reply {
        Reply::Rejected(_) | Reply::NoShard { .. } => false,
        Reply::Granted(grants) => !grants.is_empty(),
        Reply::Stolen { granted, .. } => !granted.is_empty(),
        Reply::Taken { refused } => refused.is_empty(),
        _ => true,
    }
}
