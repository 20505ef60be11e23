//! Owns: garbage collection of runs, checkpoints and orphaned objects.

pub(crate) mod checkpoints;
pub(crate) mod orphans;
pub(crate) mod run_stores;
pub(crate) mod runs;
pub(crate) mod tries;
