//! The code of `rollout` (users) and `rolloutctl` (operators).

// These macros panic if the reader has gone; write with `stdio` and `output` instead.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod batch;
pub mod bench;
pub mod canonical;
mod completer;
pub mod connect;
pub mod dev;
mod event_stream;
pub mod export;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
#[cfg(test)]
mod golden;
mod hint;
pub mod input;
pub mod item_id;
mod leader_stream;
pub mod one_or_many;
pub mod output;
pub mod progress;
pub mod result_reuse;
mod retries;
pub mod rollout;
pub mod rolloutctl;
pub mod sampling;
mod shell_completion;
mod stdio;
