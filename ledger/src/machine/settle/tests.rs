//! Measures the cost of reading and ticking, in visited records.

use crate::batch::incident::{EndKind, Incident, NamedSlot};
use crate::batch::slot_incidents::SlotIncident;
use crate::batch::spec::{EngineSpec, RunSpec, SlotOffer};
use crate::identity::quota::Quota;
use crate::kernel::id::{CoordEpoch, LedgerMs, RunNo, SegmentNo, SlotNo, SlotRef};
use crate::kernel::limits;
use crate::kernel::reply::Reply;
use crate::kernel::rows::Rows;
use crate::kernel::versions::FAILED_SETS_VERSION;
use crate::kernel::visits::visits_of;
use crate::machine::apply::Context;
use crate::machine::command::op;
use crate::machine::command::{
    BlobRef, Body, Command, Evidence, FailureClass, HeldRows, Op, OpKind, PartDecl, Registration,
    SegmentDecl,
};
use crate::machine::ledger::{EntryId, Ledger};
use crate::machine::version_gate::SCHEDULING_VERSION;
use crate::machine::view::Pool;

const RUNS: u32 = 30;
const WORKERS: u16 = 20;
const SLOTS: u16 = 8;
/// Visits to the one run, worker and slot that an operation changes. It changes some more than once.
const FEW: u64 = 30;

/// A ledger, and the index of its last entry.
struct Bench(Ledger, u64);

impl Bench {
    /// Runs of two models with deadlines and timeouts, and workers with slots of either model, some of which hold
    /// rows.
    fn new() -> Self {
        let mut bench = Self(Ledger::new([1; 16]), 0);
        bench.apply(Body::OpenEpoch, 0);
        for n in 0..RUNS {
            bench.run(&format!("r{n}"), 1_000_000 + u64::from(n));
        }
        for n in 0..WORKERS {
            let slot = bench.worker(&format!("w{n}"));
            bench.claim(slot, 1);
        }
        bench.0.check_invariants().expect("they hold");
        bench
    }

    fn apply(&mut self, body: Body, at: u64) -> Reply {
        self.1 += 1;
        let command = Command { epoch: CoordEpoch(1), at: LedgerMs(at), wall_ms: 0, body };
        let entry = EntryId { index: self.1, term: 1 };
        let mut replies = self.0.apply(entry, &command.encode()).expect("it is known");
        match replies.pop().expect("a reply") {
            Reply::Rejected(why) => panic!("{why:?}"),
            reply => reply,
        }
    }

    fn op(&mut self, kind: OpKind) -> Reply {
        self.apply(Body::Ops(vec![kind.into()]), 0)
    }

    fn run(&mut self, name: &str, deadline_ms: u64) -> RunNo {
        // Each run takes two commands.
        let model = if (self.1 / 2).is_multiple_of(2) { "small" } else { "big" };
        let run = self.run_without_rows(name, model, deadline_ms);
        self.segment(run, 0);
        run
    }

    /// A run for the slots of [`chat_worker`](Self::chat_worker).
    fn chat_run(&mut self, name: &str, rows: u32) -> RunNo {
        let run = self.run_without_rows(name, "chat", 0);
        let segment = SegmentDecl { number: SegmentNo(0), rows, blob: BlobRef::default() };
        self.op(OpKind::AddSegments(op::AddSegments { run, segments: vec![segment] }));
        run
    }

    fn run_without_rows(&mut self, name: &str, model: &str, deadline_ms: u64) -> RunNo {
        let spec = RunSpec {
            engine: EngineSpec { model: model.into(), ..EngineSpec::default() },
            weight: 1,
            attempts_max: 3,
            attempt_timeout_ms: 500_000,
            deadline_ms,
            ..RunSpec::default()
        };
        let (folder, spec, name) = (format!("{name}/own"), Box::new(spec), name.to_owned());
        let create =
            OpKind::CreateRun(op::CreateRun { namespace: "default".into(), name, spec, folder });
        let Reply::Run { run, .. } = self.op(create) else { panic!("no run") };
        run
    }

