//! Client sessions: the answer to each request, so that a repeat is never executed.
//!
//! *Invariant:* the ledger executes a request of a known session at most once. If the session is unknown or the
//! answer was forgotten, the reply says that the outcome is unknown (Ongaro's thesis, section 6.3). The bytes of
//! stores' values in remembered answers are counted exactly and bounded: a single client is refused more, and across
//! clients one session makes room (`remembered`).

use crate::identity::remembered::RememberedValues;
use crate::kernel::counts::Counts;
use crate::kernel::id::{LedgerMs, SessionId};
use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::ledger::Ledger;
use crate::machine::seeded::{Bug, seeded};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// One client's session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Client {
    pub(crate) id: SessionId,
    pub(crate) name: String,
    pub(crate) used_at: LedgerMs,
    /// Answers up to here are dropped: the client has them.
    pub(crate) ack_upto: u64,
    pub(crate) replies: BTreeMap<u64, Reply>,
    /// The identity that opened it. The leader refuses requests of other identities before they reach the log.
    pub(crate) holder: String,
    /// Derived: bytes of stores' values in the replies.
    #[serde(skip)]
    pub(crate) value_bytes: u64,
}

impl Client {
    /// The remembered answer, or `None` if the request is new and may be executed.
    pub(crate) fn recall(
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
    pub(crate) fn remember(&mut self, seq: u64, reply: Reply) {
        self.value_bytes += reply.value_bytes();
        if let Some(before) = self.replies.insert(seq, reply) {
            self.value_bytes -= before.value_bytes();
        }
    }

    /// Bytes of stores' values in the replies, counted from scratch.
    pub(crate) fn count_value_bytes(&self) -> u64 {
        self.replies.values().map(Reply::value_bytes).sum()
    }
}

impl Ledger {
    /// Removes a session that was last used then, with its answers.
    pub(crate) fn forget_client(&mut self, used_at: LedgerMs, id: SessionId) {
        self.client_uses.remove(&(used_at, id));
        if let Some(client) = self.clients.remove(&id) {
            self.remembered.remove(&client);
            self.holders.remove(&client.holder);
        }
        self.dirty.clients.insert(id);
    }

    /// Runs an action on a client's session, if it is known, and keeps the derived state up to date.
    pub(crate) fn with_client<T>(
        &mut self,
        id: SessionId,
        with: impl FnOnce(&mut Client) -> T,
    ) -> Option<T> {
        let client = self.clients.get_mut(&id)?;
        self.dirty.clients.insert(id);
        self.client_uses.remove(&(client.used_at, id));
        self.remembered.remove(client);
        let done = with(client);
        self.remembered.add(client);
        self.client_uses.insert((client.used_at, id));
        Some(done)
    }

    /// Rebuilds the state derived from the clients.
    pub(crate) fn derive_clients(&mut self) {
        self.holders = self.clients.values().map(|client| client.holder.as_str()).collect();
        for client in self.clients.values_mut() {
            client.value_bytes = client.count_value_bytes();
            self.remembered.add(client);
            self.client_uses.insert((client.used_at, client.id));
        }
    }

    /// Checks the invariants of clients.
    pub(crate) fn check_clients(&self) -> Result<(), String> {
        let uses = self.clients.values().map(|c| (c.used_at, c.id)).collect::<BTreeSet<_>>();
        if uses != self.client_uses {
            return Err("the index of clients' last uses differs".into());
        }
        let holders: Counts = self.clients.values().map(|client| client.holder.as_str()).collect();
        if holders != self.holders {
            return Err("the counts of sessions by holder differ".into());
        }
        let mut remembered = RememberedValues::default();
        for (id, client) in &self.clients {
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
