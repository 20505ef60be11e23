//! Owns: the newest events of the ledger, as this member applied them, for followers of events.
//!
//! Invariant: the ring has every event of every entry from `oldest` to the last applied one, in the order of index
//! and position. Beyond its bounds it drops whole entries, the oldest first. It begins where the image ended, and
//! starts over when a received image replaces the state: a reader from before gets an error, never a gap.
//! Absent: which reader may see which event, and events before `oldest`: the log alone cannot reproduce them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use rollout_ledger::id::{RunNo, SessionId};
use rollout_ledger::{Event, EventKind, Ledger};

/// The most names remembered for events about sessions and runs that no longer exist, such as a late result.
const NAMES_MAX: usize = 8192;
/// Rows are kept as ranges of this size.
const RANGE_BYTES: usize = 16;
/// Bytes of events in one page, about.
const PAGE_BYTES: usize = 512 << 10;

/// A position among the events: the next one wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventPosition {
    /// The log entry.
    pub index: u64,
    /// Which of its events, from 0.
    pub position: u32,
}

/// Events from before `oldest` are no longer held here. Another member may hold more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("events before index {oldest} are no longer held")]
pub struct Compacted {
    /// The oldest index whose events are all held.
    pub oldest: u64,
}

/// Namespace and name of a worker or a run.
pub type EventName = (String, String);

/// An event with the names of its objects, as they were when it happened.
#[derive(Debug)]
pub struct EventRecord {
    pub event: Event,
    /// The worker that it is about; for stolen rows, their new holder.
    pub worker: Option<Arc<EventName>>,
    /// The worker that lost the rows, if they were stolen.
    pub victim: Option<Arc<EventName>>,
    /// The run that it is about.
    pub run: Option<Arc<EventName>>,
}

/// Some events in a row.
#[derive(Debug)]
pub struct EventPage {
    /// In order; empty if nothing happened since.
    pub records: Vec<Arc<EventRecord>>,
    /// The position at which to continue.
    pub next: EventPosition,
    /// Whether more events can be read at once.
    pub more: bool,
}

impl EventRecord {
    /// Its position.
    pub fn at(&self) -> EventPosition {
        EventPosition { index: self.event.index, position: self.event.position }
    }

    fn bytes(&self) -> usize {
        use EventKind::{
            Completed, EpochOpened, Failed, Granted, Job, LeaderChanged, MemberChanged, Retried,
            Returned, RunChanged, RunCreated, SettingChanged, Stolen, TrainingChanged, WorkerBack,
            WorkerCordoned, WorkerDrained, WorkerDraining, WorkerLost, WorkerRegistered,
            WorkerSuspect,
        };
        let ranges = |rows: &rollout_ledger::Rows| rows.ranges().len() * RANGE_BYTES;
        let heap = match &self.event.kind {
            Granted { held, .. }
            | Completed { held, .. }
            | Returned { held, .. }
            | Stolen { held, .. } => ranges(&held.rows),
            Failed { held, code, for_good, .. } => {
                ranges(&held.rows) + ranges(for_good) + code.len()
            }
            Retried { rows, .. } => ranges(rows),
            RunChanged { reason, .. } | WorkerCordoned { reason, .. } => reason.len(),
            TrainingChanged { job, detail, .. } => {
                job.namespace.len() + job.job.len() + detail.len()
            }
            Job { job, subject, reason, .. } => {
                job.namespace.len() + job.job.len() + subject.len() + reason.len()
            }
            WorkerDrained { name, .. } | WorkerLost { name, .. } => name.0.len() + name.1.len(),
            LeaderChanged { leader, former, .. } => leader.len() + former.len(),
            MemberChanged { member, .. } => member.len(),
            EpochOpened { .. }
            | SettingChanged { .. }
            | WorkerRegistered { .. }
            | WorkerSuspect { .. }
            | WorkerBack { .. }
            | WorkerDraining { .. }
            | RunCreated { .. } => 0,
        };
        // The reference counts, and the slot in the ring.
        size_of::<Self>() + 24 + heap
    }
}

/// The ring, with its bounds.
pub(crate) struct EventRing {
    records: VecDeque<Arc<EventRecord>>,
    bytes: usize,
    bytes_max: usize,
    count_max: usize,
    oldest: u64,
    applied_next: u64,
    names: Names,
}

impl EventRing {
    /// An empty ring, for a state before the entry at `applied_next`.
    pub(crate) fn new(applied_next: u64, bytes_max: usize, count_max: usize) -> Self {
        Self {
            records: VecDeque::new(),
            bytes: 0,
            bytes_max,
            count_max,
            oldest: applied_next,
            applied_next,
            names: Names::default(),
        }
    }

