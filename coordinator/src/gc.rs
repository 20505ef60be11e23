//! Owns: garbage collection of runs, checkpoints and orphaned objects.
//!
//! *Invariant:* it runs on the leader only, and ends with the epoch.

mod checkpoints;
mod orphans;
pub(crate) mod run_stores;
mod runs;

use crate::gc::run_stores::RunStores;
use crate::leader::state::LeaderState;
use rollout_config::coordinator::Retention;
use std::sync::Arc;

/// Collects garbage for as long as the epoch lasts.
pub(crate) fn start(leader: &Arc<LeaderState>, stores: &RunStores, retention: Retention) {
    let runs = runs::collect_runs(leader.clone(), stores.clone(), retention);
    tokio::spawn(leader.clone().until_ended(runs));
    let checkpoints = checkpoints::collect_checkpoints(leader.clone(), stores.cluster().clone());
    tokio::spawn(leader.clone().until_ended(checkpoints));
    let orphans = orphans::sweep_orphans(leader.clone(), stores.cluster().clone(), retention);
    tokio::spawn(leader.clone().until_ended(orphans));
}
