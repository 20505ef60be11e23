//! Image records of jobs.
//!
//! *Invariant:* as in [`crate::machine::image`]. Keys: `G` a job's head, and with the suffix [`ACCESS`] who may use the
//! store of its round; `B` a barrier, by job and name; `A` the incarnations of its arrivals.

use super::{Job, Jobs};
use crate::kernel::codec;
use crate::kernel::id::JobNo;
use crate::machine::image::{ImageDelta, key};
use crate::machine::image_load::{LoadError, bad, number, read};
use crate::training::barrier::Barrier;
use crate::training::round_access::RoundAccess;
use crate::training::training_image::DirtyTrainings;
use std::collections::BTreeSet;

/// The records of jobs that differ from the image on disk.
#[derive(Clone, Debug, Default)]
pub(super) struct DirtyJobs {
    pub(super) heads: BTreeSet<JobNo>,
    pub(super) barriers: BTreeSet<(JobNo, String)>,
}

/// Suffix after the job's number in the key of its access record.
const ACCESS: &[u8] = b"a";

fn job_key(tag: u8, no: JobNo, rest: &[u8]) -> Vec<u8> {
    key(tag, &[&no.0.to_be_bytes(), rest])
}

/// The key follows the job's own record: no letter is left.
fn access_key(no: JobNo) -> Vec<u8> {
    job_key(b'G', no, ACCESS)
}

/// `None` if nothing is known: members with an earlier build have no such record.
fn access_record(job: &Job) -> Option<Vec<u8>> {
    (job.access != RoundAccess::default()).then(|| codec::encode(&job.access))
}

impl Jobs {
    /// Takes the records that changed since the last call.
    pub(crate) fn drain(&mut self, delta: &mut ImageDelta) {
        let dirty = std::mem::take(&mut self.dirty);
        for (no, name) in dirty.barriers {
            let barrier = self.table.jobs.get(&no).and_then(|j| j.barriers.get(&name));
            let incarnations =
                barrier.map(|b| &b.incarnations).filter(|incarnations| !incarnations.is_empty());
            delta.set(job_key(b'A', no, name.as_bytes()), incarnations.map(codec::encode));
            delta.set(job_key(b'B', no, name.as_bytes()), barrier.map(codec::encode));
        }
        for no in dirty.heads {
            let job = self.table.jobs.get(&no);
            delta.set(job_key(b'G', no, &[]), job.map(|j| codec::encode(&j.head)));
            delta.set(access_key(no), job.and_then(access_record));
        }
    }

    /// Forgets which records differ from the image, because there is no image yet.
    pub(crate) fn forget_dirty(&mut self) {
        self.dirty = DirtyJobs::default();
        self.dirty_trainings = DirtyTrainings::default();
    }

    pub(crate) fn each_arrivals(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, job) in &self.table.jobs {
            for (name, barrier) in job.barriers.iter().filter(|b| !b.1.incarnations.is_empty()) {
                each(&job_key(b'A', *no, name.as_bytes()), &codec::encode(&barrier.incarnations));
            }
        }
    }

    pub(crate) fn each_barrier(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, job) in &self.table.jobs {
            for (name, barrier) in &job.barriers {
                each(&job_key(b'B', *no, name.as_bytes()), &codec::encode(barrier));
            }
        }
    }

    pub(crate) fn each_head(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, job) in &self.table.jobs {
            each(&job_key(b'G', *no, &[]), &codec::encode(&job.head));
            if let Some(access) = access_record(job) {
                each(&access_key(*no), &access);
            }
        }
    }

    /// Reads a record of a job.
    pub(crate) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        match key.first() {
            Some(b'A') => self.loading_barrier(key)?.incarnations = read(key, value)?,
            Some(b'B') => {
                let barrier = self.loading_barrier(key)?;
                let Barrier { generations, used_at, .. } = read(key, value)?;
                (barrier.generations, barrier.used_at) = (generations, used_at);
            }
            Some(b'G') if key.get(5..) == Some(ACCESS) => {
                self.loading(key)?.access = read(key, value)?;
            }
            Some(b'G') => self.loading(key)?.head = read(key, value)?,
            _ => return Err(bad(key)),
        }
        Ok(())
    }

    fn loading(&mut self, key: &[u8]) -> Result<&mut Job, LoadError> {
        Ok(self.table.jobs.entry(JobNo(u32::from_be_bytes(number(key, 1)?))).or_default())
    }

    fn loading_barrier(&mut self, key: &[u8]) -> Result<&mut Barrier, LoadError> {
        let name = key.get(5..).and_then(|name| std::str::from_utf8(name).ok());
        let name = name.ok_or_else(|| bad(key))?.to_owned();
        Ok(self.loading(key)?.barriers.entry(name).or_default())
    }

    /// Refuses records of a job whose own record is missing, and incarnations of a barrier that does not exist.
    pub(crate) fn check_loaded(&self) -> Result<(), LoadError> {
        if let Some((no, _)) = self.table.jobs.iter().find(|(_, job)| job.head.name.job.is_empty())
        {
            return Err(bad(&job_key(b'G', *no, &[])));
        }
        for (no, job) in &self.table.jobs {
            if let Some((name, _)) = job.barriers.iter().find(|b| b.1.generations.is_empty()) {
                return Err(bad(&job_key(b'A', *no, name.as_bytes())));
            }
        }
        Ok(())
    }
}