    fn segment(&mut self, run: RunNo, number: u32) {
        let blob = BlobRef::default();
        let segment = SegmentDecl { number: SegmentNo(number), rows: 100, blob };
        self.op(OpKind::AddSegments(op::AddSegments { run, segments: vec![segment] }));
    }

    /// The first slot of a worker.
    fn worker(&mut self, name: &str) -> SlotRef {
        let offer = |n: u16| SlotOffer {
            models: vec![if n.is_multiple_of(2) { "small" } else { "big" }.into()],
            ..SlotOffer::default()
        };
        self.register(name, (0..SLOTS).map(offer).collect())
    }

    /// The first slot of a worker whose slots serve one model.
    fn chat_worker(&mut self, name: &str, slots: usize) -> SlotRef {
        let offer = SlotOffer { models: vec!["chat".into()], ..SlotOffer::default() };
        self.register(name, vec![offer; slots])
    }

    fn register(&mut self, name: &str, slots: Vec<SlotOffer>) -> SlotRef {
        let registration = Registration {
            namespace: "default".into(),
            name: name.into(),
            instance: 1,
            slots,
            ..Registration::default()
        };
        match self.op(OpKind::Register(Box::new(registration))) {
            Reply::Registered { session, .. } => SlotRef { session, slot: SlotNo(0) },
            reply => panic!("{reply:?}"),
        }
    }

    fn claim(&mut self, slot: SlotRef, seq: u64) {
        self.op(OpKind::Claim(op::Claim { slot, instance: 1, seq, rows_max: 10 }));
    }

    /// The rows that a slot gets, of one run.
    fn pull(&mut self, slot: SlotRef, seq: u64, rows_max: u32) -> HeldRows {
        let claim = OpKind::Claim(op::Claim { slot, instance: 1, seq, rows_max });
        let Reply::Granted(mut granted) = self.op(claim) else { panic!("no rows") };
        assert_eq!(granted.len(), 1);
        granted.remove(0).held
    }

    /// A slot fails the first row that it gets.
    fn fail_next(&mut self, slot: SlotRef, seq: u64, class: FailureClass) -> HeldRows {
        let held = self.pull(slot, seq, 1);
        self.op(failure(slot, held.clone(), class));
        held
    }

    fn complete(&mut self, slot: SlotRef, held: HeldRows) {
        let mut blob = BlobRef { bytes: 1, ..BlobRef::default() };
        blob.digest[..8].copy_from_slice(&self.1.to_be_bytes());
        let (run, part) = (held.run, PartDecl { blob, tokens_in: 0, tokens_out: 0 });
        self.op(OpKind::Complete(op::Complete { slot, run, part, sets: vec![held] }));
    }
}

fn failure(slot: SlotRef, held: HeldRows, class: FailureClass) -> OpKind {
    let (code, message, evidence) = (String::new(), String::new(), Evidence::default());
    OpKind::Fail(op::Fail { slot, held, class, code, message, evidence })
}

#[test]
fn a_tick_without_anything_due_visits_no_run_and_no_worker() {
    let mut bench = Bench::new();
    assert_eq!(bench.0.next_deadline(), Some(LedgerMs(1_000_000)));
    assert_eq!(visits_of(|| bench.0.next_deadline()), 0);
    assert_eq!(visits_of(|| bench.apply(Body::Tick, 10)), 0);
}

#[test]
fn a_tick_reads_only_due_records() {
    let mut bench = Bench::new();
    let run = bench.run("soon", 1000);
    assert_eq!(bench.0.next_deadline(), Some(LedgerMs(1000)));
    let visits = visits_of(|| bench.apply(Body::Tick, 1000));
    assert!((1..=FEW).contains(&visits), "{visits} visits");
    assert!(bench.0.runs.get(&run).expect("a run").ended());
    assert_eq!(bench.0.next_deadline(), Some(LedgerMs(1_000_000)));
    bench.0.check_invariants().expect("they hold");
}

