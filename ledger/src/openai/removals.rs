//! Folders whose content is no longer part of a file: of deleted and expired files, and of parts that became no file.
//!
//! *Invariant:* no file and no upload names a folder that is listed here, and none can while it is listed. It is listed
//! until its objects are gone, and for [`limits::CONTENT_WRITE_MS_MAX`](crate::limits::CONTENT_WRITE_MS_MAX) at least:
//! then every operation that could still name it is refused because of its age. So a late repeat of an operation never
//! makes a file of removed objects.
//!
//! Absent: the removal of the objects, which the leader does before it proposes
//! [`ForgetContent`](crate::op::ForgetContent).

use crate::kernel::deadline_queue::DeadlineQueue;
use crate::kernel::id::LedgerMs;
use crate::openai::content::write_ends;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A folder with its namespace.
pub(super) type FolderKey = (String, String);

/// A folder to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Removal {
    /// Since when no file has its content.
    at: LedgerMs,
    /// Whether its objects are gone.
    gone: bool,
}

/// All of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Removals {
    by_folder: BTreeMap<FolderKey, Removal>,
    // Derived.
    /// Those whose objects may still exist.
    pending: BTreeSet<FolderKey>,
    /// When those whose objects are gone are forgotten.
    ends: DeadlineQueue<FolderKey>,
    dirty: BTreeSet<FolderKey>,
}

impl Removals {
    pub(super) fn len(&self) -> usize {
        self.by_folder.len()
    }

    pub(super) fn contains(&self, namespace: &str, folder: &str) -> bool {
        self.by_folder.contains_key(&(namespace.to_owned(), folder.to_owned()))
    }

    /// Lists a folder.
    pub(super) fn add(&mut self, namespace: &str, folder: String, at: LedgerMs) {
        let key = (namespace.to_owned(), folder);
        self.set(key, Removal { at, gone: false });
    }

    /// The objects of a folder are gone. Has no effect if it is not listed.
    pub(super) fn gone(&mut self, namespace: &str, folder: String) {
        let key = (namespace.to_owned(), folder);
        if let Some(removal) = self.by_folder.get(&key).copied() {
            self.set(key, Removal { gone: true, ..removal });
        }
    }

    fn set(&mut self, key: FolderKey, removal: Removal) {
        self.index(&key, removal);
        self.dirty.insert(key.clone());
        self.by_folder.insert(key, removal);
    }

    fn index(&mut self, key: &FolderKey, removal: Removal) {
        match removal.gone {
            true => drop(self.pending.remove(key)),
            false => drop(self.pending.insert(key.clone())),
        }
        self.ends.set(key, removal.gone.then(|| write_ends(removal.at)));
    }

    /// Some folders whose objects may still exist, after this one.
    pub(super) fn pending<'a>(
        &'a self,
        after: Option<&FolderKey>,
        max: usize,
    ) -> impl Iterator<Item = &'a FolderKey> + use<'a> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, |after| Excluded(after.clone()));
        self.pending.range((from, Unbounded)).take(max)
    }

    /// When the next one is forgotten.
    pub(super) fn next_end(&self) -> Option<LedgerMs> {
        self.ends.first()
    }

    /// Forgets at most this many whose time is over. Returns how many it forgot.
    pub(super) fn forget_due(&mut self, now: LedgerMs, max: usize) -> usize {
        let mut forgotten = 0;
        while forgotten < max
            && let Some(key) = self.ends.first_by(now).cloned()
        {
            self.ends.set(&key, None);
            self.by_folder.remove(&key);
            self.dirty.insert(key);
            forgotten += 1;
        }
        forgotten
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&FolderKey, &Removal)> {
        self.by_folder.iter()
    }

    pub(super) fn get(&self, key: &FolderKey) -> Option<&Removal> {
        self.by_folder.get(key)
    }

    pub(super) fn take_dirty(&mut self) -> BTreeSet<FolderKey> {
        std::mem::take(&mut self.dirty)
    }

    /// Adds a record that was read from an image. [`derive`](Self::derive) follows.
    pub(super) fn load(&mut self, key: FolderKey, removal: Removal) {
        self.by_folder.insert(key, removal);
    }

    pub(super) fn derive(&mut self) {
        for (key, removal) in self.by_folder.clone() {
            self.index(&key, removal);
        }
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let mut own = Self { by_folder: self.by_folder.clone(), ..Self::default() };
        own.derive();
        match own.pending == self.pending && own.ends == self.ends {
            true => Ok(()),
            false => Err("the indexes of removed content differ".into()),
        }
    }
}
