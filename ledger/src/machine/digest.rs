//! Two digests by which members detect that their states differ.
//!
//! The *chain* is cheap and always on: blake3 over the previous link, the entry's position, the command's bytes and
//! the replies. It catches a member that computed a different result. The *state digest* covers every record, in
//! memory or re-read from disk, at an index that a logged `DigestAt` fixes for all members. It catches a bit that
//! flipped since.
//!
//! *Invariant:* both depend on the log alone, never on when images were written.

use crate::kernel::codec;
use crate::kernel::reply::Reply;
use crate::machine::ledger::{EntryId, Ledger};

/// The chain is kept at every index that is a multiple of this.
pub(crate) const MARK_EVERY: u64 = 4096;
/// How many of these are kept.
const MARKS_KEPT: usize = 64;
/// Bytes that are kept for the next command's replies to be encoded in. Few take more.
const SCRATCH_BYTES_KEPT: usize = 1 << 20;

impl Ledger {
    pub(crate) fn extend_chain(&mut self, entry: EntryId, bytes: &[u8], replies: &[Reply]) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        codec::encode_into(&replies, &mut scratch);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.meta.chain);
        hasher.update(&entry.index.to_be_bytes());
        hasher.update(&entry.term.to_be_bytes());
        hasher.update(&(bytes.len() as u64).to_be_bytes());
        hasher.update(bytes);
        hasher.update(&scratch);
        self.meta.chain = *hasher.finalize().as_bytes();
        scratch.truncate(SCRATCH_BYTES_KEPT);
        scratch.shrink_to(SCRATCH_BYTES_KEPT);
        self.scratch = scratch;
        if entry.index.is_multiple_of(MARK_EVERY) {
            self.meta.chain_marks.insert(entry.index, self.meta.chain);
            if self.meta.chain_marks.len() > MARKS_KEPT {
                self.meta.chain_marks.pop_first();
            }
        }
    }

    /// The chain up to the last applied entry.
    pub fn chain(&self) -> [u8; 32] {
        self.meta.chain
    }

    /// The chain at the latest multiples of 4096 that held a command, ascending.
    pub fn chain_marks(&self) -> impl Iterator<Item = (u64, [u8; 32])> + '_ {
        self.meta.chain_marks.iter().map(|(i, c)| (*i, *c))
    }

    /// The index of a `DigestAt` that was applied since the last call. The caller must compute the digests before it
    /// applies the next entry.
    pub fn take_digest_request(&mut self) -> Option<u64> {
        self.digest_request.take()
    }

    /// The digest of the state in memory.
    pub fn state_digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        self.for_each_record(|key, value| add_record(&mut hasher, key, value));
        *hasher.finalize().as_bytes()
    }
}

/// The digest of the state in these records, given in the order of their keys. Equal to [`Ledger::state_digest`] of
/// the ledger that they were drained from.
pub fn digest_records<K: AsRef<[u8]>, V: AsRef<[u8]>>(
    records: impl IntoIterator<Item = (K, V)>,
) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for (key, value) in records {
        add_record(&mut hasher, key.as_ref(), value.as_ref());
    }
    *hasher.finalize().as_bytes()
}

fn add_record(hasher: &mut blake3::Hasher, key: &[u8], value: &[u8]) {
    hasher.update(&(key.len() as u64).to_be_bytes());
    hasher.update(key);
    hasher.update(&(value.len() as u64).to_be_bytes());
    hasher.update(value);
}
