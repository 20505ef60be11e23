//! When each process of a training job was last heard, in the leader's memory: its participants, and its trainers.
//!
//! *Invariant:* a process is lost only if it was silent for its whole keep-alive time under this leader. For a process
//! that this leader has not heard yet, silence begins when the leader first sees it: for existing processes, at the
//! opening of the epoch. Silence is measured in ledger time, which stands still while no quorum answers, because then no
//! process can be heard.

use parking_lot::Mutex;
use rollout_ledger::id::{LedgerMs, SessionId};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Since when a process is silent.
#[derive(Clone, Copy)]
struct Since {
    at: LedgerMs,
    /// When it was last heard, if ever.
    heard: Option<Instant>,
}

/// When each process was heard, by its incarnation: no participant and no trainer share one.
#[derive(Default)]
pub(crate) struct KeepAlives(Mutex<HashMap<SessionId, Since>>);

/// A process that was silent for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Silent {
    pub(crate) incarnation: SessionId,
    /// How long it was silent, including time that did not count; `None` if this leader has never heard it.
    pub(crate) silent_ms: Option<u64>,
}

impl KeepAlives {
    /// Records a message of a process.
    pub(crate) fn record_message(&self, incarnation: SessionId, now: LedgerMs) {
        self.0.lock().insert(incarnation, Since { at: now, heard: Some(Instant::now()) });
    }

    /// How long a process has been silent, as far as this leader knows.
    pub(crate) fn silence(&self, incarnation: SessionId, now: LedgerMs) -> Duration {
        self.0.lock().get(&incarnation).map_or(Duration::ZERO, |since| now.since(since.at))
    }

    /// The processes that were silent for too long, among `all` with the milliseconds that each may be silent.
    /// Forgets all others.
    pub(crate) fn silent(&self, all: &[(SessionId, u64)], now: LedgerMs) -> Vec<Silent> {
        let alive: HashSet<SessionId> = all.iter().map(|one| one.0).collect();
        let mut known = self.0.lock();
        known.retain(|incarnation, _| alive.contains(incarnation));
        let silent = all.iter().filter_map(|&(incarnation, keep_alive_ms)| {
            let since = *known.entry(incarnation).or_insert(Since { at: now, heard: None });
            let lost = now.since(since.at) >= Duration::from_millis(keep_alive_ms);
            let silent_ms = since.heard.map(|heard| heard.elapsed().as_millis() as u64);
            lost.then_some(Silent { incarnation, silent_ms })
        });
        silent.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_never_heard_has_its_full_keep_alive_time() {
        let keep_alives = KeepAlives::default();
        let (one, two) = ([(SessionId(1), 100)], [(SessionId(1), 100), (SessionId(2), 100)]);
        let after = |ms: u64| LedgerMs(1000 + ms);
        assert!(keep_alives.silent(&one, after(0)).is_empty());
        // Another process joins, and has not been heard yet.
        assert!(keep_alives.silent(&two, after(99)).is_empty());
        let lost = keep_alives.silent(&two, after(100));
        assert_eq!(lost, [Silent { incarnation: SessionId(1), silent_ms: None }]);
        keep_alives.record_message(SessionId(1), after(110));
        assert!(keep_alives.silent(&one, after(209)).is_empty());
        let lost = keep_alives.silent(&one, after(260));
        // The wall clock says when it was heard, which was just now.
        assert!(lost[0].silent_ms.is_some_and(|ms| ms < 60_000), "{lost:?}");
        assert_eq!(keep_alives.silence(SessionId(1), after(260)), Duration::from_millis(150));
        assert_eq!(keep_alives.silence(SessionId(2), after(260)), Duration::ZERO, "forgotten");
    }
}
