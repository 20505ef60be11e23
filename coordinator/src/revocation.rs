//! Who is told which rows are no longer its own.
//!
//! *Invariant:* whoever loses rows that it may be running hears of them: down its stream as soon as what took them is
//! applied, and else, because there was no stream, because the leader died before it could, or because the word overtook
//! the grant, with the next heartbeat that names them. It is never told of rows that it still holds, nor of rows that have
//! ended there and are decided: the answer to what it says of them is on its way.
//!
//! Absent on purpose: rows that the ledger takes for a worker's and that the worker does not name. They are on their way to
//! it: the pull that was answered with them is repeated until its answer has come, and who registers anew says all that it
//! has.

use crate::leading::Leading;
use crate::ledger_read::ReadLedger;
use rollout_ledger::id::SessionId;
use rollout_ledger::{EventKind, HeldRows};
use rollout_raft::{Compacted, EventPage, EventPosition};
use std::collections::BTreeMap;

/// Events read at once.
const PAGE_EVENTS: usize = 512;
/// Why rows come back without their worker's doing, while its session goes on and it is heard.
const TAKEN: [&str; 3] = ["cancelled", "deadline", "timed_out"];

impl Leading {
    /// Tells workers at once what is no longer theirs.
    pub(crate) fn revoke(&self, held: Vec<(SessionId, HeldRows)>, reason: &str) {
        let mut by_session: BTreeMap<SessionId, Vec<HeldRows>> = BTreeMap::new();
        for (session, rows) in held {
            by_session.entry(session).or_default().push(rows);
        }
        let streams = self.streams.lock();
        for (session, rows) in by_session {
            if let Some(stream) = streams.get(&session) {
                stream.revoke(self.header(), &rows, reason, &self.ended);
            }
        }
    }

    /// Tells workers what the command at `index`, which was applied, has taken from them.
    pub(crate) fn revoke_taken(&self, index: u64, reason: &str) {
        self.revoke(taken_by(index, |from| self.node.events(from, PAGE_EVENTS)), reason);
    }

    /// Tells a worker which of the rows that it names are no longer its own: of those that wait or run there, and of those
    /// that have `ended`.
    pub(crate) fn revoke_lost(
        &self,
        session: SessionId,
        unfinished: &[HeldRows],
        ended: &[HeldRows],
    ) {
        let lost: Vec<_> = self.node.ledger(|l| {
            let ended = ended.iter().filter_map(|held| l.lost_of_ended(held));
            let lost = unfinished.iter().filter_map(|held| l.lost_of(held)).chain(ended);
            lost.map(|held| (session, held)).collect()
        });
        if !lost.is_empty() {
            self.revoke(lost, "they were lost meanwhile");
        }
    }
}

/// What a command has taken from whom, by its events: who has what when it is applied, nobody knows before. Where they are
/// held no longer, there is nothing to say, and the heartbeats bring it.
fn taken_by(
    index: u64,
    read: impl Fn(EventPosition) -> Result<EventPage, Compacted>,
) -> Vec<(SessionId, HeldRows)> {
    let mut taken = Vec::new();
    let mut from = EventPosition { index, position: 0 };
    while let Ok(page) = read(from) {
        let its = page.records.iter().take_while(|record| record.event.index == index);
        taken.extend(its.filter_map(|record| match &record.event.kind {
            EventKind::Returned { slot, held, why } if TAKEN.contains(why) => {
                Some((slot.session, held.clone()))
            }
            _ => None,
        }));
        if !page.more || page.next.index > index {
            break;
        }
        from = page.next;
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_ledger::id::{Attempt, RunNo, SlotNo, SlotRef};
    use rollout_ledger::{Event, Rows};
    use rollout_raft::EventRecord;
    use std::sync::Arc;

    fn held(attempt: u64) -> HeldRows {
        HeldRows { run: RunNo(1), attempt: Attempt(attempt), rows: Rows::range(attempt, 2) }
    }

    fn returned(index: u64, position: u32, why: &'static str) -> Arc<EventRecord> {
        let attempt = index * 10 + u64::from(position);
        let slot = SlotRef { session: SessionId(attempt + 1), slot: SlotNo(0) };
        let kind = EventKind::Returned { slot, held: held(attempt), why };
        let event = Event { index, position, wall_ms: 0, kind };
        Arc::new(EventRecord { event, worker: None, victim: None, run: None })
    }

    /// Reads these events, two at a time.
    fn taken(index: u64, events: &[Arc<EventRecord>]) -> Vec<u64> {
        let read = |from: EventPosition| {
            let rest: Vec<_> = events.iter().filter(|e| e.at() >= from).cloned().collect();
            let end = EventPosition { index: 100, position: 0 };
            let next = rest.get(2).map_or(end, |e| e.at());
            let more = rest.len() > 2;
            Ok(EventPage { records: rest.into_iter().take(2).collect(), next, more })
        };
        let taken = taken_by(index, read);
        for (session, held) in &taken {
            assert_eq!(session.0, held.attempt.0 + 1, "it is told to who had it");
        }
        taken.into_iter().map(|(_, held)| held.attempt.0).collect()
    }

    #[test]
    fn what_a_command_took_is_told_however_much_it_is_and_nothing_that_another_took() {
        let events = [
            returned(4, 0, "cancelled"),
            returned(5, 0, "cancelled"),
            returned(5, 1, "nacked"),
            returned(5, 2, "deadline"),
            returned(5, 3, "lost"),
            returned(5, 4, "timed_out"),
            returned(6, 0, "cancelled"),
        ];
        assert_eq!(taken(5, &events), [50, 52, 54]);
        assert_eq!(taken(6, &events), [60]);
        assert_eq!(taken(7, &events), [0; 0]);
        let compacted = |_| Err(Compacted { oldest: 9 });
        assert!(taken_by(5, compacted).is_empty());
    }
}
