//! `rolloutctl item`: single rows of a run, by number, or by ID in `describe`.
//!
//! Invariant: every verb shows a row the same way. Absent: a row's content; its prompt is in the input,
//! its text in the output.

pub(super) mod describe;
mod find;
pub(super) mod list;
pub(super) mod retry;
mod run_objects;
mod show;
mod text;
