//! The ledger as records: the changes since the last image, and all records for a digest.
//!
//! *Invariant:* once the delta of [`Ledger::drain_dirty`] is written, the image holds exactly the records that
//! [`Ledger::for_each_record`] yields, byte for byte. Each transition marks what it touched; a forgotten mark shows
//! as a difference between the two digests.
//!
//! Keys of the ledger begin with an upper-case letter. Other users of the image, such as the membership of the
//! cluster, have keys that begin with a lower-case letter.

use crate::batch::flight_image::FLIGHT_TAGS;
use crate::batch::run::{PauseState, Run, RunHead};
use crate::batch::trouble::Trouble;
use crate::fleet::setting::Settings;
use crate::identity::client::Client;
use crate::identity::member::Members;
use crate::identity::revocation::Revoked;
use crate::kernel::bytes_field::Bytes;
use crate::kernel::codec;
use crate::kernel::id::{
    DatasetNo, JobNo, RunNo, SegmentNo, SessionId, SlotRef, StoreNo, TrainingNo,
};
use crate::kernel::marks::Marks;
use crate::machine::ledger::Ledger;
use crate::training::job::Job;
use crate::training::round_access::RoundAccess;
use std::collections::BTreeSet;

/// Parts of one run that share a record.
pub(crate) const PARTS_PER_RECORD: u32 = 256;

/// The records that differ from the image on disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dirty {
    pub(crate) meta: bool,
    pub(crate) namespaces: BTreeSet<String>,
    pub(crate) runs: Marks<RunNo>,
    pub(crate) segments: BTreeSet<(RunNo, SegmentNo)>,
    pub(crate) parts: BTreeSet<(RunNo, u32)>,
    pub(crate) troubles: BTreeSet<(RunNo, u64)>,
    /// Runs whose segments, parts and troubles were all removed at once.
    pub(crate) emptied: BTreeSet<RunNo>,
    pub(crate) workers: Marks<SessionId>,
    pub(crate) slots: Marks<SlotRef>,
    pub(crate) unreported_starts: BTreeSet<SessionId>,
    pub(crate) clients: BTreeSet<SessionId>,
    pub(crate) stores: BTreeSet<StoreNo>,
    pub(crate) store_values: BTreeSet<(StoreNo, Vec<u8>)>,
    pub(crate) store_queues: BTreeSet<(StoreNo, Vec<u8>)>,
    /// Stores whose values and queues were all removed at once.
    pub(crate) emptied_stores: BTreeSet<StoreNo>,
    pub(crate) jobs: BTreeSet<JobNo>,
    pub(crate) barriers: BTreeSet<(JobNo, String)>,
    pub(crate) datasets: BTreeSet<DatasetNo>,
    pub(crate) trainings: BTreeSet<TrainingNo>,
    pub(crate) trainers: BTreeSet<(TrainingNo, String)>,
    pub(crate) dataset_epochs: BTreeSet<(TrainingNo, DatasetNo, u64, u16)>,
    /// Epochs whose shards were all removed at once; those in `dataset_epochs` may have been added afterwards.
    pub(crate) emptied_dataset_epochs: BTreeSet<(TrainingNo, DatasetNo, u64)>,
    pub(crate) checkpoints: BTreeSet<(TrainingNo, u32)>,
    pub(crate) tokens: Marks<String>,
    pub(crate) revocations: BTreeSet<Revoked>,
    pub(crate) members: bool,
    pub(crate) holders_from: bool,
    pub(crate) settings: bool,
}

/// What to write so that the image on disk is the ledger's state. One atomic batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageDelta {
    /// Records to set.
    pub puts: Vec<(Vec<u8>, Vec<u8>)>,
    /// Records to remove.
    pub deletes: Vec<Vec<u8>>,
    /// Records to remove whose keys begin with these.
    pub delete_prefixes: Vec<Vec<u8>>,
}

impl ImageDelta {
    pub(crate) fn set(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        match value {
            Some(value) => self.puts.push((key, value)),
            None => self.deletes.push(key),
        }
    }
}

pub(crate) fn key(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut key = vec![tag];
    parts.iter().for_each(|p| key.extend_from_slice(p));
    key
}

pub(crate) fn run_key(tag: u8, no: RunNo, rest: &[u8]) -> Vec<u8> {
    key(tag, &[&no.0.to_be_bytes(), rest])
}

pub(crate) fn store_key(tag: u8, no: StoreNo, rest: &[u8]) -> Vec<u8> {
    key(tag, &[&no.0.to_be_bytes(), rest])
}

