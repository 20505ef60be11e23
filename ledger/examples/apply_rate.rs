//! Measures how many rows one core claims and completes per second, and how much memory they take.
//!
//! `cargo run --release -p rollout-ledger --example apply_rate [rows ...]` prints a JSON line for each combination.
//! This is no test: it has no limits, and other load on the machine changes the figures.
//!
//! Eight workers pull and complete in turn, and their operations share a log entry, as they do under a leader.
//! Encoding is not counted, decoding is.

use rollout_ledger::id::{CoordEpoch, LedgerMs, RunNo, SegmentNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::{
    BlobRef, Body, Command, EngineSpec, EntryId, HeldRows, Ledger, Op, OpKind, PartDecl,
    Registration, Reply, Rows, RunSpec, SegmentDecl, SlotOffer, limits, op,
};
use std::time::Duration;

#[expect(clippy::disallowed_types, reason = "this measures time, it is not the ledger")]
type Clock = std::time::Instant;

/// The process of every worker here.
const INSTANCE: u64 = 0;

#[expect(clippy::disallowed_methods, reason = "this measures time, it is not the ledger")]
fn now() -> Clock {
    Clock::now()
}

const WORKERS: u32 = 8;
const RUN: RunNo = RunNo(1);

struct Bench {
    ledger: Ledger,
    index: u64,
    entries: u64,
    log_bytes: u64,
    spent: Duration,
}

impl Bench {
    fn apply(&mut self, body: Body) -> Vec<Reply> {
        self.index += 1;
        let command = Command { epoch: CoordEpoch(1), at: LedgerMs(0), wall_ms: 0, body };
        let bytes = command.encode();
        let entry = EntryId { index: self.index, term: 1 };
        let began = now();
        let replies = self.ledger.apply(entry, &bytes).expect("known");
        drop(self.ledger.take_events()); // As the event ring does.
        self.spent += began.elapsed();
        self.entries += 1;
        self.log_bytes += bytes.len() as u64;
        replies
    }

    fn ops(&mut self, ops: Vec<OpKind>) -> Vec<Reply> {
        self.apply(Body::Ops(ops.into_iter().map(Op::from).collect()))
    }

    /// A run of this many rows and workers that can serve it.
    fn new(rows: u64) -> (Self, Vec<SlotRef>) {
        let (ledger, spent) = (Ledger::new([0; 16]), Duration::ZERO);
        let mut bench = Self { ledger, index: 0, entries: 0, log_bytes: 0, spent };
        bench.apply(Body::OpenEpoch);
        let engine = EngineSpec { model: "m".into(), ..EngineSpec::default() };
        let spec = RunSpec { engine, weight: 1, attempts_max: 3, ..RunSpec::default() };
        let (namespace, name) = ("default".to_owned(), "bench".to_owned());
        let folder = format!("{name}/1");
        bench.ops(vec![OpKind::CreateRun(op::CreateRun {
            namespace,
            name,
            spec: Box::new(spec),
            folder,
        })]);
        let mut left = rows;
        let mut number = 0;
        while left > 0 {
            let take = left.min(u64::from(limits::SEGMENT_ROWS_MAX)) as u32;
            let number_now = SegmentNo(number);
            let decl = SegmentDecl { number: number_now, rows: take, blob: BlobRef::default() };
            bench
                .ops(vec![OpKind::AddSegments(op::AddSegments { run: RUN, segments: vec![decl] })]);
            (left, number) = (left - u64::from(take), number + 1);
        }
        let slots = (0..WORKERS).map(|w| bench.worker(w)).collect();
        (bench.entries, bench.log_bytes, bench.spent) = (0, 0, Duration::ZERO);
        (bench, slots)
    }

    fn worker(&mut self, number: u32) -> SlotRef {
        let offer = SlotOffer { models: vec!["m".into()], ..SlotOffer::default() };
        let registration = Registration {
            namespace: "default".into(),
            name: format!("w{number}"),
            slots: vec![offer],
            ..Registration::default()
        };
        let replies = self.ops(vec![OpKind::Register(Box::new(registration))]);
        let [Reply::Registered { session, .. }] = replies[..] else {
            return SlotRef { session: SessionId(0), slot: SlotNo(0) };
        };
        SlotRef { session, slot: SlotNo(0) }
    }

    /// One turn of all workers: each pulls, then completes its rows in parts of `part_rows` rows.
    fn turn(&mut self, slots: &[SlotRef], seq: u64, claim: u32, part_rows: u32) -> u64 {
        let pull = |&slot: &SlotRef| {
            OpKind::Claim(op::Claim { slot, instance: INSTANCE, seq, rows_max: claim })
        };
        let mut held = Vec::new();
        for (slot, reply) in slots.iter().zip(self.ops(slots.iter().map(pull).collect())) {
            let Reply::Granted(grants) = reply else { continue };
            held.extend(grants.into_iter().map(|g| (*slot, g.held)));
        }
        let mut rows = 0;
        while held.iter().any(|(_, h)| !h.rows.is_empty()) {
            let mut ops = Vec::new();
            for (slot, held) in held.iter_mut().filter(|(_, h)| !h.rows.is_empty()) {
                let taken: Vec<u64> = held.rows.iter().take(part_rows as usize).collect();
                let taken = Rows::from_ranges(taken.into_iter().map(|r| (r, 1))).expect("sorted");
                held.rows.subtract(&taken);
                rows += taken.len();
                let sets = vec![HeldRows { rows: taken, ..held.clone() }];
                let blob = BlobRef { digest: [1; 32], bytes: 1 };
                let part = PartDecl { blob, tokens_in: 1, tokens_out: 1 };
                ops.push(OpKind::Complete(op::Complete { slot: *slot, run: RUN, part, sets }));
            }
            self.ops(ops);
        }
        rows
    }
}

/// Resident bytes of this process, if the system reports them.
#[expect(clippy::disallowed_methods, reason = "this measures memory, it is not the ledger")]
fn resident() -> u64 {
    let text = std::fs::read("/proc/self/statm").unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let pages: u64 = text.split(' ').nth(1).and_then(|p| p.parse().ok()).unwrap_or(0);
    pages * 4096
}

fn measure(rows: u64, claim: u32, part_rows: u32) {
    let before = resident();
    let (mut bench, slots) = Bench::new(rows);
    let (mut done, mut seq) = (0, 0);
    loop {
        seq += 1;
        let now_done = bench.turn(&slots, seq, claim, part_rows);
        if now_done == 0 {
            break;
        }
        done += now_done;
        if seq % 1024 == 0 {
            bench.ledger.drain_dirty(); // As the writer of images does.
        }
    }
    assert_eq!(done, rows, "every row is done");
    let micros = bench.spent.as_micros().max(1) as u64;
    let grown = resident().saturating_sub(before);
    println!(
        "{{\"bench\":\"apply_rate\",\"rows\":{rows},\"claim_rows\":{claim},\"part_rows\":{part_rows},\
         \"workers\":{WORKERS},\"entries\":{},\"log_bytes\":{},\"micros\":{micros},\
         \"rows_per_s\":{},\"resident_bytes\":{grown},\"resident_bytes_per_row\":{}}}",
        bench.entries,
        bench.log_bytes,
        rows * 1_000_000 / micros,
        grown / rows.max(1)
    );
}

fn main() {
    let given: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let all = if given.is_empty() { vec![100_000, 10_000_000] } else { given };
    for rows in all {
        for (claim, part_rows) in [(256, 256), (32, 32), (256, 1), (1, 1)] {
            measure(rows, claim, part_rows);
        }
    }
}
