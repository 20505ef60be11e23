//! The shared stores of training jobs: keys with values, and queues, one store per job and round.
//!
//! *Invariant:* a store exists from its first use until it is dropped or was unused for [`limits::STORE_TTL_MS`]; its
//! number is never used again. Its contents are counted exactly, and stay within its bounds and those of all stores
//! together. A queue that exists is not empty.
//!
//! Absent: waiting. A wait is a repeated read that the leader holds (`coordinator`), so the loss of a
//! leader costs only time.

mod execute;
mod image;

use crate::kernel::counts::Counts;
use crate::kernel::id::{LedgerMs, StoreNo};
use crate::kernel::limits;
use crate::kernel::names;
use crate::kernel::reply::Rejection;
use crate::machine::command::StoreName;
use crate::machine::ledger::Ledger;
use crate::training::job::JobName;
use image::DirtyStores;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// One store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Store {
    head: StoreHead,
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    queues: BTreeMap<Vec<u8>, VecDeque<Vec<u8>>>,
    /// Derived: values, and elements of queues.
    entries: u64,
    /// Derived: bytes of keys and values.
    bytes: u64,
}

/// The part that is one record of the image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct StoreHead {
    name: StoreName,
    used_at: LedgerMs,
}

/// The bytes that an entry counts in a store.
fn weight(key: &[u8], value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64
}

/// When a store that was last used then is removed.
fn ends(used_at: LedgerMs) -> LedgerMs {
    LedgerMs(used_at.0.saturating_add(limits::STORE_TTL_MS))
}

impl Store {
    /// Entries and bytes, counted from scratch.
    fn count(&self) -> (u64, u64) {
        let queued = self.queues.iter().flat_map(|(key, all)| all.iter().map(move |v| (key, v)));
        self.values
            .iter()
            .chain(queued)
            .fold((0, 0), |(n, bytes), (key, value)| (n + 1, bytes + weight(key, value)))
    }
}

/// A store as its readers see it.
#[derive(Clone, Copy, Debug)]
pub struct StoreView<'a> {
    store: &'a Store,
}

impl<'a> StoreView<'a> {
    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Option<&'a [u8]> {
        self.store.values.get(key).map(Vec::as_slice)
    }

    /// Whether the key has a value, or the queue of that name is not empty.
    pub fn has(&self, key: &[u8]) -> bool {
        self.store.values.contains_key(key) || self.store.queues.contains_key(key)
    }

    /// The key's value as the number that [`StoreOp::Add`](crate::StoreOp::Add) would add to.
    pub fn number(&self, key: &[u8]) -> Option<i64> {
        execute::number(self.get(key)?)
    }

    /// Keys with a value.
    pub fn len(&self) -> usize {
        self.store.values.len()
    }

    /// Whether no key has a value.
    pub fn is_empty(&self) -> bool {
        self.store.values.is_empty()
    }

    /// The keys with a value, ascending.
    pub fn keys(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.store.values.keys().map(Vec::as_slice)
    }

    /// The non-empty queues and their elements, oldest first.
    pub fn queues(&self) -> impl Iterator<Item = (&'a [u8], &'a VecDeque<Vec<u8>>)> + use<'a> {
        self.store.queues.iter().map(|(key, all)| (key.as_slice(), all))
    }

    /// How many are in a queue.
    pub fn queue_len(&self, queue: &[u8]) -> usize {
        self.store.queues.get(queue).map_or(0, VecDeque::len)
    }
}

/// All stores, their indexes, and which of their records differ from the image.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stores {
    by_no: BTreeMap<StoreNo, Store>,
    // Derived.
    names: BTreeMap<StoreName, StoreNo>,
    of_namespace: Counts,
    /// By when they were last used.
    uses: BTreeSet<(LedgerMs, StoreNo)>,
    /// Of all of them.
    bytes: u64,
    changes: u64,
    dirty: DirtyStores,
}

impl Stores {
    /// The number of the store of that name.
    pub(crate) fn no(&self, name: &StoreName) -> Option<StoreNo> {
        self.names.get(name).copied()
    }

    /// Marks a store as used now, and creates it if needed. `made` counts all that were ever made.
    pub(crate) fn use_or_make(
        &mut self,
        name: StoreName,
        now: LedgerMs,
        made: &mut u32,
    ) -> Result<StoreNo, Rejection> {
        if let Some(&no) = self.names.get(&name) {
            if let Some(store) = self.by_no.get_mut(&no) {
                self.uses.remove(&(store.head.used_at, no));
                store.head.used_at = now;
            }
            self.uses.insert((now, no));
            self.dirty.heads.insert(no);
            return Ok(no);
        }
        if self.of_namespace.get(&name.namespace) >= limits::STORES_MAX {
            let what = "stores of one namespace".into();
            return Err(Rejection::Limit { what, max: limits::STORES_MAX as u64 });
        }
        *made += 1;
        let no = StoreNo(*made);
        let head = StoreHead { name: name.clone(), used_at: now };
        self.by_no.insert(no, Store { head, ..Store::default() });
        self.of_namespace.add(&name.namespace);
        self.names.insert(name, no);
        self.uses.insert((now, no));
        self.dirty.heads.insert(no);
        Ok(no)
    }

