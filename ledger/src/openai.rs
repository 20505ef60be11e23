//! Owns: the objects of OpenAI's API: files, and uploads of a file in parts.
//!
//! Invariant: the ledger names the content of a file and never contains it. Every object of a file was durable before the
//! operation that names it was proposed.
//! Absent: HTTP, and the objects themselves.

pub(crate) mod add_upload_part;
pub(crate) mod cancel_upload;
pub(crate) mod complete_upload;
pub(crate) mod content;
pub(crate) mod create_file;
pub(crate) mod create_upload;
pub(crate) mod delete_file;
pub(crate) mod file;
pub(crate) mod files;
pub(crate) mod forget_content;
mod image;
pub(crate) mod removals;
#[cfg(test)]
mod tests;
pub(crate) mod upload;
mod usage;
pub(crate) mod view;
