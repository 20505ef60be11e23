//! Rows that fail at several broken slots while the healthy ones are busy.

use crate::bench::{self, Bench};
use crate::fleet::Fleet;
use rollout_ledger::id::{RunNo, SlotRef};
use rollout_ledger::view::{ItemPlace, RunState};
use rollout_ledger::{Body, Evidence, FailureClass, HeldRows, Ledger, OpKind, Reply, op};
use std::collections::BTreeMap;

const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;

fn fail_by(fleet: &mut Fleet, at: usize, held: HeldRows, class: FailureClass) {
    let slot = fleet.slots[at].0;
    let (code, message, evidence) = ("ROW_FAILED".into(), String::new(), Evidence::default());
    fleet.op(OpKind::Fail(op::Fail { slot, held, class, code, message, evidence }));
}

/// Fails whatever a slot is given. Returns whether it is given rows.
fn fails(fleet: &mut Fleet, at: usize) -> bool {
    let granted = fleet.pull(at, 1);
    let any = !granted.is_empty();
    granted
        .into_iter()
        .for_each(|granted| fail_by(fleet, at, granted.held, FailureClass::Transient));
    any
}

fn next(fleet: &mut Fleet, at: usize, rows: u32) -> HeldRows {
    fleet.pull(at, rows).remove(0).held
}

fn failed(fleet: &Fleet, run: RunNo) -> u64 {
    fleet.ledger.run_view(run).expect("there").counts.failed
}

fn finishes(fleet: &mut Fleet, run: RunNo, at: usize) {
    for _ in 0..8 {
        for granted in fleet.pull(at, 16) {
            fleet.done(at, granted.held);
        }
    }
    let view = fleet.ledger.run_view(run).expect("there");
    assert_eq!((view.state, view.counts.failed), (RunState::Finished, 0));
}

/// A healthy worker that is busy with the first row of a run, as slot 0, and the slots 1 and 2, which have failed the
/// second row one after the other.
pub(crate) fn two_failed(version: u32) -> (Fleet, RunNo, HeldRows) {
    let mut fleet = Fleet::new(version);
    let run = fleet.run("default", "chat", 2);
    for name in ["well", "a", "b"] {
        fleet.worker("default", name, 1);
    }
    let busy = next(&mut fleet, 0, 1);
    assert!(fails(&mut fleet, 1));
    fleet.tick(SECOND);
    assert!(!fails(&mut fleet, 1));
    assert!(fails(&mut fleet, 2));
    fleet.tick(2 * SECOND);
    fleet.lead();
    (fleet, run, busy)
}

