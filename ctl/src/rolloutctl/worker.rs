//! `rolloutctl worker`: worker agents, by name.

pub(super) mod cordon;
pub(super) mod describe;
pub(super) mod drain;
pub(super) mod list;
pub(super) mod uncordon;
