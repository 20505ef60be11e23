//! Owns: which run's output a directory holds, and who may write there.
//!
//! Invariant: without `--overwrite`, only files of the same run's output are replaced or removed. A directory of
//! another batch file is refused even if that one has written nothing yet.
//! Absent: the name of the run in `run-id` (`batch::name`), and writing the files (`output_sink`).

mod claim_status;
mod dir_entries;
mod record;

use std::io;
use std::path::PathBuf;

use self::claim_status::ClaimStatus;
use self::dir_entries::{entries, from};
pub(super) use self::record::Entry;
use self::record::{RECORD, Record};
use super::atomic_file::Replace;
use super::format::OutputFormat;
use super::layout::Layout;
use super::names::Names;
use crate::submission::error::BatchError;

/// How many files a record names; for fuzz targets only.
#[cfg(feature = "fuzzing")]
pub(super) fn files_of_record(bytes: &[u8]) -> Option<usize> {
    let record = Record::parse(bytes).ok()?;
    let named = record.files.iter().chain(&record.next);
    Some(named.filter(|entry| record.has(&entry.name, Some(entry.bytes))).count())
}

/// A claim to write into a directory.
#[derive(Debug, Clone)]
pub struct Claim {
    pub dir: PathBuf,
    /// The layout of the output.
    pub layout: Layout,
    /// The run's namespace. None if it is unknown, as in a dry run without a context.
    pub namespace: Option<String>,
    pub run: String,
    /// The batch file. None: the output is an export.
    pub batch: Option<BatchFile>,
    /// Whether the user allows replacing files that are not of this output.
    pub overwrite: bool,
}

/// A batch file and its input. Both may be in the output directory.
#[derive(Debug, Clone)]
pub struct BatchFile {
    pub path: PathBuf,
    /// Paths, globs and URLs of the input.
    pub input: Vec<String>,
    /// The base of relative paths.
    pub base: PathBuf,
}

impl Claim {
    /// Refuses a directory with the output or files of another owner.
    pub fn check(&self) -> Result<(), BatchError> {
        self.standing().map(drop)
    }

    /// Reserves a free directory, so that of two batch files that begin at once one is refused before it uploads
    /// anything.
    pub fn reserve(&self) -> Result<(), BatchError> {
        while let (ClaimStatus::Free, _) = self.standing()? {
            let record = self.record().map_err(|source| BatchError::output(&self.dir, source))?;
            let written = record.write(&self.dir, Replace::Nothing);
            if written.map_err(|source| BatchError::output(&self.dir.join(RECORD), source))? {
                break;
            }
            // Another process was first: check its owner again.
        }
        Ok(())
    }

    /// Takes the directory for a run that the cluster has acknowledged.
    pub fn settle(&self) -> Result<(), BatchError> {
        self.take(Vec::new()).map(drop)
    }

    /// Whether the cluster had this run, or another revision of it, when the directory was taken.
    pub fn had_run(&self) -> bool {
        let record = Record::read(&self.dir).ok().flatten();
        record.is_some_and(|record| {
            let same = self.namespace.as_ref().is_none_or(|ours| *ours == record.namespace);
            record.settled && same && self.is_of(&record.run)
        })
    }

    /// Records files before they get their names, so that they belong to this output even if the process is killed.
    pub(super) fn begin(&self, next: Vec<Entry>) -> Result<Record, BatchError> {
        self.take(next)
    }

    /// Records the end of the write.
    pub(super) fn end(&self, record: Record) {
        let ended = Record { files: self.kept(&record), next: Vec::new(), ..record.clone() };
        let now = Record::read(&self.dir).ok().flatten();
        if now.is_some_and(|now| now.is_of(&record)) {
            // The output is complete, and `next` already lists its files, so nothing depends on this.
            let _ = ended.write(&self.dir, Replace::Any);
        }
    }

    fn take(&self, next: Vec<Entry>) -> Result<Record, BatchError> {
        loop {
            let (standing, refused) = self.standing()?;
            let taken = self.taken(&standing, refused, next.clone());
            let record = taken.map_err(|source| BatchError::output(&self.dir, source))?;
            let replace = match standing {
                ClaimStatus::Ours(before) if before == record => return Ok(record),
                ClaimStatus::Free => Replace::Nothing,
                _ => Replace::Any,
            };
            let written = record.write(&self.dir, replace);
            if written.map_err(|source| BatchError::output(&self.dir.join(RECORD), source))? {
                return Ok(record);
            }
        }
    }

    /// The record that this claim leaves.
    fn taken(&self, standing: &ClaimStatus, refused: bool, next: Vec<Entry>) -> io::Result<Record> {
        let every = [OutputFormat::Jsonl, OutputFormat::OpenaiBatch, OutputFormat::Parquet];
        let mut record = Record { settled: true, next, ..self.record()? };
        match standing {
            ClaimStatus::Free | ClaimStatus::Reserved => {}
            ClaimStatus::Ours(before) => {
                record.batch = record.batch.or_else(|| before.batch.clone());
                record.files = self.kept(before);
            }
            ClaimStatus::Adopted => record.files = self.found(&every)?,
            ClaimStatus::Taken(files) => record.files.clone_from(files),
        }
        if refused {
            // The user allows replacing them, now or when the run has ended.
            record.files.append(&mut self.found(&[self.layout.format])?);
            record.files.sort();
            record.files.dedup();
        }
        Ok(record)
    }

    fn record(&self) -> io::Result<Record> {
        // The directory must exist before paths relative to it are computed.
        std::fs::create_dir_all(&self.dir)?;
        let batch = self.batch_there()?;
        Ok(Record::new(self.namespace.clone().unwrap_or_default(), self.run.clone(), batch))
    }

    /// Files of an output of one of these formats.
    fn found(&self, formats: &[OutputFormat]) -> io::Result<Vec<Entry>> {
        let ours = |name: &str| {
            formats.iter().any(|format| Names::are_of(*format, name))
                || (name == Names::MANIFEST && self.has_manifest())
        };
        let entry = |(name, bytes): (String, Option<u64>)| Some(Entry { name, bytes: bytes? });
        let found = entries(&self.dir)?.into_iter().filter(|(name, _)| ours(name));
        Ok(found.filter_map(entry).collect())
    }

    /// Files of a record that exist unchanged.
    fn kept(&self, record: &Record) -> Vec<Entry> {
        let there = |entry: &&Entry| {
            let found = std::fs::symlink_metadata(self.dir.join(&entry.name));
            found.is_ok_and(|found| found.is_file() && found.len() == entry.bytes)
        };
        let mut kept: Vec<Entry> =
            record.files.iter().chain(&record.next).filter(there).cloned().collect();
        kept.sort();
        kept.dedup();
        kept
    }

    /// The path of the batch file relative to the directory.
    fn batch_there(&self) -> io::Result<Option<String>> {
        self.batch.as_ref().map(|batch| from(&self.dir, &batch.path)).transpose()
    }
}

#[cfg(test)]
mod tests;
