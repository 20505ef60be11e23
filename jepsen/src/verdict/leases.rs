//! Checks that while a leader hears a worker, it gives the worker's unsettled rows to no other worker and accepts the
//! worker's first result.
//!
//! An answered heartbeat was heard between its sending and its answer. So if answered heartbeats follow each other
//! closely enough, the leader cannot have missed the worker for longer than its failure timeout.
//!
//! *Invariant:* a violation is a proof: row, session and leader are the same throughout, no copy of a registration
//! may still arrive, and the leader's silence is bounded from both sides.

mod refusals;

use crate::events::{Event, EventKind};
use crate::fleet::FAILURE;
use crate::operations::Operation;
use std::collections::{BTreeMap, BTreeSet};

/// The worker must have been heard this long before it asked for the row, so that the consequences of an earlier
/// silence are over.
const SETTLED_NS: u64 = 1_000_000_000;
/// The most violations to report; one is enough for the verdict.
const TOLD_MAX: usize = 5;

struct Grant<'a> {
    session: u64,
    attempt: u64,
    epoch: u64,
    asked_ns: u64,
    at_ns: u64,
    key: &'a str,
}

/// The signs of life of sessions.
#[derive(Default)]
struct SignsOfLife {
    /// By session and epoch: when heartbeats were sent and answered.
    beats: BTreeMap<(u64, u64), Vec<(u64, u64)>>,
    /// When a session was registered, again or for the first time.
    registered: BTreeMap<u64, Vec<u64>>,
    /// Epochs in which an old registration of a session's owner may arrive.
    doubtful: BTreeSet<(u64, u64)>,
}

/// Every row that was taken from a worker that was heard, and every result of such a worker that was not accepted.
pub(super) fn broken(events: &[Event], operations: &[Operation]) -> Vec<String> {
    let signs = SignsOfLife::of(events);
    let (mut grants, mut settled) = (BTreeMap::<&str, Vec<Grant<'_>>>::new(), BTreeMap::new());
    for Event { time_ns, what } in events {
        match what {
            EventKind::Granted { session, key, attempt, epoch, asked_ns } => {
                let (session, attempt, epoch) = (*session, *attempt, *epoch);
                let (asked_ns, at_ns) = (*asked_ns, *time_ns);
                let grant = Grant { session, attempt, epoch, asked_ns, at_ns, key };
                grants.entry(key).or_default().push(grant);
            }
            EventKind::Settles { session, key, attempt } => {
                settled.entry((*session, key.as_str(), *attempt)).or_insert(*time_ns);
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    for of in grants.values_mut() {
        of.sort_by_key(|grant| grant.attempt);
        for pair in of.windows(2) {
            let (had, got) = (&pair[0], &pair[1]);
            let settled = settled.get(&(had.session, had.key, had.attempt));
            let kept = settled.is_none_or(|at_ns| *at_ns > got.at_ns);
            if had.epoch == got.epoch && kept && signs.throughout(had, got.at_ns) {
                found.push(format!(
                    "item {}: session {} was heard all the time, but its attempt {} ended and \
                     session {} got attempt {} at {:.3} s",
                    had.key,
                    had.session,
                    had.attempt,
                    got.session,
                    got.attempt,
                    got.at_ns as f64 / 1e9
                ));
            }
        }
    }
    found.truncate(TOLD_MAX);
    found.extend(refusals::broken(&signs, &grants, operations));
    found
}

impl SignsOfLife {
    fn of(events: &[Event]) -> Self {
        let (mut signs, mut sessions) = (Self::default(), BTreeMap::<&str, BTreeSet<u64>>::new());
        let mut unclean: Vec<(&str, u64, u64)> = Vec::new();
        for Event { time_ns, what } in events {
            match what {
                EventKind::Beat { session, epoch, sent_ns } => {
                    let beats = signs.beats.entry((*session, *epoch)).or_default();
                    beats.push((*sent_ns, *time_ns));
                }
                EventKind::Registered { observer, session, from_epoch, epoch, clean } => {
                    sessions.entry(observer).or_default().insert(*session);
                    signs.registered.entry(*session).or_default().push(*time_ns);
                    if !clean {
                        unclean.push((observer, *from_epoch, *epoch));
                    }
                }
                _ => {}
            }
        }
        for (observer, from, to) in unclean {
            for session in sessions.get(observer).into_iter().flatten() {
                signs.doubtful.extend((from..=to).map(|epoch| (*session, epoch)));
            }
        }
        signs
    }

    /// Whether the leader heard the owner of this grant from before the request for it until `until_ns`, never with a
    /// longer silence than allowed.
    fn throughout(&self, grant: &Grant<'_>, until_ns: u64) -> bool {
        let Grant { session, epoch, asked_ns, at_ns, .. } = *grant;
        let again = |at: &u64| (at_ns..=until_ns).contains(at);
        let registered = self.registered.get(&session);
        if self.doubtful.contains(&(session, epoch))
            || registered.is_none_or(|times| times.iter().any(again))
        {
            return false;
        }
        let patience = u64::try_from(FAILURE.as_nanos()).unwrap_or_default();
        let (mut since, mut last) = (None, None);
        for &(sent_ns, answered_ns) in self.beats.get(&(session, epoch)).into_iter().flatten() {
            if sent_ns >= until_ns {
                break;
            }
            if last.is_none_or(|last| answered_ns.saturating_sub(last) >= patience) {
                since = Some(answered_ns);
            }
            last = Some(sent_ns);
        }
        let before = since.is_some_and(|since| since.saturating_add(SETTLED_NS) <= asked_ns);
        before && last.is_some_and(|last| until_ns.saturating_sub(last) < patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn run(silence: std::ops::Range<u64>, settles: bool, clean: bool) -> Vec<String> {
        let event = |ms: u64, what| Event { time_ns: ms * MS, what };
        let session = 7;
        let observer = "w1".to_owned();
        let mut events = vec![event(
            1,
            EventKind::Registered { observer, session, from_epoch: 2, epoch: 2, clean },
        )];
        for ms in (10..9000).step_by(200).filter(|ms| !silence.contains(ms)) {
            events.push(event(ms + 5, EventKind::Beat { session, epoch: 2, sent_ns: ms * MS }));
        }
        let granted = |session, attempt, ms: u64| {
            let key = "1/0".to_owned();
            event(ms + 9, EventKind::Granted { session, key, attempt, epoch: 2, asked_ns: ms * MS })
        };
        events.push(granted(7, 4, 3000));
        if settles {
            events.push(event(4000, EventKind::Settles { session, key: "1/0".into(), attempt: 4 }));
        }
        events.push(granted(8, 6, 6500));
        events.sort_by_key(|event| event.time_ns);
        broken(&events, &[])
    }

    #[test]
    fn a_live_worker_loses_a_row_only_if_it_settled_the_row() {
        assert_eq!(run(0..0, false, true).len(), 1);
        assert_eq!(run(4000..5500, false, true).len(), 1, "a silence that is allowed");
        assert_eq!(run(0..0, true, true), Vec::<String>::new());
        assert_eq!(run(4000..6400, false, true), Vec::<String>::new(), "it was silent");
        assert_eq!(run(1000..3200, false, true), Vec::<String>::new(), "silent just before");
        assert_eq!(run(5000..9000, false, true).len(), 1, "not yet silent for long enough");
        assert_eq!(run(0..0, false, false), Vec::<String>::new(), "a registration on its way");
    }
}
