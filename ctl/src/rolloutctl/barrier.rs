//! `rolloutctl job barrier`: the barriers of a training job, by name.
//!
//! Invariant: every verb shows a generation the same way. Absent: arriving; training processes do that.

pub(super) mod abort;
pub(super) mod describe;
pub(super) mod list;
pub(super) mod summary;
