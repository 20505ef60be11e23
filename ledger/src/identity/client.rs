//! Client sessions: the answer to each request, so that a repeat is never executed.
//!
//! *Invariant:* the ledger executes a request of a known session at most once. If the session is unknown or the
//! answer was forgotten, the reply says that the outcome is unknown (Ongaro's thesis, section 6.3). The bytes of
//! stores' values in remembered answers are counted exactly and bounded: a single client is refused more, and across
//! clients one session makes room (`remembered_values`).

mod image;
mod remembered_values;
mod session_room;

use crate::kernel::counts::Counts;
use crate::kernel::id::{LedgerMs, SessionId};
use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::command::RequestId;
use crate::machine::seeded::{Bug, seeded};
use image::DirtyClients;
use remembered_values::RememberedValues;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) use image::HOLDERS_KEY;
pub use session_room::MakesRoom;

/// One client's session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Client {
    id: SessionId,
    name: String,
    used_at: LedgerMs,
    /// Answers up to here are dropped: the client has them.
    ack_upto: u64,
    replies: BTreeMap<u64, Reply>,
    /// The identity that opened it. The leader refuses requests of other identities before they reach the log.
    holder: String,
    /// Derived: bytes of stores' values in the replies.
    #[serde(skip)]
    value_bytes: u64,
}

impl Client {
    /// The remembered answer, or `None` if the request is new and may be executed.
    fn recall(
        &mut self,
        seq: u64,
        ack_upto: u64,
        now: LedgerMs,
    ) -> Result<Option<Reply>, Rejection> {
        self.used_at = now;
        if ack_upto > self.ack_upto {
            self.ack_upto = ack_upto;
            self.replies.retain(|&seq, _| seq > ack_upto);
            self.value_bytes = self.count_value_bytes();
        }
        if seeded(Bug::RequestIdUnchecked) {
            return Ok(None);
        }
        if let Some(reply) = self.replies.get(&seq) {
            return Ok(Some(reply.clone()));
        }
        if seq <= self.ack_upto {
            return Err(Rejection::RequestForgotten);
        }
        if self.replies.len() >= limits::CLIENT_REPLIES_MAX {
            return Err(Rejection::Limit {
                what: "unacknowledged requests of one client".into(),
                max: limits::CLIENT_REPLIES_MAX as u64,
            });
        }
        if self.value_bytes >= limits::CLIENT_REPLIES_BYTES_MAX {
            return Err(Rejection::Limit {
                what: "bytes of stores' values in unacknowledged answers of one client".into(),
                max: limits::CLIENT_REPLIES_BYTES_MAX,
            });
        }
        Ok(None)
    }

    /// Remembers the answer to a request.
    fn remember(&mut self, seq: u64, reply: Reply) {
        self.value_bytes += reply.value_bytes();
        if let Some(before) = self.replies.insert(seq, reply) {
            self.value_bytes -= before.value_bytes();
        }
    }

    /// Bytes of stores' values in the replies, counted from scratch.
    fn count_value_bytes(&self) -> u64 {
        self.replies.values().map(Reply::value_bytes).sum()
    }
}

/// All client sessions, their indexes, and which of their records differ from the image.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clients {
    by_id: BTreeMap<SessionId, Client>,
    /// The first session whose holder is named as cluster version 3 names it; 0 if all are.
    holders_from: SessionId,
    // Derived.
    /// How many sessions each holder has.
    holders: Counts,
    /// Sessions by when they were last used.
    uses: BTreeSet<(LedgerMs, SessionId)>,
    /// Stores' values in the remembered answers.
    remembered: RememberedValues,
    dirty: DirtyClients,
}

/// When a session that was last used then is forgotten.
fn ends(used_at: LedgerMs) -> LedgerMs {
    LedgerMs(used_at.0.saturating_add(limits::CLIENT_TTL_MS))
}

impl Clients {
    /// Who opened a session, as `role/name`.
    pub(crate) fn holder(&self, id: SessionId) -> Option<&str> {
        self.by_id.get(&id).map(|client| client.holder.as_str())
    }

    /// Whether a session's holder is named as cluster version 3 names it.
    pub(crate) fn names_holder(&self, id: SessionId) -> bool {
        id >= self.holders_from
    }