#[test]
fn two_broken_workers_beside_a_busy_one_fail_no_row() {
    for version in [3, 4] {
        let (mut fleet, run, busy) = two_failed(version);
        for _ in 0..60 {
            fails(&mut fleet, 1);
            fails(&mut fleet, 2);
            fleet.tick(SECOND);
        }
        if version == 3 {
            assert_eq!(failed(&fleet, run), 1, "it came back to the first one");
            continue;
        }
        assert!(!fleet.ledger.has_work_for(fleet.slots[1].0));
        assert!(fleet.ledger.has_work_for(fleet.slots[0].0));
        let says = "1 row failed at b slot 0: it waits for another slot, for 600 s at most";
        assert_eq!(fleet.ledger.blocked(run), says);
        let avoids = fleet.ledger.item(run, 1).expect("there").avoids.expect("two slots");
        let names: Vec<&str> = avoids.slots.iter().map(|at| at.worker.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(fleet.ledger.rows_that_avoid_slots(run), 1);
        assert_eq!(fleet.ledger.item(run, 0).expect("there").avoids, None, "a slot has it");
        fleet.done(0, busy);
        finishes(&mut fleet, run, 0);
    }
}

#[test]
fn a_broken_worker_steals_no_row_that_it_failed_before_another_one_did() {
    for version in [3, 4] {
        let (mut fleet, run, busy) = two_failed(version);
        let held = next(&mut fleet, 0, 1);
        let (victim, (idle_slot, last)) = (fleet.slots[0].0, fleet.slots[1]);
        let (instance, seq) = (0, last + 1);
        let held = vec![held];
        let steal = OpKind::Steal(op::Steal { victim, held, idle_slot, instance, seq });
        let Reply::Stolen { granted, .. } = fleet.op(steal) else { panic!("not stolen") };
        assert_eq!(granted.is_empty(), version == 4);
        if version == 4 {
            fleet.done(0, busy);
            finishes(&mut fleet, run, 0);
        }
    }
}

#[test]
fn slots_that_failed_a_row_get_it_again_ten_minutes_after_its_latest_failure() {
    let (mut fleet, _, _busy) = two_failed(4);
    fleet.tick(10 * MINUTE - 2 * SECOND - 1);
    fleet.lead();
    assert!(!fails(&mut fleet, 1) && !fails(&mut fleet, 2));
    fleet.tick(1);
    assert!(fails(&mut fleet, 1), "the healthy one never asked");
}

#[test]
fn two_broken_workers_that_are_alone_give_a_row_to_each_other() {
    let (mut fleet, run, busy) = two_failed(4);
    fleet.done(0, busy);
    fleet.op(OpKind::Deregister(op::Deregister { session: fleet.slots[0].0.session }));
    assert!(!fails(&mut fleet, 2), "it failed it last, and the other one fits");
    assert!(fails(&mut fleet, 1));
    assert_eq!(failed(&fleet, run), 1);
}

#[test]
fn two_broken_slots_of_a_worker_fail_no_row_while_a_third_is_busy() {
    let mut fleet = Fleet::new(4);
    let run = fleet.run("default", "chat", 2);
    fleet.worker("default", "w", 3);
    let busy = next(&mut fleet, 0, 1);
    assert!(fails(&mut fleet, 1));
    fleet.tick(SECOND);
    assert!(fails(&mut fleet, 2));
    fleet.tick(2 * SECOND);
    fleet.lead();
    assert!(!fails(&mut fleet, 1) && !fails(&mut fleet, 2));
    fleet.done(0, busy);
    finishes(&mut fleet, run, 0);
}

#[test]
fn many_broken_slots_do_not_get_back_the_rows_that_they_failed_last() {
    let mut fleet = Fleet::new(4);
    let run = fleet.run("default", "chat", 82);
    for (name, slots) in [("well", 1), ("a", 9), ("b", 9)] {
        fleet.worker("default", name, slots);
    }
    let busy = next(&mut fleet, 0, 1);
    for at in 1..=9 {
        for granted in fleet.pull(at, 9) {
            fail_by(&mut fleet, at, granted.held, FailureClass::Transient);
        }
    }
    fleet.tick(SECOND);
    // Each row was failed by another pair of slots: more different sets than a claim looks at.
    for turn in 0..81 {
        assert!(fails(&mut fleet, 10 + turn % 9), "{turn}");
    }
    fleet.tick(2 * SECOND);
    fleet.lead();
    for at in 10..=18 {
        assert!(!fails(&mut fleet, at), "slot {at} gets a row that its worker failed last");
    }
    fleet.done(0, busy);
    finishes(&mut fleet, run, 0);
}

/// A cluster with the workers `well`, `a` and `b`, each with one slot. The first one is busy with row 0 of a run, and the
/// engine of the second one has died of rows 1 and 2. Also the run, and the rows of the busy worker.
fn died_beside_a_busy_worker(version: u32) -> (Fleet, RunNo, HeldRows) {
    let mut fleet = Fleet::new(version);
    let run = fleet.run("default", "chat", 3);
    for name in ["well", "a", "b"] {
        fleet.worker("default", name, 1);
    }
    let busy = next(&mut fleet, 0, 1);
    let both = next(&mut fleet, 1, 2);
    fleet.died(1, vec![both], FailureClass::EngineDied);
    (fleet, run, busy)
}

#[test]
fn two_broken_engines_beside_a_busy_one_make_no_row_poison() {
    for version in [3, 4] {
        let (mut fleet, run, busy) = died_beside_a_busy_worker(version);
        let half = next(&mut fleet, 2, 2);
        fleet.died(2, vec![half], FailureClass::EngineDied);
        fleet.lead();
        let again = fleet.pull(1, 2);
        assert_eq!(again.is_empty(), version == 4);
        if version == 4 {
            fleet.done(0, busy);
            finishes(&mut fleet, run, 0);
            continue;
        }
        let again = again.into_iter().map(|granted| granted.held).collect();
        fleet.died(1, again, FailureClass::EngineDied);
        assert_eq!(failed(&fleet, run), 1);
    }
}

#[test]
fn a_slot_that_comes_while_a_row_runs_is_asked_before_its_worker_reports_the_row_as_deadly() {
    for version in [3, 4] {
        let mut fleet = Fleet::new(version);
        let run = fleet.run("default", "chat", 1);
        fleet.worker("default", "w1", 1);
        let held = next(&mut fleet, 0, 1);
        fail_by(&mut fleet, 0, held, FailureClass::EngineDied);
        fleet.tick(SECOND);
        let held = next(&mut fleet, 0, 1);
        fleet.worker("default", "w2", 1);
        fail_by(&mut fleet, 0, held, FailureClass::EngineDied);
        let place = fleet.ledger.item(run, 0).expect("there").place;
        assert_eq!(place == ItemPlace::Failed, version == 3, "{place:?}");
        if version == 4 {
            fleet.tick(2 * SECOND);
            assert!(fleet.pull(0, 1).is_empty());
            finishes(&mut fleet, run, 1);
        }
    }
}

fn given(bench: &mut Bench, slot: SlotRef, rows_max: u32) -> Vec<HeldRows> {
    // Any number above that of the slot's latest pull will do.
    let seq = bench.ledger.applied().index;
    bench.pull(slot, seq, rows_max)
}

fn rows_of(held: &[HeldRows]) -> Vec<u64> {
    held.iter().flat_map(|held| held.rows.iter()).collect()
}

/// Fails whatever a slot is given. Returns the rows.
fn fails_rows(bench: &mut Bench, slot: SlotRef, rows_max: u32) -> Vec<u64> {
    let held = given(bench, slot, rows_max);
    let rows = rows_of(&held);
    held.into_iter().for_each(|held| bench::fail(bench, slot, held, FailureClass::Transient));
    bench.ledger.check_invariants().expect("they hold");
    rows
}

/// The workers whose slots a row avoids, in the order of their failures.
fn avoided(bench: &Bench, run: RunNo, row: u64) -> Vec<String> {
    let avoids = bench.ledger.item(run, row).expect("there").avoids.expect("it failed");
    avoids.slots.into_iter().map(|at| at.worker).collect()
}

/// A cluster of version 3 with the workers `well`, `a`, `b` and `c`, each with one slot. The first one is busy with row
/// 0 of a run. Worker `a` has failed rows 1 to 4, and after it `b` has failed rows 1 and 2.
fn failed_before_a_raise() -> (Bench, RunNo, [SlotRef; 4]) {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(3));
    let run = bench.run("chat", bench::spec(), 5);
    let slots = ["well", "a", "b", "c"].map(|name| bench.worker(name, 1));
    let [well, a, b, _] = slots;
    assert_eq!(rows_of(&given(&mut bench, well, 1)), [0]);
    assert_eq!(fails_rows(&mut bench, a, 16), [1, 2, 3, 4]);
    bench.tick_to(SECOND);
    assert_eq!(fails_rows(&mut bench, b, 2), [1, 2]);
    bench.tick_to(3 * SECOND);
    (bench, run, slots)
}

