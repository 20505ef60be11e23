//! Grants by attempt, with marks for those that differ from the image.
//!
//! *Invariant:* every change goes through this type, so that no attempt changes without a mark.

use crate::batch::grant::Grant;
use crate::kernel::id::Attempt;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

/// Grants by attempt. Read as the map that it wraps, and encoded as it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attempts {
    grants: BTreeMap<Attempt, Grant>,
    /// Attempts that differ from the image, and whether the image has them. Not part of the state.
    changed: BTreeMap<Attempt, bool>,
}

impl PartialEq for Attempts {
    fn eq(&self, other: &Self) -> bool {
        self.grants == other.grants
    }
}

impl Eq for Attempts {}

impl Deref for Attempts {
    type Target = BTreeMap<Attempt, Grant>;

    fn deref(&self) -> &Self::Target {
        &self.grants
    }
}

impl Serialize for Attempts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.grants.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Attempts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let grants = BTreeMap::deserialize(deserializer)?;
        Ok(Self { grants, changed: BTreeMap::new() })
    }
}

impl Attempts {
    pub(crate) fn insert(&mut self, attempt: Attempt, grant: Grant) {
        self.mark(attempt);
        self.grants.insert(attempt, grant);
    }

    pub(crate) fn remove(&mut self, attempt: &Attempt) -> Option<Grant> {
        let grant = self.grants.remove(attempt)?;
        if *self.changed.entry(*attempt).or_insert(true) {
            return Some(grant);
        }
        self.changed.remove(attempt); // The image never had it.
        Some(grant)
    }

    pub(crate) fn get_mut(&mut self, attempt: &Attempt) -> Option<&mut Grant> {
        let grant = self.grants.get_mut(attempt)?;
        self.changed.entry(*attempt).or_insert(true);
        Some(grant)
    }

    pub(crate) fn entry(&mut self, attempt: Attempt) -> Entry<'_, Attempt, Grant> {
        self.mark(attempt);
        self.grants.entry(attempt)
    }

    /// Drops an attempt that has no rows left.
    pub(crate) fn drop_empty(&mut self, attempt: &Attempt) {
        if self.grants.get(attempt).is_some_and(|grant| grant.rows.is_empty()) {
            self.remove(attempt);
        }
    }

    pub(crate) fn clear(&mut self) {
        for attempt in std::mem::take(&mut self.grants).into_keys() {
            if !*self.changed.entry(attempt).or_insert(true) {
                self.changed.remove(&attempt);
            }
        }
    }

    fn mark(&mut self, attempt: Attempt) {
        let there = self.grants.contains_key(&attempt);
        self.changed.entry(attempt).or_insert(there);
    }

    /// Marks all attempts, because the image has them in another layout.
    pub(crate) fn mark_all(&mut self) {
        for attempt in self.grants.keys() {
            self.changed.entry(*attempt).or_insert(true);
        }
    }

    /// The attempts that changed since the last call, including removed ones.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<Attempt> {
        std::mem::take(&mut self.changed).into_keys().collect()
    }
}

impl IntoIterator for Attempts {
    type Item = (Attempt, Grant);
    type IntoIter = std::collections::btree_map::IntoIter<Attempt, Grant>;

    fn into_iter(self) -> Self::IntoIter {
        self.grants.into_iter()
    }
}

impl<'a> IntoIterator for &'a Attempts {
    type Item = (&'a Attempt, &'a Grant);
    type IntoIter = std::collections::btree_map::Iter<'a, Attempt, Grant>;

    fn into_iter(self) -> Self::IntoIter {
        self.grants.iter()
    }
}
