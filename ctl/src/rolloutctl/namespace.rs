//! `rolloutctl namespace`: the quota and the usage of each namespace.

pub(super) mod describe;
pub(super) mod everywhere;
pub(super) mod list;
pub(super) mod set_quota;
mod shown;
