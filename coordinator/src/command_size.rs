//! How much one command carries.
//!
//! *Invariant:* a command of several operations is within these bounds, so that consensus takes it: no operation is refused
//! for the size of others. One that is over them goes alone.

use rollout_ledger::{Op, limits};

/// Bytes of one command's operations, unless a single one has more.
pub(crate) const BYTES_MAX: usize = 1 << 20;

/// Operations that need not be together, in as many commands as it takes, in their order.
pub(crate) fn in_commands(ops: impl IntoIterator<Item = Op>) -> Vec<Vec<Op>> {
    let mut commands: Vec<Vec<Op>> = Vec::new();
    let mut bytes = 0;
    for op in ops {
        let more = op.encoded_bytes();
        match commands.last_mut() {
            Some(last) if bytes + more <= BYTES_MAX && last.len() < limits::OPS_PER_COMMAND_MAX => {
                bytes += more;
                last.push(op);
            }
            _ => {
                bytes = more;
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
    use rollout_ledger::{Body, Command, HeldRows, OpKind, Rows};
    use rollout_proto::{DialMap, Security};
    use rollout_raft::RaftConfig;

    /// A worker with eight busy slots, of which each finished every other row of what it was given.
    fn suspect(session: u64) -> Op {
        let started = (0..8).map(|slot| {
            let first = 1_000_000 + session * 2000 + slot * 200;
            let rows = Rows::from_ranges((0..100).map(|row| (first + 2 * row, 1)));
            let attempt = Attempt::at(1_000_000 + session, slot as u32);
            HeldRows { run: RunNo(7), attempt, rows: rows.expect("ascending ranges") }
        });
        let (session, started) = (SessionId(session), started.collect());
        OpKind::Suspect { session, started, grace_ms: 60_000 }.into()
    }

    fn encoded(ops: Vec<Op>) -> usize {
        let (epoch, at) = (CoordEpoch(u64::MAX), LedgerMs(u64::MAX));
        Command { epoch, at, wall_ms: u64::MAX, body: Body::Ops(ops) }.encode().len()
    }

    #[test]
    fn as_many_workers_as_there_may_be_are_suspect_at_once_in_commands_that_consensus_takes() {
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
    fn the_number_of_operations_is_bounded_and_a_large_one_goes_alone() {
        let small = || Op::from(OpKind::Unsuspect { session: SessionId(1) });
        let many = vec![small(); limits::OPS_PER_COMMAND_MAX + 1];
        let lens = |ops| in_commands(ops).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lens(many), [limits::OPS_PER_COMMAND_MAX, 1]);
        let rows = Rows::from_ranges((0..BYTES_MAX as u64 / 2).map(|row| (2 * row, 1)));
        let held = HeldRows { run: RunNo(1), attempt: Attempt(1), rows: rows.expect("ascending") };
        let large = OpKind::Suspect { session: SessionId(2), started: vec![held], grace_ms: 1 };
        assert_eq!(lens(vec![small(), large.into(), small()]), [1, 1, 1]);
        assert!(in_commands([]).is_empty());
    }
}
