//! When each worker was last heard, in the leader's memory.
//!
//! *Invariant:* silence is measured in ledger time, from the later of the last message and the opening of the epoch:
//! before that, this leader received no messages. Ledger time stands still while no quorum answers, because then no
//! worker can be heard. A worker that has sent no heartbeat in this epoch has more time, the more workers there are:
//! they all reconnect at the same time, and each needs a TLS handshake. The times themselves are not replicated; the
//! leader proposes only what follows from them.

use parking_lot::Mutex;
use rollout_ledger::HeldRows;
use rollout_ledger::id::{LedgerMs, SessionId};
use std::collections::HashMap;
use std::time::Duration;

struct LastHeartbeat {
    at: LedgerMs,
    started: Vec<HeldRows>,
    /// The index up to which the log was applied at that time. The worker may have started rows that were granted
    /// later.
    index: u64,
}

/// The least number of workers that find a new leader in a second: a third of the handshakes that one core makes.
const FOUND_IN_A_SECOND: u32 = 500;
/// No fleet takes longer to come back. Started rows are safe for `started_grace` after this.
const RETURN_MAX: Duration = Duration::from_secs(30);

/// How much longer than usual the workers of a fleet may be silent before their first heartbeat in an epoch.
pub(crate) fn return_time(workers: usize) -> Duration {
    let workers = u32::try_from(workers).unwrap_or(u32::MAX);
    (Duration::from_secs(1) * workers / FOUND_IN_A_SECOND).min(RETURN_MAX)
}

/// When each worker was heard.
pub(crate) struct Liveness {
    opened: LedgerMs,
    seen: Mutex<HashMap<SessionId, LastHeartbeat>>,
}

impl Liveness {
    /// For an epoch that opens at this time.
    pub(crate) fn new(opened: LedgerMs) -> Self {
        Self { opened, seen: Mutex::default() }
    }

    /// Records a message of a worker.
    pub(crate) fn record_message(&self, session: SessionId, at: LedgerMs) {
        let mut seen = self.seen.lock();
        seen.entry(session).or_insert(LastHeartbeat { at, started: Vec::new(), index: 0 }).at = at;
    }

    /// Records a worker's heartbeat: the rows that its engines run, and the index up to which the log was applied.
    pub(crate) fn heartbeat(
        &self,
        session: SessionId,
        at: LedgerMs,
        (started, index): (Vec<HeldRows>, u64),
    ) {
        self.seen.lock().insert(session, LastHeartbeat { at, started, index });
    }

    /// How long a worker has been silent.
    pub(crate) fn silence(&self, session: SessionId, now: LedgerMs) -> Duration {
        now.since(self.seen.lock().get(&session).map_or(self.opened, |s| s.at))
    }

    /// Whether a worker was silent for `failure` or, before its first heartbeat in this epoch, for `failure` plus
    /// `returns`.
    pub(crate) fn is_silent(
        &self,
        session: SessionId,
        now: LedgerMs,
        (failure, returns): (Duration, Duration),
    ) -> bool {
        let seen = self.seen.lock();
        let seen = seen.get(&session);
        let since = seen.map_or(self.opened, |seen| seen.at);
        let beats = seen.is_some_and(|seen| seen.index > 0);
        now.since(since) >= if beats { failure } else { failure + returns }
    }

    /// Whether a worker was heard in this epoch.
    pub(crate) fn has_record(&self, session: SessionId) -> bool {
        self.seen.lock().contains_key(&session)
    }

    /// The rows that its last heartbeat said it runs.
    pub(crate) fn started(&self, session: SessionId) -> Vec<HeldRows> {
        self.seen.lock().get(&session).map(|s| s.started.clone()).unwrap_or_default()
    }

    /// The same, with the index up to which the log was applied then; `None` before its first heartbeat.
    pub(crate) fn started_at(&self, session: SessionId) -> Option<(Vec<HeldRows>, u64)> {
        let seen = self.seen.lock();
        let seen = seen.get(&session).filter(|seen| seen.index > 0)?;
        Some((seen.started.clone(), seen.index))
    }

    /// Forgets sessions that have ended.
    pub(crate) fn retain(&self, alive: impl Fn(SessionId) -> bool) {
        self.seen.lock().retain(|id, _| alive(*id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_ledger::Rows;
    use rollout_ledger::id::{Attempt, RunNo};

    #[test]
    fn a_large_fleet_has_longer_to_return_but_not_a_worker_that_has_returned() {
        let seconds = |workers| return_time(workers).as_secs_f64();
        assert_eq!([0, 1, 1_000, 10_000, 64_000].map(seconds), [0.0, 0.002, 2.0, 20.0, 30.0]);

        let (failure, returns) = (Duration::from_secs(5), return_time(10_000));
        let liveness = Liveness::new(LedgerMs(1_000));
        let silent =
            |session, ms| liveness.is_silent(SessionId(session), LedgerMs(ms), (failure, returns));
        assert!(!silent(7, 25_999) && silent(7, 26_000), "it was not heard in this epoch");
        // It has registered, but its stream is not open yet.
        liveness.record_message(SessionId(8), LedgerMs(20_000));
        assert!(!silent(8, 44_999) && silent(8, 45_000));
        liveness.heartbeat(SessionId(8), LedgerMs(21_000), (Vec::new(), 40));
        assert!(!silent(8, 25_999) && silent(8, 26_000));
    }

    #[test]
    fn a_worker_reports_its_started_rows_with_its_first_heartbeat() {
        let (liveness, session) = (Liveness::new(LedgerMs(10)), SessionId(7));
        assert_eq!(liveness.silence(session, LedgerMs(35)), Duration::from_millis(25));
        liveness.record_message(session, LedgerMs(40));
        assert!(liveness.has_record(session));
        assert_eq!(liveness.started_at(session), None);
        let rows = Rows::range(3, 1);
        let held = HeldRows { run: RunNo(1), attempt: Attempt(5), rows };
        liveness.heartbeat(session, LedgerMs(50), (vec![held.clone()], 40));
        liveness.record_message(session, LedgerMs(60));
        assert_eq!(liveness.silence(session, LedgerMs(61)), Duration::from_millis(1));
        assert_eq!(liveness.started_at(session), Some((vec![held], 40)));
    }
}
