//! What the ledger blames when engines die, with a clock that advances: engines take a minute to load, rows half a
//! minute.
//!
//! A broken slot poisons no good row and is cordoned; a row that kills engines is found, and costs no healthy slot
//! more than its engine.

use crate::fleet::Fleet;
use rollout_ledger::id::{RunNo, SlotRef};
use rollout_ledger::view::{ItemPlace, RunState};
use rollout_ledger::{Evidence, FailureClass, HeldRows, OpKind, RunAction, op};

const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;
/// From the death of an engine until it takes rows again.
const RELOAD: u64 = 65 * SECOND;
/// Rows that an engine runs at once.
const TOGETHER: u32 = 16;

/// A slot of the fleet, and its engine.
struct Engine {
    /// How long its rows take.
    row_ms: u64,
    /// It dies of whatever it is given.
    broken: bool,
    /// It fails whatever it is given, at once.
    refuses: bool,
    /// When it has finished its rows, or has loaded.
    free_at: u64,
    held: Vec<HeldRows>,
    deaths: u32,
}

struct Story {
    fleet: Fleet,
    engines: Vec<Engine>,
    /// Runs in which every row kills the engine.
    deadly: Vec<RunNo>,
}

impl Story {
    fn new(version: u32) -> Self {
        Self { fleet: Fleet::new(version), engines: Vec::new(), deadly: Vec::new() }
    }

    fn worker(&mut self, namespace: &str, name: &str, engines: &[(u64, bool)]) {
        self.fleet.worker(namespace, name, engines.len());
        let engine = |&(row_ms, broken)| Engine {
            row_ms,
            broken,
            refuses: false,
            free_at: self.fleet.clock,
            held: Vec::new(),
            deaths: 0,
        };
        self.engines.extend(engines.iter().map(engine));
    }

    /// Plays everything until then, or until no run continues.
    fn go(&mut self, until: u64) {
        while self.fleet.ledger.run_views("").iter().any(|run| run.state == RunState::Running) {
            let next = (0..self.engines.len()).min_by_key(|at| (self.engines[*at].free_at, *at));
            let at = next.expect("there are engines");
            let now = self.engines[at].free_at;
            if now > until {
                break;
            }
            self.fleet.tick(now - self.fleet.clock);
            self.turn(at);
        }
    }

    /// An engine reports its results, and gets more rows.
    fn turn(&mut self, at: usize) {
        for held in std::mem::take(&mut self.engines[at].held) {
            self.fleet.done(at, held);
        }
        let granted = self.fleet.pull(at, TOGETHER);
        let held: Vec<HeldRows> = granted.into_iter().map(|granted| granted.held).collect();
        let engine = &mut self.engines[at];
        if held.is_empty() {
            engine.free_at += SECOND;
        } else if engine.refuses {
            engine.free_at += SECOND / 10;
            held.into_iter().for_each(|held| fail(&mut self.fleet, at, held));
        } else if engine.broken || held.iter().any(|held| self.deadly.contains(&held.run)) {
            (engine.deaths, engine.free_at) = (engine.deaths + 1, engine.free_at + RELOAD);
            self.fleet.died(at, held, FailureClass::EngineDied);
        } else {
            (engine.held, engine.free_at) = (held, engine.free_at + engine.row_ms);
        }
    }

    fn resume(&mut self, run: RunNo) {
        let (action, reason) = (RunAction::Resume, String::new());
        self.fleet.op(OpKind::ControlRun(op::ControlRun { run, action, reason }));
    }

    fn failed(&self, run: RunNo) -> u64 {
        self.fleet.ledger.run_view(run).expect("there").counts.failed
    }

    fn state(&self, run: RunNo) -> RunState {
        self.fleet.ledger.run_view(run).expect("there").state
    }
}

/// A broken slot among healthy ones, with rows that take `row_ms`. Returns whether all rows are done, whether the
/// slot is cordoned at the end, and how often its engine died.
fn one_is_broken(version: u32, healthy: usize, row_ms: u64, rows: u32) -> (bool, bool, u32) {
    let mut story = Story::new(version);
    let run = story.fleet.run("default", "chat", rows);
    let mut engines = vec![(row_ms, true)];
    engines.extend((0..healthy).map(|_| (row_ms, false)));
    story.worker("default", "w", &engines);
    story.go(48 * 60 * MINUTE);
    let cordoned = story.fleet.cordon(0).is_some();
    let clean = story.state(run) == RunState::Finished && story.failed(run) == 0;
    (clean, cordoned, story.engines[0].deaths)
}

