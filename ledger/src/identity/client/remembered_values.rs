//! Bytes of stores' values in the answers remembered for client sessions, by holder. Derived.
//!
//! *Invariant:* from version 3 on a session makes room for the values of another only if no holder has more bytes
//! than its own holder, counting the bytes that need the room. So one identity that fills the memory ends its own
//! sessions first.

use super::{Client, Clients};
use crate::kernel::id::{LedgerMs, SessionId};
use crate::kernel::limits;
use crate::machine::version_gate::SCHEDULING_VERSION;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// The remembered values of all sessions; a session without values has no entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RememberedValues {
    bytes: u64,
    holders: BTreeMap<String, OfHolder>,
}

/// The remembered values of one holder's sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OfHolder {
    bytes: u64,
    /// Its sessions that have values, by when they were last used.
    uses: BTreeSet<(LedgerMs, SessionId)>,
}

impl RememberedValues {
    /// Counts a session as it is now.
    pub(super) fn add(&mut self, client: &Client) {
        if client.value_bytes == 0 {
            return;
        }
        self.bytes += client.value_bytes;
        let of_holder = self.holders.entry(client.holder.clone()).or_default();
        of_holder.bytes += client.value_bytes;
        of_holder.uses.insert((client.used_at, client.id));
    }

    /// Stops counting a session. It must not have changed since it was added.
    pub(super) fn remove(&mut self, client: &Client) {
        if client.value_bytes == 0 {
            return;
        }
        self.bytes -= client.value_bytes;
        let Some(of_holder) = self.holders.get_mut(&client.holder) else { return };
        of_holder.bytes -= client.value_bytes;
        of_holder.uses.remove(&(client.used_at, client.id));
        if of_holder.uses.is_empty() {
            self.holders.remove(&client.holder);
        }
    }
}

impl Clients {
    /// Makes room for this many bytes of values in an answer to this client. Its own session never makes room;
    /// [`limits::CLIENT_REPLIES_BYTES_MAX`] bounds that one.
    pub(super) fn make_room_for_values(&mut self, of: SessionId, bytes: u64, version: u32) {
        while bytes > 0 && self.remembered.bytes + bytes > limits::REPLIES_BYTES_MAX {
            let Some((used_at, id)) = self.to_forget_for_values(of, bytes, version) else { return };
            self.forget(used_at, id);
        }
    }

    /// The longest-unused session, except this one, of the holder with the most bytes; if several, the oldest. Before
    /// version 3, of all holders.
    fn to_forget_for_values(
        &self,
        of: SessionId,
        bytes: u64,
        version: u32,
    ) -> Option<(LedgerMs, SessionId)> {
        let asking = self.holder(of);
        let by_holder = version >= SCHEDULING_VERSION;
        let candidates = self.remembered.holders.iter().filter_map(|(holder, of_holder)| {
            let first = of_holder.uses.iter().copied().find(|&(_, id)| id != of)?;
            let more = if asking == Some(holder.as_str()) { bytes } else { 0 };
            let rank = if by_holder { of_holder.bytes + more } else { 0 };
            Some((Reverse(rank), first))
        });
        candidates.min().map(|(_, first)| first)
    }
}
