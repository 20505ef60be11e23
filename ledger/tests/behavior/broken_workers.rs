//! Rows that fail at several broken slots while the healthy ones are busy.

use crate::fleet::Fleet;
use rollout_ledger::id::RunNo;
use rollout_ledger::view::{ItemPlace, RunState};
use rollout_ledger::{Evidence, FailureClass, HeldRows, OpKind, Reply, op};

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

#[test]
fn two_broken_engines_beside_a_busy_one_make_no_row_poison() {
    for version in [3, 4] {
        let mut fleet = Fleet::new(version);
        let run = fleet.run("default", "chat", 3);
        for name in ["well", "a", "b"] {
            fleet.worker("default", name, 1);
        }
        let busy = next(&mut fleet, 0, 1);
        let both = next(&mut fleet, 1, 2);
        fleet.died(1, vec![both], FailureClass::EngineDied);
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