/// Raises the version. Then three of the slots ask and fail what they are given. Returns the rows of each pull.
fn raise_and_fail(bench: &mut Bench, [_, a, b, c]: [SlotRef; 4]) -> Vec<Vec<u64>> {
    bench.command(Body::SetVersion(4));
    bench.ledger.check_invariants().expect("they hold");
    let first = [(b, 1), (a, 16), (b, 16)];
    let mut failed: Vec<Vec<u64>> = Vec::new();
    failed.extend(first.map(|(slot, rows_max)| fails_rows(bench, slot, rows_max)));
    bench.tick_to(bench.now() + 4 * SECOND);
    let second = [(a, 16), (b, 16), (c, 1)];
    failed.extend(second.map(|(slot, rows_max)| fails_rows(bench, slot, rows_max)));
    bench.tick_to(bench.now() + 8 * SECOND);
    failed.extend([a, b].map(|slot| fails_rows(bench, slot, 16)));
    failed
}

#[test]
fn rows_that_failed_before_a_raise_avoid_their_last_slot_and_all_that_fail_them_after_it() {
    let (mut direct, run, slots) = failed_before_a_raise();
    assert_eq!(avoided(&direct, run, 1), ["b"]);
    assert_eq!(avoided(&direct, run, 3), ["a"]);
    let mut loaded = direct.reloaded();
    // Row 1 is kept from `b` and row 4 from `a`; then both get no row that they failed.
    let expected: [Vec<u64>; 8] =
        [vec![3], vec![1, 2], vec![4], vec![], vec![], vec![1], vec![], vec![]];
    assert_eq!(raise_and_fail(&mut direct, slots), expected);
    assert_eq!(raise_and_fail(&mut loaded, slots), expected, "loaded from an image of version 3");
    assert_eq!(direct.ledger.state_digest(), loaded.ledger.state_digest());
    assert_eq!(avoided(&direct, run, 1), ["b", "a", "c"]);
    assert_eq!(avoided(&direct, run, 2), ["b", "a"]);
    assert_eq!(avoided(&direct, run, 3), ["a", "b"]);
    let mut image = BTreeMap::new();
    direct.ledger.for_each_record(|key, value| drop(image.insert(key.to_vec(), value.to_vec())));
    let again = Ledger::load(image).expect("it loads");
    again.check_invariants().expect("they hold");
    assert_eq!(again.state_digest(), direct.ledger.state_digest());
    let [well, _, _, c] = slots;
    for (slot, rows) in [(c, vec![2u64, 3, 4]), (well, vec![1])] {
        let held = given(&mut direct, slot, 16);
        assert_eq!(rows_of(&held), rows);
        direct.granted(bench::complete(slot, run, held));
    }
    let counts = direct.ledger.run_view(run).expect("there").counts;
    assert_eq!((counts.done, counts.failed), (4, 0));
}