#[test]
fn a_scrape_visits_no_run_and_no_slot() {
    let bench = Bench::new();
    assert_eq!(visits_of(|| bench.0.pools()), 0);
    assert_eq!(visits_of(|| bench.0.run_states()), 0);
    let pools = bench.0.pools();
    let slots = u64::from(WORKERS * SLOTS / 2);
    let sum = |of: fn(&Pool) -> u64| pools.values().map(of).sum::<u64>();
    assert_eq!(pools.values().map(|pool| pool.slots).collect::<Vec<_>>(), [slots, slots]);
    assert_eq!(sum(|pool| pool.pending + pool.running), u64::from(RUNS) * 100);
    assert_eq!(sum(|pool| pool.running), u64::from(WORKERS) * 10);
    assert_eq!(sum(|pool| pool.idle), 2 * slots - u64::from(WORKERS));
    assert_eq!(bench.0.run_states(), (RUNS, 0, 0));
}

#[test]
fn a_claim_counts_the_run_and_the_slot_that_it_changes() {
    let mut bench = Bench::new();
    let slot = bench.worker("more");
    let visits = visits_of(|| bench.claim(slot, 1));
    assert!((1..=FEW).contains(&visits), "{visits} visits");
}

#[test]
fn a_quota_is_checked_without_a_look_at_other_runs() {
    let mut bench = Bench::new();
    let run = bench.run("last", 0);
    let bounds = (Some(1_000_000), Some(1000));
    let quota = Quota {
        namespace: "default".into(),
        pending_rows_max: bounds.0,
        runs_max: bounds.1,
        ..Quota::default()
    };
    bench.op(OpKind::SetQuota(quota));
    let visits = visits_of(|| bench.segment(run, 1));
    assert!((1..=FEW).contains(&visits), "{visits} visits");
    let visits = visits_of(|| bench.run("more", 0));
    assert!((1..=FEW).contains(&visits), "{visits} visits");
    let view = bench.0.namespace_view("default").expect("it is there");
    assert_eq!(view.runs, RUNS + 2);
    let pending = u64::from(RUNS + 3) * 100 - u64::from(WORKERS) * 10;
    assert_eq!(view.pending_rows, pending);
    bench.0.check_invariants().expect("they hold");
}

/// As many reports of a dead engine as cordon a slot.
fn deaths(slot: SlotRef) -> impl Iterator<Item = Op> {
    let died = move |number| {
        OpKind::EngineDied(op::EngineDied {
            slot,
            number,
            started: Vec::new(),
            class: FailureClass::EngineDied,
            code: String::new(),
            message: String::new(),
            evidence: Evidence::default(),
        })
    };
    (1..=u64::from(limits::CORDON_AFTER_DEFAULT)).map(died).map(Op::from)
}

#[test]
fn the_bound_on_cordons_is_kept_without_a_look_at_other_slots() {
    let mut bench = Bench::new();
    bench.apply(Body::SetVersion(SCHEDULING_VERSION), 0);
    let slots = bench.0.slots().map(|(_, at, _)| at);
    let small: Vec<SlotRef> = slots.filter(|at| at.slot.0.is_multiple_of(2)).collect();
    let most = small.len() * limits::CORDONED_PERCENT_MAX / 100;
    for op in small[..most - 1].iter().flat_map(|slot| deaths(*slot)) {
        let visits = visits_of(|| bench.apply(Body::Ops(vec![op]), 0));
        assert!((1..=FEW).contains(&visits), "{visits} visits");
    }
    // The operations of one command see the cordons of those before them.
    let ops = small[most - 1..most + 9].iter().flat_map(|slot| deaths(*slot)).collect();
    let visits = visits_of(|| bench.apply(Body::Ops(ops), 0));
    assert!(visits <= 10 * u64::from(limits::CORDON_AFTER_DEFAULT) * FEW, "{visits} visits");
    let cordoned = bench.0.slots().filter(|(_, _, slot)| slot.cordon().is_some());
    assert_eq!(cordoned.count(), most);
    bench.0.check_invariants().expect("they hold");
}

