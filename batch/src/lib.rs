//! Batches as a library: reads and checks an input, writes its segments, submits and watches the run, and makes output
//! from its results. It also reads OpenAI batch files from a stored position.
//!
//! *Invariant:* whoever reads a row and whoever writes its result go by the same rules, so the same input gives the same
//! segments, and the same run the same bytes of output.
//! Absent: command lines, terminals, exit of a process; `ctl` has them.

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
