//! The version gate: which commands the cluster's version allows.
//!
//! *Invariant:* a command that came with version N is proposed and applied only if the cluster's version is N or
//! more, which it becomes only when every member knows the command. So no member meets a command that it cannot read.
//! Every kind has its version in the tables here, by name: a new kind does not compile without.
//! If a known kind gets a new meaning later, it has a line of its own, by a pattern of its fields, or, if its fields
//! do not show the new meaning, a constant here that `apply` compares with the cluster's version.
//! Absent: how the version is raised.

use crate::fleet::setting::SettingOp;
use crate::identity::member::{LeaderCause, MemberOp};
use crate::identity::revocation::RevocationOp;
use crate::identity::token::TokenOp;
use crate::kernel::reply::Rejection;
use crate::machine::command::{Body, FailureClass, OpKind, RunAction, StoreOp};
use crate::training::barrier::{Among, Policy};
use crate::training::checkpoint::CheckpointOp;
use crate::training::dataset::DatasetOp;
use crate::training::shard::ShardOp;
use crate::training::state::LossPolicy;
use crate::training::trainer::TrainerOp;

/// The cluster version from which on the ledger schedules by virtual time, bounds what one `Tick` ends, keeps each
/// attempt in a record of its own, lets a worker's store URL allow the URLs below it, keeps the store of a complete round
/// for its members, and has settings. Below it, `apply` and the image do what builds of version 2 do.
pub const SCHEDULING_VERSION: u32 = 3;

/// The first and the last cluster version that this build can run.
pub const SUPPORTED_VERSIONS: (u32, u32) = (1, SCHEDULING_VERSION);

/// Defines a function from a value to the version that introduced it, and the list of all values, from one table. No
/// wildcard covers a variant.
macro_rules! came_with {
    ($name:ident, $all:ident, $kind:ty, { $($version:literal: $($pattern:pat_param)|+,)* }) => {
        fn $name(value: &$kind) -> u32 {
            match value { $($($pattern)|+ => $version,)* }
        }
        #[cfg(test)]
        const $all: &[(&str, u32)] = &[$($((stringify!($pattern), $version)),+),*];
    };
}

came_with!(body, BODIES, Body, {
    1: Body::OpenEpoch | Body::Ops(_) | Body::Tick | Body::DigestAt | Body::SetVersion(_),
});

came_with!(op, OPS, OpKind, {
    1: OpKind::OpenClient { .. } | OpKind::CreateRun { .. } | OpKind::AddSegments { .. }
        | OpKind::CloseInput { .. } | OpKind::ControlRun { .. } | OpKind::Register(_)
        | OpKind::Deregister { .. } | OpKind::Suspect { .. } | OpKind::Unsuspect { .. }
        | OpKind::Drain { .. } | OpKind::Claim { .. } | OpKind::Complete { .. }
        | OpKind::Fail { .. } | OpKind::Nack { .. } | OpKind::SetNamespace { .. }
        | OpKind::Steal { .. } | OpKind::Duplicate { .. } | OpKind::EngineDied { .. }
        | OpKind::Cordon { .. } | OpKind::RetryRows { .. } | OpKind::Carry { .. }
        | OpKind::Seal { .. } | OpKind::DeleteRun { .. } | OpKind::ForgetRun { .. }
        | OpKind::Store { .. } | OpKind::DropStore { .. } | OpKind::Join { .. }
        | OpKind::Participate { .. } | OpKind::Leave { .. } | OpKind::LoseParticipant { .. }
        | OpKind::CloseRendezvous { .. } | OpKind::Arrive { .. } | OpKind::AbortBarrier { .. }
        | OpKind::Dataset(_) | OpKind::Trainer(_) | OpKind::Shard(_) | OpKind::Checkpoint(_)
        | OpKind::Swept { .. } | OpKind::SetQuota(_) | OpKind::Noticed { .. }
        | OpKind::SuspectUnheard { .. },
    2: OpKind::Token(_),
    3: OpKind::Revocation(_) | OpKind::Member(_) | OpKind::RoundStore { .. } | OpKind::Setting(_),
});

came_with!(run_action, RUN_ACTIONS, RunAction, {
    1: RunAction::Pause | RunAction::Resume | RunAction::Cancel,
});

