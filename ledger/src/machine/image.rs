//! The ledger as records: the changes since the last image, and all records for a digest.
//!
//! *Invariant:* once the delta of [`Ledger::drain_dirty`] is written, the image holds exactly the records that
//! [`Ledger::for_each_record`] yields, byte for byte. Each transition marks what it touched; a forgotten mark shows
//! as a difference between the two digests.
//!
//! Keys of the ledger begin with an upper-case letter. Other users of the image, such as the membership of the
//! cluster, have keys that begin with a lower-case letter.

use crate::fleet::setting::SETTINGS_KEY;
use crate::identity::client::HOLDERS_KEY;
use crate::identity::member::MEMBERS_KEY;
use crate::kernel::codec;
use crate::kernel::id::{RunNo, SessionId};
use crate::machine::ledger::Ledger;

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

pub(crate) fn session_key(tag: u8, id: SessionId) -> Vec<u8> {
    key(tag, &[&id.0.to_be_bytes()])
}

impl Ledger {
    /// Takes the records that changed since the last call.
    pub fn drain_dirty(&mut self) -> ImageDelta {
        self.settle_indexes();
        let mut delta = ImageDelta::default();
        if std::mem::take(&mut self.meta_dirty) {
            delta.set(key(b'M', &[]), Some(codec::encode(&self.meta)));
        }
        self.clients.drain_holders_from(&mut delta);
        self.members.drain(&mut delta);
        self.settings.drain(&mut delta);
        self.datasets.drain(&mut delta);
        self.jobs.drain_trainings(&mut delta);
        self.workers.drain(self.meta.version, &mut delta);
        self.namespaces.drain(&mut delta);
        self.runs.drain(self.meta.version, &mut delta);
        self.unreported_starts.drain(&mut delta);
        self.clients.drain(&mut delta);
        self.stores.drain(&mut delta);
        self.jobs.drain(&mut delta);
        self.tokens.drain(&mut delta);
        self.api_keys.drain(&mut delta);
        self.revocations.drain(&mut delta);
        self.api_files.drain(&mut delta);
        self.batches.drain(&mut delta);
        delta
    }

    /// Every record of the state, in the order of their keys.
    pub fn for_each_record(&self, mut each: impl FnMut(&[u8], &[u8])) {
        self.jobs.each_arrivals(&mut each);
        self.jobs.each_barrier(&mut each);
        self.clients.each_client(&mut each);
        self.datasets.each_dataset(&mut each);
        self.revocations.each_revocation(&mut each);
        self.api_keys.each_key(&mut each);
        self.api_files.each_record(&mut each);
        self.batches.each_batch(&mut each);
        self.batches.each_segments(&mut each);
        self.tokens.each_token(&mut each);
        self.each_flight(&mut each);
        self.jobs.each_head(&mut each);
        self.jobs.each_dataset_epoch(&mut each);
        self.jobs.each_trainer(&mut each);
        self.stores.each_head(&mut each);
        self.stores.each_value(&mut each);
        self.jobs.each_training_head(&mut each);
        each(&key(b'M', &[]), &codec::encode(&self.meta));
        if let Some(holders) = self.clients.holders_record() {
            each(HOLDERS_KEY, &holders);
        }
        if let Some(members) = self.members.record() {
            each(MEMBERS_KEY, &members);
        }
        if let Some(settings) = self.settings.record() {
            each(SETTINGS_KEY, &settings);
        }
        self.namespaces.each_namespace(&mut each);
        self.each_attempt(&mut each);
        self.runs.each_part(&mut each);
        self.stores.each_queue(&mut each);
        self.runs.each_head(&mut each);
        self.each_segment(&mut each);
        self.runs.each_failure_record(&mut each);
        self.jobs.each_checkpoint(&mut each);
        self.each_returned(&mut each);
        self.workers.each_worker(self.meta.version, &mut each);
        self.unreported_starts.each_session(&mut each);
        self.each_block(&mut each);
        self.workers.each_slot(self.meta.version, &mut each);
    }
}
