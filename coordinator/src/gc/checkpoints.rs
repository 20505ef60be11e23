//! Garbage collection of checkpoints on the leader: removes the objects of checkpoints that are to be deleted, and
//! sweeps objects that no checkpoint names.
//!
//! *Invariant:* objects first, then the command that relies on them: every object of a checkpoint is gone before
//! `Forget` is proposed. Only objects of checkpoints that can never become complete are removed. A number is never
//! reused while its job exists, and the ledger accepts no report for a checkpoint that it does not have or that is to
//! be deleted. The leader confirms that it still leads after it has listed objects: a deposed leader does not know
//! checkpoints that began since, or that the job was deleted and created again.
//!
//! Absent: folders of deleted jobs. Another cluster's folders may lie beside them.

use crate::gc::runs::{AGAIN_AFTER, GcError, LOOK_EVERY, propose, remove_all};
use crate::leader::ledger_read::ReadLedger;
use crate::leader::state::LeaderState;
use rollout_ledger::{CheckpointOp, CheckpointState, JobName, OpKind};
use rollout_storage::BlobStore;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How often each job's folder is scanned for objects that a trainer wrote too late.
const SWEEP_EVERY: Duration = Duration::from_secs(600);

/// Removes checkpoints that are to be deleted, for as long as the epoch lasts.
pub(crate) async fn collect_checkpoints(leader: Arc<LeaderState>, store: BlobStore) {
    let mut swept = tokio::time::Instant::now();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let going: Vec<(JobName, u32)> = leader.node.ledger(|l| {
            let all = l.trainings().flat_map(|training| training.checkpoints().collect::<Vec<_>>());
            let going = all.filter(|checkpoint| checkpoint.state() == CheckpointState::Going);
            going.map(|checkpoint| (checkpoint.job.clone(), checkpoint.number)).collect()
        });
        let mut failed = false;
        for (job, number) in going {
            failed |= !log_result(&job, number, remove(&leader, &store, &job, number).await);
        }
        if swept.elapsed() >= SWEEP_EVERY {
            swept = tokio::time::Instant::now();
            if let Err(error) = sweep(&leader, &store).await {
                tracing::warn!(%error, "could not sweep orphaned objects of checkpoints; will retry");
            }
        }
        if failed {
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }
}

fn log_result(job: &JobName, number: u32, result: Result<(), GcError>) -> bool {
    let JobName { namespace, job } = job;
    match &result {
        Ok(()) => tracing::info!(namespace, job, number, "checkpoint forgotten"),
        Err(error) => {
            tracing::warn!(namespace, job, number, %error, "checkpoint not forgotten; will retry");
        }
    }
    result.is_ok()
}

async fn remove(
    leader: &LeaderState,
    store: &BlobStore,
    job: &JobName,
    number: u32,
) -> Result<(), GcError> {
    let prefix = rollout_storage::checkpoint_prefix(&job.namespace, &job.job, number);
    let listed = store.list(&prefix).await?;
    // If the job was deleted and created again under its name, the same numbers belong to other checkpoints.
    still_leads(leader).await?;
    let goes = leader.node.ledger(|l| {
        let training = l.training(job);
        let mut all = training.iter().flat_map(|t| t.checkpoints().collect::<Vec<_>>());
        all.any(|c| c.number == number && c.state() == CheckpointState::Going)
    });
    if !goes {
        return Ok(());
    }
    remove_all(store, listed).await?;
    let op = CheckpointOp::Forget { job: job.clone(), number };
    propose(leader, OpKind::Checkpoint(op)).await
}

/// Confirms that the ledger here is at least as new as this call.
async fn still_leads(leader: &LeaderState) -> Result<(), GcError> {
    let read = leader.node.read_index().await;
    read.map(drop).map_err(|error| GcError::Deposed(error.to_string()))
}

/// Removes objects of forgotten checkpoints, written by a trainer that did not know yet, and temporary files of killed
/// writers.
async fn sweep(leader: &LeaderState, store: &BlobStore) -> Result<(), GcError> {
    let jobs: Vec<JobName> =
        leader.node.ledger(|l| l.trainings().map(|training| training.name().clone()).collect());
    for job in jobs {
        let prefix = rollout_storage::training_prefix(&job.namespace, &job.job);
        let abandoned = store.remove_abandoned(&prefix).await?;
        metrics::counter!("rollout_checkpoint_objects_swept_total").increment(abandoned);
        // List objects first. The ledger is read afterward, by a confirmed leader, and so has every checkpoint that
        // began before the listing.
        let listed = store.list(&prefix).await?;
        still_leads(leader).await?;
        let live_folders: BTreeSet<String> = leader.node.ledger(|l| {
            let training = l.training(&job);
            let numbers =
                training.iter().flat_map(|t| t.checkpoints().map(|c| c.number).collect::<Vec<_>>());
            let prefix = |n| rollout_storage::checkpoint_prefix(&job.namespace, &job.job, n);
            numbers.map(|number| format!("{}/", prefix(number))).collect()
        });
        let named = |key: &String| {
            let folder = key.rsplit_once('/').map_or("", |(folder, _)| folder);
            live_folders.contains(&format!("{folder}/"))
        };
        let orphans: Vec<String> = listed.into_iter().filter(|key| !named(key)).collect();
        metrics::counter!("rollout_checkpoint_objects_swept_total").increment(orphans.len() as u64);
        remove_all(store, orphans).await?;
    }
    Ok(())
}
