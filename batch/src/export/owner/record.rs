//! Owns: `.rollout.json` in an output directory: which run's output is there, and which files belong to it.
//!
//! Invariant: an output file is in the record before it appears under its name in the directory.
//! Absent: what follows from it (`owner`).

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::export::atomic_file::{self, Replace};

/// The name of the record. Its leading dot hides it from programs that read every `*.json` of a directory.
pub(super) const RECORD: &str = ".rollout.json";
const VERSION: u32 = 1;

/// The owner of a directory's output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::export) struct Record {
    pub(super) version: u32,
    /// The namespace of the run.
    pub(super) namespace: String,
    pub(super) run: String,
    /// The batch file, relative to the directory. None: `rollout export` wrote the output.
    pub(super) batch: Option<String>,
    /// Whether the cluster has acknowledged the run. Until then the directory is reserved for the batch file, whatever
    /// the name of its run.
    pub(super) settled: bool,
    /// Files of the output.
    pub(super) files: Vec<Entry>,
    /// Files that are about to get their names.
    pub(super) next: Vec<Entry>,
}

/// A file of an output.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(in crate::export) struct Entry {
    pub(in crate::export) name: String,
    pub(in crate::export) bytes: u64,
}

impl Record {
    /// A record without files.
    pub(super) fn new(namespace: String, run: String, batch: Option<String>) -> Self {
        let (files, next) = (Vec::new(), Vec::new());
        Self { version: VERSION, namespace, run, batch, settled: false, files, next }
    }

    /// The record of a directory, if it has one.
    pub(super) fn read(dir: &Path) -> io::Result<Option<Self>> {
        let bytes = match fs::read(dir.join(RECORD)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        Self::parse(&bytes).map(Some)
    }

    pub(super) fn parse(bytes: &[u8]) -> io::Result<Self> {
        let invalid = |message| io::Error::new(io::ErrorKind::InvalidData, message);
        let record: Self =
            serde_json::from_slice(bytes).map_err(|error| invalid(error.to_string()))?;
        match record.version {
            VERSION => Ok(record),
            version => Err(invalid(format!("it has version {version}, from a later rollout"))),
        }
    }

    /// Writes it. Returns false if it may not replace an existing record.
    pub(super) fn write(&self, dir: &Path, replace: Replace) -> io::Result<bool> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        atomic_file::write(dir, RECORD, &text, replace)
    }

    /// Whether a file of that name and length belongs to the output.
    pub(super) fn has(&self, name: &str, bytes: Option<u64>) -> bool {
        let mut entries = self.files.iter().chain(&self.next);
        entries.any(|entry| entry.name == name && Some(entry.bytes) == bytes)
    }

    /// Whether both belong to one run and one batch file.
    pub(super) fn is_of(&self, other: &Self) -> bool {
        (&self.namespace, &self.run, &self.batch) == (&other.namespace, &other.run, &other.batch)
    }
}