#[test]
fn a_broken_slot_among_eight_fails_no_row_and_is_cordoned() {
    assert_eq!(one_is_broken(3, 7, 30 * SECOND, 2000), (true, true, 3));
}

#[test]
fn a_broken_slot_fails_no_row_while_the_others_are_busy_for_half_an_hour() {
    for healthy in [1, 7] {
        assert_eq!(one_is_broken(3, healthy, 30 * MINUTE, 400), (true, true, 3));
        let (clean, ..) = one_is_broken(2, healthy, 30 * MINUTE, 400);
        assert!(!clean, "in cluster version 2 it fails rows that are good, beside {healthy}");
    }
}

fn fail(fleet: &mut Fleet, at: usize, held: HeldRows) {
    let (slot, class) = (fleet.slots[at].0, FailureClass::Transient);
    let (code, message) = ("ENGINE_ERROR".into(), "no such model".into());
    fleet.op(OpKind::Fail(op::Fail {
        slot,
        held,
        class,
        code,
        message,
        evidence: Evidence::default(),
    }));
}

#[test]
fn a_row_that_failed_goes_to_another_worker_while_one_fits() {
    let mut fleet = Fleet::new(3);
    let run = fleet.run("default", "chat", 2);
    fleet.worker("default", "w1", 2);
    let other = fleet.worker("default", "w2", 1);
    let held = fleet.pull(0, 1).remove(0).held;
    fail(&mut fleet, 0, held);
    fleet.tick(SECOND);
    fleet.lead();
    // The other row, and not the one that failed, for any slot of the worker.
    let held = fleet.pull(1, 2).remove(0).held;
    assert_eq!(held.rows.iter().collect::<Vec<_>>(), [1]);
    fleet.done(1, held);
    assert!(!fleet.ledger.has_work_for(fleet.slots[0].0));
    assert!(!fleet.ledger.claim_forecast().would_grant(fleet.slots[0].0, 1));
    assert!(fleet.ledger.claim_forecast().would_grant(fleet.slots[other].0, 1));
    // While no other worker takes work, the other slot of this one may.
    let session = fleet.slots[other].0.session;
    fleet.op(OpKind::Suspect(op::Suspect { session, started: Vec::new(), grace_ms: 1000 }));
    assert!(!fleet.ledger.has_work_for(fleet.slots[0].0));
    assert!(fleet.ledger.has_work_for(fleet.slots[1].0));
    fleet.op(OpKind::Unsuspect(op::Unsuspect { session }));
    assert!(fleet.pull(0, 1).is_empty());
    let held = fleet.pull(other, 1).remove(0).held;
    fleet.done(other, held);
    assert_eq!(fleet.ledger.run_view(run).expect("there").state, RunState::Finished);
}

#[test]
fn a_row_that_failed_goes_to_another_slot_of_its_worker_where_no_other_worker_fits() {
    let mut fleet = Fleet::new(3);
    let run = fleet.run("default", "chat", 1);
    fleet.worker("default", "w", 2);
    let held = fleet.pull(0, 1).remove(0).held;
    fail(&mut fleet, 0, held);
    fleet.tick(SECOND);
    fleet.lead();
    assert!(fleet.pull(0, 1).is_empty(), "it failed it");
    let held = fleet.pull(1, 1).remove(0).held;
    fleet.done(1, held);
    assert_eq!(fleet.ledger.run_view(run).expect("there").state, RunState::Finished);
}

#[test]
fn a_row_that_failed_waits_for_another_slot_for_ten_minutes_at_most() {
    for workers in [&[("w1", 1), ("w2", 1)][..], &[("w", 2)]] {
        let mut fleet = Fleet::new(3);
        let run = fleet.run("default", "chat", 1);
        for (name, slots) in workers {
            fleet.worker("default", name, *slots);
        }
        let held = fleet.pull(0, 1).remove(0).held;
        fail(&mut fleet, 0, held);
        fleet.tick(10 * MINUTE - 1);
        assert!(fleet.pull(0, 1).is_empty(), "another slot is ready");
        assert_eq!(fleet.ledger.next_deadline().map(|at| at.0), Some(10 * MINUTE));
        fleet.lead();
        fleet.tick(1);
        // The other slot never asked.
        let held = fleet.pull(0, 1).remove(0).held;
        fleet.done(0, held);
        assert_eq!(fleet.ledger.run_view(run).expect("there").state, RunState::Finished);
    }
}

