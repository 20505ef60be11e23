//! The code of `rollout` (users) and `rolloutctl` (operators).

// These macros panic if the reader has gone; write with `stdio` and `output` instead.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod bench;
mod completer;
pub mod connect;
pub mod dev;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
#[cfg(test)]
mod golden;
pub mod output;
pub mod progress;
pub mod rollout;
pub mod rolloutctl;
mod shell_completion;
mod stdio;
