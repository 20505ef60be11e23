//! Owns: manifest.json, which lists the files of an output.
//!
//! Invariant: it depends on the run and the files alone: no time, no path.
//! Absent: writing it, which happens last.

use std::path::Path;

use rollout_proto::v1;
use serde::{Deserialize, Serialize};

use super::Totals;
use super::format::OutputFormat;
use super::names::Names;
use crate::submission::error::BatchError;
use crate::submission::spec;

const VERSION: u32 = 1;

/// The files of an output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of this layout: 1.
    pub version: u32,
    pub run: String,
    pub namespace: String,
    /// The digest of its spec as it was submitted, in hexadecimal digits.
    pub spec_digest: String,
    pub model_uri: String,
    /// blake3 of the model's URI, revision, task and options.
    pub model_content_id: String,
    /// The format of the files.
    pub format: OutputFormat,
    /// The most rows of a file.
    pub shard_rows: u64,
    /// Rows of the run.
    pub rows: u64,
    /// Rows with a completion.
    pub completions: u64,
    /// Rows that failed permanently.
    pub failed: u64,
    /// Tokens of the prompts of rows with a completion.
    pub prompt_tokens: u64,
    /// Tokens of the completions.
    pub completion_tokens: u64,
    /// In the order of the input, completions first.
    pub files: Vec<FileEntry>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    pub name: String,
    pub rows: u64,
    pub bytes: u64,
    /// Of its bytes, in hexadecimal digits.
    pub blake3: String,
}

impl Manifest {
    /// The manifest of a run's files.
    pub(super) fn new(
        (described, run_spec): (&v1::DescribeRunResponse, &v1::RunSpec),
        (format, shard_rows): (OutputFormat, u64),
        totals: &Totals,
        files: Vec<FileEntry>,
    ) -> Self {
        let run = described.run.clone().unwrap_or_default();
        let digest = <[u8; 32]>::try_from(&described.spec_digest[..]).unwrap_or_default();
        Self {
            version: VERSION,
            run: run.name,
            namespace: run.namespace,
            spec_digest: blake3::Hash::from_bytes(digest).to_hex().to_string(),
            model_uri: run_spec.engine.as_ref().map_or("", |engine| &engine.model).to_owned(),
            model_content_id: spec::model_id(run_spec).to_hex(),
            format,
            shard_rows,
            rows: totals.rows,
            completions: totals.done,
            failed: totals.failed,
            prompt_tokens: totals.prompt_tokens,
            completion_tokens: totals.completion_tokens,
            files,
        }
    }

    /// The manifest of a directory, if it has one.
    pub fn read(dir: &Path) -> Result<Option<Self>, BatchError> {
        let path = dir.join(Names::MANIFEST);
        match std::fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(manifest) => Ok(Some(manifest)),
                Err(error) => Err(BatchError::Output { path, source: error.into() }),
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(BatchError::Output { path, source }),
        }
    }
}
