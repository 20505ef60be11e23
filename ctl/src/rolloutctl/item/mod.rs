//! `rolloutctl item`: single rows of a run, by number, or by id where one is described.
//!
//! Invariant: a row is shown the same way by every verb. Deliberately absent: what a row says; its
//! prompt is in the input, its text in the output.

pub(super) mod describe;
mod find;
pub(super) mod list;
pub(super) mod retry;
mod run_objects;
mod show;
mod text;