pub(crate) fn job_key(tag: u8, no: JobNo, rest: &[u8]) -> Vec<u8> {
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

/// Uses the tag of join tokens with a zero byte, which token names do not contain: no letter is left.
fn revocation_key(whose: &Revoked) -> Vec<u8> {
    match whose {
        Revoked::Everyone => key(b'E', &[&[0]]),
        Revoked::Identity(identity) => key(b'E', &[&[0], identity.as_bytes()]),
    }
}

/// Suffix after the job's number in the key of its access record.
pub(crate) const ACCESS: &[u8] = b"a";

/// Below the tag of the meta record, which is that letter alone: no letter is left.
pub(crate) const MEMBERS_KEY: &[u8] = b"Mm";
/// Below the same tag.
pub(crate) const HOLDERS_KEY: &[u8] = b"Mh";

/// Like [`MEMBERS_KEY`].
pub(crate) const SETTINGS_KEY: &[u8] = b"Ms";

fn session_key(tag: u8, id: SessionId) -> Vec<u8> {
    key(tag, &[&id.0.to_be_bytes()])
}

fn parts_record(run: &Run, chunk: u32) -> Option<Vec<u8>> {
    run.parts.chunks(PARTS_PER_RECORD as usize).nth(chunk as usize).map(|c| codec::encode(&c))
}

fn head_record(head: &RunHead) -> Vec<u8> {
    match head.pause == PauseState::default() {
        true => codec::encode(head),
        false => codec::encode(&(head, &head.pause)),
    }
}

fn trouble_record(trouble: &Trouble) -> Vec<u8> {
    #[cfg(feature = "seeded-bugs")]
    let trouble = &crate::machine::seeded::imaged_trouble(trouble);
    match &trouble.incident {
        None => codec::encode(trouble),
        Some(incident) => codec::encode(&(trouble, incident)),
    }
}

fn client_record(client: &Client) -> Vec<u8> {
    #[cfg(feature = "seeded-bugs")]
    let client = &crate::machine::seeded::imaged_client(client);
    codec::encode(client)
}

impl Ledger {
    /// Takes the records that changed since the last call.
    pub fn drain_dirty(&mut self) -> ImageDelta {
        self.settle_indexes();
        let mut dirty = std::mem::take(&mut self.dirty);
        let mut delta = ImageDelta::default();
        if dirty.meta {
            delta.set(key(b'M', &[]), Some(codec::encode(&self.meta)));
        }
        if dirty.holders_from {
            delta.set(HOLDERS_KEY.to_vec(), self.holders_record());
        }
        if dirty.members {
            delta.set(MEMBERS_KEY.to_vec(), self.members_record());
        }
        if dirty.settings {
            delta.set(SETTINGS_KEY.to_vec(), self.settings_record());
        }
        self.drain_trainings(&mut dirty, &mut delta);
        self.drain_workers(&mut dirty, &mut delta);
        for name in dirty.namespaces {
            let value = self.namespaces.get(&name).map(codec::encode);
            delta.set(key(b'N', &[name.as_bytes()]), value);
        }
        for no in dirty.emptied {
            let tags = [b'S', b'P', b'T', b'Y'].into_iter().chain(FLIGHT_TAGS);
            delta.delete_prefixes.extend(tags.map(|tag| run_key(tag, no, &[])));
        }
        for no in dirty.runs.take_image() {
            let run = self.runs.get_mut(&no);
            delta.set(run_key(b'R', no, &[]), run.as_ref().map(|r| head_record(&r.head)));
            match run {
                Some(run) => run.drain_flight(self.meta.version, &mut delta),
                None => delta.deletes.push(run_key(b'F', no, &[])),
            }
        }
        for (no, number) in dirty.segments {
            self.drain_segment(no, number, &mut delta);
        }
        for (no, chunk) in dirty.parts {
            let value = self.runs.get(&no).and_then(|r| parts_record(r, chunk));
            delta.set(run_key(b'P', no, &chunk.to_be_bytes()), value);
        }
        for (no, row) in dirty.troubles {
            let trouble = self.runs.get(&no).and_then(|r| r.troubles.get(&row));
            let value = trouble.map(trouble_record);
            delta.set(run_key(b'T', no, &row.to_be_bytes()), value);
        }
        for id in dirty.unreported_starts {
            delta.set(session_key(b'X', id), self.unreported_starts.get(&id).map(codec::encode));
        }
        for id in dirty.clients {
            delta.set(session_key(b'C', id), self.clients.get(&id).map(client_record));
        }
        for no in dirty.emptied_stores {
            delta.delete_prefixes.extend([b'K', b'Q'].map(|tag| store_key(tag, no, &[])));
        }
        for no in dirty.stores {
            let store = self.stores.get(&no);
            delta.set(store_key(b'J', no, &[]), store.map(|s| codec::encode(&s.head)));
        }
        for (no, name) in dirty.store_values {
            let value = self.stores.get(&no).and_then(|s| s.values.get(&name));
            let value = value.map(|value| codec::encode(&Bytes(value)));
            delta.set(store_key(b'K', no, &name), value);
        }
        for (no, name) in dirty.store_queues {
            let queue = self.stores.get(&no).and_then(|s| s.queues.get(&name));
            delta.set(store_key(b'Q', no, &name), queue.map(codec::encode));
        }
        for (no, name) in dirty.barriers {
            let barrier = self.jobs.get(&no).and_then(|j| j.barriers.get(&name));
            let incarnations =
                barrier.map(|b| &b.incarnations).filter(|incarnations| !incarnations.is_empty());
            delta.set(job_key(b'A', no, name.as_bytes()), incarnations.map(codec::encode));
            delta.set(job_key(b'B', no, name.as_bytes()), barrier.map(codec::encode));
        }
        for no in dirty.jobs {
            let job = self.jobs.get(&no);
            delta.set(job_key(b'G', no, &[]), job.map(|j| codec::encode(&j.head)));
            delta.set(access_key(no), job.and_then(access_record));
        }
        for name in dirty.tokens.take_image() {
            let token = self.tokens.get(&name).map(codec::encode);
            delta.set(key(b'E', &[name.as_bytes()]), token);
        }
        for whose in dirty.revocations {
            let revocation = self.revocations.get(&whose).map(codec::encode);
            delta.set(revocation_key(&whose), revocation);
        }
        delta
    }

    /// `None` while no member was reported: members with an earlier build have no such record.
    fn members_record(&self) -> Option<Vec<u8>> {
        (self.members != Members::default()).then(|| codec::encode(&self.members))
    }

    /// `None` if no session was opened below cluster version 3: members with an earlier build have no such record.
    fn holders_record(&self) -> Option<Vec<u8>> {
        (self.holders_from != SessionId::default()).then(|| codec::encode(&self.holders_from))
    }

    /// None while every setting has its default: members of an earlier build have no such record.
    fn settings_record(&self) -> Option<Vec<u8>> {
        (self.settings != Settings::default()).then(|| codec::encode(&self.settings))
    }

    /// Every record of the state, in the order of their keys.
    pub fn for_each_record(&self, mut each: impl FnMut(&[u8], &[u8])) {
        for (no, job) in &self.jobs {
            for (name, barrier) in job.barriers.iter().filter(|b| !b.1.incarnations.is_empty()) {
                each(&job_key(b'A', *no, name.as_bytes()), &codec::encode(&barrier.incarnations));
            }
        }
        for (no, job) in &self.jobs {
            for (name, barrier) in &job.barriers {
                each(&job_key(b'B', *no, name.as_bytes()), &codec::encode(barrier));
            }
        }
        for (id, client) in &self.clients {
            each(&session_key(b'C', *id), &client_record(client));
        }
        self.each_dataset(&mut each);
        for (whose, revocation) in self.revocations.iter() {
            each(&revocation_key(whose), &codec::encode(revocation));
        }
        for (name, token) in &self.tokens {
            each(&key(b'E', &[name.as_bytes()]), &codec::encode(token));
        }
        self.each_flight(&mut each);
        for (no, job) in &self.jobs {
            each(&job_key(b'G', *no, &[]), &codec::encode(&job.head));
            if let Some(access) = access_record(job) {
                each(&access_key(*no), &access);
            }
        }
        self.each_dataset_epoch(&mut each);
        self.each_trainer(&mut each);
        for (no, store) in &self.stores {
            each(&store_key(b'J', *no, &[]), &codec::encode(&store.head));
        }
        for (no, store) in &self.stores {
            for (name, value) in &store.values {
                each(&store_key(b'K', *no, name), &codec::encode(&Bytes(value)));
            }
        }
        self.each_training(&mut each);
        each(&key(b'M', &[]), &codec::encode(&self.meta));
        if let Some(holders) = self.holders_record() {
            each(HOLDERS_KEY, &holders);
        }
        if let Some(members) = self.members_record() {
            each(MEMBERS_KEY, &members);
        }
        if let Some(settings) = self.settings_record() {
            each(SETTINGS_KEY, &settings);
        }
        for (name, namespace) in &self.namespaces {
            each(&key(b'N', &[name.as_bytes()]), &codec::encode(namespace));
        }
        self.each_attempt(&mut each);
        for (no, run) in &self.runs {
            for (chunk, parts) in run.parts.chunks(PARTS_PER_RECORD as usize).enumerate() {
                let number = (chunk as u32).to_be_bytes();
                each(&run_key(b'P', *no, &number), &codec::encode(&parts));
            }
        }
        for (no, store) in &self.stores {
            for (name, queue) in &store.queues {
                each(&store_key(b'Q', *no, name), &codec::encode(queue));
            }
        }
        for (no, run) in &self.runs {
            each(&run_key(b'R', *no, &[]), &head_record(&run.head));
        }
        self.each_segment(&mut each);
        for (no, run) in &self.runs {
            for (row, trouble) in &run.troubles {
                each(&run_key(b'T', *no, &row.to_be_bytes()), &trouble_record(trouble));
            }
        }
        self.each_checkpoint(&mut each);
        self.each_returned(&mut each);
        self.each_worker(&mut each);
        for (id, unreported_starts) in &self.unreported_starts {
            each(&session_key(b'X', *id), &codec::encode(unreported_starts));
        }
        self.each_block(&mut each);
        self.each_slot(&mut each);
    }
}
