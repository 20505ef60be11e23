//! Shares are max-min fair by weight, whatever runs each slot can serve.
//!
//! The reference: consider all ways to give the rows that the slots pulled to the runs that they fit. Choose the one
//! in which the run with the fewest rows for its weight has as many as it can, then the next run, and so on. It is
//! computed set by set: the set of runs whose slots pulled the fewest rows for its weight gets exactly these, and the
//! remaining runs share what is left.

#![expect(
    clippy::disallowed_types,
    reason = "what is fair is computed beside the ledger, not in it"
)]

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult};
use rollout_ledger::id::{CoordEpoch, LedgerMs, RunNo, SegmentNo, SlotNo, SlotRef};
use rollout_ledger::{
    BlobRef, Body, Command, EngineSpec, EntryId, Ledger, Op, OpKind, PartDecl, Registration, Reply,
    RunAction, RunSpec, SegmentDecl, SlotOffer, limits, op,
};

const PULLS: usize = 10_000;
/// Rows of one pull, at most.
const PULL_ROWS: u32 = 32;
/// How far a share may be off, as a fraction of what is fair.
const TOLERANCE: f64 = 0.05;
/// Rows for each unit of weight by which a run may stay ahead of others, or behind them, when the open runs change.
const AHEAD_ROWS: u32 = 4 * limits::QUANTUM_ROWS;

/// A ledger, and the index of its last entry.
struct Bench(Ledger, u64);

impl Bench {
    fn new() -> Self {
        let mut bench = Self(Ledger::new([1; 16]), 0);
        bench.apply(Body::OpenEpoch);
        bench.apply(Body::SetVersion(3));
        bench
    }

    fn apply(&mut self, body: Body) -> Vec<Reply> {
        self.1 += 1;
        let command = Command { epoch: CoordEpoch(1), at: LedgerMs(0), wall_ms: 0, body };
        let replies = self.0.apply(EntryId { index: self.1, term: 1 }, &command.encode());
        self.0.take_events();
        replies.expect("a known command")
    }

    fn op(&mut self, op: OpKind) -> Reply {
        match self.apply(Body::Ops(vec![op.into()])).pop().expect("a reply") {
            Reply::Rejected(why) => panic!("{why:?}"),
            reply => reply,
        }
    }

    /// A run for slots that offer `model`.
    fn run(&mut self, model: &str, weight: u32, rows: u32) -> RunNo {
        let engine = EngineSpec { model: model.into(), ..EngineSpec::default() };
        let spec = RunSpec { engine, weight, attempts_max: 1, ..RunSpec::default() };
        let name = format!("r{}", self.1);
        let (folder, spec) = (format!("{name}/own"), Box::new(spec));
        let create =
            OpKind::CreateRun(op::CreateRun { namespace: "default".into(), name, spec, folder });
        let Reply::Run { run, .. } = self.op(create) else { panic!("no run") };
        let segment = |number: u32| {
            let rows = (rows - number * limits::SEGMENT_ROWS_MAX).min(limits::SEGMENT_ROWS_MAX);
            SegmentDecl { number: SegmentNo(number), rows, blob: BlobRef::default() }
        };
        let segments: Vec<_> = (0..rows.div_ceil(limits::SEGMENT_ROWS_MAX)).map(segment).collect();
        for segments in segments.chunks(64) {
            self.op(OpKind::AddSegments(op::AddSegments { run, segments: segments.to_vec() }));
        }
        run
    }

    fn slot(&mut self, models: Vec<String>) -> SlotRef {
        let registration = Registration {
            namespace: "default".into(),
            name: format!("w{}", self.1),
            instance: 1,
            slots: vec![SlotOffer { models, ..SlotOffer::default() }],
            ..Registration::default()
        };
        match self.op(OpKind::Register(Box::new(registration))) {
            Reply::Registered { session, .. } => SlotRef { session, slot: SlotNo(0) },
            reply => panic!("{reply:?}"),
        }
    }

    /// Rows that a pull gets, by run. They are done at once.
    fn pull(&mut self, slot: SlotRef, seq: u64, rows_max: u32) -> Vec<(RunNo, u64)> {
        let claim = OpKind::Claim(op::Claim { slot, instance: 1, seq, rows_max });
        let Reply::Granted(grants) = self.op(claim) else { panic!("no grant") };
        let part = PartDecl { blob: BlobRef::default(), tokens_in: 0, tokens_out: 0 };
        let done = |grant: &rollout_ledger::GrantedRows| {
            let (run, sets) = (grant.held.run, vec![grant.held.clone()]);
            Op::from(OpKind::Complete(op::Complete { slot, run, part: part.clone(), sets }))
        };
        let ops: Vec<Op> = grants.iter().map(done).collect();
        if !ops.is_empty() {
            self.apply(Body::Ops(ops));
        }
        grants.iter().map(|grant| (grant.held.run, grant.held.rows.len())).collect()
    }
}

