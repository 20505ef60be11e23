//! Tells workers which rows they have lost.
//!
//! *Invariant:* a worker always learns of lost rows that it may be running. The leader sends them on the worker's
//! stream as soon as the command that took them is applied. If there is no stream, if the leader dies first, or if the
//! message overtakes the grant, the answer to the worker's next heartbeat that names the rows says so. A worker never
//! hears of rows that it still holds, nor of decided rows that ended there: the answer to its report of them is on its
//! way.
//!
//! Absent: rows that the ledger assigns to a worker and that the worker does not name. They are on their
//! way: the worker repeats the pull that they answer until it has the answer, and a worker that registers again names
//! all rows that it has.

use crate::leader::ledger_read::ReadLedger;
use crate::leader::state::LeaderState;
use rollout_ledger::id::SessionId;
use rollout_ledger::{EventKind, HeldRows, Ledger, Rows};
use rollout_raft::{Compacted, EventPage, EventPosition};
use std::collections::BTreeMap;

/// Rows that one read of the ledger checks.
const LOOK_ROWS: u32 = 4096;
/// Events in one read.
const PAGE_EVENTS: usize = 512;
/// Why a live worker loses rows that it did not return.
const TAKEN: [&str; 4] = ["cancelled", "deadline", "timed_out", "store_refused"];

impl LeaderState {
    /// Tells workers at once which rows they have lost.
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

    /// Tells workers which rows the applied command at `index` has taken from them.
    pub(crate) fn revoke_taken(&self, index: u64, reason: &str) {
        self.revoke(taken_by(index, |from| self.node.events(from, PAGE_EVENTS)), reason);
    }

    /// Tells a worker which of the rows that it names it has lost: of those that wait or run there, and of those that
    /// have `ended`.
    ///
    /// Rows of another namespace are never its own. One read of the ledger checks a bounded number of rows, so that a
    /// worker that names many does not hold up others.
    pub(crate) fn revoke_lost(
        &self,
        session: SessionId,
        unfinished: &[HeldRows],
        ended: &[HeldRows],
    ) {
        let mut lost = Vec::new();
        let mut look = |pieces: &[HeldRows], own: fn(&Ledger, &HeldRows) -> Option<HeldRows>| {
            self.node.ledger(|l| {
                let namespace = l.worker_name(session).map(|(namespace, _)| namespace);
                let foreign = |held: &HeldRows| {
                    l.run_namespace(held.run).is_some_and(|of_run| namespace != Some(of_run))
                };
                let of = |held: &HeldRows| match foreign(held) {
                    true => Some(held.clone()),
                    false => own(l, held),
                };
                lost.extend(pieces.iter().filter_map(of).map(|held| (session, held)));
            });
        };
        in_pieces(unfinished, |pieces| look(pieces, Ledger::lost_of));
        in_pieces(ended, |pieces| look(pieces, Ledger::lost_of_ended));
        if !lost.is_empty() {
            self.revoke(lost, "lost meanwhile");
        }
    }
}

/// Passes rows to `look`, at most [`LOOK_ROWS`] at a time; larger sets are divided.
fn in_pieces(held: &[HeldRows], mut look: impl FnMut(&[HeldRows])) {
    let piece = |set: &HeldRows, ranges: &mut Vec<(u64, u32)>| {
        // invariant: parts of ascending ranges, in order.
        let rows = Rows::from_ranges(ranges.drain(..)).unwrap_or_default();
        HeldRows { run: set.run, attempt: set.attempt, rows }
    };
    let (mut pieces, mut ranges, mut rows) = (Vec::new(), Vec::new(), 0);
    for set in held {
        for &(mut start, mut len) in set.rows.ranges() {
            while len > 0 {
                let some = len.min(LOOK_ROWS - rows);
                ranges.push((start, some));
                (start, len, rows) = (start + u64::from(some), len - some, rows + some);
                if rows == LOOK_ROWS {
                    pieces.push(piece(set, &mut ranges));
                    look(&pieces);
                    (pieces, rows) = (Vec::new(), 0);
                }
            }
        }
        if !ranges.is_empty() {
            pieces.push(piece(set, &mut ranges));
        }
    }
    if !pieces.is_empty() {
        look(&pieces);
    }
}

