//! Whether enough happened for a pass to mean anything.

mod rows;

use super::{Recorded, deaths};
use crate::events::{Event, EventKind};
use crate::nemesis::required;
use crate::operations::{Outcome, READS};
use crate::value::Value;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// What happened in a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Coverage {
    /// Proven faults by kind.
    pub faults: BTreeMap<String, u64>,
    /// Faults that no probe saw take effect.
    pub unproven: u64,
    /// How often another member became leader, or the same one in a later term.
    pub leader_changes: u64,
    /// Writes that were accepted while a fault was in force.
    pub written_under_fault: u64,
    /// Writes that were refused as no longer the worker's.
    pub refused: u64,
    /// Results of rows that were accepted; and those of them that were accepted while a fault was in force.
    pub completed: (u64, u64),
    /// Rows read at the end, and how many there were.
    pub final_reads: (u64, u64),
    /// Rows whose last read found nothing decided.
    pub undecided: u64,
    /// Members that reported their digests at one index at the end; if there are several indexes, the one with the
    /// most members.
    pub digests: u64,
    /// Requests that were sent twice.
    pub repeated: u64,
    /// From the last healing to the next accepted write.
    pub recovered_ms: Option<u64>,
    /// Members that exited by themselves.
    pub died: u64,
    /// Power losses that lost something, and the lost bytes and operations on names.
    pub power_lost: (u64, u64, u64),
    /// Bit flips that the member noticed, and those that it did not.
    pub flips: (u64, u64),
    /// Snapshots that members installed.
    pub snapshots: u64,
    /// Answers that were replayed by their places in the log.
    pub replayed: u64,
    /// Answers whose places in the log were compared with time.
    pub ordered: u64,
    /// Digests of members that were compared with another's while the run went on.
    pub compared: u64,
    /// Rows of batches that were first seen as ended under a fault.
    pub rows_under_fault: u64,
    /// Rows that one worker yielded and another got by the same operation.
    pub stolen: u64,
    /// Rows that were granted while an earlier attempt was live, as far as that shows: the earlier attempt ended
    /// after the grant.
    pub doubled: u64,
    /// Sessions that their owners ended.
    pub sessions_ended: u64,
    /// Messages in sessions that had ended, which were refused.
    pub ended_refused: u64,
    /// Messages in epochs that were over, which were refused.
    pub stale_refused: u64,
}

/// Families whose faults mostly depose the leader.
const UNSEATING: &[&str] = &["partition", "kill", "pause", "power", "rolling", "lease", "upgrade"];
/// The family in which one of four faults deposes the leader. Each waits until the membership is restored, so a run
/// may have time for only one.
const UNSEATING_ONCE: &str = "membership";

/// The minimum that a run of this length must show.
#[derive(Clone, Copy, Debug)]
pub struct Minimum {
    leader_changes: u64,
    written_under_fault: u64,
    completed: u64,
    snapshots: u64,
}

impl Minimum {
    /// For a run of `secs` with these nemeses.
    pub fn of(secs: u64, nemesis: &[String]) -> Self {
        let faults = !nemesis.is_empty();
        // A clock jump must not change anything, and an absent follower changes no leader.
        let unseating = nemesis.iter().any(|family| UNSEATING.contains(&family.as_str()));
        let once = nemesis.iter().any(|family| family == UNSEATING_ONCE);
        Self {
            leader_changes: if unseating { 1 + secs / 45 } else { u64::from(once) },
            written_under_fault: if faults { 20 + secs } else { 0 },
            // A tenth of the throughput of a busy machine.
            completed: 1 + secs / 6,
            snapshots: 1 + secs / 60,
        }
    }
}

/// Proven faults as intervals of time.
pub(crate) fn bands(events: &[Event]) -> Vec<(u64, u64, &str)> {
    let ended = |id: u64| {
        events.iter().find(|e| e.what == EventKind::Healed { id }).map_or(u64::MAX, |e| e.time_ns)
    };
    let later = proven_later(events);
    let band = |event: &'_ Event| match &event.what {
        EventKind::Fault { id, proven, .. } if *proven || later.contains(id) => {
            Some((event.time_ns, ended(*id)))
        }
        _ => None,
    };
    let kind = |event| match event {
        &Event { what: EventKind::Fault { ref kind, .. }, .. } => kind.as_str(),
        _ => "",
    };
    events.iter().filter_map(|event| band(event).map(|(a, b)| (a, b, kind(event)))).collect()
}

/// Faults whose proof came after their beginning.
fn proven_later(events: &[Event]) -> BTreeSet<u64> {
    let proven = events.iter().filter_map(|event| match event.what {
        EventKind::Proven { id } => Some(id),
        _ => None,
    });
    proven.collect()
}

