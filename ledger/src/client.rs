//! Clients' sessions: what was answered to which request, so that a repeat is never executed.
//!
//! *Invariant:* a request of a session that is known is executed at most once. Of one that is
//! not, or whose answer was forgotten, the outcome is unknown and that is what it is told
//! (Ongaro's thesis, section 6.3).

use crate::id::{LedgerMs, SessionId};
use crate::limits;
use crate::reply::{Rejection, Reply};
use crate::seeded::{Bug, seeded};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One client's session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Client {
    pub(crate) id: SessionId,
    pub(crate) name: String,
    pub(crate) used_at: LedgerMs,
    /// Answers up to here are forgotten: the client has them.
    pub(crate) ack_upto: u64,
    pub(crate) replies: BTreeMap<u64, Reply>,
    /// Who opened it. What comes for it from somebody else never gets into the log.
    pub(crate) holder: String,
}

impl Client {
    /// The remembered answer, or `None` when the request is new and may be executed.
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
        Ok(None)
    }
}
