//! Owns: the API keys that exist, their records in the image, and when they expire.
//!
//! *Invariant:* a key that was revoked or has expired is not here. An id belongs to one secret and one spec: another
//! key never replaces it. No namespace has more than [`limits::NAMESPACE_API_KEYS_MAX`] keys, and the cluster has at
//! most [`limits::API_KEYS_MAX`].
//!
//! Absent: the two operations (`create_api_key.rs`, `revoke_api_key.rs`). A restored cluster has no keys; otherwise a
//! revoked one would be valid again.

use crate::identity::api_key::{ApiKeySpec, ApiKeyView, check_id};
use crate::kernel::codec;
use crate::kernel::deadline_queue::DeadlineQueue;
use crate::kernel::id::LedgerMs;
use crate::kernel::limits;
use crate::kernel::reply::Rejection;
use crate::machine::image::{ImageDelta, key};
use crate::machine::image_load::{LoadError, bad, read};
use crate::machine::ledger::Ledger;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// The second byte of the keys of these records. The first one is that of join tokens, whose names do not contain this
/// byte: no letter is left.
pub(crate) const API_KEY_TAG: u8 = 1;

/// One key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ApiKey {
    secret_hash: [u8; 32],
    spec: ApiKeySpec,
    created_wall_ms: u64,
    ends_at: Option<LedgerMs>,
}

/// All keys, and which of their records differ from the image.
#[derive(Clone, Debug, Default)]
pub(crate) struct ApiKeys {
    by_id: BTreeMap<String, ApiKey>,
    dirty: BTreeSet<String>,
    // Derived.
    /// Their ids, by namespace. No set is empty.
    of_namespaces: BTreeMap<String, BTreeSet<String>>,
    /// When they expire.
    ends: DeadlineQueue<String>,
    /// The index of the last entry that ended a key, or that the image has.
    changed_at: u64,
}

impl ApiKeys {
    /// Whether the key is new; false if it exists with the same secret and spec.
    pub(super) fn check_create(
        &self,
        id: &str,
        secret_hash: &[u8; 32],
        spec: &ApiKeySpec,
    ) -> Result<bool, Rejection> {
        check_id(id)?;
        spec.check()?;
        if let Some(key) = self.by_id.get(id) {
            let same = key.secret_hash == *secret_hash && key.spec == *spec;
            return if same { Ok(false) } else { Err(Rejection::ApiKeyConflict(id.to_owned())) };
        }
        let of_namespace = self.of_namespaces.get(&spec.namespace).map_or(0, BTreeSet::len);
        let full = |what: &str, max: usize| {
            Err(Rejection::Limit { what: what.to_owned(), max: max as u64 })
        };
        if of_namespace >= limits::NAMESPACE_API_KEYS_MAX {
            return full("API keys of a namespace", limits::NAMESPACE_API_KEYS_MAX);
        }
        if self.by_id.len() >= limits::API_KEYS_MAX {
            return full("API keys", limits::API_KEYS_MAX);
        }
        Ok(true)
    }

    /// Refuses an id that no valid key has.
    pub(super) fn check_is_there(&self, id: &str) -> Result<(), Rejection> {
        match self.by_id.contains_key(id) {
            true => Ok(()),
            false => Err(Rejection::ApiKeyUnknown(id.to_owned())),
        }
    }

    /// The namespace of a key.
    pub(super) fn namespace_of(&self, id: &str) -> Option<&str> {
        self.by_id.get(id).map(|key| key.spec.namespace.as_str())
    }

    /// Adds a key, after [`ApiKeys::check_create`].
    pub(super) fn insert(
        &mut self,
        id: String,
        secret_hash: [u8; 32],
        spec: ApiKeySpec,
        (now, created_wall_ms): (LedgerMs, u64),
    ) {
        let ends_at = (spec.ttl_ms > 0).then(|| LedgerMs(now.0.saturating_add(spec.ttl_ms)));
        let key = ApiKey { secret_hash, spec, created_wall_ms, ends_at };
        self.index(&id, &key);
        self.by_id.insert(id.clone(), key);
        self.dirty.insert(id);
    }

    fn index(&mut self, id: &str, key: &ApiKey) {
        let namespace = key.spec.namespace.clone();
        self.of_namespaces.entry(namespace).or_default().insert(id.to_owned());
        self.ends.set(&id.to_owned(), key.ends_at);
    }