#[test]
fn a_worker_that_fails_all_rows_at_once_fails_none_for_good() {
    for version in [2, 3] {
        let mut story = Story::new(version);
        let run = story.fleet.run("default", "chat", 500);
        story.worker("default", "broken", &[(0, false)]);
        story.worker("default", "well", &[(30 * SECOND, false); 3]);
        story.engines[0].refuses = true;
        story.go(2 * 60 * MINUTE);
        let finished = story.state(run) == RunState::Finished && story.failed(run) == 0;
        assert_eq!(finished, version == 3, "{} of 500 failed", story.failed(run));
    }
}

/// Fails the next row at a slot.
fn fail_next(fleet: &mut Fleet, at: usize) -> HeldRows {
    let held = fleet.pull(at, 1).remove(0).held;
    fail(fleet, at, held.clone());
    held
}

#[test]
fn a_slot_whose_failed_rows_others_complete_is_cordoned_and_a_success_resets_it() {
    for (succeeds, cordoned) in [(false, true), (true, false)] {
        let mut fleet = Fleet::new(3);
        fleet.run("default", "chat", 100);
        fleet.worker("default", "w1", 1);
        let other = fleet.worker("default", "w2", 1);
        for _ in 0..2 {
            fail_next(&mut fleet, 0);
        }
        fleet.tick(SECOND);
        let held = fleet.pull(other, 2).remove(0).held;
        assert_eq!(held.rows.iter().collect::<Vec<_>>(), [0, 1]);
        fleet.done(other, held);
        if succeeds {
            let held = fleet.pull(0, 1).remove(0).held;
            fleet.done(0, held);
        }
        let failed = fail_next(&mut fleet, 0);
        assert_eq!(fleet.cordon(0), None, "the third row is not completed by another");
        fleet.tick(SECOND);
        let held = fleet.pull(other, 1).remove(0).held;
        assert_eq!(held.rows, failed.rows);
        fleet.done(other, held);
        fleet.lead();
        fail_next(&mut fleet, 0);
        assert_eq!(fleet.cordon(0).is_some(), cordoned);
        assert_eq!(fleet.pull(0, 1).is_empty(), cordoned);
    }
}

#[test]
fn failures_of_one_run_that_nothing_disproves_cordon_no_slot_and_those_of_two_runs_do() {
    for runs in [1, 2] {
        let mut fleet = Fleet::new(3);
        for name in ["one", "two"].into_iter().take(runs) {
            fleet.run("default", name, 100);
        }
        fleet.worker("default", "w1", 1);
        fleet.worker("default", "w2", 1);
        for _ in 0..3 {
            assert_eq!(fleet.cordon(0), None);
            fail_next(&mut fleet, 0);
        }
        assert_eq!(fleet.cordon(0).is_some(), runs == 2, "failures of {runs} runs");
    }
}

#[test]
fn a_slot_that_is_cordoned_for_failures_may_try_again_after_ten_minutes() {
    let mut fleet = Fleet::new(3);
    for name in ["one", "two"] {
        fleet.run("default", name, 100);
    }
    fleet.worker("default", "w1", 1);
    fleet.worker("default", "w2", 1);
    for _ in 0..3 {
        fail_next(&mut fleet, 0);
    }
    assert!(fleet.cordon(0).is_some());
    assert!(fleet.pull(0, 1).is_empty(), "it is cordoned");
    fleet.lead();
    assert_eq!(fleet.ledger.next_deadline().map(|at| at.0 <= 10 * MINUTE), Some(true));
    fleet.tick(10 * MINUTE);
    assert_eq!(fleet.cordon(0), None);
    assert!(!fleet.pull(0, 1).is_empty(), "no row has to finish first");
}

#[test]
fn two_of_ten_slots_that_fail_rows_are_cordoned_and_a_third_pauses_the_run() {
    let mut story = Story::new(3);
    story.fleet.check_every = 500;
    let run = story.fleet.run("default", "chat", 20_000);
    story.worker("default", "broken", &[(0, false); 3]);
    story.worker("default", "well", &[(30 * SECOND, false); 7]);
    story.engines[..3].iter_mut().for_each(|engine| engine.refuses = true);
    story.go(60 * MINUTE);
    let cordoned = (0..10).filter(|at| story.fleet.cordon(*at).is_some()).count();
    assert_eq!((cordoned, story.state(run)), (2, RunState::Paused));
    let view = story.fleet.ledger.run_view(run).expect("there");
    assert!(view.reason.starts_with("broken slot "), "{}", view.reason);
    assert!(view.reason.contains(" rows failed there without "), "{}", view.reason);
}

