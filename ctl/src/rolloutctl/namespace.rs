//! `rolloutctl namespace`: the quota and the usage of each namespace.

pub(super) mod all_namespaces;
pub(super) mod describe;
pub(super) mod list;
pub(super) mod set_quota;
mod summary;
