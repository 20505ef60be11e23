//! `rolloutctl rendezvous`: training jobs, their participants and rounds, by the job's name.
//!
//! Invariant: a rendezvous is shown the same way by every verb. Deliberately absent: joining; that is what
//! training processes do.

pub(super) mod close;
pub(super) mod describe;
pub(super) mod list;
mod summary;
