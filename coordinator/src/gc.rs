//! Owns: garbage collection of runs, checkpoints and orphaned objects.
//!
//! *Invariant:* it runs on the leader only, and ends with the epoch.

mod checkpoints;
mod orphans;
pub(crate) mod run_stores;
mod runs;

use crate::gc::run_stores::RunStores;
use crate::leader::state::Leading;
use serde::Deserialize;
use std::sync::Arc;

/// How long ended runs are kept.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retention {
    /// Time from a run's end to its sealing, when its rows move from the ledger to a manifest object.
    pub run_ttl_ms: u64,
    /// Time from a run's sealing to its deletion with all its objects; 0: never.
    pub retention_ms: u64,
    /// Time between two scans for objects that belong to no run; 0: never.
    pub sweep_every_ms: u64,
    /// How long objects must have belonged to no run before they are removed.
    pub sweep_age_ms: u64,
}

impl Default for Retention {
    fn default() -> Self {
        const HOUR_MS: u64 = 60 * 60 * 1000;
        Self {
            run_ttl_ms: HOUR_MS,
            retention_ms: 0,
            sweep_every_ms: HOUR_MS,
            sweep_age_ms: 24 * HOUR_MS,
        }
    }
}

/// Collects garbage for as long as the epoch lasts.
pub(crate) fn start(leading: &Arc<Leading>, stores: &RunStores, retention: Retention) {
    let runs = runs::forget_runs(leading.clone(), stores.clone(), retention);
    tokio::spawn(leading.clone().until_ended(runs));
    let checkpoints = checkpoints::forget_checkpoints(leading.clone(), stores.cluster().clone());
    tokio::spawn(leading.clone().until_ended(checkpoints));
    let orphans = orphans::sweep_orphans(leading.clone(), stores.cluster().clone(), retention);
    tokio::spawn(leading.clone().until_ended(orphans));
}