/// Which runs each slot fits, as bits; how often it pulls; and for how many rows.
#[derive(Clone, Debug)]
struct Fleet {
    weights: Vec<u32>,
    slots: Vec<(u32, u32, u32)>,
}

fn fleet() -> impl Strategy<Value = Fleet> {
    (2..=6usize, 1..=6usize).prop_flat_map(|(runs, slots)| {
        let weight = prop_oneof![Just(1u32), Just(2), Just(3), Just(5)];
        let slot = (1..(1u32 << runs), 1..=4u32, 1..=PULL_ROWS);
        let weights = prop::collection::vec(weight, runs);
        let slots = prop::collection::vec(slot, slots);
        (weights, slots).prop_map(|(weights, slots)| Fleet { weights, slots })
    })
}

/// What each run should have, if slot `i` gives `given[i]` rows.
fn fair(fleet: &Fleet, given: &[f64]) -> Vec<f64> {
    let runs = fleet.weights.len();
    let mut shares = vec![0.0; runs];
    let served = fleet.slots.iter().fold(0, |all, slot| all | slot.0);
    let (mut open, mut left): (u32, Vec<f64>) = (served, given.to_vec());
    while open != 0 {
        let weight = |set: u32| {
            (0..runs)
                .filter(|run| set >> run & 1 == 1)
                .map(|run| f64::from(fleet.weights[run]))
                .sum::<f64>()
        };
        let rows = |set: u32| {
            fleet
                .slots
                .iter()
                .zip(&left)
                .filter(|(slot, _)| slot.0 & set != 0)
                .map(|(_, rows)| rows)
                .sum::<f64>()
        };
        let sets = (1..=open).filter(|set| set & !open == 0);
        let least = sets
            .min_by(|a, b| (rows(*a) / weight(*a)).total_cmp(&(rows(*b) / weight(*b))))
            .expect("open runs");
        let each = rows(least) / weight(least);
        for run in (0..runs).filter(|run| least >> run & 1 == 1) {
            shares[run] = each * f64::from(fleet.weights[run]);
        }
        for (slot, rows) in fleet.slots.iter().zip(&mut left) {
            if slot.0 & least != 0 {
                *rows = 0.0;
            }
        }
        open &= !least;
    }
    shares
}

/// Each of `phases` is 10,000 pulls with these runs open, as bits; the other runs do not exist yet, or are paused.
fn shares_are_fair(fleet: &Fleet, phases: &[u32], turns: &[u32]) -> TestCaseResult {
    let mut bench = Bench::new();
    let count = fleet.weights.len();
    let rows = PULLS as u32 * PULL_ROWS * phases.len() as u32;
    let offer = |set: u32| {
        (0..count).filter(|run| set >> run & 1 == 1).map(|run| format!("m{run}")).collect()
    };
    let slots: Vec<SlotRef> = fleet.slots.iter().map(|slot| bench.slot(offer(slot.0))).collect();
    // Slots pull in an arbitrary order, each as often as it should.
    let often: Vec<usize> =
        (0..slots.len()).flat_map(|at| vec![at; fleet.slots[at].1 as usize]).collect();
    let (mut runs, mut seq) = (vec![None; count], 0);
    for (phase, open) in phases.iter().enumerate() {
        for (no, run) in runs.iter_mut().enumerate() {
            match (*run, open >> no & 1 == 1) {
                (None, true) => {
                    *run = Some(bench.run(&format!("m{no}"), fleet.weights[no], rows));
                }
                (Some(run), true) => drop(bench.op(control(run, RunAction::Resume))),
                (Some(run), false) => drop(bench.op(control(run, RunAction::Pause))),
                (None, false) => {}
            }
        }
        let (mut given, mut got) = (vec![0.0; slots.len()], vec![0.0; count]);
        for pull in 0..PULLS {
            let at = often[turns[pull % turns.len()] as usize % often.len()];
            seq += 1;
            for (run, rows) in bench.pull(slots[at], seq, fleet.slots[at].2) {
                let run = runs.iter().position(|no| *no == Some(run)).expect("one of these");
                given[at] += rows as f64;
                got[run] += rows as f64;
            }
        }
        let fitting = |slot: &(u32, u32, u32)| (slot.0 & open, slot.1, slot.2);
        let slots_now = fleet.slots.iter().map(fitting).collect();
        let now = Fleet { slots: slots_now, ..fleet.clone() };
        // A share is off by what one pull, or one turn, gives at once, and by what is remembered of earlier phases.
        let earlier = if phase == 0 { 0.0 } else { f64::from(AHEAD_ROWS) };
        let grain = f64::from(PULL_ROWS.max(limits::QUANTUM_ROWS)) + earlier;
        for (run, fair) in fair(&now, &given).into_iter().enumerate() {
            let off = (got[run] - fair).abs();
            let most =
                TOLERANCE * fair + grain * f64::from(fleet.weights[run]) * slots.len() as f64;
            prop_assert!(
                off <= most,
                "phase {phase}: run {run} got {} rows, fair are {fair}: {got:?}",
                got[run]
            );
        }
        prop_assert_eq!(bench.0.check_invariants(), Ok(()));
    }
    Ok(())
}

