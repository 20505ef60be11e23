//! Checks that a member exits by itself only with a reason.
//!
//! A member exits if its disk fails or is full, if a bit of its files flipped, or if the membership changes under it.
//! It must survive everything else (absent members, clock jumps, an earlier crash), and a start after a kill or a
//! power loss must succeed.
//!
//! *Invariant:* a violation is a proof as far as times go: from the last sign of the member until its end was
//! noticed, and for some time before, no such fault was in force on it.
//!
//! An end that this machine caused (it killed the process for memory, or gave away the member's port while the member
//! was down) proves nothing: it is a doubt ([`of_the_machine`]).
//!
//! Absent: real workers; for them only panics are alarms.

use crate::events::{Event, EventKind, PORT_TAKEN};
use std::collections::BTreeMap;

/// How long after healing the effects of a fault may still appear.
const LINGERS_NS: u64 = 10_000_000_000;
/// A fault is recorded when it was probed: at most this long after it began, or after a change of members began.
const PROBED_NS: u64 = 5_000_000_000;
const CHANGED_NS: u64 = 20_000_000_000;

/// Whether this end is the machine's doing, and not the member's.
fn is_the_machines(status: &str) -> bool {
    status.ends_with(PORT_TAKEN) || status.starts_with("signal: 9")
}

/// The ends of members that this machine caused: such a run proves less than intended.
pub(super) fn of_the_machine(events: &[Event]) -> Vec<String> {
    let died = events.iter().filter_map(|event| match &event.what {
        EventKind::Died { member, status, panicked: false } if is_the_machines(status) => {
            Some(format!("{member} was ended by this machine: {status}"))
        }
        _ => None,
    });
    died.collect()
}

/// A fault for which a member may exit; without a name: any member.
struct Reason<'a> {
    member: Option<&'a str>,
    from_ns: u64,
    to_ns: u64,
}

/// The member that a fault is on: `c2` for `c2`, `c2 (300 ms)` and `c2/log/000004.log at 7`.
fn member_of(on: &str) -> &str {
    on.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default()
}

fn reasons(events: &[Event]) -> Vec<Reason<'_>> {
    let mut healed = BTreeMap::new();
    for Event { time_ns, what } in events {
        if let EventKind::Healed { id } = what {
            healed.entry(*id).or_insert(*time_ns);
        }
    }
    let mut found = Vec::new();
    for Event { time_ns, what } in events {
        // Whether or not a probe saw it: the fault may have taken effect later.
        let EventKind::Fault { id, kind, on, .. } = what else { continue };
        let (member, before) = match kind.split('-').next() {
            Some("disk" | "bitflip") => (Some(member_of(on)), PROBED_NS),
            Some("membership") => (None, CHANGED_NS),
            _ => continue,
        };
        let from_ns = time_ns.saturating_sub(before);
        let to_ns = healed.get(id).map_or(u64::MAX, |at| at.saturating_add(LINGERS_NS));
        found.push(Reason { member, from_ns, to_ns });
    }
    found
}

/// Every member that exited without a reason. Panics are separate alarms.
pub(super) fn broken(events: &[Event]) -> Vec<String> {
    let reasons = reasons(events);
    let mut last_status: BTreeMap<&str, u64> = BTreeMap::new();
    let mut found = Vec::new();
    // An end may be recorded later than the status of the next process.
    let mut in_time: Vec<&Event> = events.iter().collect();
    in_time.sort_by_key(|event| event.time_ns);
    for Event { time_ns, what } in in_time {
        match what {
            EventKind::Status { member, .. } => {
                last_status.insert(member, *time_ns);
            }
            EventKind::Died { member, status, panicked: false } if !is_the_machines(status) => {
                // Only members report a status, so this skips workers.
                let Some(heard_ns) = last_status.get(member.as_str()) else { continue };
                let explains = |reason: &Reason<'_>| {
                    reason.member.is_none_or(|name| name == member)
                        && reason.from_ns <= *time_ns
                        && reason.to_ns >= *heard_ns
                };
                if !reasons.iter().any(explains) {
                    let at = *time_ns as f64 / 1e9;
                    found.push(format!(
                        "{member} ended itself with {status}, as was seen at {at:.1} s, and nothing on it was in trouble"
                    ));
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    /// A status that follower `c2` reports at this time.
    fn status_of_c2(at_s: u64) -> Event {
        let status = EventKind::Status {
            member: "c2".to_owned(),
            life: 1,
            role: "follower".to_owned(),
            term: 1,
            epoch: 1,
            applied: 1,
            installed: 0,
        };
        Event { time_ns: at_s * S, what: status }
    }

    /// The alarms for a fault from 20 s to 25 s, and a member that was last heard and found dead at these times.
    fn alarms(kind: &str, on: &str, heard_s: u64, died_s: u64, panicked: bool) -> usize {
        let event = |at_s: u64, what| Event { time_ns: at_s * S, what };
        let (member, status) = ("c2".to_owned(), "exit status: 1".to_owned());
        let mut events = vec![
            status_of_c2(heard_s),
            event(20, EventKind::Fault { id: 4, kind: kind.into(), on: on.into(), proven: false }),
            event(25, EventKind::Healed { id: 4 }),
            event(died_s, EventKind::Died { member, status, panicked }),
            status_of_c2(died_s + 1),
            event(9, EventKind::Died { member: "w1".into(), status: "x".into(), panicked: false }),
        ];
        // The order of the records must not matter.
        let alarms = broken(&events).len();
        events.reverse();
        assert_eq!(broken(&events).len(), alarms);
        alarms
    }

    #[test]
    fn a_death_that_the_machine_caused_is_a_doubt_and_no_alarm() {
        let died = |status: &str| {
            let what =
                EventKind::Died { member: "c2".into(), status: status.into(), panicked: false };
            let events = [status_of_c2(3), Event { time_ns: 5 * S, what }];
            (broken(&events).len(), of_the_machine(&events).len())
        };
        assert_eq!(died("exit status: 1"), (1, 0));
        assert_eq!(died(&format!("exit status: 1, {PORT_TAKEN}")), (0, 1));
        assert_eq!(died("signal: 9 (SIGKILL)"), (0, 1));
        assert_eq!(died("signal: 6 (SIGABRT) (core dumped)"), (1, 0));
    }

    #[test]
    fn a_member_ends_itself_for_its_disk_for_a_bit_and_for_a_membership_and_for_nothing_else() {
        for (kind, on) in [
            ("disk-full", "c2"),
            ("disk-slow", "c2 (300 ms)"),
            ("bitflip-leader", "c2/log/db/000004.log at 22"),
            ("membership-leader", "c1"),
        ] {
            assert_eq!(alarms(kind, on, 22, 25, false), 0, "{kind}");
            assert_eq!(alarms(kind, on, 40, 43, false), 1, "{kind} is long over");
        }
        for (kind, on) in [
            ("disk-full", "c1"),
            ("bitflip-leader", "c22/log/db/000004.log at 22"),
            ("kill-leader", "c2"),
            ("power-all", "c1,c2,c3"),
            ("clock-leader", "c2+3600s"),
            ("pause-leader", "c2"),
            ("worker-disk", "w1"),
        ] {
            assert_eq!(alarms(kind, on, 22, 25, false), 1, "{kind}");
        }
        assert_eq!(alarms("kill-leader", "c2", 22, 25, true), 0, "a panic is another alarm");
    }
}
