use tempfile::TempDir;
use tokio::sync::mpsc;

use super::backlog::{BACKLOG_PARTS_PER_SLOT, BACKLOG_ROWS};
use super::*;
use crate::engine::Completion;
use crate::leased_rows::Lease;
use crate::spool::SlotSpool;

/// The longest wait that a part may have besides its age.
const LONG: Duration = Duration::from_secs(10);

/// A combiner of several slots, each with a lease table and a spool, without tasks.
struct Worker {
    combiner: Combiner,
    lease_tables: Vec<Arc<Mutex<LeaseTable>>>,
    spools: Vec<SpoolHandle>,
    changed: Vec<Arc<Notify>>,
    now: Instant,
    dir: TempDir,
    _failed: mpsc::Receiver<String>,
}

impl Worker {
    fn new(slots: u32, config: PartConfig) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (sender, failed) = mpsc::channel(1);
        let combiner = Combiner::new(config);
        let (mut lease_tables, mut spools, mut changed) = (Vec::new(), Vec::new(), Vec::new());
        for slot in 0..slots {
            let spool = SlotSpool::open(&dir.path().join(slot.to_string())).unwrap();
            let member = Member {
                lease_table: Arc::new(Mutex::new(LeaseTable::new(4))),
                spool: spool.start(sender.clone()).unwrap(),
                changed: Arc::default(),
            };
            lease_tables.push(member.lease_table.clone());
            spools.push(member.spool.clone());
            changed.push(member.changed.clone());
            combiner.join(slot, member, 0);
        }
        let now = Instant::now();
        Self { combiner, lease_tables, spools, changed, now, dir, _failed: failed }
    }

    fn grant(&self, slot: usize, run: u32, rows: std::ops::Range<u64>) {
        for row in rows {
            assert!(self.lease_tables[slot].lock().queue(lease(run), row));
        }
        self.combiner.granted(run);
    }

    /// A row ends successfully, `after` the beginning.
    async fn ends(&self, slot: usize, run: u32, row: u64, after: Duration) -> Vec<OpenPart> {
        let room = self.spools[slot].room().await;
        self.lease_tables[slot].lock().end(lease(run), row);
        let at = self.now + after;
        self.combiner.add((slot as u32, run), finished(row), room, at + LONG, at)
    }

    fn due(&self, slot: u32, load: SlotLoad, after: Duration) -> Vec<OpenPart> {
        self.combiner.due(slot, load, self.now + after)
    }

    /// When the slot would close its next part.
    fn next(&self, slot: u32, load: SlotLoad) -> Option<Duration> {
        self.combiner.next_due(slot, load).map(|at| at - self.now)
    }

    fn files(&self, slot: u32) -> usize {
        std::fs::read_dir(self.dir.path().join(slot.to_string())).unwrap().count()
    }
}

fn lease(run: u32) -> Lease {
    (run, 7)
}

fn finished(row: u64) -> Finished {
    let completion = Completion { text: "t".into(), ..Completion::default() };
    Finished::new(7, row, &completion).unwrap()
}