came_with!(failure, FAILURES, FailureClass, {
    1: FailureClass::InvalidRow | FailureClass::Transient | FailureClass::OutOfMemory
        | FailureClass::EngineDied | FailureClass::InputUnreadable | FailureClass::StoreRefused,
});

came_with!(store_op, STORE_OPS, StoreOp, {
    1: StoreOp::Set { .. } | StoreOp::Add { .. } | StoreOp::CompareSet { .. }
        | StoreOp::Append { .. } | StoreOp::Delete { .. } | StoreOp::Push { .. }
        | StoreOp::Pop { .. },
});

came_with!(among, AMONGS, Among, {
    1: Among::Members(_) | Among::Count(_) | Among::Round,
});

came_with!(policy, POLICIES, Policy, {
    1: Policy::Fail | Policy::Shrink,
});

came_with!(dataset, DATASETS, DatasetOp, {
    1: DatasetOp::Create { .. } | DatasetOp::Delete { .. },
});

came_with!(trainer, TRAINERS, TrainerOp, {
    1: TrainerOp::Join { .. } | TrainerOp::Keep { .. } | TrainerOp::Leave(_)
        | TrainerOp::Recover { .. } | TrainerOp::DeleteJob(_),
});

came_with!(loss, LOSSES, LossPolicy, {
    1: LossPolicy::Recover | LossPolicy::Continue,
});

came_with!(shard, SHARDS, ShardOp, {
    1: ShardOp::Claim { .. } | ShardOp::Finish { .. } | ShardOp::Release { .. },
});

came_with!(checkpoint, CHECKPOINTS, CheckpointOp, {
    1: CheckpointOp::Begin { .. } | CheckpointOp::Report { .. } | CheckpointOp::Abort { .. }
        | CheckpointOp::Retain { .. } | CheckpointOp::Label { .. } | CheckpointOp::Forget { .. },
});

came_with!(token, TOKENS, TokenOp, {
    2: TokenOp::Create { .. } | TokenOp::Revoke { .. } | TokenOp::Spend(_),
});

came_with!(revocation, REVOCATIONS, RevocationOp, {
    3: RevocationOp::Revoke { .. } | RevocationOp::Withdraw { .. },
});

came_with!(member, MEMBERS, MemberOp, {
    3: MemberOp::Leads { .. } | MemberOp::Started { .. } | MemberOp::Stopped { .. }
        | MemberOp::Unreachable { .. } | MemberOp::Reachable { .. } | MemberOp::Removed { .. },
});

came_with!(leader_cause, LEADER_CAUSES, LeaderCause, {
    3: LeaderCause::First | LeaderCause::Requested | LeaderCause::Stopping
        | LeaderCause::SlowDisk | LeaderCause::FullDisk | LeaderCause::Removal
        | LeaderCause::ConnectionsLost | LeaderCause::ElectionTimeout | LeaderCause::Again,
});

came_with!(setting, SETTINGS, SettingOp, {
    3: SettingOp::CordonAfter(_),
});

/// From this version on each row of a completion is credited to the slot that holds it. Below it all are credited to
/// the slot that reports the part, as members with an earlier build do.
pub(crate) const ROWS_OF_SEVERAL_SLOTS: u32 = 3;

/// The version that an operation needs, with all that is in it.
fn needs(kind: &OpKind) -> u32 {
    let inner = match kind {
        OpKind::ControlRun { action, .. } => run_action(action),
        OpKind::Fail { class, .. } | OpKind::EngineDied { class, .. } => failure(class),
        OpKind::Store { ops, .. } | OpKind::RoundStore { ops, .. } => {
            ops.iter().map(store_op).max().unwrap_or(0)
        }
        OpKind::Arrive { spec, .. } => among(&spec.among).max(policy(&spec.policy)),
        OpKind::Dataset(inner) => dataset(inner),
        OpKind::Trainer(inner) => match inner {
            TrainerOp::Join { on_loss, .. } | TrainerOp::Recover { on_loss, .. } => {
                trainer(inner).max(loss(on_loss))
            }
            _ => trainer(inner),
        },
        OpKind::Shard(inner) => shard(inner),
        OpKind::Checkpoint(inner) => checkpoint(inner),
        OpKind::Token(inner) => token(inner),
        OpKind::Revocation(inner) => revocation(inner),
        OpKind::Member(inner) => match inner {
            MemberOp::Leads { cause, .. } => member(inner).max(leader_cause(cause)),
            _ => member(inner),
        },
        OpKind::Setting(inner) => setting(inner),
        // Nothing in it has kinds.
        _ => 0,
    };
    op(kind).max(inner)
}

