//! Owns: the way of a listed member into the cluster: it is made part of it, sent the log, and given its vote.
//!
//! Invariant: what is to become of a member is in the log, so that any leader goes on where another ended; a member
//! gets a vote only when it answers and has nearly all of the log, so that no vote slows or stops the others.
//! Absent: who is listed; see `membership`.

use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;

use crate::cluster::{adopt, hello};
use crate::errors::ClusterError;
use crate::member::{Joins, MemberRecord};
use crate::membership::promote;
use crate::running::Running;

/// How often a leader looks who joins.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Entries that a member may lack when it gets its vote, and while it serves: some rounds of replication under load.
pub const LACKS_MAX: u64 = 256;

/// Sees members in, wherever this member leads.
pub(crate) async fn watch(running: Arc<Running>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let steps = joining(&running).into_iter().map(|(learner, lacks)| {
            let running = running.clone();
            async move {
                if let Err(error) = step(&running, &learner, lacks).await {
                    tracing::debug!(member = learner.name, %error, "a member has not joined yet");
                }
            }
        });
        futures::future::join_all(steps).await;
    }
}

/// The members without a vote, with the entries that each lacks; `None` where it never answered this leader. Empty
/// where this member does not lead.
fn joining(running: &Running) -> Vec<(MemberRecord, Option<u64>)> {
    let metrics = running.raft.metrics();
    let metrics = metrics.borrow_watched();
    let Some(replication) = metrics.replication.as_ref().filter(|_| metrics.state.is_leader())
    else {
        return Vec::new();
    };
    let config = &metrics.membership_config;
    let last = metrics.last_log_index.unwrap_or(0);
    let lacks = |id: &u64| {
        let matched = replication.get(id).copied().flatten()?;
        Some(last.saturating_sub(matched.index()))
    };
    let voter = |id: &u64| config.voter_ids().any(|voter| voter == *id);
    let learners = config.nodes().filter(|(id, _)| !voter(id));
    learners.map(|(id, member)| (member.clone(), lacks(id))).collect()
}

async fn step(
    running: &Running,
    learner: &MemberRecord,
    lacks: Option<u64>,
) -> Result<(), ClusterError> {
    let wants_vote = matches!(learner.joins, Joins::Voter { .. });
    let ready = lacks.is_some_and(|lacks| lacks <= LACKS_MAX);
    if lacks.is_some() && !(wants_vote && ready) {
        return Ok(());
    }
    let answer = hello(&running.context.dialer, learner).await?;
    if answer.cluster_id.is_empty() {
        if lacks.is_some() {
            let text = format!(
                "{} lost its disk while it joined: remove it, and add it again",
                learner.name
            );
            return Err(ClusterError::Refused(text));
        }
        return adopt(&running.context.dialer, learner, running.identity.cluster_id).await;
    }
    if !ready || answer.member_id != learner.id {
        return Ok(());
    }
    promote(running, learner).await?;
    tracing::info!(member = learner.name, id = learner.id, "a member got its vote");
    Ok(())
}
