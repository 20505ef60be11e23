//! `rolloutctl member`: the members of the cluster, by name.

pub(super) mod add;
pub(super) mod describe;
pub(super) mod joining;
pub(in crate::rolloutctl) mod list;
pub(super) mod plan_checks;
pub(super) mod promote;
pub(super) mod remove;
pub(super) mod replace;
pub(super) mod update;
