//! Owns: room for the exchanges in progress of one worker, those of its earlier streams included.
//!
//! Invariant: an exchange names at most as many rows as a worker with that many slots can report at once. All exchanges
//! in progress of the worker together name at most twice as many, however many streams it opens and however often it
//! registers: its reports on a stream that has died, and their repeats on the next one. An exchange over the bound is
//! an error, which ends the stream. An exchange that finds no room waits, and meanwhile its stream is not read, so
//! heartbeats wait too. As a worker has one stream (`answer_queue`), one of its exchanges waits at a time.
//! Absent: the memory that a message takes while it arrives (`body_budget`), and pulls that wait for work
//! (`parked_pulls`).

use crate::grpc::convert::{self, Checked};
use parking_lot::Mutex;
use prost::Message;
use rollout_ledger::limits;
use rollout_proto::v1;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Exchanges of one worker in progress: each slot has at most two at a time, and repeats them on a new stream while the
/// earlier stream's are still in progress.
const EXCHANGES_MAX: usize = 256;
/// Rows in the parts of one exchange, whatever the number of slots, because a worker puts at most 16 parts into a
/// message. They include parts that an earlier process with more slots left behind.
const PARTS_ROWS_MAX: u64 = 16 * limits::PART_ROWS_MAX;
/// Bytes on the wire that count as one row, because the texts of failures count too.
const BYTES_PER_ROW: usize = 256;

/// The most rows that a worker's slots can have: waiting, running, or ended but not acknowledged, which may overlap
/// with the next grant.
pub(super) fn slots_rows_max(slots: usize) -> u64 {
    slots as u64 * u64::from(limits::SLOT_ROWS_MAX) * 2
}

/// Rows of one exchange.
fn rows_max(slots: usize) -> u64 {
    slots_rows_max(slots) + PARTS_ROWS_MAX
}

/// Rows of all exchanges in progress. With room for one exchange only, those of a dead stream would make their repeats
/// on a new stream wait, and the heartbeats behind them.
fn room_rows(slots: usize) -> u32 {
    u32::try_from(2 * rows_max(slots)).unwrap_or(u32::MAX)
}

/// The number of rows that an exchange names. Refuses more than a worker with this many slots can have. A set counts
/// as at least one row, and so does each range in it, because both take memory.
pub(super) fn rows_named(exchange: &v1::Exchange, slots: usize) -> Checked<u64> {
    let parts = exchange.parts.iter().map(|part| sets_rows(&part.sets).max(1));
    let failures = exchange.failures.iter().map(|failure| set_rows(failure.rows.as_ref()));
    let deaths = exchange.deaths.iter().map(|death| sets_rows(&death.started).max(1));
    let given_back = [sets_rows(&exchange.nacks), sets_rows(&exchange.yielded)];
    let rows = parts.chain(failures).chain(deaths).chain(given_back).fold(0, u64::saturating_add);
    let most = rows_max(slots);
    match rows > most {
        true => Err(convert::invalid(format!(
            "an exchange names {rows} rows; the most for a worker with {slots} slots is {most}: report fewer rows at a time"
        ))),
        false => Ok(rows),
    }
}

fn sets_rows(sets: &[v1::HeldRows]) -> u64 {
    sets.iter().map(|set| set_rows(set.rows.as_ref())).fold(0, u64::saturating_add)
}

fn set_rows(rows: Option<&v1::Rows>) -> u64 {
    let Some(rows) = rows else { return 1 };
    let ranges = rows.starts.len().max(rows.lens.len()) as u64;
    rows.count().max(ranges).max(1)
}

/// The namespace and the name of a worker. A certificate names them; sessions are not the key, because a worker that
/// registers again gets a new one.
pub(super) type Worker = (String, String);

type Rooms = Arc<Mutex<HashMap<Worker, Weak<ExchangeRoom>>>>;

/// The rooms of all workers that have a stream or an exchange in progress.
#[derive(Clone, Default)]
pub(super) struct ExchangeRooms(Rooms);

impl ExchangeRooms {
    /// The room that all streams of this worker share.
    pub(super) fn of(&self, worker: Worker) -> Arc<ExchangeRoom> {
        let mut rooms = self.0.lock();
        if let Some(room) = rooms.get(&worker).and_then(Weak::upgrade) {
            return room;
        }
        let room = Arc::new(ExchangeRoom {
            worker: worker.clone(),
            rooms: self.0.clone(),
            exchanges: Arc::new(Semaphore::new(EXCHANGES_MAX)),
            rows: Arc::new(Semaphore::new(0)),
            rows_all: Mutex::default(),
        });
        rooms.insert(worker, Arc::downgrade(&room));
        room
    }
}

/// The room of one worker.
pub(super) struct ExchangeRoom {
    worker: Worker,
    rooms: Rooms,
    exchanges: Arc<Semaphore>,
    /// The free rows.
    rows: Arc<Semaphore>,
    /// The free and the taken rows together: as many as for the most slots that the worker had in an exchange.
    rows_all: Mutex<u32>,
}

