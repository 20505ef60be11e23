//! Owns: garbage collection of runs, checkpoints, files and orphaned objects.
//!
//! *Invariant:* it runs on the leader only, and ends with the epoch.

mod checkpoints;
mod content;
mod orphans;
pub(crate) mod run_stores;
mod runs;

use crate::gc::run_stores::RunStores;
use crate::leader::state::LeaderState;
use rollout_config::coordinator::Retention;
use std::sync::Arc;
use std::time::Duration;

/// Collects garbage for as long as the epoch lasts.
pub(crate) fn start(leader: &Arc<LeaderState>, stores: &RunStores, retention: Retention) {
    let runs = runs::collect_runs(leader.clone(), stores.clone(), retention);
    tokio::spawn(leader.clone().until_ended(runs));
    let checkpoints = checkpoints::collect_checkpoints(leader.clone(), stores.cluster().clone());
    tokio::spawn(leader.clone().until_ended(checkpoints));
    let content = content::collect_content(leader.clone(), stores.cluster().clone());
    tokio::spawn(leader.clone().until_ended(content));
    let every = Duration::from_millis(retention.sweep_every_ms);
    let content = content::sweep_content(leader.clone(), stores.cluster().clone(), every);
    tokio::spawn(leader.clone().until_ended(content));
    let orphans = orphans::sweep_orphans(leader.clone(), stores.cluster().clone(), retention);
    tokio::spawn(leader.clone().until_ended(orphans));
}
