//! Batches as a library: reads and checks an input, writes its segments, submits and watches the run, and makes output
//! from its results. It also reads OpenAI batch files from a stored position.
//!
//! *Invariant:* rows are read, and outputs written, by rules that depend on the run's spec alone. So the same input
//! gives the same segments, and the same run gives the same bytes of output.
//! Absent: command lines and terminals; `ctl` has them.

// A library prints nothing.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod canonical;
pub mod event_stream;
pub mod export;
pub mod hint;
pub mod input;
pub mod item_id;
pub mod leader_stream;
pub mod one_or_many;
pub mod quantities;
pub mod result_reuse;
mod retries;
pub mod sampling;
pub mod submission;
