//! Owns: the newest entries of the log in memory.
//!
//! Invariant: it holds a contiguous suffix of the log, and always its last entry, so an empty ring means an empty log.
//! It is bounded in bytes, including the overhead of each entry; one entry larger than the bound is kept alone.
//! Absent: the disk.

use std::collections::VecDeque;
use std::sync::Arc;

/// The overhead of an entry: its place, its reference count, the allocator's rounding.
const OVERHEAD_BYTES: usize = 64;

pub(super) struct Ring {
    first: u64,
    entries: VecDeque<Arc<[u8]>>,
    bytes: usize,
    max_bytes: usize,
}

impl Ring {
    /// An empty ring whose next entry has the index `next`.
    pub(super) fn new(max_bytes: usize, next: u64) -> Self {
        Self { first: next, entries: VecDeque::new(), bytes: 0, max_bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The index after the last entry.
    pub(super) fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    pub(super) fn last(&self) -> Option<(u64, Vec<u8>)> {
        self.entries.back().map(|payload| (self.end() - 1, payload.to_vec()))
    }

    pub(super) fn push(&mut self, payload: &[u8]) {
        self.bytes += payload.len() + OVERHEAD_BYTES;
        self.entries.push_back(payload.into());
        while self.bytes > self.max_bytes && self.entries.len() > 1 {
            self.pop_front();
        }
    }

    /// Adds the entry before the first one. Returns false, without a change, if there is no room.
    pub(super) fn push_front(&mut self, index: u64, payload: &[u8]) -> bool {
        if self.entries.is_empty() {
            self.first = index + 1;
        } else if self.bytes + payload.len() + OVERHEAD_BYTES > self.max_bytes {
            return false;
        }
        self.first -= 1;
        self.bytes += payload.len() + OVERHEAD_BYTES;
        self.entries.push_front(payload.into());
        true
    }

    /// Empties the ring; the next entry has the index `next`.
    pub(super) fn restart(&mut self, next: u64) {
        *self = Self::new(self.max_bytes, next);
    }

    /// Removes entries from `cut` on. `last` is the entry before `cut`, used if the ring does not have it.
    pub(super) fn truncate(&mut self, cut: u64, last: Option<(u64, Vec<u8>)>) {
        while self.end() > cut {
            match self.entries.pop_back() {
                Some(payload) => self.bytes -= payload.len() + OVERHEAD_BYTES,
                None => break,
            }
        }
        if self.entries.is_empty() {
            self.restart(cut);
            if let Some((index, payload)) = last {
                self.push_front(index, &payload);
            }
        }
    }

    /// Removes entries before `first`. If none is left, the next entry has the index `first`.
    pub(super) fn purge(&mut self, first: u64) {
        while self.first < first && !self.entries.is_empty() {
            self.pop_front();
        }
        if self.entries.is_empty() {
            self.restart(first);
        }
    }

    /// The entries of `[from, end)` in the ring, up to `max_bytes`, but at least one if there is any.
    pub(super) fn read(&self, from: u64, end: u64, max_bytes: usize) -> Vec<(u64, Arc<[u8]>)> {
        let start = from.max(self.first);
        let mut bytes = 0usize;
        let mut found = Vec::new();
        for index in start..end.min(self.end()) {
            let payload = &self.entries[(index - self.first) as usize];
            bytes = bytes.saturating_add(payload.len());
            if bytes > max_bytes && !found.is_empty() {
                break;
            }
            found.push((index, payload.clone()));
        }
        found
    }

    fn pop_front(&mut self) {
        if let Some(payload) = self.entries.pop_front() {
            self.bytes -= payload.len() + OVERHEAD_BYTES;
            self.first += 1;
        }
    }
}
