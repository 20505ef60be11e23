//! Image records of stores.
//!
//! *Invariant:* as in [`crate::machine::image`]. Keys: `J` a store's head; `K` a value, by store and key; `Q` a queue,
//! by store and name.

use super::{Store, Stores};
use crate::kernel::bytes_field::{Bytes, Decoded};
use crate::kernel::codec;
use crate::kernel::id::StoreNo;
use crate::machine::image::{ImageDelta, key};
use crate::machine::image_load::{LoadError, bad, number, read};
use std::collections::BTreeSet;

/// The records of stores that differ from the image on disk.
#[derive(Clone, Debug, Default)]
pub(super) struct DirtyStores {
    pub(super) heads: BTreeSet<StoreNo>,
    pub(super) values: BTreeSet<(StoreNo, Vec<u8>)>,
    pub(super) queues: BTreeSet<(StoreNo, Vec<u8>)>,
    /// Stores whose values and queues were all removed at once.
    pub(super) emptied: BTreeSet<StoreNo>,
}

fn store_key(tag: u8, no: StoreNo, rest: &[u8]) -> Vec<u8> {
    key(tag, &[&no.0.to_be_bytes(), rest])
}

impl Stores {
    /// Takes the records that changed since the last call.
    pub(crate) fn drain(&mut self, delta: &mut ImageDelta) {
        let dirty = std::mem::take(&mut self.dirty);
        for no in dirty.emptied {
            delta.delete_prefixes.extend([b'K', b'Q'].map(|tag| store_key(tag, no, &[])));
        }
        for no in dirty.heads {
            let store = self.by_no.get(&no);
            delta.set(store_key(b'J', no, &[]), store.map(|s| codec::encode(&s.head)));
        }
        for (no, name) in dirty.values {
            let value = self.by_no.get(&no).and_then(|s| s.values.get(&name));
            let value = value.map(|value| codec::encode(&Bytes(value)));
            delta.set(store_key(b'K', no, &name), value);
        }
        for (no, name) in dirty.queues {
            let queue = self.by_no.get(&no).and_then(|s| s.queues.get(&name));
            delta.set(store_key(b'Q', no, &name), queue.map(codec::encode));
        }
    }

    /// Forgets which records differ from the image, because there is no image yet.
    pub(crate) fn forget_dirty(&mut self) {
        self.dirty = DirtyStores::default();
    }

    pub(crate) fn each_head(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, store) in &self.by_no {
            each(&store_key(b'J', *no, &[]), &codec::encode(&store.head));
        }
    }

    pub(crate) fn each_value(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, store) in &self.by_no {
            for (name, value) in &store.values {
                each(&store_key(b'K', *no, name), &codec::encode(&Bytes(value)));
            }
        }
    }

    pub(crate) fn each_queue(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, store) in &self.by_no {
            for (name, queue) in &store.queues {
                each(&store_key(b'Q', *no, name), &codec::encode(queue));
            }
        }
    }

    /// Reads a record of a store.
    pub(crate) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        match key.first() {
            Some(b'J') => self.loading(key)?.0.head = read(key, value)?,
            Some(b'K') => {
                let (store, name) = self.loading(key)?;
                store.values.insert(name, read::<Decoded>(key, value)?.0);
            }
            Some(b'Q') => {
                let (store, name) = self.loading(key)?;
                store.queues.insert(name, read(key, value)?);
            }
            _ => return Err(bad(key)),
        }
        Ok(())
    }

    /// The store of a record, and the key that the record is about.
    fn loading(&mut self, key: &[u8]) -> Result<(&mut Store, Vec<u8>), LoadError> {
        let no = StoreNo(u32::from_be_bytes(number(key, 1)?));
        Ok((self.by_no.entry(no).or_default(), key[5..].to_vec()))
    }

    /// Refuses values and queues of a store whose own record is missing.
    pub(crate) fn check_loaded(&self) -> Result<(), LoadError> {
        match self.by_no.iter().find(|(_, store)| store.head.name.job.is_empty()) {
            Some((no, _)) => Err(bad(&store_key(b'J', *no, &[]))),
            None => Ok(()),
        }
    }
}