proptest! {
    #![proptest_config(Config { cases: 24, ..Config::default() })]

    #[test]
    fn shares_are_max_min_fair_by_weight_for_any_overlap(
        fleet in fleet(),
        turns in prop::collection::vec(any::<u32>(), 997),
    ) {
        shares_are_fair(&fleet, &[u32::MAX], &turns)?;
    }
}

proptest! {
    #![proptest_config(Config { cases: 32, ..Config::default() })]

    #[test]
    fn shares_stay_fair_while_runs_come_and_are_paused_and_resumed(
        fleet in fleet(),
        phases in prop::collection::vec(1u32..64, 3),
        turns in prop::collection::vec(any::<u32>(), 997),
    ) {
        shares_are_fair(&fleet, &phases, &turns)?;
    }
}

#[test]
fn slots_that_fit_other_runs_take_no_turn_away() {
    // With one cursor for all, run 0 got 8 rows, and run 3 the rest: the slot of runs 1 and 2 moved it past run 0.
    let fleet = Fleet { weights: vec![1; 4], slots: vec![(0b1001, 1, 8), (0b0110, 1, 8)] };
    shares_are_fair(&fleet, &[u32::MAX], &[0, 1]).expect("fair");
}

#[test]
fn a_run_that_comes_late_neither_starves_nor_is_starved() {
    let mut bench = Bench::new();
    let (old, slot) = (bench.run("m", 1, 400_000), bench.slot(vec!["m".into()]));
    for seq in 1..=10_000 {
        bench.pull(slot, seq, 16);
    }
    let new = bench.run("m", 1, 400_000);
    let mut got = [0, 0];
    for seq in 10_001..=10_100 {
        for (run, rows) in bench.pull(slot, seq, 16) {
            got[usize::from(run == new)] += rows;
        }
        let apart = got[0].abs_diff(got[1]);
        assert!(apart <= 2 * u64::from(limits::QUANTUM_ROWS), "runs {old} and {new} got {got:?}");
    }
}

#[test]
fn a_late_run_that_fits_a_slow_and_a_fast_slot_starves_no_other() {
    // Two runs without common slots, one of which was served a hundred times as much; then a run that shares a slot
    // with each of them.
    let mut bench = Bench::new();
    let (fast, slow) = (bench.run("f", 1, 400_000), bench.run("s", 1, 400_000));
    let (at_fast, at_slow) =
        (bench.slot(vec!["f".into(), "b".into()]), bench.slot(vec!["s".into(), "b".into()]));
    for seq in 1..=10_000 {
        bench.pull(at_fast, seq, 16);
        if seq % 100 == 0 {
            bench.pull(at_slow, seq, 16);
        }
    }
    let both = bench.run("b", 1, 400_000);
    let mut got = std::collections::BTreeMap::from([(fast, 0), (slow, 0), (both, 0)]);
    for seq in 10_001..=11_000 {
        for (run, rows) in bench.pull(at_fast, seq, 16) {
            *got.entry(run).or_default() += rows;
        }
        if seq % 100 == 0 {
            for (run, rows) in bench.pull(at_slow, seq, 16) {
                *got.entry(run).or_default() += rows;
            }
        }
    }
    let fair = got[&fast].abs_diff(got[&both]);
    assert!(fair <= got[&fast] / 20, "the fast slot is shared: {got:?}");
    assert_eq!(got[&slow], 160, "the slow run keeps what nobody needs more: {got:?}");
}

fn control(run: RunNo, action: RunAction) -> OpKind {
    OpKind::ControlRun(op::ControlRun { run, action, reason: String::new() })
}

#[test]
fn a_run_that_was_paused_while_another_came_is_not_starved_by_it() {
    let mut bench = Bench::new();
    let (old, slot) = (bench.run("m", 1, 400_000), bench.slot(vec!["m".into()]));
    for seq in 1..=900 {
        bench.pull(slot, seq, 16);
    }
    bench.op(control(old, RunAction::Pause));
    let new = bench.run("m", 1, 400_000);
    bench.pull(slot, 901, 16);
    bench.op(control(old, RunAction::Resume));
    let mut got = [0, 0];
    for seq in 902..=1_900 {
        for (run, rows) in bench.pull(slot, seq, 16) {
            got[usize::from(run == new)] += rows;
        }
    }
    assert!(got[0].abs_diff(got[1]) <= (got[0] + got[1]) / 20, "runs {old} and {new} got {got:?}");
}

