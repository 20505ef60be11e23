//! Owns: the objects of OpenAI's API: files, uploads of a file in parts, and batches.
//!
//! Invariant: the ledger names the content of a file and never contains it. Every object of a file was durable before the
//! operation that names it was proposed.
//! Absent: HTTP, and the objects themselves.

pub(crate) mod add_batch_segments;
pub(crate) mod add_upload_part;
pub(crate) mod assign_batch;
pub(crate) mod batch;
mod batch_check;
pub(crate) mod batch_image;
pub(crate) mod batch_output;
#[cfg(test)]
mod batch_tests;
pub(crate) mod batch_view;
pub(crate) mod batches;
pub(crate) mod cancel_batch;
pub(crate) mod cancel_upload;
pub(crate) mod complete_upload;
pub(crate) mod content;
pub(crate) mod create_batch;
pub(crate) mod create_file;
pub(crate) mod create_upload;
pub(crate) mod delete_file;
pub(crate) mod fail_batch;
pub(crate) mod file;
pub(crate) mod files;
pub(crate) mod finish_batch;
pub(crate) mod forget_content;
mod image;
pub(crate) mod removals;
pub(crate) mod start_batch;
#[cfg(test)]
mod tests;
pub(crate) mod upload;
pub(crate) mod usage;
pub(crate) mod view;
