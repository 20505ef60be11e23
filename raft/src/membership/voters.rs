//! Owns: changes of the voters, which take two log entries: one under which the old voters and the new ones must both
//! agree, and one for the new ones alone.
//!
//! Invariant: the first entry says what the second will be, so the next leader finishes a change that has got this
//! far, even if the leader that began it is gone. Nothing else about the members changes before that.
//! Absent: which members are to vote; see `membership` and `joining`.

use std::collections::BTreeSet;

use openraft::ChangeMembers;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};

use crate::consensus::running::Running;
use crate::consensus::transfer::step_aside;
use crate::errors::{ClusterError, NotLeader};
use crate::types::{LogId, Types};

/// Makes these the only voters. A refusal after the first entry returns `Unfinished`, because the voters have changed.
pub(crate) async fn replace(running: &Running, voters: BTreeSet<u64>) -> Result<(), ClusterError> {
    let before = listed(running);
    let change = ChangeMembers::ReplaceAllVoters(voters);
    let Err(error) = running.raft.change_membership(change, false).await else { return Ok(()) };
    if listed(running) == before {
        return Err(changed(error));
    }
    Err(ClusterError::Unfinished(format!(
        "the change of voters has begun, and the leader completes it: {error}"
    )))
}

/// Finishes a change that was left between its entries, if this member leads and no other change is in progress.
pub(crate) async fn settle(running: &Running) -> Result<(), ClusterError> {
    let leads = running.raft.metrics().borrow_watched().state.is_leader();
    if !leads || target(running).is_none() {
        return Ok(());
    }
    // The task that holds it writes the second entry itself.
    let Ok(_alone) = running.changing.try_lock() else { return Ok(()) };
    finish(running).await
}

/// As [`settle`], for a task that already holds the lock. A leader that is to be removed hands leadership over first.
pub(crate) async fn finish(running: &Running) -> Result<(), ClusterError> {
    let Some(voters) = target(running) else { return Ok(()) };
    if !voters.contains(&running.context.me) {
        return Err(step_aside(running).await);
    }
    // From the entry that names both sets, consensus moves to the new voters alone in one step.
    replace(running, voters).await?;
    tracing::info!("finishing an interrupted change of the voters");
    Ok(())
}

/// The target voters, if the members are between the two entries of a change.
fn target(running: &Running) -> Option<BTreeSet<u64>> {
    let metrics = running.raft.metrics();
    let metrics = metrics.borrow_watched();
    match &metrics.membership_config.get_joint_config()[..] {
        [_, .., last] => Some(last.clone()),
        _ => None,
    }
}

/// The entry that lists the members as they are.
fn listed(running: &Running) -> Option<LogId> {
    let metrics = running.raft.metrics();
    let metrics = metrics.borrow_watched();
    *metrics.membership_config.log_id()
}

/// Why the members were not changed.
pub(crate) fn changed(error: RaftError<Types, ClientWriteError<Types>>) -> ClusterError {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => {
            NotLeader { leader: forward.leader_node }.into()
        }
        other => ClusterError::Unfinished(format!("the membership was not changed: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_member::{member, until};

    #[tokio::test(flavor = "multi_thread")]
    async fn a_change_that_loses_its_leader_between_its_entries_is_unfinished_until_one_ends_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let (a, first) = member(dir.path(), "a").await;
        let (b, second) = member(dir.path(), "b").await;
        a.bootstrap(vec![first, second]).await.expect("a cluster");
        until("one leads", || a.lease_valid() || b.lease_valid()).await;
        let (leader, other) = if a.lease_valid() { (&a, &b) } else { (&b, &a) };
        leader.barrier().await.expect("it leads");
        let (leading, following) = (leader.running().expect("one"), other.running().expect("one"));
        let only = BTreeSet::from([leading.context.me]);
        let voters = |running: &Running| {
            let metrics = running.raft.metrics();
            let metrics = metrics.borrow_watched();
            metrics.committed_membership_config.get_joint_config().clone()
        };

        // No task continues the change meanwhile.
        let held = (leading.changing.lock().await, following.changing.lock().await);
        let mut change = Box::pin(replace(&leading, only.clone()));
        assert!(futures::poll!(&mut change).is_pending(), "it takes the disks' time");
        until("its first entry is committed", || voters(&leading).len() == 2).await;
        // A handover is in the way of the second.
        let to = following.context.me;
        leading.raft.trigger().transfer_leader(to).await.expect("asked");
        let told = change.await;
        assert!(matches!(told, Err(ClusterError::Unfinished(_))), "{told:?}");
        until("the other one leads", || other.lease_valid()).await;
        assert_eq!(voters(&leading).len(), 2, "it is half done");

        // The present leader is to be removed: it hands leadership back, and the change is finished.
        drop(held);
        until("one votes", || voters(&leading) == [only.clone()]).await;
        assert_eq!(leader.members().len(), 1, "the other one is gone");
        b.stop().await;
        a.stop().await;
    }
}
