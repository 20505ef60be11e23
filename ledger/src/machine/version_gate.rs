//! The version gate: which commands the cluster's version allows.
//!
//! *Invariant:* a command that came with version N is proposed and applied only if the cluster's version is N or
//! more, which it becomes only when every member knows the command. So no member meets a command that it cannot read.
//! Each kind declares its version beside its type (`Operation::SINCE`, `came_with!`): a new kind does not compile
//! without. The tests here list all of them.
//! If a known kind gets a new meaning later, it has a line of its own, by a pattern of its fields, or, if its fields
//! do not show the new meaning, a constant in `kernel/versions.rs` that `apply` compares with the cluster's version.
//! Absent: how the version is raised.

use crate::kernel::reply::Rejection;
pub(crate) use crate::kernel::versions::ROWS_OF_SEVERAL_SLOTS;
pub use crate::kernel::versions::{
    NAMESPACES_VERSION, ONE_RECORD_VERSION, OPENAI_API_VERSION, SCHEDULING_VERSION,
    SILENT_TRAINERS_VERSION, SUPPORTED_VERSIONS,
};
use crate::machine::command::{Body, OpKind};

/// Defines, from one table, which version introduced each variant of an enum that operations contain, and the list of
/// all variants for tests. No wildcard covers a variant.
macro_rules! came_with {
    ($kind:ty, $all:ident, { $($version:literal: $($pattern:pat_param)|+,)* }) => {
        impl $kind {
            /// The cluster version that introduced this variant.
            pub(crate) fn came_with(&self) -> u32 {
                match self { $($($pattern)|+ => $version,)* }
            }
        }
        #[cfg(test)]
        pub(crate) const $all: &[(&str, u32)] = &[$($((stringify!($pattern), $version)),+),*];
    };
}
pub(crate) use came_with;

/// Refuses an operation that the cluster's version does not have yet.
///
/// # Errors
/// [`Rejection::VersionLow`], with the required version.
pub fn check_version(kind: &OpKind, version: u32) -> Result<(), Rejection> {
    check(kind.since(), version)
}

/// Refuses a command that the cluster's version does not have yet, because of its own kind or of an operation in it.
///
/// # Errors
/// [`Rejection::VersionLow`], with the required version.
pub fn check_body_version(command: &Body, version: u32) -> Result<(), Rejection> {
    check_kind(command, version)?;
    command.ops().try_for_each(|op| check_version(&op.kind, version))
}

/// Refuses a kind of command that the cluster's version does not have yet. Its operations are checked one by one,
/// because each has its own reply.
pub(crate) fn check_kind(command: &Body, version: u32) -> Result<(), Rejection> {
    check(command.came_with(), version)
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
    use crate::fleet::setting::SETTINGS;
    use crate::identity::api_key::KEY_ROLES;
    use crate::identity::member::{LEADER_CAUSES, MEMBERS};
    use crate::identity::revocation::REVOCATIONS;
    use crate::identity::token::TOKENS;
    use crate::kernel::id::RunNo;
    use crate::machine::command::op;
    use crate::machine::command::{
        BODIES, FAILURES, KINDS, RUN_ACTIONS, RunAction, STORE_OPS, StoreOp,
    };
    use crate::openai::batch::BATCH_STATUSES;
    use crate::openai::file::FILE_PURPOSES;
    use crate::training::barrier::{BARRIER_MEMBERS, POLICIES};
    use crate::training::checkpoint::CHECKPOINTS;
    use crate::training::dataset::DATASETS;
    use crate::training::shard::SHARDS;
    use crate::training::state::LOSSES;
    use crate::training::trainer::TRAINERS;

    const TABLES: [&[(&str, u32)]; 20] = [
        BODIES,
        KINDS,
        RUN_ACTIONS,
        FAILURES,
        STORE_OPS,
        BARRIER_MEMBERS,
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
        KEY_ROLES,
        FILE_PURPOSES,
        BATCH_STATUSES,
    ];

    enum Example {
        Old,
        New(u8),
        Newer,
    }

    came_with!(Example, EXAMPLES, {
        1: Example::Old | Example::New(0),
        2: Example::New(_),
        3: Example::Newer,
    });

    #[test]
    fn a_command_is_refused_below_its_version_and_taken_from_it_on() {
        let low = |needs, version| Err(Rejection::VersionLow { needs, version });
        assert_eq!(check(Example::Newer.came_with(), 2), low(3, 2), "members could not read it");
        assert_eq!(check(Example::Newer.came_with(), 3), Ok(()));
        // A later meaning of a kind also belongs to a later version.
        assert_eq!(check(Example::New(7).came_with(), 1), low(2, 1));
        assert_eq!(check(Example::New(0).came_with(), 1), Ok(()));
        assert_eq!(check(Example::Old.came_with(), 1), Ok(()));
        assert_eq!(EXAMPLES.len(), 4);
    }

    #[test]
    fn an_operation_needs_the_version_of_its_parts_and_a_command_that_of_its_operations() {
        let low = Err(Rejection::VersionLow { needs: 1, version: 0 });
        let action = RunAction::Pause;
        let control =
            OpKind::ControlRun(op::ControlRun { run: RunNo(1), action, reason: String::new() });
        assert_eq!(check_version(&control, 0), low);
        let pop = || StoreOp::Pop { queue: Vec::new() };
        let store = OpKind::Store(op::UseStore { store: StoreName::default(), ops: vec![pop()] });
        assert_eq!(store.since(), pop().came_with());
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

    /// As above, of the versions that came since: a kind that is new is of version 5.
    #[test]
    fn version_4_is_closed() {
        let of = |version| {
            let all = TABLES.iter().flat_map(|table| table.iter());
            all.filter(|(_, came_with)| *came_with == version).count()
        };
        assert_eq!((of(2), of(3), of(4)), (4, 22, 4));
    }
}
