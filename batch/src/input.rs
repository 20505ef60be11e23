//! Owns: reading an input: which files, their lines, what a row is, and what is wrong with one.
//!
//! Invariant: whatever the bytes, reading ends with rows or with errors that name file, line and column, in memory
//! that does not grow with the input (see [`scan`] for the bounds).
//! Absent: where rows go; a scan hands finished segments to its caller.

pub mod admission;
pub mod batch_file;
pub mod column;
pub mod csv;
pub mod detect;
pub mod duplicates;
pub mod files;
pub mod line_fault;
pub mod mapping;
pub mod occurrence;
pub mod openai;
#[cfg(feature = "tables")]
mod parquet;
pub mod row;
pub mod rules;
pub mod scan;
pub mod task;
pub mod template;

mod assemble;
mod chunk;
mod glob;
mod local;
mod object;
mod open;
pub(crate) mod spill;
mod unpack;
