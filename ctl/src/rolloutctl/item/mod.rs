//! `rolloutctl item`: single rows of a run, by number.
//!
//! Invariant: a row is shown the same way by every verb. Deliberately absent: what a row says; its
//! prompt is in the input, its text in the output.

pub(super) mod describe;
pub(super) mod list;
pub(super) mod retry;
mod show;
