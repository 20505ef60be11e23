//! Owns: handing leadership over.
//!
//! Invariant: it goes to a voter only, and the call returns once it has left, or an error.
//! Absent: why it is handed over.

use std::time::Duration;

use openraft::Instant;
use openraft::async_runtime::WatchReceiver;

use crate::errors::{ClusterError, NotLeader};
use crate::running::Running;

/// How long a transfer of leadership may take.
const TRANSFER_LIMIT: Duration = Duration::from_secs(3);

/// Leases within which a member answered a heartbeat, if it is to be preferred as a successor.
const HEARD_LATELY: u32 = 2;

/// Hands leadership to the named voter, or to the one whose log is longest, and waits until it has left.
pub(crate) async fn transfer_leader(
    running: &Running,
    to: Option<&str>,
) -> Result<(), ClusterError> {
    let me = running.context.me;
    let target = {
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        let Some(replication) = metrics.replication.as_ref().filter(|_| metrics.state.is_leader())
        else {
            let leader = metrics.current_leader.filter(|id| *id != me);
            let leader = leader.and_then(|id| metrics.membership_config.get_node(&id).cloned());
            return Err(NotLeader { leader }.into());
        };
        let config = &metrics.membership_config;
        let named = |id: &u64| {
            config.get_node(id).is_some_and(|member| to.is_none_or(|to| member.name == to))
        };
        let voters: Vec<u64> = config.voter_ids().filter(|id| *id != me && named(id)).collect();
        let heard = |id: &u64| {
            metrics.heartbeat.as_ref().and_then(|acked| acked.get(id).copied().flatten())
        };
        let answers = |id: &u64| {
            heard(id).is_some_and(|at| at.elapsed() < HEARD_LATELY * running.config.lease())
        };
        voters.into_iter().max_by_key(|id| (answers(id), replication.get(id).copied().flatten()))
    };
    let Some(target) = target else {
        let text = match to {
            Some(name) => format!("{name:?} is not another voter of this cluster"),
            None => "there is no other voter".to_owned(),
        };
        return Err(ClusterError::Refused(text));
    };
    let ended = |error: &dyn std::fmt::Display| ClusterError::Unfinished(error.to_string());
    running.raft.trigger().transfer_leader(target).await.map_err(|error| ended(&error))?;
    running
        .raft
        .wait(Some(TRANSFER_LIMIT))
        .metrics(|metrics| metrics.current_leader.is_some_and(|id| id != me), "leadership has left")
        .await
        .map(drop)
        .map_err(|error| ended(&format!("leadership has not left: {error}")))
}