#[test]
fn a_raise_of_the_version_ends_no_wait_for_another_slot_and_prolongs_none() {
    let (mut bench, run, [_, a, ..]) = failed_before_a_raise();
    bench.command(Body::SetVersion(4));
    bench.tick_to(10 * MINUTE - 1);
    assert_eq!(fails_rows(&mut bench, a, 16), [1, 2], "it failed the others last");
    bench.tick_to(10 * MINUTE);
    assert_eq!(fails_rows(&mut bench, a, 16), [3, 4]);
    assert_eq!(avoided(&bench, run, 1), ["b", "a"]);
    assert_eq!(avoided(&bench, run, 3), ["a"], "the wait of before was over");
}

#[test]
fn rows_that_killed_an_engine_before_a_raise_are_kept_from_all_slots_that_die_of_them_after_it() {
    let (mut fleet, run, busy) = died_beside_a_busy_worker(3);
    fleet.apply(Body::SetVersion(4));
    fleet.lead();
    for _ in 0..2 {
        assert!(fleet.pull(1, 2).is_empty(), "its engine died of both halves");
        let half = next(&mut fleet, 2, 2);
        fleet.died(2, vec![half], FailureClass::EngineDied);
        fleet.lead();
    }
    assert!(fleet.pull(1, 2).is_empty() && fleet.pull(2, 2).is_empty());
    fleet.done(0, busy);
    finishes(&mut fleet, run, 0);
}