/// Refuses an operation that the cluster's version does not have yet.
///
/// # Errors
/// [`Rejection::VersionLow`], with the required version.
pub fn check_version(kind: &OpKind, version: u32) -> Result<(), Rejection> {
    check(needs(kind), version)
}

/// Refuses a command that the cluster's version does not have yet, because of its own kind or of an operation in it.
///
/// # Errors
/// [`Rejection::VersionLow`], with the required version.
pub fn check_body_version(command: &Body, version: u32) -> Result<(), Rejection> {
    check_kind(command, version)?;
    match command {
        Body::Ops(ops) => ops.iter().try_for_each(|op| check_version(&op.kind, version)),
        _ => Ok(()),
    }
}

/// Refuses a kind of command that the cluster's version does not have yet. Its operations are checked one by one,
/// because each has its own reply.
pub(crate) fn check_kind(command: &Body, version: u32) -> Result<(), Rejection> {
    check(body(command), version)
}

fn check(needs: u32, version: u32) -> Result<(), Rejection> {
    match needs > version {
        true => Err(Rejection::VersionLow { needs, version }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreName;
    use crate::kernel::id::RunNo;

    const TABLES: [&[(&str, u32)]; 17] = [
        BODIES,
        OPS,
        RUN_ACTIONS,
        FAILURES,
        STORE_OPS,
        AMONGS,
        POLICIES,
        DATASETS,
        TRAINERS,
        LOSSES,
        SHARDS,
        CHECKPOINTS,
        TOKENS,
        REVOCATIONS,
        MEMBERS,
        LEADER_CAUSES,
        SETTINGS,
    ];

    enum Example {
        Old,
        New(u8),
        Newer,
    }

    came_with!(example, EXAMPLES, Example, {
        1: Example::Old | Example::New(0),
        2: Example::New(_),
        3: Example::Newer,
    });

    #[test]
    fn a_command_is_refused_below_its_version_and_taken_from_it_on() {
        let low = |needs, version| Err(Rejection::VersionLow { needs, version });
        assert_eq!(check(example(&Example::Newer), 2), low(3, 2), "members could not read it");
        assert_eq!(check(example(&Example::Newer), 3), Ok(()));
        // A later meaning of a kind also belongs to a later version.
        assert_eq!(check(example(&Example::New(7)), 1), low(2, 1));
        assert_eq!(check(example(&Example::New(0)), 1), Ok(()));
        assert_eq!(check(example(&Example::Old), 1), Ok(()));
        assert_eq!(EXAMPLES.len(), 4);
    }

    #[test]
    fn an_operation_needs_what_is_in_it_and_a_command_what_its_operations_need() {
        let low = Err(Rejection::VersionLow { needs: 1, version: 0 });
        let action = RunAction::Pause;
        let control = OpKind::ControlRun { run: RunNo(1), action, reason: String::new() };
        assert_eq!(check_version(&control, 0), low);
        let pop = || StoreOp::Pop { queue: Vec::new() };
        let store = OpKind::Store { store: StoreName::default(), ops: vec![pop()] };
        assert_eq!(needs(&store), store_op(&pop()).max(op(&store)));
        for command in [Body::Tick, Body::Ops(vec![store.into(), control.into()])] {
            assert_eq!(check_body_version(&command, 0), low);
            assert_eq!(check_body_version(&command, 1), Ok(()));
        }
    }

    /// A new kind belongs to the version after the one that clusters have. Changing this number claims that every
    /// member of every cluster of version 1 knows the new kind.
    #[test]
    fn version_1_is_closed() {
        let all = || TABLES.iter().flat_map(|table| table.iter());
        assert_eq!(all().filter(|(_, version)| *version == 1).count(), 85);
        assert!(all().all(|(_, version)| *version >= 1));
        let mut names: Vec<_> = all().map(|(name, _)| name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().count());
    }

    /// As above, of the versions that came since: a kind that is new is of version 4.
    #[test]
    fn version_3_is_closed() {
        let of = |version| {
            let all = TABLES.iter().flat_map(|table| table.iter());
            all.filter(|(_, came_with)| *came_with == version).count()
        };
        assert_eq!((of(2), of(3)), (4, 22));
    }
}
