//! Rules on what observers saw, each broken by certain evidence alone.

use crate::events::{Event, EventKind};
use std::collections::{BTreeMap, BTreeSet};

/// Every broken rule, in words.
pub(super) fn broken(events: &[Event]) -> Vec<String> {
    let mut found = Vec::new();
    let mut epochs: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    let mut leading: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
    let mut reports: BTreeMap<u64, BTreeSet<(u64, &String)>> = BTreeMap::new();
    let mut digests: BTreeMap<u64, BTreeSet<(&str, &str)>> = BTreeMap::new();
    let mut sessions: BTreeMap<&str, u64> = BTreeMap::new();
    let mut rises = |observer, life, epoch, found: &mut Vec<String>, whom: &str| {
        let highest = epochs.entry((observer, life)).or_default();
        if epoch < *highest {
            found.push(format!("{whom} went from epoch {highest} back to {epoch}"));
        }
        *highest = (*highest).max(epoch);
    };
    for Event { what, .. } in events {
        match what {
            EventKind::Status { member, life, role, term, epoch, applied, .. } => {
                rises(member, *life, *epoch, &mut found, member);
                reports.entry(*applied).or_default().insert((*epoch, member));
                if role == "leader" {
                    leading.entry(*term).or_default().insert(member);
                }
            }
            EventKind::Heard { observer, leader, epoch } => {
                rises(observer, u64::MAX, *epoch, &mut found, observer);
                // An epoch is the term of its leader: no other member speaks in it.
                leading.entry(*epoch).or_default().insert(leader);
            }
            EventKind::Repeated { what, request_id, same: false, detail } => {
                found.push(format!("{what} {request_id}, repeated, was answered {detail}"));
            }
            EventKind::Compared { index, chain, state, .. } => {
                digests.entry(*index).or_default().insert((chain, state));
            }
            EventKind::Opened { observer, session } => {
                let last = sessions.entry(observer).or_default();
                if session <= last {
                    found.push(format!("{observer} got session {session} after {last}"));
                }
                *last = (*last).max(*session);
            }
            EventKind::Revived { observer, session, how } => {
                found.push(format!("session {session} of {observer} had ended, but {how}"));
            }
            EventKind::Stale { observer, what, claimed, taken_by: Some(epoch) } => {
                let spoke = format!("a {what} of {observer} in epoch {claimed}");
                found.push(format!("{spoke} was not refused in epoch {epoch}"));
            }
            EventKind::Died { member, panicked: true, status } => {
                found.push(format!("{member} panicked and ended with {status}"));
            }
            EventKind::Crashed { what, status } => {
                found.push(format!("{what} crashed with {status}"));
            }
            EventKind::Panicked { log, line } => {
                found.push(format!("{log} tells of something that panicked: {line}"));
            }
            EventKind::EpochBehind { f, key, said, placed } => found.push(format!(
                "a {f} of {key} was answered from epoch {placed}, and its message went back to epoch {said}"
            )),
            EventKind::Refused { what, why } => found.push(format!("{what} was refused: {why}")),
            EventKind::Stuck { run, left, running, secs } => found.push(format!(
                "nothing became of {left} rows of run {run} for {secs} s; {running} are said to run"
            )),
            EventKind::Recovered { after_ms: None } => {
                found.push("no write succeeded after everything was healed".to_owned());
            }
            EventKind::Digest { member, index, chain, state, image, error } => {
                if !error.is_empty() {
                    found.push(format!("the image of {member} does not read: {error}"));
                } else if image != state {
                    found.push(format!("the image of {member} is not what it has in memory"));
                }
                digests.entry(*index).or_default().insert((chain, state));
            }
            _ => {}
        }
    }
    found.extend(no_function_of_the_log(&reports));
    for (term, who) in leading.into_iter().filter(|(_, who)| who.len() > 1) {
        found.push(format!("{who:?} led in the same term {term}"));
    }
    for (index, different) in digests.into_iter().filter(|(_, all)| all.len() > 1) {
        found.push(format!("{} different states at log index {index}", different.len()));
    }
    found
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
