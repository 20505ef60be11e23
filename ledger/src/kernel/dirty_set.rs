//! Which records of one kind changed: since the last image, and since the derived indexes were last brought up to
//! date.
//!
//! *Invariant:* every change of a record inserts its key here, because the image needs it. So the indexes that are
//! derived from the records need no calls of their own (`settle.rs`).
//! Absent: what changed in a record. An index entry is rebuilt from the whole record.

use std::collections::BTreeSet;

/// The keys of changed records.
#[derive(Clone, Debug)]
pub(crate) struct DirtySet<K> {
    /// Records that differ from the image on disk.
    image: BTreeSet<K>,
    /// Records whose index entries are stale; some more than once.
    stale: Vec<K>,
}

impl<K> Default for DirtySet<K> {
    fn default() -> Self {
        Self { image: BTreeSet::new(), stale: Vec::new() }
    }
}

impl<K: Ord + Clone> DirtySet<K> {
    /// Marks a record that was changed, added or removed.
    pub(crate) fn insert(&mut self, key: K) {
        self.touch(key.clone());
        self.image.insert(key);
    }

    /// The index entries of a record have changed, although the record has not.
    pub(crate) fn touch(&mut self, key: K) {
        if self.stale.last() != Some(&key) {
            self.stale.push(key);
        }
    }

    pub(crate) fn extend(&mut self, keys: impl IntoIterator<Item = K>) {
        keys.into_iter().for_each(|key| self.insert(key));
    }

    /// Takes the records that differ from the image.
    pub(crate) fn take_image(&mut self) -> BTreeSet<K> {
        std::mem::take(&mut self.image)
    }

    /// Takes the stale records, each once. Return the list with [`DirtySet::reuse`].
    pub(crate) fn take_stale(&mut self) -> Vec<K> {
        let mut stale = std::mem::take(&mut self.stale);
        if stale.len() > 1 {
            stale.sort_unstable();
            stale.dedup();
        }
        stale
    }

    /// Keeps the memory of a list, so that a command allocates none.
    pub(crate) fn reuse(&mut self, mut list: Vec<K>) {
        list.clear();
        list.append(&mut self.stale);
        list.shrink_to(STALE_KEPT);
        self.stale = list;
    }
}

/// Keys for which memory is kept between two commands.
const STALE_KEPT: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_stays_for_the_image_when_the_indexes_are_up_to_date() {
        let mut set = DirtySet::default();
        set.extend([2, 1, 2]);
        set.touch(3);
        assert_eq!(set.take_stale(), [1, 2, 3]);
        assert!(set.take_stale().is_empty());
        assert_eq!(set.take_image(), BTreeSet::from([1, 2]));
        set.insert(4);
        set.reuse(vec![9]);
        assert_eq!(set.take_stale(), [4]);
    }
}