fn rows(part: &OpenPart) -> Vec<(u32, u64)> {
    let mut rows: Vec<_> = part.rows.iter().map(|row| (row.slot, row.row)).collect();
    rows.sort_unstable();
    rows
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[tokio::test]
async fn results_of_all_slots_of_a_run_are_one_part_and_another_run_has_its_own() {
    let worker = Worker::new(2, PartConfig::default());
    worker.grant(0, 1, 0..3);
    worker.grant(1, 1, 3..6);
    worker.grant(1, 2, 0..2);
    for (slot, run, row) in [(0, 1, 0), (1, 1, 3), (1, 2, 0), (0, 1, 1)] {
        assert!(worker.ends(slot, run, row, ms(0)).await.is_empty());
    }
    // The first slot wrote to one of the two parts, and closes that one.
    let closed = worker.due(0, SlotLoad::Busy, LONG);
    assert_eq!(closed.iter().map(rows).collect::<Vec<_>>(), [[(0, 0), (0, 1), (1, 3)]]);
    let closed = worker.due(1, SlotLoad::Busy, LONG);
    assert_eq!(closed.iter().map(rows).collect::<Vec<_>>(), [[(1, 0)]]);
}

#[tokio::test]
async fn a_part_closes_by_rows_and_by_bytes() {
    let config = PartConfig { rows: 3, ..PartConfig::default() };
    let worker = Worker::new(2, config);
    worker.grant(0, 1, 0..9);
    assert!(worker.ends(0, 1, 0, ms(0)).await.is_empty());
    assert!(worker.ends(1, 1, 9, ms(0)).await.is_empty());
    let closed = worker.ends(0, 1, 1, ms(0)).await;
    assert_eq!(closed.iter().map(rows).collect::<Vec<_>>(), [[(0, 0), (0, 1), (1, 9)]]);

    let bytes = 3 * finished(0).body.len();
    let worker = Worker::new(1, PartConfig { bytes, ..PartConfig::default() });
    worker.grant(0, 1, 0..9);
    let mut closed = Vec::new();
    for row in 0..3 {
        closed.extend(worker.ends(0, 1, row, ms(0)).await);
    }
    assert_eq!(closed.len(), 1);
}

#[tokio::test]
async fn a_part_waits_for_its_age_while_its_slots_have_rows() {
    let worker = Worker::new(1, PartConfig::default());
    worker.grant(0, 1, 0..9);
    worker.ends(0, 1, 0, ms(0)).await;
    worker.ends(0, 1, 1, ms(9000)).await;
    assert!(worker.due(0, SlotLoad::Busy, ms(9999)).is_empty());
    assert_eq!(worker.next(0, SlotLoad::Busy), Some(LONG));
    assert_eq!(worker.due(0, SlotLoad::Busy, LONG).len(), 1, "since its first row");
    assert_eq!(worker.next(0, SlotLoad::Busy), None);
}

#[tokio::test]
async fn a_row_that_may_wait_for_less_closes_its_part_earlier() {
    let worker = Worker::new(1, PartConfig::default());
    worker.grant(0, 1, 0..9);
    worker.ends(0, 1, 0, ms(0)).await;
    let room = worker.spools[0].room().await;
    worker.combiner.add((0, 1), finished(1), room, worker.now + ms(3000), worker.now);
    assert_eq!(worker.next(0, SlotLoad::Busy), Some(ms(3000)));
}

#[tokio::test]
async fn a_slot_that_gets_no_rows_for_its_places_closes_after_a_second_unless_there_are_none() {
    let worker = Worker::new(2, PartConfig::default());
    worker.grant(0, 1, 0..2);
    worker.grant(1, 1, 2..4);
    worker.ends(0, 1, 0, ms(0)).await;
    assert_eq!(worker.next(0, SlotLoad::Starved), Some(STARVED_AFTER));
    assert_eq!(worker.next(1, SlotLoad::Starved), None, "it wrote nothing to it");
    worker.combiner.at_tail(1);
    assert_eq!(
        worker.next(0, SlotLoad::Starved),
        Some(LONG),
        "no rows come, however soon results are reported"
    );
    worker.grant(1, 1, 4..5);
    assert_eq!(worker.next(0, SlotLoad::Starved), Some(STARVED_AFTER), "something came");
    assert_eq!(worker.due(0, SlotLoad::Starved, STARVED_AFTER).len(), 1);
}

#[tokio::test]
async fn a_part_closes_soon_after_the_workers_last_row_of_its_run() {
    let worker = Worker::new(2, PartConfig::default());
    worker.grant(0, 1, 0..2);
    worker.grant(1, 1, 2..3);
    worker.ends(0, 1, 0, ms(0)).await;
    worker.ends(0, 1, 1, ms(10)).await;
    assert_eq!(worker.next(0, SlotLoad::Busy), Some(LONG), "the other slot has one");
    worker.ends(1, 1, 2, ms(300)).await;
    assert_eq!(worker.next(1, SlotLoad::Idle), Some(ms(300) + QUIET_IDLE));
    assert_eq!(worker.next(1, SlotLoad::Busy), Some(ms(300) + QUIET_BUSY));
    // The first slot is notified, because it may otherwise not wake before its part's age.
    worker.changed[0].notified().await;
    // More rows of the run arrive, so that row was not the last one.
    worker.grant(0, 1, 3..4);
    assert_eq!(worker.next(1, SlotLoad::Busy), Some(LONG));
    worker.ends(0, 1, 3, ms(400)).await;
    assert_eq!(worker.due(0, SlotLoad::Idle, ms(400) + QUIET_IDLE).len(), 1);
}

#[tokio::test]
async fn the_last_row_may_end_without_a_result() {
    let worker = Worker::new(2, PartConfig::default());
    worker.grant(0, 1, 0..1);
    worker.grant(1, 1, 1..2);
    worker.ends(0, 1, 0, ms(0)).await;
    worker.lease_tables[1].lock().end(lease(1), 1);
    worker.combiner.rows_left(worker.now + ms(20));
    worker.changed[0].notified().await;
    worker.combiner.rows_left(worker.now + ms(90));
    assert_eq!(worker.next(0, SlotLoad::Busy), Some(ms(20) + QUIET_BUSY), "since the first look");
}

#[tokio::test]
async fn a_slot_that_leaves_closes_at_once() {
    let worker = Worker::new(2, PartConfig::default());
    worker.grant(1, 1, 1..9);
    worker.grant(0, 1, 0..1);
    worker.ends(0, 1, 0, ms(0)).await;
    assert!(worker.due(0, SlotLoad::Idle, ms(0)).is_empty());
    assert_eq!(worker.due(0, SlotLoad::Leaving, ms(0)).len(), 1);
}

#[tokio::test]
async fn open_parts_are_bounded_over_all_runs() {
    let config = PartConfig { rows: 4096, ..PartConfig::default() };
    let worker = Worker::new(1, config);
    let each = OPEN_ROWS_MAX as u64 / 4;
    let mut closed = Vec::new();
    for run in 0..5 {
        worker.grant(0, run, 0..each + 1);
        for row in 0..each {
            closed.extend(worker.ends(0, run, row, ms(u64::from(run))).await);
        }
    }
    assert_eq!(closed.iter().map(|part| part.id.run).collect::<Vec<_>>(), [0], "the oldest");
    assert_eq!(closed[0].rows.len() as u64, each);
}

#[tokio::test]
async fn rows_that_were_taken_away_are_in_no_part() {
    let worker = Worker::new(2, PartConfig::default());
    worker.grant(0, 1, 0..3);
    worker.grant(1, 1, 3..5);
    for (slot, row) in [(0, 0), (0, 1), (1, 3)] {
        worker.ends(slot, 1, row, ms(0)).await;
    }
    let wire = |rows: &[u64]| {
        let held: LeasedRows = rows.iter().map(|row| (lease(1), *row)).collect();
        NamedRows::new(held.to_wire())
    };
    // From an open part, whose file in the other slot's spool stays.
    let named = wire(&[3]);
    worker.lease_tables[1].lock().take(&named);
    assert_eq!(worker.combiner.take_away(1, &named).len(), 1);
    assert!(!worker.combiner.holds(1) && worker.combiner.holds(0));
    // From a closed one, before it is stored.
    let mut part = worker.due(0, SlotLoad::Busy, LONG).remove(0);
    assert_eq!(rows(&part), [(0, 0), (0, 1)]);
    worker.lease_tables[0].lock().take(&wire(&[0]));
    worker.combiner.keep_wanted(&mut part);
    assert_eq!(rows(&part), [(0, 1)]);
    assert!(worker.combiner.is_wanted(&part));
    worker.lease_tables[0].lock().take(&wire(&[1]));
    assert!(!worker.combiner.is_wanted(&part));
}

#[tokio::test]
async fn an_answer_settles_the_rows_of_every_slot_and_tells_it() {
    let worker = Worker::new(3, PartConfig::default());
    worker.grant(0, 1, 0..1);
    worker.grant(1, 1, 1..2);
    worker.ends(0, 1, 0, ms(0)).await;
    worker.ends(1, 1, 1, ms(0)).await;
    let part = worker.due(0, SlotLoad::Leaving, ms(0)).remove(0);
    worker.combiner.sync(&part).await;
    assert_eq!((worker.files(0), worker.files(1), worker.files(2)), (1, 1, 0));
    assert!(worker.combiner.holds(0) && worker.combiner.holds(1) && !worker.combiner.holds(2));
    assert_eq!(worker.combiner.rows_in(part.id), 2);
    worker.combiner.settle(part.id).await;
    assert!(!worker.combiner.holds(0) && !worker.combiner.holds(1));
    assert!(worker.lease_tables.iter().all(|lease_table| lease_table.lock().held().is_empty()));
    worker.changed[1].notified().await;
    until("the spools are empty", || worker.files(0) + worker.files(1) == 0).await;
}

#[tokio::test]
async fn a_part_of_an_earlier_process_keeps_its_file_and_gets_a_number_of_its_own() {
    let worker = Worker::new(2, PartConfig::default());
    worker.grant(0, 1, 0..1);
    worker.ends(0, 1, 0, ms(0)).await;
    let mut left = OpenPart::new(PartId { run: 1, number: 0 });
    left.push(finished(8));
    worker.lease_tables[1].lock().end(lease(1), 8);
    let recovered = worker.combiner.recovered(1, left);
    assert_eq!(recovered.files, BTreeSet::from([(1, PartId { run: 1, number: 0 })]));
    assert_eq!(rows(&recovered), [(1, 8)]);
    let open = worker.due(0, SlotLoad::Leaving, ms(0)).remove(0);
    assert_ne!(open.id, recovered.id);
    worker.combiner.settle(recovered.id).await;
    assert!(worker.combiner.holds(0) && !worker.combiner.holds(1));
}

#[tokio::test]
async fn a_row_covered_by_another_report_leaves_the_part() {
    let worker = Worker::new(2, PartConfig::default());
    worker.grant(0, 1, 0..1);
    worker.grant(1, 1, 1..2);
    worker.ends(0, 1, 0, ms(0)).await;
    worker.ends(1, 1, 1, ms(0)).await;
    let mut part = worker.due(0, SlotLoad::Leaving, ms(0)).remove(0);
    part.retain(|row| row.row == 0);
    worker.combiner.shrunk(&part);
    worker.combiner.settle(part.id).await;
    assert!(worker.lease_tables[1].lock().is_ended(lease(1), 1), "its own report is not answered");
    worker.combiner.settle_rows(&[(lease(1), 1)].into_iter().collect());
    assert!(worker.lease_tables[1].lock().held().is_empty());
}

/// A closed part with this many rows, without an upload.
fn close_part(worker: &Worker, number: u64, rows: u64) -> PartId {
    let mut part = OpenPart::new(PartId { run: 1, number });
    (0..rows).for_each(|row| part.push(finished(row)));
    worker.combiner.recovered(0, part).id
}

#[tokio::test]
async fn small_parts_of_many_runs_stop_no_slot_for_long_and_an_answer_lets_all_go_on() {
    let worker = Worker::new(2, PartConfig::default());
    let all = 2 * BACKLOG_PARTS_PER_SLOT as u64;
    let mut last = close_part(&worker, 0, 1);
    for number in 1..all {
        assert!(!worker.combiner.is_backlogged(), "after {number} parts");
        last = close_part(&worker, number, 1);
    }
    assert!(worker.combiner.is_backlogged());
    worker.combiner.settle(last).await;
    assert!(!worker.combiner.is_backlogged());
    worker.changed[1].notified().await;
}

#[tokio::test]
async fn closed_parts_are_bounded_in_rows_and_in_bytes() {
    let worker = Worker::new(8, PartConfig::default());
    let full = BACKLOG_ROWS as u64 / 1024;
    for number in 0..full {
        assert!(!worker.combiner.is_backlogged(), "after {number} parts");
        close_part(&worker, number, 1024);
    }
    assert!(worker.combiner.is_backlogged());

    let worker = Worker::new(8, PartConfig::default());
    for number in 0..32 {
        assert!(!worker.combiner.is_backlogged(), "after {number} parts");
        let mut part = OpenPart::new(PartId { run: 1, number });
        part.push(Finished { body: vec![b'x'; 8 << 20].into(), ..finished(number) });
        worker.combiner.recovered(0, part);
    }
    assert!(worker.combiner.is_backlogged());
}

#[tokio::test]
async fn a_slot_that_holds_nothing_reports_its_rows_soon_even_if_the_run_has_no_more() {
    let worker = Worker::new(2, PartConfig::default());
    worker.grant(0, 1, 0..2);
    worker.grant(1, 1, 2..4);
    worker.combiner.at_tail(1);
    worker.ends(0, 1, 0, ms(0)).await;
    worker.ends(1, 1, 2, ms(500)).await;
    worker.ends(0, 1, 1, ms(3000)).await;
    assert_eq!(worker.next(1, SlotLoad::Starved), Some(LONG), "its own row goes on");
    let idle = worker.next(0, SlotLoad::Idle);
    assert_eq!(idle, Some(ms(3000) + STARVED_AFTER), "or the ledger gives it no trial");
    assert!(worker.due(0, SlotLoad::Idle, ms(3999)).is_empty());
    let closed = worker.due(0, SlotLoad::Idle, ms(4000));
    assert_eq!(closed.iter().map(rows).collect::<Vec<_>>(), [[(0, 0), (0, 1), (1, 2)]]);
    worker.ends(1, 1, 3, ms(5000)).await;
    assert_eq!(worker.next(0, SlotLoad::Idle), None, "it wrote nothing more");
}