    /// Removes a store with its contents.
    pub(crate) fn remove(&mut self, no: StoreNo) {
        let Some(store) = self.by_no.remove(&no) else { return };
        self.names.remove(&store.head.name);
        self.of_namespace.remove(&store.head.name.namespace);
        self.uses.remove(&(store.head.used_at, no));
        self.bytes -= store.bytes;
        self.changes += 1;
        self.dirty.heads.insert(no);
        self.dirty.emptied.insert(no);
    }

    /// The stores of a job's rounds before this one.
    fn before(&self, job: &JobName, round: u64) -> impl Iterator<Item = StoreNo> + use<'_> {
        let JobName { namespace, job } = job.clone();
        let of = |round| StoreName { namespace: namespace.clone(), job: job.clone(), round };
        self.names.range(of(1)..of(round)).map(|store| *store.1)
    }

    /// Whether a job has a store of a round.
    pub(crate) fn has_rounds(&self, job: &JobName) -> bool {
        self.before(job, u64::MAX).next().is_some()
    }

    /// Drops the stores of a job's rounds before this one: no member of a later round uses them.
    pub(crate) fn drop_before(&mut self, job: &JobName, round: u64) {
        let old: Vec<_> = self.before(job, round).collect();
        old.into_iter().for_each(|no| self.remove(no));
    }

    /// When the next store was unused for too long.
    pub(crate) fn next_end(&self) -> Option<LedgerMs> {
        self.uses.first().map(|(used_at, _)| ends(*used_at))
    }

    /// Removes stores that were unused for too long.
    pub(crate) fn forget_unused(&mut self, now: LedgerMs) {
        while let Some(&(_, no)) = self.uses.first().filter(|used| ends(used.0) <= now) {
            self.remove(no);
        }
    }

    /// Rebuilds what is derived.
    pub(crate) fn derive(&mut self) {
        for (no, store) in &mut self.by_no {
            (store.entries, store.bytes) = store.count();
            self.bytes += store.bytes;
            self.names.insert(store.head.name.clone(), *no);
            self.of_namespace.add(&store.head.name.namespace);
            self.uses.insert((store.head.used_at, *no));
        }
    }

    /// Checks the invariants of stores.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut bytes = 0;
        for (no, store) in &self.by_no {
            let (counted, found) = ((store.entries, store.bytes), store.count());
            bytes += found.1;
            if counted != found {
                return Err(format!("store {no} counts {counted:?}, has {found:?}"));
            }
            if found.0 > limits::STORE_ENTRIES_MAX || found.1 > limits::STORE_BYTES_MAX {
                return Err(format!("store {no} is over its bounds: {found:?}"));
            }
            if store.queues.values().any(VecDeque::is_empty) {
                return Err(format!("store {no} has an empty queue"));
            }
            if self.names.get(&store.head.name) != Some(no) {
                return Err(format!("store {no} is not found by its name"));
            }
            if !self.uses.contains(&(store.head.used_at, *no)) {
                return Err(format!("the index of stores' last uses lacks {no}"));
            }
        }
        let counted = self.names.keys().map(|name| name.namespace.as_str());
        if counted.collect::<Counts>() != self.of_namespace {
            return Err("the counts of stores by namespace differ".into());
        }
        let sizes = (self.names.len(), self.uses.len(), self.bytes);
        if sizes != (self.by_no.len(), self.by_no.len(), bytes) {
            return Err(format!("indices of {} stores differ: {sizes:?}", self.by_no.len()));
        }
        Ok(())
    }
}

impl Ledger {
    /// The store of that name, if there is one.
    pub fn store(&self, name: &StoreName) -> Option<StoreView<'_>> {
        let no = self.stores.names.get(name)?;
        self.stores.by_no.get(no).map(|store| StoreView { store })
    }

    /// The names of all stores, ascending.
    pub fn store_names(&self) -> impl Iterator<Item = &StoreName> {
        self.stores.names.keys()
    }

    /// Changes whenever a store changes. Not part of the state: it only tells readers to check again.
    pub fn store_changes(&self) -> u64 {
        self.stores.changes
    }

    /// The store of that name, created if needed, and marked as used now.
    pub(crate) fn use_store(&mut self, name: StoreName) -> Result<StoreNo, Rejection> {
        names::check_name("job's", &name.job)?;
        if !self.namespaces.contains_key(&name.namespace) {
            return Err(Rejection::NamespaceUnknown(name.namespace));
        }
        self.stores.use_or_make(name, self.meta.clock(), &mut self.meta.stores_made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_unused_for_a_day_is_dropped() {
        let mut ledger = Ledger::new([1; 16]);
        let name = |job: &str| StoreName { namespace: "default".into(), job: job.into(), round: 1 };
        ledger.use_store(name("idle")).unwrap();
        ledger.use_store(name("used")).unwrap();
        ledger.meta.advance_clock(LedgerMs(1));
        ledger.use_store(name("used")).unwrap();
        assert_eq!(ledger.next_deadline(), Some(LedgerMs(limits::STORE_TTL_MS)));
        ledger.stores.forget_unused(LedgerMs(limits::STORE_TTL_MS));
        assert_eq!(ledger.store_names().collect::<Vec<_>>(), [&name("used")]);
        ledger.stores.check().unwrap();
        ledger.stores.forget_unused(LedgerMs(limits::STORE_TTL_MS + 1));
        assert_eq!((ledger.store_names().count(), ledger.next_deadline()), (0, None));
    }
}
