//! Room for the audit lines of requests in progress.
//!
//! *Invariant:* an audited request takes a place before its service sees it, and keeps it until its line is written,
//! whether or not its caller waits for that. So at most [`LINES_MAX`] lines wait for the file, at most three quarters
//! of them from one identity. Administrators have places of their own, so that others cannot keep them from revoking
//! a certificate. Each line has a few kilobytes, because its texts are truncated. A request that finds no
//! place is refused before any of it is executed. It has no line; the next line about a refusal of its identity counts
//! it.
//!
//! Absent: dropping lines. Otherwise a caller that fills the room could make changes that no line reports.

use super::{AuditLog, Open};
use crate::leader::fair_room::{FairRoom, Permit};
use rollout_ledger::limits;
use rollout_proto::{ErrorCode, Identity, Outcome, Role, RpcError};
use serde_json::{Map, Value};
use std::time::Instant;
use tonic::Status;

/// Audited requests in progress or with an unwritten line. All workers may register at once.
const LINES_MAX: usize = limits::WORKERS_MAX;

/// The same for administrators.
const ADMIN_LINES_MAX: usize = 1024;

pub(super) fn of_admins() -> FairRoom {
    FairRoom::new(ADMIN_LINES_MAX)
}

pub(super) fn of_all_lines() -> FairRoom {
    FairRoom::new(LINES_MAX)
}

impl AuditLog {
    /// The places for requests of an identity. Without TLS, all callers have one identity.
    fn room_of(&self, holder: &Identity) -> &FairRoom {
        match holder.role {
            Role::Admin if !holder.is_insecure() => &self.admin_room,
            _ => &self.room,
        }
    }

    /// Writes a line, then releases its place.
    pub(super) async fn write_in(&self, room: Permit, fields: Map<String, Value>) {
        self.write(fields).await;
        drop(room);
    }
}

impl Open {
    /// Takes a place for its line. Returns false if its caller can have none.
    pub(super) fn take_room(&mut self) -> bool {
        let holder = match &self.peer {
            Some(peer) => peer.identity.clone(),
            None => Identity::unenrolled(),
        };
        self.room = self.log.room_of(&holder).take(&holder);
        self.room.is_some()
    }

    /// Its place, or a new one for a request that has a line only because it is forbidden. If there is none, it is
    /// counted.
    pub(super) fn room_for_line(&mut self) -> Option<Permit> {
        if self.room.is_none() && !self.take_room() {
            self.count_unlogged();
        }
        self.room.take()
    }

    /// Refuses the request before its service sees it.
    pub(super) fn refuse(mut self) -> Status {
        self.decided = true;
        self.count_unlogged();
        let text = "too many lines wait to be written to the audit log, or your identity has used up its share of \
                    them: repeat the request later";
        RpcError::new(ErrorCode::Overloaded, text).with_outcome(Outcome::NotApplied).into()
    }

    fn count_unlogged(&self) {
        match &self.peer {
            Some(peer) if !self.is_unauthenticated() => {
                self.log.refusals.count_unlogged(&peer.identity.to_string(), Instant::now());
            }
            _ => self.log.unauthenticated_calls.count_unlogged(),
        }
    }
}
