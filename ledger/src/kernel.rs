//! Owns: what every part of the ledger stands on: numbers, sets of rows, encodings, bounds, replies.
//!
//! Invariant: nothing here knows a domain.

pub(crate) mod blob_ref;
pub(crate) mod bytes_field;
pub(crate) mod codec;
pub(crate) mod condition;
pub(crate) mod counted;
pub(crate) mod counts;
pub(crate) mod deadline_queue;
pub(crate) mod dirty_set;
pub(crate) mod held_rows;
pub mod id;
pub(crate) mod job_refusal;
pub mod limits;
pub(crate) mod names;
pub(crate) mod openai_refusal;
pub(crate) mod reply;
pub(crate) mod rows;
mod stored_rejection;
pub(crate) mod versions;
pub(crate) mod visits;