/// One run with its own slots, one with others, and a late run that fits all of them, when the first was served far
/// more rows than the second.
struct Bridge {
    bench: Bench,
    runs: [RunNo; 3],
    slots: [SlotRef; 2],
    seq: u64,
}

impl Bridge {
    fn new(first_rows: u32) -> Self {
        let mut bench = Bench::new();
        let (first, second) = (bench.run("a", 1, 400_000), bench.run("b", 1, 400_000));
        let slots = [
            bench.slot(vec!["a".into(), "both".into()]),
            bench.slot(vec!["b".into(), "both".into()]),
        ];
        for seq in 1..=u64::from(first_rows / 16) {
            bench.pull(slots[0], seq, 16);
        }
        let late = bench.run("both", 1, 400_000);
        Self { bench, runs: [first, second, late], slots, seq: u64::from(first_rows) }
    }

    /// What each run gets from this many pulls of one row at each of these slots.
    fn pulls(&mut self, pulls: u64, slots: &[usize]) -> [u64; 3] {
        let mut got = [0; 3];
        for _ in 0..pulls {
            self.seq += 1;
            for slot in slots {
                for (run, rows) in self.bench.pull(self.slots[*slot], self.seq, 1) {
                    got[self.runs.iter().position(|no| *no == run).expect("a run")] += rows;
                }
            }
        }
        got
    }
}

#[test]
fn a_late_run_shares_at_once_with_runs_that_were_served_at_different_rates() {
    let got = Bridge::new(16_000).pulls(5_000, &[0, 1]);
    let fair = 10_000 / 3;
    assert!(got.iter().all(|rows| rows.abs_diff(fair) <= fair / 20), "{got:?}, fair are {fair}");
}

#[test]
fn a_late_run_is_not_starved_where_the_slots_that_were_served_more_pull_no_longer() {
    let got = Bridge::new(16_000).pulls(2_000, &[1]);
    assert!(got[1].abs_diff(got[2]) <= 100, "{got:?}");
}

/// One run has a slot of its own and gets far ahead of another; both share a second slot.
fn far_ahead() -> (Bench, [RunNo; 2], [SlotRef; 2]) {
    let mut bench = Bench::new();
    let (ahead, behind) = (bench.run("a", 1, 4_200_000), bench.run("b", 1, 2_200_000));
    let (own, shared) = (bench.slot(vec!["a".into()]), bench.slot(vec!["a".into(), "b".into()]));
    for seq in 1..=900 {
        bench.pull(own, seq, limits::CLAIM_ROWS_MAX);
        bench.pull(shared, seq, 1);
    }
    (bench, [ahead, behind], [own, shared])
}

/// How many rows of the second run a slot is given before any of the first.
fn rows_before(bench: &mut Bench, slot: SlotRef, first: RunNo, rows_max: u32) -> u64 {
    let mut waits = 0;
    for seq in 901.. {
        let rows = bench.pull(slot, seq, rows_max);
        if rows.iter().any(|(run, _)| *run == first) {
            break;
        }
        waits += rows.iter().map(|(_, rows)| rows).sum::<u64>();
    }
    waits
}

#[test]
fn service_of_long_ago_fades() {
    // Its own slot no longer pulls.
    let (mut bench, [ahead, behind], [_, shared]) = far_ahead();
    let waits = rows_before(&mut bench, shared, ahead, limits::CLAIM_ROWS_MAX);
    assert!(waits > 0 && waits <= 1 << 14, "{ahead} waited for {waits} rows of {behind}");
}

#[test]
fn a_run_that_is_far_ahead_and_gets_another_weight_does_not_wait_until_the_others_have_caught_up() {
    let (mut bench, [ahead, behind], [_, shared]) = far_ahead();
    bench.apply(Body::SetVersion(4));
    bench.op(OpKind::SetWeight(op::SetWeight { run: ahead, weight: 3 }));
    let waits = rows_before(&mut bench, shared, ahead, 8);
    assert!(waits > 0 && waits <= 128 + 8, "{ahead} waited for {waits} rows of {behind}");
}

#[test]
fn the_service_of_slots_is_forgotten_when_they_leave() {
    let (mut bench, [ahead, behind], [own, shared]) = far_ahead();
    bench.op(OpKind::Deregister(op::Deregister { session: own.session }));
    let waits = rows_before(&mut bench, shared, ahead, 8);
    assert!(waits > 0 && waits <= 128 + 8, "{ahead} waited for {waits} rows of {behind}");
}