/// One row that a slot's engine has died of, and another slot that is ready.
fn struck(version: u32) -> (Fleet, RunNo) {
    let mut fleet = Fleet::new(version);
    let run = fleet.run("default", "chat", 1);
    fleet.worker("default", "w1", 1);
    fleet.worker("default", "w2", 1);
    let held = fleet.pull(0, 1).remove(0).held;
    fleet.died(0, vec![held], FailureClass::EngineDied);
    (fleet, run)
}

#[test]
fn a_row_waits_for_a_second_slot_for_ten_minutes_at_most_and_says_so() {
    let (mut fleet, run) = struck(3);
    let why = fleet.ledger.blocked(run);
    let says = "an engine of w1 slot 0 died of row 0: it waits for another slot, for 600 s at most";
    assert_eq!(why, says);
    fleet.tick(10 * MINUTE - 1);
    assert!(fleet.pull(0, 1).is_empty(), "another slot is ready");
    fleet.lead();
    assert_eq!(fleet.ledger.next_deadline().map(|at| at.0), Some(10 * MINUTE));
    fleet.tick(1);
    assert_eq!(fleet.ledger.blocked(run), "");
    // The second slot never asked: the first one decides, and is not cleared by that.
    let held = fleet.pull(0, 1).remove(0).held;
    fleet.died(0, vec![held], FailureClass::EngineDied);
    assert_eq!(fleet.ledger.item(run, 0).expect("there").place, ItemPlace::Failed);
}

#[test]
fn a_slot_that_is_alone_decides() {
    let mut fleet = Fleet::new(3);
    let run = fleet.run("default", "chat", 1);
    fleet.worker("default", "w1", 1);
    for _ in 0..2 {
        let held = fleet.pull(0, 1).remove(0).held;
        fleet.died(0, vec![held], FailureClass::EngineDied);
    }
    assert_eq!(fleet.ledger.item(run, 0).expect("there").place, ItemPlace::Failed);
}

#[test]
fn a_slot_that_comes_while_a_row_runs_is_asked_before_the_row_fails() {
    let mut fleet = Fleet::new(3);
    let run = fleet.run("default", "chat", 1);
    fleet.worker("default", "w1", 1);
    let held = fleet.pull(0, 1).remove(0).held;
    fleet.died(0, vec![held], FailureClass::EngineDied);
    let held = fleet.pull(0, 1).remove(0).held;
    fleet.worker("default", "w2", 1);
    fleet.tick(MINUTE);
    fleet.died(0, vec![held], FailureClass::EngineDied);
    assert_eq!(fleet.ledger.item(run, 0).expect("there").place, ItemPlace::Pending);
    assert!(fleet.pull(0, 1).is_empty());
    let why = fleet.ledger.blocked(run);
    assert!(why.contains("for 540 s at most"), "a minute of ten has passed: {why}");
    let held = fleet.pull(1, 1).remove(0).held;
    fleet.done(1, held);
    assert_eq!(fleet.ledger.run_view(run).expect("there").state, RunState::Finished);
}

#[test]
fn a_worker_that_registers_again_is_no_second_slot() {
    let (mut fleet, run) = struck(3);
    fleet.op(OpKind::Deregister(op::Deregister { session: fleet.slots[0].0.session }));
    let again = fleet.worker("default", "w1", 1);
    assert!(fleet.pull(again, 1).is_empty(), "w2 comes first");
    let held = fleet.pull(1, 1).remove(0).held;
    fleet.died(1, vec![held], FailureClass::EngineDied);
    assert_eq!(
        fleet.ledger.item(run, 0).expect("there").place,
        ItemPlace::Failed,
        "two slots saw it"
    );
}

#[test]
fn rows_that_shared_an_engine_death_are_tried_on_another_slot_too() {
    let mut fleet = Fleet::new(3);
    let run = fleet.run("default", "chat", 4);
    fleet.worker("default", "w1", 1);
    fleet.worker("default", "w2", 1);
    let held = fleet.pull(0, 4).remove(0).held;
    fleet.died(0, vec![held], FailureClass::EngineDied);
    assert!(fleet.pull(0, 4).is_empty());
    for _ in 0..2 {
        let held = fleet.pull(1, 4).remove(0).held;
        fleet.done(1, held);
    }
    assert_eq!(fleet.ledger.run_view(run).expect("there").state, RunState::Finished);
}

