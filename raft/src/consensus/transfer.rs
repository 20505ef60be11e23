//! Owns: handing leadership over.
//!
//! Invariant: leadership goes only to a voter that answers and has nearly all of the log: from the offer on, this
//! leader takes no writes and sends no heartbeats until it is deposed. The call returns once this member no longer
//! leads, or with an error.
//! Absent: when it is handed over. The caller gives the cause, and the next leader learns it.

use std::time::{Duration, Instant};

use openraft::async_runtime::WatchReceiver;

use crate::consensus::follower_lag::{FollowerProgress, KEEPS_UP_WITHIN, LOOK_EVERY};
use crate::consensus::running::Running;
use crate::errors::{ClusterError, NotLeader};
use crate::peer::handovers::Handover;

/// How long a transfer of leadership may take.
const TRANSFER_LIMIT: Duration = Duration::from_secs(3);

/// Hands leadership to the named voter, or to the one with the longest log, and waits until this member no longer
/// leads.
pub(crate) async fn transfer_leader(
    running: &Running,
    to: Option<&str>,
    why: Handover,
) -> Result<(), ClusterError> {
    let me = running.context.me;
    let give_up = Instant::now() + KEEPS_UP_WITHIN;
    let target = loop {
        match successor(running, to) {
            Err(ClusterError::Unsafe(_)) if Instant::now() < give_up => {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            found => break found?,
        }
    };
    let ended = |error: &dyn std::fmt::Display| ClusterError::Unfinished(error.to_string());
    running.context.handovers.hands_over(why);
    running.raft.trigger().transfer_leader(target).await.map_err(|error| ended(&error))?;
    running
        .raft
        .wait(Some(TRANSFER_LIMIT))
        .metrics(|metrics| metrics.current_leader.is_some_and(|id| id != me), "leadership has left")
        .await
        .map(drop)
        .map_err(|error| ended(&format!("leadership has not left: {error}")))
}

/// Hands leadership over before this member loses its vote; returns the member to ask instead.
pub(crate) async fn step_aside(running: &Running) -> ClusterError {
    if let Err(error) = transfer_leader(running, None, Handover::Removal).await {
        return error;
    }
    let metrics = running.raft.metrics();
    let metrics = metrics.borrow_watched();
    let leader =
        metrics.current_leader.and_then(|id| metrics.membership_config.get_node(&id).cloned());
    NotLeader { leader }.into()
}

/// The member that can lead instead: `to`, or any if not given.
fn successor(running: &Running, to: Option<&str>) -> Result<u64, ClusterError> {
    let me = running.context.me;
    let metrics = running.raft.metrics();
    let metrics = metrics.borrow_watched();
    let config = &metrics.membership_config;
    if !metrics.state.is_leader() || metrics.replication.is_none() {
        let leader = metrics.current_leader.filter(|id| *id != me);
        let leader = leader.and_then(|id| config.get_node(&id).cloned());
        return Err(NotLeader { leader }.into());
    }
    let named =
        |id: &u64| config.get_node(id).is_some_and(|member| to.is_none_or(|to| member.name == to));
    let voters = config.voter_ids().filter(|id| *id != me && named(id));
    let candidates =
        voters.map(|id| (FollowerProgress::of(&metrics, id, running.config.lease()), id));
    match (candidates.max(), to) {
        (Some((progress, id)), _) if progress.keeps_up() => Ok(id),
        (Some((progress, _)), Some(name)) => Err(ClusterError::Unsafe(format!(
            "{name} {progress}: all writes would wait until it has caught up; see rolloutctl member list"
        ))),
        (Some(_), None) => Err(ClusterError::Unsafe(
            "no other voter answers and has nearly all of the log: rolloutctl member list says how far each is".to_owned(),
        )),
        (None, Some(name)) => {
            Err(ClusterError::Refused(format!("{name:?} is not another voter of this cluster")))
        }
        (None, None) => Err(ClusterError::Refused("there is no other voter".to_owned())),
    }
}
