//! Which client session makes room for a new one.
//!
//! *Invariant:* from version 3 on a session makes room only if no holder has more sessions than its own holder. So an
//! identity that opens many sessions ends only its own.
//!
//! Absent: whether a new session may be opened at all while the sessions that would be forgotten are in use; the
//! leader decides that before it proposes one ([`Ledger::makes_room_of`]).

use super::Clients;
use crate::kernel::id::{LedgerMs, SessionId};
use crate::kernel::limits;
use crate::machine::ledger::Ledger;
use crate::machine::version_gate::SCHEDULING_VERSION;

/// The session that a new one would end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MakesRoom<'a> {
    /// Its holder.
    pub holder: &'a str,
    /// How long it was unused, in ledger time.
    pub unused_ms: u64,
}

impl Ledger {
    /// The session that would make room for a new one; `None` while there is room. Takes time in proportion to the
    /// sessions.
    pub fn makes_room_of(&self) -> Option<MakesRoom<'_>> {
        let (used_at, id) = self.clients.to_forget(self.meta.version())?;
        let holder = self.clients.holder(id)?;
        Some(MakesRoom { holder, unused_ms: self.meta.clock().0.saturating_sub(used_at.0) })
    }
}

impl Clients {
    /// The session that makes room: the longest-unused session of the holders with the most sessions; if several, the
    /// oldest. Before version 3, it is chosen from all sessions.
    pub(super) fn to_forget(&self, version: u32) -> Option<(LedgerMs, SessionId)> {
        if self.by_id.len() < limits::CLIENTS_MAX {
            return None;
        }
        if version < SCHEDULING_VERSION {
            return self.uses.first().copied();
        }
        let most = self.holders.most();
        let is_theirs = |id: &SessionId| {
            self.by_id.get(id).is_some_and(|c| self.holders.get(&c.holder) == most)
        };
        self.uses.iter().copied().find(|(_, id)| is_theirs(id))
    }
}
