//! When each participant of a training job was last heard, in the leader's memory.
//!
//! *Invariant:* a participant is lost only if it was silent for its whole keep-alive time under this leader. For a
//! participant that this leader has not heard yet, silence begins when the leader first sees it: for existing
//! participants, at the opening of the epoch. Silence is measured in ledger time, which stands still while no quorum
//! answers, because then no participant can be heard.

use parking_lot::Mutex;
use rollout_ledger::id::{LedgerMs, SessionId};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Since when a participant is silent.
#[derive(Clone, Copy)]
struct Since {
    at: LedgerMs,
    /// When it was last heard, if ever.
    heard: Option<Instant>,
}

/// When each participant was heard.
#[derive(Default)]
pub(crate) struct Participants(Mutex<HashMap<SessionId, Since>>);

/// A participant that was silent for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Silent {
    /// Its ticket.
    pub(crate) incarnation: SessionId,
    /// How long it was silent, including time that did not count; `None` if this leader has never heard it.
    pub(crate) silent_ms: Option<u64>,
}

impl Participants {
    /// Records a message of a participant.
    pub(crate) fn record_message(&self, incarnation: SessionId, now: LedgerMs) {
        self.0.lock().insert(incarnation, Since { at: now, heard: Some(Instant::now()) });
    }

    /// How long a participant has been silent, as far as this leader knows.
    pub(crate) fn silence(&self, incarnation: SessionId, now: LedgerMs) -> Duration {
        self.0.lock().get(&incarnation).map_or(Duration::ZERO, |since| now.since(since.at))
    }

    /// The participants that were silent for too long, among `all` with the milliseconds that each may be silent.
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
    fn a_participant_that_was_never_heard_has_its_full_keep_alive_time() {
        let participants = Participants::default();
        let (one, two) = ([(SessionId(1), 100)], [(SessionId(1), 100), (SessionId(2), 100)]);
        let after = |ms: u64| LedgerMs(1000 + ms);
        assert!(participants.silent(&one, after(0)).is_empty());
        // Another participant joins, and has not been heard yet.
        assert!(participants.silent(&two, after(99)).is_empty());
        let lost = participants.silent(&two, after(100));
        assert_eq!(lost, [Silent { incarnation: SessionId(1), silent_ms: None }]);
        participants.record_message(SessionId(1), after(110));
        assert!(participants.silent(&one, after(209)).is_empty());
        let lost = participants.silent(&one, after(260));
        // The wall clock says when it was heard, which was just now.
        assert!(lost[0].silent_ms.is_some_and(|ms| ms < 60_000), "{lost:?}");
        assert_eq!(participants.silence(SessionId(1), after(260)), Duration::from_millis(150));
        assert_eq!(participants.silence(SessionId(2), after(260)), Duration::ZERO, "forgotten");
    }
}