impl Coverage {
    /// Counts.
    pub fn of(run: &Recorded) -> Self {
        let mut found = Self::default();
        let mut terms = BTreeSet::new();
        let mut installed = BTreeMap::new();
        let mut compared: BTreeMap<u64, BTreeSet<&String>> = BTreeMap::new();
        let mut digests: BTreeMap<u64, BTreeSet<&String>> = BTreeMap::new();
        let later = proven_later(&run.events);
        for Event { what, .. } in &run.events {
            match what {
                EventKind::Status { member, life, role, term, installed: count, .. } => {
                    if role == "leader" {
                        terms.insert(*term);
                    }
                    installed.insert((member, life), *count);
                }
                EventKind::Flipped { noticed, .. } if *noticed => found.flips.0 += 1,
                EventKind::Flipped { .. } => found.flips.1 += 1,
                EventKind::Fault { id, kind, proven, .. } if *proven || later.contains(id) => {
                    *found.faults.entry(kind.clone()).or_default() += 1;
                }
                EventKind::Fault { .. } => found.unproven += 1,
                EventKind::Repeated { .. } => found.repeated += 1,
                EventKind::Recovered { after_ms } => found.recovered_ms = *after_ms,
                EventKind::Digest { member, index, .. } => {
                    digests.entry(*index).or_default().insert(member);
                }
                EventKind::Compared { member, index, .. } => {
                    compared.entry(*index).or_default().insert(member);
                }
                EventKind::Ended { .. } => found.sessions_ended += 1,
                EventKind::EndedRefused { .. } => found.ended_refused += 1,
                EventKind::Stale { taken_by: None, .. } => found.stale_refused += 1,
                EventKind::FinalReads { wanted, answered } => {
                    found.final_reads = (*answered, *wanted);
                }
                EventKind::Died { .. } => found.died += 1,
                EventKind::PowerLost { bytes, names, .. } if bytes + names > 0 => {
                    let (losses, lost_bytes, lost_names) = found.power_lost;
                    found.power_lost = (losses + 1, lost_bytes + bytes, lost_names + names);
                }
                _ => {}
            }
        }
        let count = |members: &BTreeSet<&String>| members.len() as u64;
        found.compared = compared.values().map(count).filter(|n| *n > 1).sum();
        found.digests = digests.values().map(count).max().unwrap_or_default();
        found.rows_under_fault = rows::under(&bands(&run.events), &run.operations);
        (found.stolen, found.doubled) = rows::shared(&run.operations);
        found.snapshots = installed.values().sum();
        found.leader_changes = (terms.len() as u64).saturating_sub(1);
        found.undecided = rows::undecided(&run.operations);
        found.written(run);
        found
    }

    /// Counts the requested changes, and the accepted ones.
    fn written(&mut self, run: &Recorded) {
        let bands = bands(&run.events);
        for operation in run.operations.iter().filter(|o| !READS.contains(&&*o.f)) {
            let Outcome::Answered { value, at, .. } = &operation.outcome else { continue };
            if *value == Value::Bool(false) {
                self.refused += 1;
                continue;
            }
            let under = bands.iter().any(|(from, to, _)| operation.called_at >= *from && at <= to);
            self.written_under_fault += u64::from(under);
            if &*operation.f == "complete" && *value == Value::Bool(true) {
                self.completed.0 += 1;
                self.completed.1 += u64::from(under);
            }
        }
    }

    /// The minimums that a pass lacks.
    pub fn missing(&self, run: &Recorded) -> Vec<String> {
        let (_, nemesis, _, secs) = run.plan();
        let least = Minimum::of(secs, nemesis);
        let leaders = least.leader_changes;
        let mut missing = Vec::new();
        let mut want = |what: &str, found: u64, least: u64| {
            if found < least {
                missing.push(format!("{what}: {found}, at least {least} are needed"));
            }
        };
        want("leader changes", self.leader_changes, least.leader_changes);
        want("rows read at the end", self.final_reads.0, self.final_reads.1.max(1));
        want("members whose digests are of one index at the end", self.digests, 3);
        want("digests compared on the way", self.compared, 2);
        let workload = run.plan().0;
        if workload == "run" {
            want("rows that ended under a fault", self.rows_under_fault, least.written_under_fault);
            let selected = |family: &str| u64::from(nemesis.iter().any(|name| name == family));
            let struck =
                |kind: &str| self.faults.get(&format!("worker-{kind}")).copied().unwrap_or(0);
            let kills = struck("kill") + struck("power");
            want("workers killed", kills, selected("kill") * (1 + secs / 30));
            for kind in ["pause", "power", "clock", "disk"] {
                let what = format!("workers with trouble of the kind {kind}");
                want(&what, struck(kind), selected(kind) * (secs / 90).min(1));
            }
        } else {
            want(
                "writes accepted under a fault",
                self.written_under_fault,
                least.written_under_fault,
            );
            want("requests sent twice", self.repeated, 1);
        }
        if let "item" | "steal" = workload {
            // A history of refusals alone is trivially linearizable.
            want("results accepted", self.completed.0, least.completed);
            let under = if nemesis.is_empty() { 0 } else { least.completed };
            want("results accepted under a fault", self.completed.1, under);
        }
        if let "item" | "steal" | "session" | "store" = workload {
            want("answers replayed by their places in the log", self.replayed, 1);
        }
        if let "run" | "rendezvous" | "barrier" | "shards" = workload {
            want("answers whose places were compared with time", self.ordered, 1);
        }
        if workload == "steal" {
            want("rows stolen", self.stolen, 1 + secs / 30);
            want("late results refused", self.refused, 1 + secs / 30);
        }
        if workload == "session" {
            want("sessions that ended", self.sessions_ended, 1 + secs / 30);
            want("ended sessions refused", self.ended_refused, 1);
            want("messages of an epoch that is over refused", self.stale_refused, leaders.min(1));
        }
        for kind in nemesis.iter().flat_map(|family| required(family)) {
            want(&format!("proven {kind}"), self.faults.get(kind).copied().unwrap_or(0), 1);
        }
        if nemesis.iter().any(|family| family == "snapshot") {
            want("snapshots installed", self.snapshots, least.snapshots);
        }
        if nemesis.iter().any(|family| family == "power") {
            want("losses of power that took something", self.power_lost.0, 1);
        }
        if self.undecided > 0 {
            missing.push(format!("rows that had not ended at the end: {}", self.undecided));
        }
        missing.extend(deaths::of_the_machine(&run.events));
        missing
    }
}
