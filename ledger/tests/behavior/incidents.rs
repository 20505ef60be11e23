//! Incidents: what a row and a slot remember of engine deaths and failures.

use crate::fleet::Fleet;
use rollout_ledger::id::RunNo;
use rollout_ledger::view::{ItemPlace, RunState};
use rollout_ledger::{Evidence, FailureClass, HeldRows, OpKind, RunAction, op};

const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;

/// A run of this many rows, and workers with one slot.
fn fleet(rows: u32, workers: &[&str]) -> (Fleet, RunNo) {
    let mut fleet = Fleet::new(3);
    let run = fleet.run("default", "chat", rows);
    for name in workers {
        fleet.worker("default", name, 1);
    }
    (fleet, run)
}

/// Fails the next row at a slot.
fn fail_next(fleet: &mut Fleet, at: usize) -> HeldRows {
    fail_next_by(fleet, at, FailureClass::Transient)
}

fn fail_next_by(fleet: &mut Fleet, at: usize, class: FailureClass) -> HeldRows {
    let held = fleet.pull(at, 1).remove(0).held;
    let slot = fleet.slots[at].0;
    let (code, message) = ("ROW_FAILED".into(), "of this class".into());
    let evidence = Evidence::default();
    fleet.op(OpKind::Fail(op::Fail { slot, held: held.clone(), class, code, message, evidence }));
    held
}

/// An engine dies of the next rows at a slot.
fn die_next(fleet: &mut Fleet, at: usize, rows: u32) {
    let held = fleet.pull(at, rows).remove(0).held;
    fleet.died(at, vec![held], FailureClass::EngineDied);
}

fn control(fleet: &mut Fleet, run: RunNo, action: RunAction) {
    fleet.op(OpKind::ControlRun(op::ControlRun { run, action, reason: String::new() }));
}

fn finish_next(fleet: &mut Fleet, at: usize, rows: u32) {
    for granted in fleet.pull(at, rows) {
        fleet.done(at, granted.held);
    }
}

#[test]
fn a_failure_at_a_second_slot_hides_no_death_at_the_first() {
    let (mut fleet, run) = fleet(1, &["w1", "w2"]);
    die_next(&mut fleet, 0, 1);
    fail_next(&mut fleet, 1);
    fleet.tick(SECOND);
    fleet.lead();
    assert!(fleet.pull(1, 1).is_empty(), "it failed there, and the first slot fits");
    die_next(&mut fleet, 0, 1);
    let place = fleet.ledger.item(run, 0).expect("there").place;
    assert_eq!(place, ItemPlace::Pending, "one slot saw it twice, and another one takes work");
    die_next(&mut fleet, 1, 1);
    let place = fleet.ledger.item(run, 0).expect("there").place;
    assert_eq!(place, ItemPlace::Failed, "two slots saw it");
}

#[test]
fn another_slot_of_a_worker_that_registers_again_is_a_second_slot() {
    let mut fleet = Fleet::new(3);
    let run = fleet.run("default", "chat", 1);
    fleet.worker("default", "w", 2);
    die_next(&mut fleet, 0, 1);
    fleet.op(OpKind::Deregister(op::Deregister { session: fleet.slots[0].0.session }));
    let again = fleet.worker("default", "w", 2);
    fleet.lead();
    assert!(fleet.pull(again, 1).is_empty(), "it is the slot that had it");
    die_next(&mut fleet, again + 1, 1);
    assert_eq!(fleet.ledger.item(run, 0).expect("there").place, ItemPlace::Failed);
}

#[test]
fn the_same_slot_does_not_prolong_the_wait_for_a_second_one() {
    let (mut fleet, run) = fleet(2, &["w1"]);
    die_next(&mut fleet, 0, 2);
    fleet.tick(MINUTE);
    die_next(&mut fleet, 0, 1);
    finish_next(&mut fleet, 0, 1);
    fleet.worker("default", "w2", 1);
    let why = fleet.ledger.blocked(run);
    assert!(why.contains("died of row 0: it waits for another slot, for 540 s at most"), "{why}");
    fleet.tick(9 * MINUTE - 1);
    assert!(fleet.pull(0, 1).is_empty(), "another slot is ready");
    fleet.tick(1);
    die_next(&mut fleet, 0, 1);
    assert_eq!(fleet.ledger.item(run, 0).expect("there").place, ItemPlace::Failed);
}

