//! Owns: applying one entry to the replicated state.
//!
//! Invariant: an entry changes ledger, applied position and membership together.
//! Absent: locks, and the disk.

use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use rollout_ledger::{Command, EntryId, Ledger, Reply, UnknownCommand};

use crate::types::{Entry, LogId, StoredMembership, term_of};

/// The state that applying an entry changes.
pub(crate) struct State {
    pub(crate) ledger: Ledger,
    pub(crate) applied: Option<LogId>,
    pub(crate) membership: StoredMembership,
}

impl State {
    /// Applies the entry after the last applied one; [`read`] has decoded its `command`.
    pub(crate) fn step(&mut self, entry: &Entry, command: Option<Command>) -> Vec<Reply> {
        let id = entry.log_id();
        let at = EntryId { index: id.index(), term: term_of(&id) };
        if let EntryPayload::Membership(membership) = &entry.payload {
            self.membership = StoredMembership::new(Some(id), membership.clone());
        }
        let replies = match (&entry.payload, command) {
            (EntryPayload::Normal(bytes), Some(command)) => {
                self.ledger.apply_decoded(at, command, &bytes.0)
            }
            _ => {
                record_applied(&mut self.ledger, at);
                Vec::new()
            }
        };
        self.applied = Some(id);
        replies
    }
}

/// The command of an entry, decoded once and before the state is locked; `None` for an entry that has none.
pub(crate) fn read(entry: &Entry) -> Result<Option<Command>, UnknownCommand> {
    let EntryPayload::Normal(bytes) = &entry.payload else { return Ok(None) };
    let unknown = UnknownCommand { index: entry.log_id().index() };
    Command::decode(&bytes.0).map(Some).ok_or(unknown)
}

/// Refuses a cluster version that this build does not know: it could not read later entries.
pub(super) fn check_supported(version: u32, (min, max): (u32, u32)) -> Result<(), String> {
    if (min..=max).contains(&version) {
        return Ok(());
    }
    Err(format!(
        "the cluster is of version {version}, and this build runs {min} to {max}: start another build"
    ))
}

/// Position 0 belongs to the entry that forms a cluster; for the ledger it means that nothing was applied.
pub(super) fn record_applied(ledger: &mut Ledger, at: EntryId) {
    if at.index > 0 {
        ledger.note(at);
    }
}
