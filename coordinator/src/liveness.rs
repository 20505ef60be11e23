//! When each worker was last heard, in the leader's memory.
//!
//! *Invariant:* silence is counted from the later of the last message and the opening of the
//! epoch, for nobody listened before. Only its consequences are proposed.

use parking_lot::Mutex;
use rollout_ledger::HeldRows;
use rollout_ledger::id::SessionId;
use std::collections::HashMap;
use std::time::{Duration, Instant};

struct Seen {
    at: Instant,
    started: Vec<HeldRows>,
}

/// Who was heard when.
pub(crate) struct Liveness {
    opened: Instant,
    seen: Mutex<HashMap<SessionId, Seen>>,
}

impl Liveness {
    pub(crate) fn new() -> Self {
        Self { opened: Instant::now(), seen: Mutex::default() }
    }

    /// A worker said something.
    pub(crate) fn heard(&self, session: SessionId) {
        let at = Instant::now();
        let mut seen = self.seen.lock();
        seen.entry(session).or_insert(Seen { at, started: Vec::new() }).at = at;
    }

    /// A worker sent a heartbeat with what its engines run.
    pub(crate) fn heartbeat(&self, session: SessionId, started: Vec<HeldRows>) {
        self.seen.lock().insert(session, Seen { at: Instant::now(), started });
    }

    /// For how long nothing was heard of it.
    pub(crate) fn silence(&self, session: SessionId) -> Duration {
        let at = self.seen.lock().get(&session).map_or(self.opened, |s| s.at);
        at.elapsed()
    }

    /// Whether it was heard in this epoch.
    pub(crate) fn was_heard(&self, session: SessionId) -> bool {
        self.seen.lock().contains_key(&session)
    }

    /// What it last said that it runs.
    pub(crate) fn started(&self, session: SessionId) -> Vec<HeldRows> {
        self.seen.lock().get(&session).map(|s| s.started.clone()).unwrap_or_default()
    }

    /// Forgets sessions that have ended.
    pub(crate) fn retain(&self, alive: impl Fn(SessionId) -> bool) {
        self.seen.lock().retain(|id, _| alive(*id));
    }
}
