//! How much one command carries.
//!
//! *Invariant:* a command of several operations stays within these bounds, so that consensus accepts it, and no
//! operation is refused because of the size of others. An operation over the bounds goes alone. Bytes are those of the
//! encoding, not an estimate: every text that a client may send counts.

use rollout_ledger::{Op, Scope, limits};

/// Rows in one command, unless operations that belong together have more.
const ROWS_MAX: u64 = 4096;
/// Bytes of one command's operations, unless operations that belong together have more.
pub(crate) const BYTES_MAX: usize = 1 << 20;

/// How much of a command's bounds operations take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Weight {
    rows: u64,
    pub(crate) bytes: usize,
    pub(crate) ops: usize,
}

impl Weight {
    pub(crate) fn of(ops: &[Op]) -> Self {
        let bytes = ops.iter().map(Op::encoded_bytes).sum();
        Self { rows: ops.iter().map(|op| op.kind.rows()).sum(), bytes, ops: ops.len() }
    }

    /// The same, if each operation has this scope.
    pub(crate) fn in_scope(self, scope: &Scope) -> Self {
        // Without names, the byte of each operation makes no difference to consensus.
        let Scope::Namespaces(names) = scope else { return self };
        // The scope's tag, and a length of at most two bytes before the list and before each name.
        let bytes = 3 + names.iter().map(|name| name.len() + 2).sum::<usize>();
        Self { bytes: self.bytes + self.ops * bytes, ..self }
    }

    /// The weight of both together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            rows: self.rows + other.rows,
            bytes: self.bytes + other.bytes,
            ops: self.ops + other.ops,
        }
    }

    /// Whether one command can carry them.
    pub(crate) fn fits(self) -> bool {
        self.rows <= ROWS_MAX && self.bytes <= BYTES_MAX && self.ops <= limits::OPS_PER_COMMAND_MAX
    }

    /// Whether they justify a command of their own.
    pub(crate) fn is_large(self) -> bool {
        self.rows >= ROWS_MAX / 2 || self.bytes >= BYTES_MAX / 2
    }
}

/// Splits independent operations into commands within the bounds, in order.
pub(crate) fn in_commands(ops: impl IntoIterator<Item = Op>) -> Vec<Vec<Op>> {
    let mut commands: Vec<Vec<Op>> = Vec::new();
    let mut weight = Weight::default();
    for op in ops {
        let own = Weight::of(std::slice::from_ref(&op));
        match commands.last_mut() {
            Some(last) if weight.and(own).fits() => {
                weight = weight.and(own);
                last.push(op);
            }
            _ => {
                weight = own;
                commands.push(vec![op]);
            }
        }
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_ledger::id::{Attempt, CoordEpoch, LedgerMs, RunNo, SessionId};
    use rollout_ledger::{Body, Command, HeldRows, OpKind, Rows, ScopedOp, op};
    use rollout_proto::{DialMap, Security};
    use rollout_raft::RaftConfig;

    /// A worker with eight busy slots, each of which finished every other row of its grants.
    fn suspect(session: u64) -> Op {
        let started = (0..8).map(|slot| {
            let first = 1_000_000 + session * 2000 + slot * 200;
            let rows = Rows::from_ranges((0..100).map(|row| (first + 2 * row, 1)));
            let attempt = Attempt::at(1_000_000 + session, slot as u32);
            HeldRows { run: RunNo(7), attempt, rows: rows.expect("ascending ranges") }
        });
        let (session, started) = (SessionId(session), started.collect());
        OpKind::Suspect(op::Suspect { session, started, grace_ms: 60_000 }).into()
    }

    fn encoded(ops: Vec<Op>) -> usize {
        let (epoch, at) = (CoordEpoch(u64::MAX), LedgerMs(u64::MAX));
        Command { epoch, at, wall_ms: u64::MAX, body: Body::Ops(ops) }.encode().len()
    }

    #[test]
    fn the_most_workers_become_suspect_at_once_in_commands_that_consensus_accepts() {
        let max = RaftConfig::new("", "", DialMap::default(), Security::InsecurePlaintext)
            .command_bytes_max;
        let all: Vec<Op> = (1..=limits::WORKERS_MAX as u64).map(suspect).collect();
        assert!(encoded(all.clone()) > max, "else this shows nothing");
        let commands = in_commands(all.clone());
        assert_eq!(commands.concat(), all, "each is named, in its order");
        for ops in commands {
            let bytes = encoded(ops);
            assert!(bytes <= max && bytes <= BYTES_MAX + 64, "{bytes}");
        }
    }

    #[test]
    fn a_scope_weighs_at_least_its_bytes() {
        let names: Vec<String> = (0..64).map(|n| format!("{n:0>128}")).collect();
        for names in [Vec::new(), names[..1].to_vec(), names] {
            let scope = Scope::Namespaces(names);
            let op = Op::from(OpKind::Unsuspect(op::Unsuspect { session: SessionId(1) }));
            let ops = vec![op; 3];
            let weight = Weight::of(&ops).in_scope(&scope);
            let plain = encoded(ops.clone());
            let scoped = ops.iter().map(|op| ScopedOp { scope: scope.clone(), op: op.clone() });
            let body = Body::ScopedOps(scoped.collect());
            let (epoch, at) = (CoordEpoch(u64::MAX), LedgerMs(u64::MAX));
            let bytes = Command { epoch, at, wall_ms: u64::MAX, body }.encode().len();
            assert!(weight.bytes - Weight::of(&ops).bytes >= bytes - plain, "{bytes}");
        }
    }

    #[test]
    fn the_number_of_operations_is_bounded_and_a_large_one_goes_alone() {
        let small = || Op::from(OpKind::Unsuspect(op::Unsuspect { session: SessionId(1) }));
        let many = vec![small(); limits::OPS_PER_COMMAND_MAX + 1];
        let lens = |ops| in_commands(ops).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lens(many), [limits::OPS_PER_COMMAND_MAX, 1]);
        let rows = Rows::from_ranges((0..BYTES_MAX as u64 / 2).map(|row| (2 * row, 1)));
        let held = HeldRows { run: RunNo(1), attempt: Attempt(1), rows: rows.expect("ascending") };
        let large = OpKind::Suspect(op::Suspect {
            session: SessionId(2),
            started: vec![held],
            grace_ms: 1,
        });
        assert_eq!(lens(vec![small(), large.into(), small()]), [1, 1, 1]);
        assert!(in_commands([]).is_empty());
    }
}
