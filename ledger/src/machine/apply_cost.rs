//! Apply cost: which commands may take long to apply, however few bytes they have, because their cost grows with the
//! state.
//!
//! Absent: commands that take long because of their bytes, and how the caller of `apply` handles costly commands.

use crate::machine::command::{Body, Command};
use crate::machine::operation::Cost;

impl Command {
    /// Whether applying it may take milliseconds though it has few bytes.
    pub fn is_costly(&self) -> bool {
        match &self.body {
            // A new version may convert all that is there.
            Body::Tick | Body::OpenEpoch | Body::SetVersion(_) => true,
            Body::DigestAt => false,
            Body::Ops(_) | Body::ScopedOps(_) => {
                self.body.ops().any(|op| op.kind.cost() == Cost::GrowsWithState)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::id::{CoordEpoch, LedgerMs, SessionId};
    use crate::machine::command::op;
    use crate::machine::command::{Op, OpKind};

    #[test]
    fn a_short_command_with_much_work_is_costly() {
        let costly =
            |body| Command { epoch: CoordEpoch(1), at: LedgerMs(0), wall_ms: 0, body }.is_costly();
        let ops = |kinds: Vec<OpKind>| Body::Ops(kinds.into_iter().map(Op::from).collect());
        let session = SessionId(1);
        let leave = || OpKind::Leave(op::Leave { incarnation: session });
        assert!(costly(Body::Tick));
        assert!(costly(Body::SetVersion(4)));
        assert!(costly(ops(vec![leave(), OpKind::Unsuspect(op::Unsuspect { session })])));
        assert!(!costly(ops(vec![leave()])));
        let (namespace, name, spec, folder) = Default::default();
        assert!(costly(ops(vec![OpKind::CreateRun(op::CreateRun {
            namespace,
            name,
            spec,
            folder
        })])));
        assert!(!costly(Body::DigestAt));
    }
}
