//! Owns: the newest log entries, decoded, in memory, so that replication and apply do not read them back.
//!
//! Invariant: its contents are contiguous and equal the end of the log; a range is served whole or not at all. It
//! keeps only its entries' memory: an entry that came in a message does not keep the rest of that message's buffer.
//! It keeps few committed entries: they are soon applied, and a cache that only fills would make an idle member look
//! as if it leaked memory.
//! Absent: entries older than the bounds. Those are read from the log.

use std::collections::VecDeque;

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::entry::RaftEntry;

use crate::codec::encoded_entry_len;
use crate::types::{Command, Entry};

/// A shorter command is copied out of its receive buffer, which may hold some KiB for every byte of it. A longer
/// command fills most of its buffer.
const COPIED_BELOW: usize = 64 << 10;

/// The overhead of an entry besides its bytes: its slot, its id, its reference count.
const OVERHEAD_BYTES: usize = 128;

/// The bounds of an [`EntryCache`], in bytes of entries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheBounds {
    /// Of all entries; a larger single entry is kept alone.
    pub(crate) all: usize,
    /// While the oldest entry held is a committed one.
    pub(crate) settled: usize,
}

/// A bounded window on the end of the log.
pub(crate) struct EntryCache {
    entries: VecDeque<Entry>,
    first: u64,
    bytes: usize,
    max: CacheBounds,
    /// Entries before this index are committed.
    settled: u64,
}

impl EntryCache {
    pub(crate) fn new(max: CacheBounds) -> Self {
        Self { entries: VecDeque::new(), first: 0, bytes: 0, max, settled: 0 }
    }

    fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    pub(crate) fn push(&mut self, mut entry: Entry) {
        let index = entry.index();
        if let EntryPayload::Normal(Command(bytes)) = &mut entry.payload
            && bytes.len() < COPIED_BELOW
        {
            *bytes = Bytes::copy_from_slice(bytes);
        }
        if self.entries.is_empty() || index != self.end() {
            self.clear();
            self.first = index;
        }
        self.bytes += cost(&entry);
        self.entries.push_back(entry);
        self.fit();
    }

    /// Everything up to and including `committed` is committed; only a little of that is kept.
    pub(crate) fn settle(&mut self, committed: u64) {
        self.settled = self.settled.max(committed + 1);
        self.fit();
    }

    fn fit(&mut self) {
        let bound = |cache: &Self| match cache.first < cache.settled {
            true => cache.max.settled,
            false => cache.max.all,
        };
        while self.bytes > bound(self) && self.entries.len() > 1 {
            self.pop_front();
        }
    }

    fn pop_front(&mut self) {
        if let Some(gone) = self.entries.pop_front() {
            self.bytes -= cost(&gone);
            self.first += 1;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.bytes = 0;
    }

    /// Drops everything at `end` and after it.
    pub(crate) fn truncate(&mut self, end: u64) {
        while self.end() > end {
            let Some(gone) = self.entries.pop_back() else { break };
            self.bytes -= cost(&gone);
        }
    }

    /// Drops everything up to and including `up_to`.
    pub(crate) fn purge(&mut self, up_to: u64) {
        while !self.entries.is_empty() && self.first <= up_to {
            self.pop_front();
        }
    }

    /// The entries of `[from, end)` up to `max_bytes`, at least one; `None` if `from` is not in the cache. `end` may
    /// lie beyond the log.
    pub(crate) fn read(&self, from: u64, end: u64, max_bytes: usize) -> Option<Vec<Entry>> {
        if from < self.first || from >= self.end() {
            return None;
        }
        let mut bytes = 0;
        let mut found = Vec::new();
        let skip = (from - self.first) as usize;
        let count = (end.min(self.end()).saturating_sub(from)) as usize;
        for entry in self.entries.iter().skip(skip).take(count) {
            bytes += encoded_entry_len(entry);
            if bytes > max_bytes && !found.is_empty() {
                break;
            }
            found.push(entry.clone());
        }
        Some(found)
    }
}

fn cost(entry: &Entry) -> usize {
    encoded_entry_len(entry) + OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::log_id;

    fn entry(index: u64, bytes: usize) -> Entry {
        let payload = EntryPayload::Normal(Command(Bytes::from(vec![0; bytes])));
        Entry { log_id: log_id(1, index), payload }
    }

    fn indexes(found: Option<Vec<Entry>>) -> Option<Vec<u64>> {
        found.map(|entries| entries.iter().map(RaftEntry::index).collect())
    }

    #[test]
    fn the_window_is_contiguous_and_bounded_by_bytes() {
        let mut cache = EntryCache::new(CacheBounds { all: 2000, settled: 2000 });
        (5..25).for_each(|index| cache.push(entry(index, 100)));
        assert_eq!(indexes(cache.read(5, 9, usize::MAX)), None, "evicted");
        assert_eq!(indexes(cache.read(22, 99, usize::MAX)), Some(vec![22, 23, 24]));
        assert_eq!(indexes(cache.read(22, 99, 1)), Some(vec![22]), "never empty for a held index");
        cache.truncate(24);
        assert_eq!(indexes(cache.read(24, 25, usize::MAX)), None);
        cache.purge(22);
        assert_eq!(indexes(cache.read(22, 24, usize::MAX)), None);
        assert_eq!(indexes(cache.read(23, 24, usize::MAX)), Some(vec![23]));
        cache.push(entry(90, 1));
        assert_eq!(indexes(cache.read(23, 24, usize::MAX)), None, "a gap empties the window");
    }

    #[test]
    fn only_the_newest_committed_entries_are_kept() {
        let mut cache = EntryCache::new(CacheBounds { all: 4000, settled: 800 });
        (1..=15).for_each(|index| cache.push(entry(index, 100)));
        assert_eq!(
            indexes(cache.read(1, 3, usize::MAX)),
            Some(vec![1, 2]),
            "none is committed yet"
        );
        cache.settle(6);
        assert_eq!(cache.first, 7, "what is not committed stays, whatever it takes");
        cache.settle(15);
        assert!(cache.bytes <= 800 && cache.end() == 16, "{} bytes", cache.bytes);
        (16..=30).for_each(|index| cache.push(entry(index, 100)));
        assert_eq!(cache.first, 16, "committed ones make way for others");
        cache.settle(2);
        assert_eq!(cache.first, 16, "an older mark changes nothing");
    }

    #[test]
    fn an_entry_holds_nothing_of_the_message_that_it_came_in() {
        let message = Bytes::from(vec![7; 8192]);
        let mut cache = EntryCache::new(CacheBounds { all: 1 << 20, settled: 1 << 20 });
        let payload = EntryPayload::Normal(Command(message.slice(100..200)));
        cache.push(Entry { log_id: log_id(1, 1), payload });
        assert!(message.is_unique(), "8 KiB are held for 100 bytes");
    }
}
