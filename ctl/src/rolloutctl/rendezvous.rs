//! `rolloutctl job rendezvous`: training jobs, their participants and rounds, by the job's name.
//!
//! Invariant: every verb shows a rendezvous the same way. Absent: joining; training processes do that.

pub(super) mod close;
pub(super) mod describe;
pub(super) mod list;
pub(super) mod summary;