    /// Drops everything: the state was replaced by one before `applied_next`.
    pub(crate) fn restart(&mut self, applied_next: u64) {
        *self = Self::new(applied_next, self.bytes_max, self.count_max);
    }

    /// Takes the events of the entry before `applied_next`, from the ledger that has just applied it.
    pub(crate) fn push(&mut self, applied_next: u64, events: Vec<Event>, ledger: &Ledger) {
        self.applied_next = applied_next;
        for event in events {
            let record = self.names.resolve(event, ledger);
            self.bytes += record.bytes();
            self.records.push_back(Arc::new(record));
        }
        while self.bytes > self.bytes_max || self.records.len() > self.count_max {
            let Some(front) = self.records.front() else { break };
            let index = front.event.index;
            while let Some(front) = self.records.front().filter(|r| r.event.index == index) {
                self.bytes -= front.bytes();
                self.records.pop_front();
            }
            self.oldest = index + 1;
        }
    }

    /// The oldest index whose events are all held, and the one after the last applied.
    pub(crate) fn bounds(&self) -> (u64, u64) {
        (self.oldest, self.applied_next)
    }

    /// Up to `max` events at or after `from`, which may be ahead of what is applied here.
    pub(crate) fn read(&self, from: EventPosition, max: usize) -> Result<EventPage, Compacted> {
        if from.index < self.oldest {
            return Err(Compacted { oldest: self.oldest });
        }
        let start = self.records.partition_point(|record| record.at() < from);
        let (mut records, mut bytes) = (Vec::new(), 0);
        for record in self.records.range(start..).take(max) {
            bytes += record.bytes();
            if bytes > PAGE_BYTES && !records.is_empty() {
                break;
            }
            records.push(record.clone());
        }
        let rest = self.records.get(start + records.len());
        let end = EventPosition { index: self.applied_next, position: 0 };
        let next = rest.map_or(end, |record| record.at()).max(from);
        Ok(EventPage { records, next, more: rest.is_some() })
    }
}

/// The names of sessions and runs in events: they outlive both.
#[derive(Default)]
struct Names {
    workers: HashMap<SessionId, Arc<EventName>>,
    runs: HashMap<RunNo, Arc<EventName>>,
}

impl Names {
    fn resolve(&mut self, event: Event, ledger: &Ledger) -> EventRecord {
        use EventKind::{
            Completed, EpochOpened, Failed, Granted, Job, LeaderChanged, MemberChanged, Retried,
            Returned, RunChanged, RunCreated, SettingChanged, Stolen, TrainingChanged, WorkerBack,
            WorkerCordoned, WorkerDrained, WorkerDraining, WorkerLost, WorkerRegistered,
            WorkerSuspect,
        };
        let (mut session, mut from, mut run) = (None, None, None);
        match &event.kind {
            EpochOpened { .. }
            | LeaderChanged { .. }
            | MemberChanged { .. }
            | SettingChanged { .. }
            | Job { .. }
            | TrainingChanged { .. } => {}
            WorkerRegistered { session: id, .. }
            | WorkerSuspect { session: id }
            | WorkerBack { session: id }
            | WorkerDraining { session: id } => session = Some(*id),
            WorkerDrained { session: id, name } | WorkerLost { session: id, name } => {
                session = Some(*id);
                self.workers.entry(*id).or_insert_with(|| Arc::new(name.clone()));
            }
            WorkerCordoned { slot, .. } => session = Some(slot.session),
            RunCreated { run: no } | RunChanged { run: no, .. } | Retried { run: no, .. } => {
                run = Some(*no);
            }
            Granted { slot, held, .. }
            | Completed { slot, held }
            | Failed { slot, held, .. }
            | Returned { slot, held, .. } => {
                (session, run) = (Some(slot.session), Some(held.run));
            }
            Stolen { victim, idle_slot, held, .. } => {
                (session, from) = (Some(idle_slot.session), Some(victim.session));
                run = Some(held.run);
            }
        }
        let worker = session.and_then(|id| self.worker(id, ledger));
        let victim = from.and_then(|id| self.worker(id, ledger));
        let run = run.and_then(|no| self.run(no, ledger));
        EventRecord { event, worker, victim, run }
    }

    fn worker(&mut self, id: SessionId, ledger: &Ledger) -> Option<Arc<EventName>> {
        if let Some(name) = self.workers.get(&id) {
            return Some(name.clone());
        }
        let (namespace, name) = ledger.worker_name(id)?;
        let name = Arc::new((namespace.to_owned(), name.to_owned()));
        make_room(&mut self.workers);
        self.workers.insert(id, name.clone());
        Some(name)
    }

