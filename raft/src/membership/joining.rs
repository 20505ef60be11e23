//! Owns: bringing a listed member into the cluster: it is adopted, receives the log, and gets its vote.
//!
//! Invariant: the log records the target role of each member, so any leader can continue where another stopped. A
//! member gets a vote only when it answers and has nearly all of the log, so that no vote slows or stops the others.
//! Absent: which members are listed; see `membership`.

use std::sync::Arc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;

use crate::consensus::follower_lag::FollowerProgress;
use crate::consensus::running::Running;
use crate::errors::ClusterError;
use crate::member::{Joins, MemberRecord};
use crate::membership::cluster::{adopt, hello};
use crate::membership::voters;
use crate::membership::{promote, record_adopted};
use rollout_ledger::SCHEDULING_VERSION;

/// How often a leader checks for joining members.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// While this member leads, brings joining members into the cluster, and finishes incomplete changes of voters.
pub(crate) async fn watch(running: Arc<Running>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        if let Err(error) = voters::settle(&running).await {
            tracing::debug!(%error, "a change of the voters is not finished yet");
        }
        let steps = joining(&running).into_iter().map(|(learner, progress)| {
            let running = running.clone();
            async move {
                if let Err(error) = step(&running, &learner, progress).await {
                    tracing::debug!(member = learner.name, %error, "a member has not joined yet");
                }
            }
        });
        futures::future::join_all(steps).await;
    }
}

/// The members without a vote, with the progress of each. Empty if this member does not lead.
fn joining(running: &Running) -> Vec<(MemberRecord, FollowerProgress)> {
    let metrics = running.raft.metrics();
    let metrics = metrics.borrow_watched();
    if !metrics.state.is_leader() || metrics.replication.is_none() {
        return Vec::new();
    }
    let config = &metrics.membership_config;
    let voter = |id: &u64| config.voter_ids().any(|voter| voter == *id);
    let learners = config.nodes().filter(|(id, _)| !voter(id));
    let lease = running.config.lease();
    learners
        .map(|(id, member)| (member.clone(), FollowerProgress::of(&metrics, *id, lease)))
        .collect()
}

async fn step(
    running: &Running,
    learner: &MemberRecord,
    progress: FollowerProgress,
) -> Result<(), ClusterError> {
    let wants_vote = matches!(learner.joins, Joins::Voter { .. });
    let (ready, has_matched) = (progress.is_close(), progress.matched.is_some());
    // Builds of older versions cannot read the record of an adopted member.
    let version = running.machine.read(|state| state.ledger.version());
    let unrecorded = !learner.adopted && version >= SCHEDULING_VERSION;
    if has_matched && !unrecorded && !(wants_vote && ready) {
        return Ok(());
    }
    let answer = hello(&running.context.dialer, learner).await?;
    if answer.cluster_id.is_empty() {
        if has_matched || learner.adopted {
            let text = format!(
                "{} lost its disk while it joined: remove it, and add it again",
                learner.name
            );
            return Err(ClusterError::Refused(text));
        }
        return adopt(&running.context.dialer, learner, running.identity.cluster_id).await;
    }
    if answer.member_id != learner.id || answer.cluster_id != running.context.cluster_text {
        return Ok(());
    }
    if unrecorded {
        record_adopted(running, learner).await?;
    }
    if !(wants_vote && ready) {
        return Ok(());
    }
    promote(running, learner).await?;
    tracing::info!(member = learner.name, id = learner.id, "a member got its vote");
    Ok(())
}
