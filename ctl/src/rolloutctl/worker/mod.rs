//! `rolloutctl worker`: worker agents, by name.

pub(super) mod list;
