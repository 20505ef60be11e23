//! `rolloutctl audit`: the files of a member's audit. Needs no cluster.

pub(super) mod chain;
pub(super) mod verify;