    /// The holders of the sessions before this one are named otherwise than cluster version 3 names them.
    pub(crate) fn separate(&mut self, first: SessionId) {
        if !self.by_id.is_empty() {
            self.holders_from = first;
            self.dirty.holders_from = true;
        }
    }

    /// Opens a session. If there are too many, the one that makes room ends.
    pub(super) fn open(
        &mut self,
        id: SessionId,
        (name, holder): (String, String),
        now: LedgerMs,
        version: u32,
    ) {
        if let Some((used_at, id)) = self.to_forget(version) {
            self.forget(used_at, id);
        }
        self.add(Client {
            id,
            name,
            used_at: now,
            ack_upto: 0,
            replies: BTreeMap::new(),
            holder,
            value_bytes: 0,
        });
    }

    /// Adds a session.
    fn add(&mut self, client: Client) {
        self.holders.add(&client.holder);
        self.uses.insert((client.used_at, client.id));
        self.dirty.clients.insert(client.id);
        self.by_id.insert(client.id, client);
    }

    /// Removes a session that was last used then, with its answers.
    fn forget(&mut self, used_at: LedgerMs, id: SessionId) {
        self.uses.remove(&(used_at, id));
        if let Some(client) = self.by_id.remove(&id) {
            self.remembered.remove(&client);
            self.holders.remove(&client.holder);
        }
        self.dirty.clients.insert(id);
    }

    /// When the next session was unused for too long.
    pub(crate) fn next_end(&self) -> Option<LedgerMs> {
        self.uses.first().map(|(used_at, _)| ends(*used_at))
    }

    /// Forgets sessions that were unused for too long.
    pub(crate) fn forget_unused(&mut self, now: LedgerMs) {
        while let Some(&(used_at, id)) = self.uses.first().filter(|used| ends(used.0) <= now) {
            self.forget(used_at, id);
        }
    }

    /// The remembered answer to a request, or `None` if the request is new and may be executed.
    pub(crate) fn recall(
        &mut self,
        request: RequestId,
        now: LedgerMs,
    ) -> Result<Option<Reply>, Rejection> {
        let RequestId { session, seq, ack_upto } = request;
        let recalled = self.with(session, |client| client.recall(seq, ack_upto, now));
        recalled.unwrap_or(Err(Rejection::SessionUnknown))
    }

    /// Remembers the answer to a request. Values in it may need room that other sessions must make.
    pub(crate) fn remember(&mut self, request: RequestId, reply: Reply, version: u32) {
        self.make_room_for_values(request.session, reply.value_bytes(), version);
        self.with(request.session, |client| client.remember(request.seq, reply));
    }

    /// Runs an action on a client's session, if it is known, and keeps the derived state up to date.
    fn with<T>(&mut self, id: SessionId, with: impl FnOnce(&mut Client) -> T) -> Option<T> {
        let client = self.by_id.get_mut(&id)?;
        self.dirty.clients.insert(id);
        self.uses.remove(&(client.used_at, id));
        self.remembered.remove(client);
        let done = with(client);
        self.remembered.add(client);
        self.uses.insert((client.used_at, id));
        Some(done)
    }

    /// Rebuilds what is derived.
    pub(crate) fn derive(&mut self) {
        self.holders = self.by_id.values().map(|client| client.holder.as_str()).collect();
        for client in self.by_id.values_mut() {
            client.value_bytes = client.count_value_bytes();
            self.remembered.add(client);
            self.uses.insert((client.used_at, client.id));
        }
    }

    /// Checks the invariants of clients.
    pub(crate) fn check(&self) -> Result<(), String> {
        let uses = self.by_id.values().map(|c| (c.used_at, c.id)).collect::<BTreeSet<_>>();
        if uses != self.uses {
            return Err("the index of clients' last uses differs".into());
        }
        let holders: Counts = self.by_id.values().map(|client| client.holder.as_str()).collect();
        if holders != self.holders {
            return Err("the counts of sessions by holder differ".into());
        }
        let mut remembered = RememberedValues::default();
        for (id, client) in &self.by_id {
            let (counted, found) = (client.value_bytes, client.count_value_bytes());
            if counted != found {
                return Err(format!("client {id} counts {counted} bytes of values, has {found}"));
            }
            remembered.add(client);
        }
        match remembered == self.remembered {
            true => Ok(()),
            false => Err("what is remembered of stores' values is not as counted".into()),
        }
    }
}