    /// Ends a key, if it exists. `index` is that of the entry that does.
    pub(super) fn remove(&mut self, id: String, index: u64) {
        let Some(key) = self.by_id.remove(&id) else { return };
        if let Some(ids) = self.of_namespaces.get_mut(&key.spec.namespace) {
            ids.remove(&id);
            if ids.is_empty() {
                self.of_namespaces.remove(&key.spec.namespace);
            }
        }
        self.ends.set(&id, None);
        self.changed_at = index;
        self.dirty.insert(id);
    }

    /// When the next key expires.
    pub(crate) fn next_end(&self) -> Option<LedgerMs> {
        self.ends.first()
    }

    /// Removes expired keys.
    pub(crate) fn forget_expired(&mut self, now: LedgerMs, index: u64) {
        for id in self.ends.by(now) {
            self.remove(id, index);
        }
    }

    /// Takes the records that changed since the last call.
    pub(crate) fn drain(&mut self, delta: &mut ImageDelta) {
        for id in std::mem::take(&mut self.dirty) {
            delta.set(record_key(&id), self.by_id.get(&id).map(codec::encode));
        }
    }

    pub(crate) fn each_key(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (id, api_key) in &self.by_id {
            each(&record_key(id), &codec::encode(api_key));
        }
    }

    /// Reads a key's record.
    pub(crate) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        let id = std::str::from_utf8(&key[2..]).map_err(|_| bad(key))?;
        self.by_id.insert(id.into(), read(key, value)?);
        Ok(())
    }

    /// Rebuilds what is derived. `index` is that of the image.
    pub(crate) fn derive(&mut self, index: u64) {
        let by_id = std::mem::take(&mut self.by_id);
        by_id.iter().for_each(|(id, key)| self.index(id, key));
        self.by_id = by_id;
        self.changed_at = index;
    }

    /// Checks the invariants of keys.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.by_id.len() > limits::API_KEYS_MAX {
            return Err(format!("{} API keys", self.by_id.len()));
        }
        let mut derived = Self::default();
        self.by_id.iter().for_each(|(id, key)| derived.index(id, key));
        if derived.of_namespaces != self.of_namespaces {
            return Err(format!("API keys are listed as those of {:?}", self.of_namespaces));
        }
        if let Some((name, ids)) =
            self.of_namespaces.iter().find(|(_, ids)| ids.len() > limits::NAMESPACE_API_KEYS_MAX)
        {
            return Err(format!("namespace {name} has {} API keys", ids.len()));
        }
        match derived.ends == self.ends {
            true => Ok(()),
            false => Err(format!("API keys expire at {:?}, not {:?}", derived.ends, self.ends)),
        }
    }

    fn view(&self, id: &str, now: LedgerMs) -> Option<ApiKeyView<'_>> {
        let (id, key) = self.by_id.get_key_value(id)?;
        // The `Tick` that removes an expired key comes after the time at which the key ends.
        let left_ms = key.ends_at.map(|end| end.0.saturating_sub(now.0));
        let ApiKey { secret_hash, spec, created_wall_ms, .. } = key;
        (left_ms != Some(0)).then_some(ApiKeyView {
            id,
            spec,
            secret_hash,
            created_wall_ms: *created_wall_ms,
            left_ms,
        })
    }
}

/// The key of a record in the image.
fn record_key(id: &str) -> Vec<u8> {
    key(b'E', &[&[API_KEY_TAG], id.as_bytes()])
}

impl Ledger {
    /// The valid key of an id.
    pub fn api_key(&self, id: &str) -> Option<ApiKeyView<'_>> {
        self.api_keys.view(id, self.meta.clock())
    }

    /// Up to `max` valid keys, by id, from the one behind `after` on: those of one namespace, or of all.
    pub fn api_keys(
        &self,
        namespace: Option<&str>,
        after: Option<&str>,
        max: usize,
    ) -> Vec<ApiKeyView<'_>> {
        let keys = &self.api_keys;
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let view = |id: &String| keys.view(id, self.meta.clock());
        match namespace {
            Some(namespace) => {
                let ids = keys.of_namespaces.get(namespace).into_iter();
                let ids = ids.flat_map(|ids| ids.range::<str, _>((start, Bound::Unbounded)));
                ids.filter_map(view).take(max).collect()
            }
            None => {
                let all = keys.by_id.range::<str, _>((start, Bound::Unbounded));
                all.filter_map(|(id, _)| view(id)).take(max).collect()
            }
        }
    }

    /// A number that grows whenever a key was revoked or has expired. It may also grow without that, when a member
    /// replaces its state by a snapshot. A caller that keeps a key compares it, and looks again after each change.
    pub fn api_key_changes(&self) -> u64 {
        self.api_keys.changed_at
    }
}

#[cfg(test)]
mod tests;
