//! When each participant of a training job was last heard, in the leader's memory.
//!
//! *Invariant:* nobody is lost who was not silent for all of its time under this leader: of one that it has not heard
//! yet, silence counts from when it first noticed it, which for all that were there before is the opening of the epoch.

use parking_lot::Mutex;
use rollout_ledger::id::SessionId;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Since when somebody is silent.
#[derive(Clone, Copy)]
struct Since {
    at: Instant,
    heard: bool,
}

/// Who was heard when.
#[derive(Default)]
pub(crate) struct Participants(Mutex<HashMap<SessionId, Since>>);

/// One that was silent for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Silent {
    /// Who.
    pub(crate) ticket: SessionId,
    /// For how long; `None` where this leader has never heard it.
    pub(crate) silent_ms: Option<u64>,
}

impl Participants {
    /// A participant said something.
    pub(crate) fn heard(&self, ticket: SessionId) {
        self.0.lock().insert(ticket, Since { at: Instant::now(), heard: true });
    }

    /// For how long nothing was heard of it, as far as this leader knows.
    pub(crate) fn silence(&self, ticket: SessionId) -> Duration {
        self.0.lock().get(&ticket).map_or(Duration::ZERO, |since| since.at.elapsed())
    }

    /// Of all that there are, with the milliseconds that each may be silent: who was silent for too long. Forgets all
    /// others.
    pub(crate) fn silent(&self, all: &[(SessionId, u64)], now: Instant) -> Vec<Silent> {
        let alive: HashSet<SessionId> = all.iter().map(|one| one.0).collect();
        let mut known = self.0.lock();
        known.retain(|ticket, _| alive.contains(ticket));
        let silent = all.iter().filter_map(|&(ticket, keep_alive_ms)| {
            let since = *known.entry(ticket).or_insert(Since { at: now, heard: false });
            let silence = now.saturating_duration_since(since.at);
            let lost = silence >= Duration::from_millis(keep_alive_ms);
            let silent_ms = since.heard.then_some(silence.as_millis() as u64);
            lost.then_some(Silent { ticket, silent_ms })
        });
        silent.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_a_leader_has_never_heard_is_given_all_of_its_time() {
        let participants = Participants::default();
        let (one, two) = ([(SessionId(1), 100)], [(SessionId(1), 100), (SessionId(2), 100)]);
        let begun = Instant::now();
        let after = |ms| begun + Duration::from_millis(ms);
        assert!(participants.silent(&one, after(0)).is_empty());
        // Another one comes, and nobody has heard it yet.
        assert!(participants.silent(&two, after(99)).is_empty());
        let lost = participants.silent(&two, after(100));
        assert_eq!(lost, [Silent { ticket: SessionId(1), silent_ms: None }]);
        participants.heard(SessionId(1));
        assert!(participants.silent(&one, Instant::now()).is_empty());
        let lost = participants.silent(&one, Instant::now() + Duration::from_millis(150));
        assert!(lost[0].silent_ms.is_some_and(|ms| ms >= 100), "{lost:?}");
        assert_eq!(participants.silence(SessionId(2)), Duration::ZERO, "it is forgotten");
    }
}