/// The permits of one exchange, released on drop.
pub(super) struct ExchangePermit {
    _exchange: OwnedSemaphorePermit,
    _rows: OwnedSemaphorePermit,
    /// So that the worker's next stream finds this room, even if the stream of this exchange has closed.
    _room: Arc<ExchangeRoom>,
}

impl ExchangeRoom {
    /// The namespace of the worker.
    pub(super) fn namespace(&self) -> &str {
        &self.worker.0
    }

    /// Waits for the permits of an exchange of a worker with this many slots. `None` only if the room was closed, which
    /// never happens.
    ///
    /// # Errors
    /// The exchange names more rows than such a worker can have.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        exchange: &v1::Exchange,
        slots: usize,
    ) -> Checked<Option<ExchangePermit>> {
        let rows = rows_named(exchange, slots)?;
        let texts = (exchange.encoded_len() / BYTES_PER_ROW) as u64;
        // An exchange with long texts takes half of the room at most.
        let permits = rows.saturating_add(texts).min(rows_max(slots));
        let permits = u32::try_from(permits).unwrap_or(u32::MAX);
        self.widen(slots);
        let Ok(exchange) = self.exchanges.clone().acquire_owned().await else { return Ok(None) };
        let rows = self.rows.clone().acquire_many_owned(permits).await;
        let room = self.clone();
        Ok(rows.ok().map(|rows| ExchangePermit { _exchange: exchange, _rows: rows, _room: room }))
    }

    /// Makes the room large enough for a worker with this many slots.
    fn widen(&self, slots: usize) {
        let mut all = self.rows_all.lock();
        let more = room_rows(slots).saturating_sub(*all);
        self.rows.add_permits(more as usize);
        *all += more;
    }
}