#[test]
fn one_row_that_waits_for_another_slot_is_no_plural() {
    let (mut fleet, run) = fleet(2, &["w1", "w2"]);
    fail_next(&mut fleet, 0);
    fleet.tick(SECOND);
    assert_eq!(fleet.pull(0, 1).len(), 1, "the row that none has had");
    let says = "1 row failed at w1 slot 0: it waits for another slot, for 600 s at most";
    assert_eq!(fleet.ledger.blocked(run), says);
}

#[test]
fn rows_that_wait_for_another_slot_than_the_one_that_failed_them_are_counted() {
    let (mut fleet, run) = fleet(3, &["w1", "w2"]);
    fail_next(&mut fleet, 0);
    fail_next(&mut fleet, 0);
    fleet.tick(SECOND);
    assert_eq!(fleet.ledger.blocked(run), "", "any slot may have the row that none has had");
    let new = fleet.pull(0, 1).remove(0).held;
    for _ in 0..2 {
        let says = "2 rows failed at w1 slot 0: they wait for another slot, for 600 s at most";
        assert_eq!(fleet.ledger.blocked(run), says);
        fleet.lead();
    }
    fleet.done(0, new);
    assert!(fleet.pull(0, 1).is_empty(), "it failed them, and the other worker fits");
    fleet.op(OpKind::Deregister(op::Deregister { session: fleet.slots[1].0.session }));
    assert_eq!(fleet.ledger.blocked(run), "", "no other worker fits");
    finish_next(&mut fleet, 0, 2);
    assert_eq!(fleet.ledger.run_view(run).expect("there").state, RunState::Finished);
}

#[test]
fn deaths_and_failures_at_a_slot_count_together() {
    let (mut fleet, _) = fleet(100, &["w1", "w2"]);
    die_next(&mut fleet, 0, 1);
    fail_next(&mut fleet, 0);
    fleet.tick(SECOND);
    // The trial, and then the row that failed.
    finish_next(&mut fleet, 1, 1);
    finish_next(&mut fleet, 1, 1);
    fleet.lead();
    assert_eq!(fleet.cordon(0), None);
    die_next(&mut fleet, 0, 1);
    let says = "its engine died 2 times and rows failed there 1 time without a finished one between (sigkill)";
    assert_eq!(fleet.cordon(0).as_deref(), Some(says));
    fleet.lead();
    // Deaths alone would not have cordoned it: it may try again.
    fleet.tick(10 * MINUTE);
    assert_eq!(fleet.cordon(0), None);
}

#[test]
fn a_row_that_is_the_cause_takes_its_deaths_and_failures_off_every_slot() {
    let (mut fleet, run) = fleet(100, &["w1", "w2", "w3"]);
    // Row 0 fails at the first slot, and kills the engines of the others.
    assert_eq!(fail_next(&mut fleet, 0).rows.iter().next(), Some(0));
    fleet.tick(SECOND);
    die_next(&mut fleet, 1, 1);
    die_next(&mut fleet, 2, 1);
    assert_eq!(fleet.ledger.item(run, 0).expect("there").place, ItemPlace::Failed);
    // Two more failures, of another run: with that of row 0 they would be three of two runs.
    let other = fleet.run("default", "other", 100);
    control(&mut fleet, run, RunAction::Pause);
    for _ in 0..2 {
        assert_eq!(fail_next(&mut fleet, 0).run, other);
    }
    assert_eq!(fleet.cordon(0), None);
    control(&mut fleet, run, RunAction::Resume);
    control(&mut fleet, other, RunAction::Pause);
    assert_eq!(fail_next(&mut fleet, 0).run, run);
    assert!(fleet.cordon(0).is_some());
}

/// Grants of eight rows for each slot.
fn grants(fleet: &mut Fleet, slots: usize, grants: usize) -> Vec<Vec<HeldRows>> {
    let pull = |at: usize| (0..grants).map(|_| fleet.pull(at, 8).remove(0).held).collect();
    (0..slots).map(pull).collect()
}

#[test]
fn a_run_that_kills_every_engine_cordons_no_slot_and_a_slot_that_dies_alone_is_cordoned() {
    for dying in [5, 1] {
        let (mut fleet, _) = fleet(400, &["w1", "w2", "w3", "w4", "w5"]);
        let held = grants(&mut fleet, 5, 3);
        for number in 0..3 {
            for (at, own) in held.iter().enumerate().take(dying) {
                fleet.died(at, vec![own[number].clone()], FailureClass::EngineDied);
            }
            fleet.lead();
        }
        let cordoned = (0..5).filter(|at| fleet.cordon(*at).is_some()).count();
        assert_eq!(cordoned, usize::from(dying == 1), "{dying} slots die");
    }
}