#[test]
fn two_of_ten_slots_are_cordoned_and_a_third_broken_one_pauses_the_run() {
    let mut story = Story::new(3);
    let run = story.fleet.run("default", "chat", 20_000);
    let engines: Vec<_> = (0..10).map(|at| (30 * SECOND, at < 3)).collect();
    story.worker("default", "w", &engines);
    story.go(60 * MINUTE);
    let cordoned = |story: &Story| (0..10).filter(|at| story.fleet.cordon(*at).is_some()).count();
    assert_eq!((cordoned(&story), story.failed(run)), (2, 0));
    assert_eq!(story.state(run), RunState::Paused);
    // The pause differs from one that a user made.
    let told = |story: &Story| {
        let stuck = story.fleet.ledger.stuck_runs();
        (story.fleet.ledger.at_cordon_limit(), stuck.iter().any(|run| run.at_cordon_limit))
    };
    assert_eq!(told(&story), (true, true));
    story.fleet.lead();
    assert_eq!(told(&story), (true, true), "the image keeps the cause of the pause");
    let view = story.fleet.ledger.run_view(run).expect("there");
    let says = "of these, and the ledger may cordon no more slots of its model: repair or cordon the slot, then resume";
    assert!(view.reason.starts_with("w slot 2: its engine died "), "{}", view.reason);
    assert!(view.reason.ends_with(says), "{}", view.reason);
    assert!(story.engines[2].deaths < 8, "after {} deaths", story.engines[2].deaths);
    // Its operator does, and the rest of the fleet finishes the run.
    let SlotRef { session, slot } = story.fleet.slots[2].0;
    let reason = "broken".to_owned();
    story.fleet.op(OpKind::Cordon(op::Cordon {
        session,
        slot: Some(slot),
        cordoned: true,
        reason,
    }));
    story.resume(run);
    assert_eq!(told(&story), (false, false));
    let (action, reason) = (RunAction::Pause, view.reason);
    story.fleet.op(OpKind::ControlRun(op::ControlRun { run, action, reason }));
    assert_eq!(told(&story), (false, false), "its user paused it, with the ledger's words");
    story.resume(run);
    story.go(6 * 60 * MINUTE);
    assert_eq!((story.state(run), story.failed(run)), (RunState::Finished, 0));
}

#[test]
fn a_run_that_kills_every_engine_stops_no_other_namespace_and_no_other_run_for_good() {
    let mut story = Story::new(3);
    story.fleet.check_every = 500;
    let name = "team".into();
    story.fleet.op(OpKind::SetNamespace(op::SetNamespace { name, running_rows_max: 0 }));
    let deadly = story.fleet.run("default", "deadly", 10_000);
    let beside = story.fleet.run("default", "beside", 500);
    let team = story.fleet.run("team", "chat", 4000);
    story.deadly.push(deadly);
    story.worker("default", "w", &[(30 * SECOND, false); 8]);
    story.worker("team", "v", &[(30 * SECOND, false); 4]);
    story.go(40 * MINUTE);
    assert_eq!((story.state(team), story.failed(team)), (RunState::Finished, 0));
    assert!((8..12).all(|at| story.engines[at].deaths == 0 && story.fleet.cordon(at).is_none()));
    let cordoned = (0..8).filter(|at| story.fleet.cordon(*at).is_some()).count();
    assert!(cordoned <= 1, "{cordoned} of eight are cordoned");
    story.go(8 * 60 * MINUTE);
    assert_eq!(story.state(deadly), RunState::Paused);
    assert_eq!((story.state(beside), story.failed(beside)), (RunState::Finished, 0));
}

#[test]
fn a_fleet_of_one_slot_finishes_a_run_with_rows_that_kill_engines() {
    let mut fleet = Fleet::new(3);
    let run = fleet.run("default", "chat", 64);
    fleet.worker("default", "w", 1);
    // Sixteen of them in a row.
    let deadly = |row: u64| (20..36).contains(&row);
    while fleet.ledger.run_view(run).expect("there").state == RunState::Running {
        for held in fleet.pull(0, 8).into_iter().map(|granted| granted.held) {
            let kills = held.rows.iter().any(deadly);
            match kills {
                true => fleet.died(0, vec![held], FailureClass::EngineDied),
                false => fleet.done(0, held),
            }
        }
        assert!(fleet.cordon(0).is_none(), "the last slot is never cordoned");
        fleet.tick(RELOAD);
    }
    let view = fleet.ledger.run_view(run).expect("there");
    assert_eq!((view.state, view.counts.done, view.counts.failed), (RunState::Finished, 48, 16));
}
