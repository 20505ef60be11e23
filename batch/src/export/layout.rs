//! Owns: the layout of an output: the format of its files, and how many rows each has.
//!
//! Invariant: a directory's files show the layout with which they were written.
//! Absent: writing files.

use std::path::Path;

use super::format::OutputFormat;
use super::manifest::Manifest;
use crate::submission::error::BatchError;

/// The layout of an output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Layout {
    /// The format of its files.
    pub format: OutputFormat,
    /// The most rows of a file; 0 for one file without a manifest.
    pub shard_rows: u64,
}

impl Layout {
    /// The layout of a directory's content, as far as its files show it.
    pub fn of_directory(dir: &Path, default: OutputFormat) -> Result<Self, BatchError> {
        let manifest = match Manifest::read(dir) {
            Ok(Some(manifest)) => {
                return Ok(Self { format: manifest.format, shard_rows: manifest.shard_rows });
            }
            other => other,
        };
        let formats =
            [default, OutputFormat::Jsonl, OutputFormat::OpenaiBatch, OutputFormat::Parquet];
        let there = |format: &OutputFormat| {
            dir.join(format!("{}.{}", format.completions(), format.ending())).exists()
        };
        match (formats.into_iter().find(there), manifest) {
            (None, Err(error)) => Err(error),
            // A manifest.json beside a single file belongs to something else.
            (format, _) => Ok(Self { format: format.unwrap_or(default), shard_rows: 0 }),
        }
    }

    /// The name of the completions files, human-readable.
    pub fn completions(&self) -> String {
        self.called(self.format.completions())
    }

    /// The name of the errors files, human-readable.
    pub fn errors(&self) -> String {
        self.called(self.format.errors())
    }

    fn called(&self, stem: &str) -> String {
        let shards = if self.shard_rows > 0 { "-*" } else { "" };
        format!("{stem}{shards}.{}", self.format.ending())
    }
}