impl Drop for ExchangeRoom {
    fn drop(&mut self) {
        let mut rooms = self.rooms.lock();
        // Another stream may have made a new room meanwhile.
        if rooms.get(&self.worker).is_some_and(|room| room.strong_count() == 0) {
            rooms.remove(&self.worker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::poll;
    use std::pin::pin;

    fn set(start: u64, len: u64) -> v1::HeldRows {
        let rows = v1::Rows::from_ranges([(start, len as u32)]);
        v1::HeldRows { run: 1, attempt: 7, rows: Some(rows) }
    }

    fn nacks(nacks: Vec<v1::HeldRows>) -> v1::Exchange {
        v1::Exchange { nacks, ..v1::Exchange::default() }
    }

    fn worker(name: &str) -> Worker {
        ("default".to_owned(), name.to_owned())
    }

    #[test]
    fn an_exchange_names_no_more_rows_than_its_workers_slots_can_have() {
        let most = rows_max(1);
        assert_eq!(rows_named(&nacks(vec![set(0, most)]), 1), Ok(most));
        let over = nacks(vec![set(0, most), set(most, 1)]);
        let why = rows_named(&over, 1).expect_err("one row too many");
        assert!(why.message.contains("1 slots"), "{why:?}");
        assert_eq!(rows_named(&over, 2), Ok(most + 1));
        // In any of its fields.
        let sets = vec![set(0, most), set(most, 1)];
        let part = v1::PartResult { sets: sets.clone(), ..Default::default() };
        let death = v1::EngineDeath { started: sets.clone(), ..Default::default() };
        let failed = |set: v1::HeldRows| v1::FailedAttempt { rows: set.rows, ..Default::default() };
        for over in [
            v1::Exchange { parts: vec![part], ..Default::default() },
            v1::Exchange { deaths: vec![death], ..Default::default() },
            v1::Exchange {
                failures: sets.iter().cloned().map(failed).collect(),
                ..Default::default()
            },
            v1::Exchange { yielded: sets, ..Default::default() },
        ] {
            assert!(rows_named(&over, 1).is_err(), "{over:?}");
        }
    }

    #[test]
    fn sets_and_ranges_without_rows_count_as_rows() {
        let many = usize::try_from(rows_max(0)).expect("it fits") + 1;
        assert!(rows_named(&nacks(vec![v1::HeldRows::default(); many]), 0).is_err());
        let rows = v1::Rows { starts: vec![0; many], lens: Vec::new() };
        let held = v1::HeldRows { rows: Some(rows), ..Default::default() };
        assert!(rows_named(&nacks(vec![held]), 0).is_err());
        let deaths = vec![v1::EngineDeath::default(); many];
        assert!(rows_named(&v1::Exchange { deaths, ..Default::default() }, 0).is_err());
    }

    #[test]
    fn one_exchange_reports_all_held_rows_and_a_full_message_of_parts() {
        for slots in [1, 8, limits::SLOTS_MAX] {
            let held = slots as u64 * u64::from(limits::SLOT_ROWS_MAX) * 2;
            let part = |first| v1::PartResult {
                sets: vec![set(first, limits::PART_ROWS_MAX)],
                ..Default::default()
            };
            let exchange = v1::Exchange {
                parts: (0..16).map(|part_of| part(part_of * limits::PART_ROWS_MAX)).collect(),
                nacks: vec![set(1 << 32, held)],
                ..Default::default()
            };
            assert!(rows_named(&exchange, slots).is_ok(), "{slots} slots");
        }
    }

    #[tokio::test]
    async fn exchanges_in_progress_together_name_at_most_twice_the_rows_of_one() {
        let room = ExchangeRooms::default().of(worker("w"));
        let all = nacks(vec![set(0, rows_max(1))]);
        let half = nacks(vec![set(0, rows_max(1) / 2 - 1)]);
        let first = room.acquire(&all, 1).await.expect("it may").expect("a permit");
        let second = room.acquire(&half, 1).await.expect("it may").expect("a permit");
        let third = room.acquire(&half, 1).await.expect("it may").expect("a permit");
        {
            let mut fourth = pin!(room.acquire(&half, 1));
            assert!(poll!(&mut fourth).is_pending(), "it waits for room");
            drop(second);
            assert!(poll!(&mut fourth).is_ready());
        }
        let mut full = pin!(room.acquire(&all, 1));
        assert!(poll!(&mut full).is_pending());
        drop(third);
        assert!(poll!(&mut full).is_ready(), "the fourth has gone too");
        drop(first);
    }

    #[tokio::test]
    async fn a_worker_repeats_a_full_exchange_on_a_new_stream_while_the_first_is_in_progress() {
        let rooms = ExchangeRooms::default();
        let message = "x".repeat(usize::try_from(rows_max(1)).expect("it fits") * BYTES_PER_ROW);
        let failures = vec![v1::FailedAttempt { message, ..Default::default() }];
        let long = v1::Exchange { failures, ..Default::default() };
        for full in [nacks(vec![set(0, rows_max(1))]), long] {
            let dead = rooms.of(worker("w"));
            let first = dead.acquire(&full, 1).await.expect("it may").expect("a permit");
            drop(dead);
            let next = rooms.of(worker("w"));
            assert!(poll!(pin!(next.acquire(&full, 1))).is_ready(), "heartbeats are behind it");
            drop(first);
        }
    }

    #[tokio::test]
    async fn streams_of_one_worker_share_its_room_and_another_worker_has_its_own() {
        let rooms = ExchangeRooms::default();
        let all = nacks(vec![set(0, rows_max(1))]);
        let (one, two) = (rooms.of(worker("w")), rooms.of(worker("w")));
        let first = one.acquire(&all, 1).await.expect("it may").expect("a permit");
        let second = two.acquire(&all, 1).await.expect("it may").expect("a permit");
        let mut third = pin!(two.acquire(&all, 1));
        assert!(poll!(&mut third).is_pending(), "the room is full");
        let other = rooms.of(("other".to_owned(), "w".to_owned()));
        assert!(poll!(pin!(other.acquire(&all, 1))).is_ready(), "of another namespace");
        drop(first);
        assert!(poll!(&mut third).is_ready(), "the other stream has left it");
        drop(second);
    }

    #[tokio::test]
    async fn a_new_stream_finds_the_room_of_exchanges_whose_stream_has_closed() {
        let rooms = ExchangeRooms::default();
        let all = nacks(vec![set(0, rows_max(1))]);
        let closed = rooms.of(worker("w"));
        let first = closed.acquire(&all, 1).await.expect("it may").expect("a permit");
        let second = closed.acquire(&all, 1).await.expect("it may").expect("a permit");
        drop(closed);
        let next = rooms.of(worker("w"));
        {
            let mut third = pin!(next.acquire(&all, 1));
            assert!(poll!(&mut third).is_pending());
            drop(first);
            assert!(poll!(&mut third).is_ready());
        }
        drop((second, next));
        assert!(rooms.0.lock().is_empty(), "nothing is left of a worker without streams");
    }

    #[tokio::test]
    async fn the_room_grows_with_the_slots_of_its_worker() {
        let room = ExchangeRooms::default().of(worker("w"));
        let exchange = nacks(vec![set(0, rows_max(1))]);
        let first = room.acquire(&exchange, 1).await.expect("it may").expect("a permit");
        let second = room.acquire(&exchange, 1).await.expect("it may").expect("a permit");
        let more = nacks(vec![set(0, rows_max(2) - rows_max(1) - 1)]);
        assert!(poll!(pin!(room.acquire(&more, 1))).is_pending(), "there is none for one slot");
        let third = room.acquire(&more, 2).await.expect("it may").expect("a permit");
        drop((first, second, third));
        assert_eq!(room.rows.available_permits(), room_rows(2) as usize);
    }

    #[tokio::test]
    async fn long_texts_of_failures_take_room_too() {
        let room = ExchangeRooms::default().of(worker("w"));
        let message = "x".repeat(usize::try_from(rows_max(0)).expect("it fits") * BYTES_PER_ROW);
        let failures = vec![v1::FailedAttempt { message, ..Default::default() }];
        let long = v1::Exchange { failures, ..Default::default() };
        let first = room.acquire(&long, 0).await.expect("it may").expect("a permit");
        let second = room.acquire(&long, 0).await.expect("it may").expect("a permit");
        let exchange = nacks(vec![set(0, 1)]);
        let mut third = pin!(room.acquire(&exchange, 0));
        assert!(poll!(&mut third).is_pending());
        drop(first);
        assert!(poll!(&mut third).is_ready());
        drop(second);
    }
}
