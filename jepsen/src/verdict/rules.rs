//! Rules on what observers saw, each broken by certain evidence alone.

use crate::events::{Event, EventKind};
use std::collections::{BTreeMap, BTreeSet};

/// Every broken rule, in words.
pub(super) fn broken(events: &[Event]) -> Vec<String> {
    let mut seen = Seen::default();
    for Event { what, .. } in events {
        seen.add(what);
    }
    seen.broken()
}

/// What observers saw so far, and the rules that it broke.
#[derive(Default)]
struct Seen<'a> {
    found: Vec<String>,
    /// The highest epoch, by observer and life.
    epochs: BTreeMap<(&'a str, u64), u64>,
    /// The members that led, by term.
    leading: BTreeMap<u64, BTreeSet<&'a str>>,
    /// Epochs and the members that reported them, by applied index.
    reports: BTreeMap<u64, BTreeSet<(u64, &'a String)>>,
    /// By log index.
    digests: BTreeMap<u64, BTreeSet<(&'a str, &'a str)>>,
    /// The last session, by observer.
    sessions: BTreeMap<&'a str, u64>,
}

impl<'a> Seen<'a> {
    fn add(&mut self, what: &'a EventKind) {
        match what {
            EventKind::Status { member, life, role, term, epoch, applied, .. } => {
                self.rises(member, *life, *epoch);
                self.reports.entry(*applied).or_default().insert((*epoch, member));
                if role == "leader" {
                    self.leading.entry(*term).or_default().insert(member);
                }
            }
            EventKind::Heard { observer, leader, epoch } => {
                self.rises(observer, u64::MAX, *epoch);
                // An epoch is the term of its leader: no other member speaks in it.
                self.leading.entry(*epoch).or_default().insert(leader);
            }
            EventKind::Compared { index, chain, state, .. } => {
                self.digests.entry(*index).or_default().insert((chain, state));
            }
            EventKind::Opened { observer, session } => {
                let last = self.sessions.entry(observer).or_default();
                if session <= last {
                    self.found.push(format!("{observer} got session {session} after {last}"));
                }
                *last = (*last).max(*session);
            }
            EventKind::Digest { member, index, chain, state, image, error } => {
                if !error.is_empty() {
                    self.found.push(format!("the image of {member} does not read: {error}"));
                } else if image != state {
                    self.found.push(format!("the image of {member} is not what it has in memory"));
                }
                self.digests.entry(*index).or_default().insert((chain, state));
            }
            what => self.found.extend(broken_alone(what)),
        }
    }

    /// Epochs of one life of an observer never go back.
    fn rises(&mut self, observer: &'a str, life: u64, epoch: u64) {
        let highest = self.epochs.entry((observer, life)).or_default();
        if epoch < *highest {
            self.found.push(format!("{observer} went from epoch {highest} back to {epoch}"));
        }
        *highest = (*highest).max(epoch);
    }

    fn broken(self) -> Vec<String> {
        let Self { mut found, leading, reports, digests, .. } = self;
        found.extend(no_function_of_the_log(&reports));
        for (term, who) in leading.into_iter().filter(|(_, who)| who.len() > 1) {
            found.push(format!("{who:?} led in the same term {term}"));
        }
        for (index, different) in digests.into_iter().filter(|(_, all)| all.len() > 1) {
            found.push(format!("{} different states at log index {index}", different.len()));
        }
        found
    }
}

/// The rule that an event breaks by itself, if it does.
fn broken_alone(what: &EventKind) -> Option<String> {
    Some(match what {
        EventKind::Repeated { what, request_id, same: false, detail } => {
            format!("{what} {request_id}, repeated, was answered {detail}")
        }
        EventKind::Revived { observer, session, how } => {
            format!("session {session} of {observer} had ended, but {how}")
        }
        EventKind::Stale { observer, what, claimed, taken_by: Some(epoch) } => {
            format!("a {what} of {observer} in epoch {claimed} was not refused in epoch {epoch}")
        }
        EventKind::Died { member, panicked: true, status } => {
            format!("{member} panicked and ended with {status}")
        }
        EventKind::Crashed { what, status } => format!("{what} crashed with {status}"),
        EventKind::Panicked { log, line } => {
            format!("{log} tells of something that panicked: {line}")
        }
        EventKind::EpochBehind { f, key, said, placed } => format!(
            "a {f} of {key} was answered from epoch {placed}, and its message went back to epoch {said}"
        ),
        EventKind::Refused { what, why } => format!("{what} was refused: {why}"),
        EventKind::Stuck { run, left, running, secs } => format!(
            "nothing became of {left} rows of run {run} for {secs} s; {running} are said to run"
        ),
        EventKind::Recovered { after_ms: None } => {
            "no write succeeded after everything was healed".to_owned()
        }
        _ => return None,
    })
}

/// The open epoch is part of the replicated state: members that have applied equally much report the same epoch, and
/// a member that has applied more reports no lower one.
fn no_function_of_the_log(reports: &BTreeMap<u64, BTreeSet<(u64, &String)>>) -> Option<String> {
    let all = reports.iter().flat_map(|(applied, all)| all.iter().map(move |one| (*applied, one)));
    let all: Vec<_> = all.collect();
    let wrong = all.windows(2).find(|pair| {
        let ((before, (lower, _)), (applied, (epoch, _))) = (pair[0], pair[1]);
        epoch < lower || (applied == before && epoch != lower)
    })?;
    let ((before, (lower, first)), (applied, (epoch, second))) = (wrong[0], wrong[1]);
    Some(format!(
        "{first} had applied {before} and said epoch {lower}, {second} had applied {applied} and said {epoch}"
    ))
}
