//! Which operations the cluster's version allows.
//!
//! *Invariant:* an operation that came with version N is proposed and applied only where the cluster's version is N or
//! more, which it is made only when every member knows it. So no member meets an operation that it cannot read.
//! Absent: how the version is raised; and gates of version 1, which every build has.

use crate::command::OpKind;
use crate::reply::Rejection;

/// An operation that came later than version 1.
struct Gate {
    is: fn(&OpKind) -> bool,
    since: u32,
}

/// Every operation that is not of version 1. A new operation, or one that means something new, has its line here.
const GATES: &[Gate] = &[Gate { is: |kind| matches!(kind, OpKind::Token(_)), since: 2 }];

/// Refuses an operation that the cluster's version does not have yet.
///
/// # Errors
/// [`Rejection::VersionLow`], with what it would need.
pub fn check_version(kind: &OpKind, version: u32) -> Result<(), Rejection> {
    check(GATES, kind, version)
}

fn check(gates: &[Gate], kind: &OpKind, version: u32) -> Result<(), Rejection> {
    let needs = gates.iter().filter(|gate| (gate.is)(kind)).map(|gate| gate.since).max();
    match needs {
        Some(needs) if needs > version => Err(Rejection::VersionLow { needs, version }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::RunNo;

    #[test]
    fn an_operation_is_refused_below_its_version_and_taken_from_it_on() {
        let gates = [Gate { is: |kind| matches!(kind, OpKind::DeleteRun { .. }), since: 3 }];
        let new = OpKind::DeleteRun { run: RunNo(1) };
        assert_eq!(
            check(&gates, &new, 2),
            Err(Rejection::VersionLow { needs: 3, version: 2 }),
            "members of version 2 could not read it"
        );
        assert_eq!(check(&gates, &new, 3), Ok(()));
        let old = OpKind::OpenClient { name: "c".into(), holder: "client/c".into() };
        assert_eq!(check(&gates, &old, 1), Ok(()));
    }

    #[test]
    fn a_gate_is_of_a_version_that_this_build_has_a_reason_to_know() {
        assert!(GATES.iter().all(|gate| gate.since > 1), "version 1 has no gates");
    }
}