    fn run(&mut self, no: RunNo, ledger: &Ledger) -> Option<Arc<EventName>> {
        if let Some(name) = self.runs.get(&no) {
            return Some(name.clone());
        }
        let name = Arc::new(ledger.run_name(no)?);
        make_room(&mut self.runs);
        self.runs.insert(no, name.clone());
        Some(name)
    }
}

/// Names that are still needed are looked up again.
fn make_room<K, V>(names: &mut HashMap<K, V>) {
    if names.len() >= NAMES_MAX {
        names.clear();
    }
}

#[cfg(test)]
mod tests {
    use rollout_ledger::id::CoordEpoch;

    use super::*;

    fn entry(index: u64, count: u32) -> Vec<Event> {
        let kind = || EventKind::EpochOpened { epoch: CoordEpoch(index) };
        (0..count).map(|position| Event { index, position, wall_ms: 0, kind: kind() }).collect()
    }

    fn at(index: u64, position: u32) -> EventPosition {
        EventPosition { index, position }
    }

    /// Entries 5 to 9: 2, 0, 3, 1 and 0 events.
    fn ring(count_max: usize) -> EventRing {
        let ledger = Ledger::new([0; 16]);
        let mut ring = EventRing::new(5, 1 << 20, count_max);
        for (index, count) in (5..).zip([2, 0, 3, 1, 0]) {
            ring.push(index + 1, entry(index, count), &ledger);
        }
        ring
    }

    fn places(page: &EventPage) -> Vec<(u64, u32)> {
        page.records.iter().map(|r| (r.event.index, r.event.position)).collect()
    }

    #[test]
    fn pages_of_any_size_give_each_event_once_and_in_order() {
        let ring = ring(100);
        let all = [(5, 0), (5, 1), (7, 0), (7, 1), (7, 2), (8, 0)];
        for size in 1..8 {
            let (mut from, mut seen) = (at(5, 0), Vec::new());
            loop {
                let page = ring.read(from, size).expect("held");
                seen.extend(places(&page));
                from = page.next;
                if !page.more {
                    break;
                }
            }
            assert_eq!(seen, all, "in pages of {size}");
            assert_eq!(from, at(10, 0), "what was applied without events is behind the reader");
        }
        assert_eq!(places(&ring.read(at(7, 1), 9).expect("held")), [(7, 1), (7, 2), (8, 0)]);
        assert_eq!(places(&ring.read(at(6, 0), 1).expect("held")), [(7, 0)]);
    }

    #[test]
    fn a_reader_ahead_of_this_member_waits_where_it_is() {
        let page = ring(100).read(at(12, 3), 9).expect("it comes");
        assert_eq!((places(&page), page.next, page.more), (Vec::new(), at(12, 3), false));
    }

    #[test]
    fn whole_entries_are_evicted_and_an_earlier_reader_learns_the_oldest_index() {
        let ring = ring(3);
        assert_eq!(ring.bounds(), (8, 10), "entry 7 had three events, of which one had to go");
        for before in [at(0, 0), at(5, 0), at(7, 2)] {
            assert_eq!(ring.read(before, 9).expect_err("gone"), Compacted { oldest: 8 });
        }
        assert_eq!(places(&ring.read(at(8, 0), 9).expect("held")), [(8, 0)]);
    }

    #[test]
    fn the_texts_of_a_job_count() {
        let ledger = Ledger::new([0; 16]);
        let bytes = |text: &str| {
            let job = rollout_ledger::JobName { namespace: text.into(), job: text.into() };
            let (subject, reason) = (text.to_owned(), text.to_owned());
            let kind = EventKind::Job { job, what: "failed", subject, round: 1, reason };
            let mut ring = EventRing::new(1, 1 << 20, 100);
            ring.push(2, vec![Event { index: 1, position: 0, wall_ms: 0, kind }], &ledger);
            ring.bytes
        };
        assert_eq!(bytes(&"x".repeat(1000)), bytes("") + 4000);
    }

    #[test]
    fn an_entry_over_the_bound_leaves_an_empty_ring_that_says_so() {
        let ledger = Ledger::new([0; 16]);
        let mut ring = EventRing::new(1, 100, 100);
        ring.push(2, entry(1, 5), &ledger);
        assert_eq!((ring.bounds(), ring.bytes), ((2, 2), 0));
        ring.restart(40);
        assert_eq!(ring.read(at(39, 0), 1).expect_err("gone"), Compacted { oldest: 40 });
    }
}