#[test]
fn the_ledger_decides_whether_another_worker_fits_without_visiting_other_slots() {
    let mut bench = Bench::new();
    bench.apply(Body::SetVersion(SCHEDULING_VERSION), 0);
    let busy = bench.0.workers.sessions();
    let (own, other) = (bench.worker("own"), bench.worker("other"));
    let drain = |session| OpKind::Drain(op::DrainWorker { session, deadline_ms: 0 });
    busy.into_iter().for_each(|session| drop(bench.op(drain(session))));
    let failed = bench.fail_next(own, 1, FailureClass::Transient);
    bench.apply(Body::Tick, 1000);
    for fits in [true, false] {
        let ledger = &bench.0;
        let run = ledger.runs.get(&failed.run).unwrap();
        let worker = ledger.workers.get(&own.session).unwrap();
        // The worker's two offers, and one of the two cohorts, which has the model of the run.
        assert_eq!(visits_of(|| assert_eq!(ledger.another_worker_fits(run, worker), fits)), 3);
        let kept = |rows: &Rows| ledger.kept_of(own, failed.run, rows);
        let visits = visits_of(|| assert_eq!(kept(&failed.rows), failed.rows));
        assert_eq!(visits, 3, "another worker fits, or another slot of its own");
        let visits = visits_of(|| assert!(kept(&Rows::range(50, 10)).is_empty()));
        assert_eq!(visits, 0, "none of these rows has failed");
        bench.0.check_invariants().expect("they hold");
        bench.op(drain(other.session));
    }
}

#[test]
fn a_claim_beside_many_sets_of_slots_does_not_scan_their_workers() {
    let mut bench = Bench(Ledger::new([1; 16]), 0);
    bench.apply(Body::OpenEpoch, 0);
    bench.apply(Body::SetVersion(FAILED_SETS_VERSION), 0);
    let named = |worker: u16, slot| NamedSlot { worker: format!("w{worker}"), slot: SlotNo(slot) };
    let slots: Vec<SlotRef> = (0..8).map(|n| bench.chat_worker(&format!("w{n}"), 64)).collect();
    // Of each run, only returned rows are left, and slots of all eight workers failed each of them: 64 different sets.
    for n in 0..100 {
        let (no, rows) = (bench.chat_run(&format!("r{n}"), 64), Rows::range(0, 64));
        let run = bench.0.runs.change(&no).expect("there");
        assert_eq!(run.take_pending(64, None), rows);
        bench.0.runs.wait(no, rows.iter(), LedgerMs(1));
        for row in 0..64 {
            let earlier = (1..8).map(|worker| named(worker, row)).collect();
            let (end, at, until) = (EndKind::RowFailed, named(0, row), Some(LedgerMs(600_000)));
            let incident = Incident { end, at, until, died_alone_at: None, earlier };
            bench.0.runs.open_incident((no, row.into()), incident);
        }
        bench.0.runs.end_all_waits(no);
        bench.0.refresh_active(no);
    }
    bench.0.settle_indexes();
    bench.0.check_invariants().expect("they hold");
    let other = bench.chat_worker("other", 1);
    // Per run: 16 sets, an offer of each of eight workers, the slot's own offer, and two cohorts. A claim adds the
    // run's turn.
    let asked = visits_of(|| assert!(!bench.0.claim_forecast().would_grant(slots[0], 1)));
    assert!(asked <= 100 * FEW, "{asked} visits");
    let claim = OpKind::Claim(op::Claim { slot: slots[0], instance: 1, seq: 1, rows_max: 1 });
    let none = |reply| assert!(matches!(reply, Reply::Granted(rows) if rows.is_empty()));
    let claimed = visits_of(|| none(bench.op(claim)));
    assert!(claimed <= 100 * FEW + FEW, "{claimed} visits");
    assert_eq!(bench.pull(other, 1, 1).rows.len(), 1, "its worker failed none");
    // Without that worker, a slot gets the rows that other slots failed.
    bench.op(OpKind::Deregister(op::Deregister { session: other.session }));
    let held = bench.pull(slots[0], 1, 1);
    assert!(held.rows.iter().all(|row| row > 0), "{held:?}");
    bench.0.check_invariants().expect("they hold");
}