#[test]
fn both_slots_that_die_of_one_run_are_cordoned_once_others_have_completed_the_rows() {
    let (mut fleet, _) = fleet(400, &["w1", "w2", "w3", "w4", "w5"]);
    let held = grants(&mut fleet, 2, 4);
    for number in 0..3 {
        for (at, own) in held.iter().enumerate() {
            fleet.died(at, vec![own[number].clone()], FailureClass::EngineDied);
        }
    }
    assert!((0..2).all(|at| fleet.cordon(at).is_none()), "the rows may be why");
    // Two halves of each batch, and some more.
    for _ in 0..6 {
        (2..5).for_each(|at| finish_next(&mut fleet, at, 8));
    }
    fleet.lead();
    fleet.died(0, vec![held[0][3].clone()], FailureClass::EngineDied);
    assert!(fleet.cordon(0).is_some(), "others completed the rows of three of its deaths");
}

#[test]
fn rows_of_two_runs_with_missing_segments_cordon_no_slot() {
    let (mut fleet, first) = fleet(100, &["w1", "w2", "w3", "w4", "w5", "w6"]);
    let second = fleet.run("default", "other", 100);
    for _ in 0..3 {
        for at in 0..6 {
            for (run, other) in [(first, second), (second, first)] {
                control(&mut fleet, other, RunAction::Pause);
                let held = fail_next_by(&mut fleet, at, FailureClass::InputUnreadable);
                assert_eq!(held.run, run);
                control(&mut fleet, other, RunAction::Resume);
            }
            assert_eq!(fleet.cordon(at), None, "no slot has read these rows");
        }
        fleet.lead();
    }
}

#[test]
fn a_slot_that_cannot_read_what_others_complete_is_cordoned() {
    let (mut fleet, _) = fleet(100, &["w1", "w2"]);
    for _ in 0..3 {
        fail_next_by(&mut fleet, 0, FailureClass::InputUnreadable);
    }
    fleet.tick(SECOND);
    fleet.lead();
    finish_next(&mut fleet, 1, 16);
    assert_eq!(fleet.cordon(0), None, "it is judged by its next failure");
    fail_next_by(&mut fleet, 0, FailureClass::InputUnreadable);
    let says = "4 rows failed there without a finished one between";
    assert_eq!(fleet.cordon(0).as_deref(), Some(says));
}

#[test]
fn unreadable_rows_leave_room_for_failures_that_say_more() {
    let (mut fleet, first) = fleet(100, &["w1", "w2"]);
    let second = fleet.run("default", "other", 100);
    control(&mut fleet, second, RunAction::Pause);
    for _ in 0..9 {
        fail_next_by(&mut fleet, 0, FailureClass::InputUnreadable);
    }
    fail_next(&mut fleet, 0);
    fail_next(&mut fleet, 0);
    assert_eq!(fleet.cordon(0), None, "of one run, and no slot has completed any");
    control(&mut fleet, second, RunAction::Resume);
    control(&mut fleet, first, RunAction::Pause);
    fail_next(&mut fleet, 0);
    assert!(fleet.cordon(0).is_some(), "three rows of two runs failed");
}

/// The guard visits every slot of the model, and a broken slot may fail ten rows a second.
#[test]
fn a_slot_that_fails_rows_without_end_makes_the_guard_look_at_its_model_a_bounded_number_of_times()
{
    for (failures, looks) in [(3, true), (6, true), (7, false), (8, false), (60, false)] {
        let mut fleet = Fleet::new(3);
        for name in ["one", "two"] {
            fleet.run("default", name, 100);
        }
        fleet.worker("default", "w1", 1);
        for _ in 0..failures {
            fail_next(&mut fleet, 0);
            assert_eq!(fleet.cordon(0), None, "it is the last slot that takes work");
        }
        // Now the ledger may cordon it: the next failure does if the guard looks.
        let other = fleet.worker("default", "w2", 1);
        fail_next(&mut fleet, 0);
        assert_eq!(fleet.cordon(0).is_some(), looks, "after {failures} failures");
        if looks {
            continue;
        }
        fail_next(&mut fleet, 0);
        assert_eq!(fleet.cordon(0), None, "after {failures} failures and two");
        // It looks again once others have completed enough of the rows.
        fleet.tick(SECOND);
        finish_next(&mut fleet, other, 16);
        fleet.lead();
        fail_next(&mut fleet, 0);
        assert!(fleet.cordon(0).is_some(), "others completed rows that failed there");
        let running = |run: &rollout_ledger::view::RunView| run.state == RunState::Running;
        assert!(fleet.ledger.run_views("").iter().all(running));
    }
}
