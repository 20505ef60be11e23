//! Owns: a batch job from its file to its end: configuration, upload, submission, watching.
//!
//! Invariant: nothing is submitted before the whole input was read and validated, and every step may be repeated: the
//! same file gives the same run, the same objects, the same segments.
//! Absent: the output (`export`), and terminal output (`progress`, `rollout`).

pub mod append;
pub mod close;
pub mod cluster_speed;
pub mod config;
pub mod error;
pub mod job;
pub mod name;
mod require;
pub mod revision;
pub mod row_join;
pub mod spec;
pub mod speed;
pub mod submit;
pub mod tokens;
pub mod upload;
pub mod watch;