#[test]
fn a_row_that_is_the_cause_costs_the_slots_that_had_it() {
    let mut bench = Bench::new();
    bench.apply(Body::SetVersion(SCHEDULING_VERSION), 0);
    let sessions = bench.0.workers.sessions().into_iter();
    let slots: Vec<SlotRef> =
        sessions.map(|session| SlotRef { session, slot: SlotNo(0) }).collect();
    // Each of them has claimed before.
    let fail = |slot: &SlotRef| bench.fail_next(*slot, 2, FailureClass::Transient);
    let failed: Vec<HeldRows> = slots.iter().map(fail).collect();
    let listed = |bench: &Bench| {
        let incidents =
            slots.iter().map(|slot| bench.0.slot(*slot).map_or(0, |s| s.incidents().len()));
        incidents.collect::<Vec<usize>>()
    };
    assert_eq!(listed(&bench), vec![1; slots.len()]);
    let (no, row) = (failed[0].run, failed[0].rows.end() - 1);
    let ctx = Context::outside(bench.0.meta.applied, 0);
    assert_eq!(visits_of(|| bench.0.clear_slots_of(&ctx, no, row)), 1);
    let mut left = vec![1; slots.len()];
    left[0] = 0;
    assert_eq!(listed(&bench), left, "others had other rows");
    bench.0.settle_indexes();
    bench.0.check_invariants().expect("they hold");
}

#[test]
fn failures_at_a_slot_do_not_read_the_rows_of_its_deaths_again() {
    let mut bench = Bench::new();
    bench.apply(Body::SetVersion(SCHEDULING_VERSION), 0);
    let (own, other) = (bench.worker("own"), bench.worker("other"));
    // Others have completed all rows of a death but the last ones, and have such a death too: so each failure asks
    // for the outcomes of these rows.
    let mut sets: Vec<HeldRows> = (1..=6).map(|seq| bench.pull(other, seq, 30)).collect();
    let last = sets.split_off(5).remove(0);
    sets.iter().for_each(|held| bench.complete(other, held.clone()));
    let rows = sets.into_iter().chain([last.clone()]).map(|held| (held.run, held.rows));
    let death = SlotIncident::new(EndKind::EngineDied, rows.collect());
    let ctx = Context::outside(bench.0.meta.applied, 0);
    for slot in [own, other] {
        bench.0.count_incident(&ctx, slot, death.clone(), "");
    }
    let failed = bench.pull(own, 1, 30);
    let fail = |row| {
        let held = HeldRows { rows: Rows::range(row, 1), ..failed.clone() };
        Op::from(failure(own, held, FailureClass::Transient))
    };
    let ops: Vec<Op> = failed.rows.iter().map(fail).collect();
    let most = ops.len() as u64 * FEW;
    let visits = visits_of(|| bench.apply(Body::Ops(ops), 0));
    assert!(visits <= most, "{visits} visits, more than {most}");
    let completed = |bench: &Bench| {
        bench.0.slot(own).map_or(0, |held| bench.0.completed(held.incidents()).count())
    };
    assert_eq!(completed(&bench), 0);
    bench.0.check_invariants().expect("they hold");
    bench.complete(other, last.clone());
    bench.fail_next(own, 2, FailureClass::Transient);
    assert_eq!(completed(&bench), 1, "now all of its rows are done");
    // As garbage collection drops the rows of a run.
    bench.0.runs.drop_rows(last.run);
    assert_eq!(completed(&bench), 0, "it is not known any more");
}
