//! `rolloutctl barrier`: the barriers of a training job, by name.
//!
//! Invariant: a generation is shown the same way by every verb. Deliberately absent: arriving; that is what
//! training processes do.

pub(super) mod abort;
pub(super) mod describe;
pub(super) mod list;
mod summary;
