//! What a leader does when its disk is full except for the reserve.
//!
//! *Invariant:* on a full disk, accepted work can be finished, returned, cancelled and deleted. A request that adds to
//! the ledger is refused before it is proposed, so a repeat may succeed. Reads are not affected.
//! Absent: whether an operation adds to the ledger, which the ledger knows (`OpKind::grows`); the thresholds and the
//! measuring of the disk, which `rollout_raft` has; and a follower's full disk, which refuses nothing.

use crate::leader::state::LeaderState;
use rollout_ledger::OpKind;
use rollout_proto::{ErrorCode, Outcome, RpcError};
use rollout_raft::{DiskRoom, Node};
use std::time::{Duration, Instant};

/// How often a leader with a full disk looks for another voter with room; also the time that it waits after its
/// election.
const LOOK_FOR_ROOM_EVERY: Duration = Duration::from_secs(10);

/// Refuses operations that make the ledger larger while the disk is full.
pub(crate) fn check<'a>(
    node: &Node,
    member: &str,
    kinds: impl IntoIterator<Item = &'a OpKind>,
) -> Result<(), RpcError> {
    if node.disk_room() < DiskRoom::Full || !kinds.into_iter().any(OpKind::grows) {
        return Ok(());
    }
    let free_mib = node.disk_space().free_bytes >> 20;
    let message = format!(
        "the disk of {member}, which leads, has {free_mib} MiB left: only requests that end or delete something are accepted"
    );
    Err(RpcError::new(ErrorCode::DiskFull, message).with_outcome(Outcome::NotApplied))
}

/// Hands leadership over if this disk is full and another voter's is not. `last` starts with the epoch. Does not wait,
/// because leases must expire even if a voter does not answer.
pub(crate) fn hand_over(leader: &LeaderState, last: &mut Instant) {
    if leader.node.disk_room() < DiskRoom::Full || last.elapsed() < LOOK_FOR_ROOM_EVERY {
        return;
    }
    *last = Instant::now();
    let node = leader.node.clone();
    tokio::spawn(async move {
        match node.leave_full_disk().await {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!("the disk is full, and no other voter that keeps up has room")
            }
            Err(error) => {
                tracing::warn!(%error, "the disk is full, and leadership was not transferred");
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_ledger::id::{RunNo, SessionId};
    use rollout_ledger::{StoreName, StoreOp, op};

    #[test]
    fn a_full_disk_accepts_operations_that_end_or_delete_and_refuses_those_that_add() {
        let store =
            |ops: Vec<StoreOp>| OpKind::Store(op::UseStore { store: StoreName::default(), ops });
        let delete = || StoreOp::Delete { key: b"k".to_vec() };
        let set = StoreOp::Set { pairs: vec![(b"k".to_vec(), b"v".to_vec())] };
        for taken in [
            OpKind::DeleteRun(op::DeleteRun { run: RunNo(1) }),
            OpKind::Deregister(op::Deregister { session: SessionId(1) }),
            OpKind::OpenClient(op::OpenClient { name: "c".into(), holder: "admin/a".into() }),
            store(vec![delete()]),
        ] {
            assert!(!taken.grows(), "{taken:?}");
        }
        let run = RunNo(1);
        let segments = Vec::new();
        for refused in
            [OpKind::AddSegments(op::AddSegments { run, segments }), store(vec![delete(), set])]
        {
            assert!(refused.grows(), "{refused:?}");
        }
    }
}
