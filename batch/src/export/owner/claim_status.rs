//! Owns: the status of an output directory for a claim: free, owned by the claimant, or owned by another.
//!
//! Invariant: it reads and changes nothing, so a dry run may use it.
//! Absent: the response to it (`owner`).

use std::io;

use super::Claim;
use super::dir_entries::{self, entries, list};
use super::record::{Entry, RECORD, Record};
use crate::export::manifest::Manifest;
use crate::export::names::Names;
use crate::submission::error::BatchError;
use crate::submission::{name, revision};

/// The status of a directory for a claim.
pub(super) enum ClaimStatus {
    /// It has neither a record nor a run's name.
    Free,
    /// This batch file has reserved it, for a run that the cluster has not acknowledged.
    Reserved,
    /// It belongs to this run, or to another revision of it.
    Ours(Record),
    /// The same, written by a version of `rollout` without records.
    Adopted,
    /// It belongs to another owner, with these files.
    Taken(Vec<Entry>),
}

impl Claim {
    /// The directory's status, and whether it would have been refused without `--overwrite`.
    pub(super) fn standing(&self) -> Result<(ClaimStatus, bool), BatchError> {
        let looked = self.look().map_err(|source| BatchError::output(&self.dir, source))?;
        match looked {
            (standing, None) => Ok((standing, false)),
            (standing, Some(_)) if self.overwrite => Ok((standing, true)),
            (_, Some(what)) => Err(BatchError::OutputTaken { dir: self.dir.clone(), what }),
        }
    }

    /// The directory's status, and the reason to refuse it, if any.
    fn look(&self) -> io::Result<(ClaimStatus, Option<String>)> {
        let entries = match entries(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok((ClaimStatus::Free, None));
            }
            entries => entries?,
        };
        let (standing, mut refusal) = self.by_record()?;
        if refusal.is_none() {
            refusal = match &standing {
                ClaimStatus::Free | ClaimStatus::Reserved => self.others(&entries)?,
                ClaimStatus::Ours(record) => {
                    let ours = |name: &str, bytes| !self.is_target(name) || record.has(name, bytes);
                    let mut others = entries.iter().filter(|(name, bytes)| !ours(name, *bytes));
                    others.next().map(|(name, _)| changed(name))
                }
                ClaimStatus::Adopted | ClaimStatus::Taken(_) => None,
            };
        }
        Ok((standing, refusal))
    }

    fn by_record(&self) -> io::Result<(ClaimStatus, Option<String>)> {
        use io::ErrorKind::{InvalidData, PermissionDenied};
        let record = match Record::read(&self.dir) {
            Err(error) if matches!(error.kind(), InvalidData | PermissionDenied) => {
                let what =
                    format!("{RECORD} there, which says whose it is, cannot be read ({error})");
                return Ok((ClaimStatus::Taken(Vec::new()), Some(what)));
            }
            record => record?,
        };
        let Some(record) = record else { return self.by_name() };
        Ok(match self.objection(&record)? {
            Some(what) => (ClaimStatus::Taken(self.kept(&record)), Some(what)),
            None if record.settled => (ClaimStatus::Ours(record), None),
            None => (ClaimStatus::Reserved, None),
        })
    }

    /// The status of a directory without a record, by its run's name.
    fn by_name(&self) -> io::Result<(ClaimStatus, Option<String>)> {
        Ok(match name::remembered(&self.dir)? {
            None => (ClaimStatus::Free, None),
            Some(run) if self.is_of(&run) => (ClaimStatus::Adopted, None),
            Some(run) => {
                let what = format!("it belongs to run {run:?}, and this is run {:?}", self.run);
                (ClaimStatus::Taken(Vec::new()), Some(what))
            }
        })
    }

    /// Why a record does not belong to this claim.
    fn objection(&self, record: &Record) -> io::Result<Option<String>> {
        let batch = self.batch_there()?;
        let same_batch = batch.is_none() || record.batch.is_none() || record.batch == batch;
        if !record.settled && same_batch && batch.is_some() {
            return Ok(None);
        }
        let of = record.batch.as_ref().map(|path| format!(" (batch file {path})"));
        let (run, namespace) = (&record.run, &record.namespace);
        let theirs =
            format!("it belongs to run {run:?} of namespace {namespace}{}", of.unwrap_or_default());
        let elsewhere = self.namespace.as_ref().filter(|ours| *ours != namespace);
        if let Some(ours) = elsewhere {
            let what = format!("{theirs}, and this is run {:?} of namespace {ours}", self.run);
            return Ok(Some(what));
        }
        Ok(match (self.is_of(run), same_batch) {
            (true, true) => None,
            (false, _) => Some(format!("{theirs}, and this is run {:?}", self.run)),
            (true, false) => {
                Some(format!("{theirs}, and this is batch file {}", batch.unwrap_or_default()))
            }
        })
    }

    /// Whether a run belongs to the claim: all runs of a batch file are of one family.
    pub(super) fn is_of(&self, run: &str) -> bool {
        match &self.batch {
            Some(_) => revision::split(run).0 == revision::split(&self.run).0,
            None => run == self.run,
        }
    }

    /// The reason to refuse a directory that has no output of this program but other files.
    fn others(&self, entries: &[(String, Option<u64>)]) -> io::Result<Option<String>> {
        let names = entries.iter().map(|(name, _)| name.as_str());
        let mut others: Vec<&str> = names.filter(|name| *name != name::RUN_ID_FILE).collect();
        if let Some(name) = others.iter().find(|name| self.is_target(name)) {
            return Ok(Some(changed(name)));
        }
        if let (Some(batch), false) = (&self.batch, others.is_empty()) {
            let read = dir_entries::of_batch(&self.dir, batch)?;
            others.retain(|name| !read.contains(*name));
        }
        Ok((!others.is_empty()).then(|| format!("it holds other files ({})", list(&others))))
    }

    /// Whether an output of this layout replaces or removes a file of that name.
    fn is_target(&self, name: &str) -> bool {
        let manifest = || self.layout.shard_rows > 0 || self.has_manifest();
        Names::are_of(self.layout.format, name) || (name == Names::MANIFEST && manifest())
    }

    /// Whether this program wrote the manifest.json in the directory.
    pub(super) fn has_manifest(&self) -> bool {
        matches!(Manifest::read(&self.dir), Ok(Some(_)))
    }
}

fn changed(name: &str) -> String {
    format!("{name} there was not written by rollout, or was changed since")
}
