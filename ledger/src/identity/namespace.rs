//! Namespaces: the owners of runs, how much each may use in total, and which of its workers operators have cordoned.
//!
//! *Invariant:* `default` exists from the start, and no namespace is ever removed. `running` is derived from the runs.
//! Only this file adds namespaces and returns them for a change; both mark the record.
//!
//! Absent: what else the runs of a namespace use (`tally.rs`), and who may change its quota.

use crate::kernel::codec;
use crate::kernel::id::SlotNo;
use crate::kernel::limits;
use crate::kernel::reply::Rejection;
use crate::machine::image::{ImageDelta, key};
use crate::machine::image_load::{LoadError, bad, read};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The namespace of requests that name none.
pub(crate) const DEFAULT: &str = "default";

/// One namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Namespace {
    /// Rows that its runs together may have at workers; 0 for no cap.
    pub(super) running_rows_max: u64,
    /// The operators' cordons of its workers, by name.
    cordons: BTreeMap<String, NameCordon>,
    /// Rows that they have there.
    #[serde(skip)]
    running: u64,
    /// The most rows of its runs without an outcome and not at a worker; 0 for no bound.
    pub(super) pending_rows_max: u64,
    /// The most runs of it that have not ended; 0 for no bound.
    pub(super) runs_max: u32,
}

/// An operator's cordons of the worker of one name, with reasons.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct NameCordon {
    /// Cordons all of its slots, including future ones.
    whole: Option<String>,
    slots: BTreeMap<SlotNo, String>,
}

impl Namespace {
    /// Rows that its runs have at workers.
    pub(crate) fn running(&self) -> u64 {
        self.running
    }

    /// Whether the rows that its runs have at workers are capped.
    pub(crate) fn is_capped(&self) -> bool {
        self.running_rows_max > 0
    }

    /// Rows that its runs together may still be granted.
    pub(crate) fn room(&self) -> u64 {
        match self.running_rows_max {
            0 => u64::MAX,
            max => max.saturating_sub(self.running),
        }
    }

    /// Refuses a change of an operator's cordon that has no room or no clear meaning.
    pub(crate) fn check_cordon(
        &self,
        name: &str,
        slot: Option<SlotNo>,
        cordoned: bool,
    ) -> Result<(), Rejection> {
        let cordon = self.cordons.get(name);
        if cordoned && cordon.is_none() && self.cordons.len() >= limits::CORDONS_MAX {
            let max = limits::CORDONS_MAX as u64;
            return Err(Rejection::Limit { what: "cordoned workers of a namespace".into(), max });
        }
        if !cordoned && slot.is_some() && cordon.is_some_and(|k| k.whole.is_some()) {
            return Err(Rejection::Invalid(
                "the whole worker is cordoned: uncordon it without naming a slot".into(),
            ));
        }
        Ok(())
    }

    /// Sets or lifts an operator's cordon of the worker of a name, or of one of its slots.
    pub(crate) fn set_cordon(
        &mut self,
        name: &str,
        slot: Option<SlotNo>,
        cordoned: bool,
        reason: &str,
    ) {
        let entry = self.cordons.entry(name.to_owned()).or_default();
        match (slot, cordoned) {
            (None, true) => entry.whole = Some(reason.to_owned()),
            (None, false) => *entry = NameCordon::default(),
            (Some(slot), true) => drop(entry.slots.insert(slot, reason.to_owned())),
            (Some(slot), false) => drop(entry.slots.remove(&slot)),
        }
        if *entry == NameCordon::default() {
            self.cordons.remove(name);
        }
    }

    /// Why an operator has cordoned a slot of the worker of a name.
    pub(crate) fn cordon_of(&self, name: &str, slot: usize) -> Option<&str> {
        let cordon = self.cordons.get(name)?;
        let slot = u16::try_from(slot).ok().and_then(|n| cordon.slots.get(&SlotNo(n)));
        cordon.whole.as_ref().or(slot).map(String::as_str)
    }
}

/// All namespaces, and which of their records differ from the image.
#[derive(Clone, Debug, Default)]
pub(crate) struct Namespaces {
    by_name: BTreeMap<String, Namespace>,
    dirty: BTreeSet<String>,
}

impl Namespaces {
    pub(crate) fn get(&self, name: &str) -> Option<&Namespace> {
        self.by_name.get(name)
    }

    pub(crate) fn contains_key(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// All of them, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &Namespace)> {
        self.by_name.iter()
    }

    /// A namespace, for a change of its record.
    pub(crate) fn change(&mut self, name: &str) -> Option<&mut Namespace> {
        let namespace = self.by_name.get_mut(name)?;
        self.dirty.insert(name.to_owned());
        Some(namespace)
    }

    /// The same, created if needed.
    pub(crate) fn change_or_make(&mut self, name: String) -> &mut Namespace {
        self.dirty.insert(name.clone());
        self.by_name.entry(name).or_default()
    }

    /// Workers have this many more rows of a namespace.
    pub(crate) fn add_running(&mut self, name: &str, rows: u64) {
        if let Some(namespace) = self.by_name.get_mut(name) {
            namespace.running += rows;
        }
    }

    /// Workers have this many fewer rows of a namespace.
    pub(crate) fn remove_running(&mut self, name: &str, rows: u64) {
        if let Some(namespace) = self.by_name.get_mut(name) {
            namespace.running -= rows;
        }
    }

    /// Takes the records that changed since the last call.
    pub(crate) fn drain(&mut self, delta: &mut ImageDelta) {
        for name in std::mem::take(&mut self.dirty) {
            let namespace = self.by_name.get(&name).map(codec::encode);
            delta.set(namespace_key(&name), namespace);
        }
    }

    /// Forgets which records differ from the image, because there is no image yet.
    pub(crate) fn forget_dirty(&mut self) {
        self.dirty.clear();
    }

    pub(crate) fn each_namespace(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (name, namespace) in &self.by_name {
            each(&namespace_key(name), &codec::encode(namespace));
        }
    }

    /// Reads a namespace's record.
    pub(crate) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        let name = std::str::from_utf8(&key[1..]).map_err(|_| bad(key))?;
        self.by_name.insert(name.into(), read(key, value)?);
        Ok(())
    }
}

/// The key of a namespace's record in the image.
fn namespace_key(name: &str) -> Vec<u8> {
    key(b'N', &[name.as_bytes()])
}