/// The rows that a command has taken, and from which worker, by its events: the holders are known only when it is
/// applied. If the events are no longer in memory, the result is empty, and the answers to heartbeats report the rows.
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
    use crate::leader::state::test_leader::TestLeader;
    use crate::leader::worker_stream::WorkerStream;
    use rollout_config::coordinator::Workers;
    use rollout_ledger::id::{Attempt, RunNo, SegmentNo, SlotNo, SlotRef};
    use rollout_ledger::{
        BlobRef, EngineSpec, Event, OpKind, Registration, Reply, RunSpec, SegmentDecl, SlotOffer,
        op,
    };
    use rollout_raft::EventRecord;
    use std::sync::Arc;
    use tokio::sync::mpsc;

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

    #[test]
    fn one_read_of_the_ledger_checks_a_bounded_number_of_rows() {
        let set = |attempt, ranges: &[(u64, u32)]| {
            let rows = Rows::from_ranges(ranges.iter().copied()).expect("ascending ranges");
            HeldRows { run: RunNo(1), attempt: Attempt(attempt), rows }
        };
        let named = [
            set(1, &[(0, 3), (10, LOOK_ROWS), (1 << 20, 5 * LOOK_ROWS)]),
            set(2, &[(7, LOOK_ROWS - 1)]),
            set(3, &[(9, 1), (20, 1)]),
        ];
        let mut seen = [(); 3].map(|()| Rows::default());
        in_pieces(&named, |pieces| {
            let rows: u64 = pieces.iter().map(|piece| piece.rows.len()).sum();
            assert!(rows > 0 && rows <= u64::from(LOOK_ROWS), "{rows}");
            for piece in pieces {
                seen[piece.attempt.0 as usize - 1].unite(&piece.rows);
            }
        });
        for (set, seen) in named.iter().zip(&seen) {
            assert_eq!((&set.rows, set.rows.len()), (seen, seen.len()));
        }
    }

    #[tokio::test]
    async fn a_worker_learns_that_rows_of_another_namespace_are_not_its_own() {
        let silent_after = Workers { failure_ms: 3_600_000, ..Workers::default() };
        let leader = TestLeader::start(silent_after).await;
        let leader_state = &leader.state;
        leader
            .op(OpKind::SetNamespace(op::SetNamespace { name: "a".into(), running_rows_max: 0 }))
            .await;
        let engine = EngineSpec { model: "m".into(), ..EngineSpec::default() };
        let spec = RunSpec { engine, weight: 1, attempts_max: 1, ..RunSpec::default() };
        let (namespace, name, folder) = ("a".to_owned(), "r".to_owned(), "r/own".to_owned());
        let create =
            OpKind::CreateRun(op::CreateRun { namespace, name, spec: Box::new(spec), folder });
        let Reply::Run { run, .. } = leader.op(create).await else { panic!("no run") };
        let segment = SegmentDecl { number: SegmentNo(0), rows: 8, blob: BlobRef::default() };
        leader.op(OpKind::AddSegments(op::AddSegments { run, segments: vec![segment] })).await;
        let offer = SlotOffer { models: vec!["m".into()], ..SlotOffer::default() };
        let registration = Registration {
            namespace: "a".into(),
            name: "owner".into(),
            instance: 1,
            slots: vec![offer],
            ..Registration::default()
        };
        let reply = leader.op(OpKind::Register(Box::new(registration))).await;
        let Reply::Registered { session: owner, .. } = reply else { panic!("{reply:?}") };
        let slot = SlotRef { session: owner, slot: SlotNo(0) };
        let claim = OpKind::Claim(op::Claim { slot, instance: 1, seq: 1, rows_max: 8 });
        let Reply::Granted(grants) = leader.op(claim).await else { panic!("no grant") };
        let held = grants[0].held.clone();
        let stranger = leader.register("stranger", 1).await;
        let told = async |session| {
            let (out, mut answers) = mpsc::channel(8);
            leader_state.streams.lock().insert(session, WorkerStream::new(out));
            leader_state.revoke_lost(session, std::slice::from_ref(&held), &[]);
            answers.try_recv().is_ok()
        };
        assert!(told(stranger).await, "they are nothing to it");
        assert!(!told(owner).await, "it holds them");
        leader_state.streams.lock().clear();
        leader.end().await;
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
            assert_eq!(
                session.0,
                held.attempt.0 + 1,
                "the revocation goes to the worker that had the rows"
            );
        }
        taken.into_iter().map(|(_, held)| held.attempt.0).collect()
    }

    #[test]
    fn all_rows_that_a_command_took_are_reported_and_none_that_another_took() {
        let events = [
            returned(4, 0, "cancelled"),
            returned(5, 0, "cancelled"),
            returned(5, 1, "nacked"),
            returned(5, 2, "deadline"),
            returned(5, 3, "lost"),
            returned(5, 4, "timed_out"),
            returned(5, 5, "store_refused"),
            returned(6, 0, "cancelled"),
        ];
        assert_eq!(taken(5, &events), [50, 52, 54, 55]);
        assert_eq!(taken(6, &events), [60]);
        assert_eq!(taken(7, &events), [0; 0]);
        let compacted = |_| Err(Compacted { oldest: 9 });
        assert!(taken_by(5, compacted).is_empty());
    }
}
