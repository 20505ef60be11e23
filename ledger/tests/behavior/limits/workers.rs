//! Bounds of workers, and of the failures that rows and engines are allowed.

use crate::bench::{self, Bench, claim, register, registration, rows, spec, text};
use rollout_ledger::id::{SlotNo, SlotRef};
use rollout_ledger::{
    Body, Evidence, FailureClass, HeldRows, OpKind, Registration, Reply, Rows, SCHEDULING_VERSION,
    limits, op,
};

pub(crate) fn slots() {
    let mut bench = Bench::new();
    bench.invalid(register(registration("w", limits::SLOTS_MAX + 1)));
    bench.granted(register(registration("w", limits::SLOTS_MAX)));
}

fn many(workers: usize, slots: usize) -> impl Iterator<Item = OpKind> {
    (0..workers).map(move |n| register(registration(&format!("w{n}"), slots)))
}

pub(crate) fn workers() {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(limits::FLEET_VERSION));
    bench.all_granted(many(limits::WORKERS_MAX, 1));
    bench.over(limits::WORKERS_MAX as u64, register(registration("more", 1)));
    // An existing worker registers again.
    bench.granted(register(registration("w0", 1)));
}

/// Members of an earlier build refuse more, so that one of this build must too, until none is left.
pub(crate) fn workers_before() {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(limits::FLEET_VERSION - 1));
    bench.all_granted(many(limits::WORKERS_BEFORE_MAX, 1));
    bench.over(limits::WORKERS_BEFORE_MAX as u64, register(registration("more", 1)));
    bench.command(Body::SetVersion(limits::FLEET_VERSION));
    bench.granted(register(registration("more", 1)));
}

pub(crate) fn all_slots() {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(limits::FLEET_VERSION));
    let full = limits::ALL_SLOTS_MAX / limits::SLOTS_MAX;
    bench.all_granted(many(full, limits::SLOTS_MAX));
    let over = limits::ALL_SLOTS_MAX as u64;
    bench.over(over, register(registration("more", 1)));
    // A worker that registers again with fewer slots makes room, also if the count is derived from the image.
    bench.granted(register(registration("w0", limits::SLOTS_MAX - 1)));
    let mut bench = bench.reloaded();
    bench.granted(register(registration("more", 1)));
    bench.over(over, register(registration("w0", limits::SLOTS_MAX)));
    let Reply::Registered { session, .. } = bench.granted(register(registration("w1", 1))) else {
        panic!("not registered")
    };
    bench.granted(register(registration("w0", limits::SLOTS_MAX)));
    bench.granted(OpKind::Deregister(op::Deregister { session }));
}

fn cordon(slot: SlotRef, reason: String) -> OpKind {
    OpKind::Cordon(op::Cordon { session: slot.session, slot: None, cordoned: true, reason })
}

pub(crate) fn cordons() {
    let mut bench = Bench::new();
    let replies = bench.all_granted(many(limits::CORDONS_MAX, 1));
    let sessions: Vec<_> = replies
        .into_iter()
        .map(|reply| match reply {
            Reply::Registered { session, .. } => session,
            reply => panic!("{reply:?}"),
        })
        .collect();
    bench.all_granted(sessions.iter().map(|s| cordon(bench::at(*s), String::new())));
    // Workers that are gone count: a name stays cordoned.
    bench.granted(OpKind::Deregister(op::Deregister { session: sessions[0] }));
    let more = bench.worker("more", 1);
    bench.over(limits::CORDONS_MAX as u64, cordon(more, String::new()));
    let (session, reason) = (sessions[1], String::new());
    bench.granted(OpKind::Cordon(op::Cordon { session, slot: None, cordoned: false, reason }));
    bench.granted(cordon(more, String::new()));
}

pub(crate) fn reason_bytes() {
    let mut bench = Bench::new();
    let slot = bench.worker("w", 1);
    bench.invalid(cordon(slot, text(limits::REASON_BYTES_MAX + 1)));
    bench.granted(cordon(slot, text(limits::REASON_BYTES_MAX)));
    // A failure's message is cut: what an engine said must not lose its row.
    let mut bench = Bench::new();
    let run = bench.run("r", spec(), 1);
    let slot = bench.worker("w", 1);
    let held = bench.pull(slot, 1, 1).remove(0);
    let (class, code) = (FailureClass::InvalidRow, "e".to_owned());
    let (message, evidence) = (text(limits::REASON_BYTES_MAX + 1), Evidence::default());
    bench.granted(OpKind::Fail(op::Fail { slot, held, class, code, message, evidence }));
    let failures = bench.ledger.failures(run, 1);
    assert_eq!(failures[0].1.history[0].message.len(), limits::REASON_BYTES_MAX);
}

fn died(slot: SlotRef, number: u64, started: Vec<HeldRows>, class: FailureClass) -> OpKind {
    let (code, message) = ("e".to_owned(), String::new());
    OpKind::EngineDied(op::EngineDied {
        slot,
        number,
        started,
        class,
        code,
        message,
        evidence: Evidence::default(),
    })
}

/// Deaths without a row: only the engine is to blame.
pub(crate) fn deaths_in_row() {
    let mut bench = Bench::new();
    let slot = bench.worker("w", 1);
    for number in 1..=u64::from(limits::CORDON_AFTER_DEFAULT) {
        let cordoned = |bench: &Bench| {
            bench.ledger.worker_view(slot.session).expect("a worker").slots[0].cordon.is_some()
        };
        assert!(!cordoned(&bench), "before death {number}");
        bench.granted(died(slot, number, Vec::new(), FailureClass::EngineDied));
        assert_eq!(
            cordoned(&bench),
            number == u64::from(limits::CORDON_AFTER_DEFAULT),
            "death {number}"
        );
    }
}

/// Ten slots whose engines keep dying, one after another: only the allowed share is cordoned.
pub(crate) fn cordoned_percent() {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(SCHEDULING_VERSION));
    let slots = 10;
    let session = bench.worker("w", slots).session;
    for slot in 0..slots as u16 {
        for number in 1..=u64::from(limits::CORDON_AFTER_DEFAULT) {
            let slot = SlotRef { session, slot: SlotNo(slot) };
            bench.granted(died(slot, number, Vec::new(), FailureClass::EngineDied));
        }
    }
    let view = bench.ledger.worker_view(session).expect("a worker");
    let cordoned = view.slots.iter().filter(|slot| slot.cordon.is_some()).count();
    assert_eq!(cordoned, slots * limits::CORDONED_PERCENT_MAX / 100);

    // Slots that take any model count for a slot of one model.
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(SCHEDULING_VERSION));
    bench.worker("any", slots);
    let mut one = registration("one", 1);
    one.slots[0].models = vec!["m@".into()];
    let Reply::Registered { session, .. } = bench.granted(register(one)) else {
        panic!("not registered")
    };
    for number in 1..=u64::from(limits::CORDON_AFTER_DEFAULT) {
        let slot = SlotRef { session, slot: SlotNo(0) };
        bench.granted(died(slot, number, Vec::new(), FailureClass::EngineDied));
    }
    let view = bench.ledger.worker_view(session).expect("a worker");
    assert!(view.slots[0].cordon.is_some(), "others take its work");
}

/// The record of deaths stays small, however many there are.
pub(crate) fn deaths_held() {
    let bytes = |deaths: u64| {
        let mut bench = Bench::new();
        let slot = bench.worker("w", 1);
        for number in 1..=deaths {
            bench.granted(died(slot, number, Vec::new(), FailureClass::EngineDied));
        }
        let delta = bench.ledger.drain_dirty();
        let view = bench.ledger.worker_view(slot.session).expect("a worker");
        assert_eq!(view.slots[0].deaths, deaths, "all are counted");
        delta.puts.iter().map(|(_, value)| value.len()).max().unwrap_or_default()
    };
    let most = u64::from(limits::CORDON_AFTER_DEFAULT) + limits::INCIDENTS_SPARE as u64;
    assert!(bytes(most - 1) < bytes(most), "so many are remembered");
    assert_eq!(bytes(most), bytes(most + 1), "and no more");
}

/// Retries a row at a worker of its own until it has failed for good; returns how many times that takes.
fn strikes(class: FailureClass) -> u32 {
    let mut bench = Bench::new();
    let run = bench.run("r", spec(), 1);
    let slot = bench.worker("w", 1);
    for time in 1.. {
        let held = bench.pull(slot, time, 1).remove(0);
        bench::fail(&mut bench, slot, held, class);
        if bench.ledger.item(run, 0).expect("a row").failure_record.failed {
            return time as u32;
        }
        let wait = bench.now() + 60_000;
        bench.tick_to(wait);
        assert!(time < 20, "it never fails");
    }
    0
}

pub(crate) fn out_of_memory_strikes() {
    assert_eq!(strikes(FailureClass::OutOfMemory), limits::OUT_OF_MEMORY_STRIKES_MAX);
}

pub(crate) fn engine_died_strikes() {
    assert_eq!(strikes(FailureClass::EngineDied), limits::ENGINE_DIED_STRIKES_MAX);
}

/// The slot whose engine died of a row gets it again, but later than others could.
fn other_slots_come_first_for(version: u32, wait_ms: u64) {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(version));
    bench.run("r", spec(), 1);
    let (first, _other) = (bench.worker("w1", 1), bench.worker("w2", 1));
    let held = bench.pull(first, 1, 1);
    assert_eq!(held[0].rows, Rows::range(0, 1));
    let then = bench.now();
    bench.granted(died(first, 1, held, FailureClass::EngineDied));
    bench.tick_to(then + wait_ms - 1);
    assert_eq!(rows(&bench.pull(first, 2, 1)), 0, "the other comes first");
    bench.tick_to(then + wait_ms);
    assert_eq!(rows(&bench.pull(first, 3, 1)), 1, "it never asked");
}

pub(crate) fn other_slots_first() {
    other_slots_come_first_for(SCHEDULING_VERSION - 1, limits::OTHER_SLOTS_FIRST_MS);
}

pub(crate) fn second_slot_wait() {
    other_slots_come_first_for(SCHEDULING_VERSION, limits::SECOND_SLOT_WAIT_MS);
}

/// A slot that fails rows of two runs gets none for this long.
pub(crate) fn failure_cordon() {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(SCHEDULING_VERSION));
    bench.run("a", spec(), 3);
    bench.run("b", spec(), 3);
    let (slot, _other) = (bench.worker("w1", 1), bench.worker("w2", 1));
    for pull in 1..=u64::from(limits::CORDON_AFTER_DEFAULT) {
        let held = bench.pull(slot, pull, 1).remove(0);
        bench::fail(&mut bench, slot, held, FailureClass::Transient);
    }
    let until = bench.now() + limits::FAILURE_CORDON_MS;
    bench.tick_to(until - 1);
    assert_eq!(rows(&bench.pull(slot, 10, 1)), 0, "the slot is cordoned");
    bench.tick_to(until);
    assert_eq!(rows(&bench.pull(slot, 11, 1)), 1, "the cordon is over");
}

/// Two rows are granted together until their worker's process has ended under them that often; then one of them is tried
/// alone.
pub(crate) fn worker_crashes() {
    let mut bench = Bench::new();
    bench.run("r", spec(), 2);
    let slot = bench.worker("w", 1);
    let mut held = bench.pull(slot, 1, 2);
    for end in 1..=limits::WORKER_CRASHES_MAX {
        assert_eq!(rows(&held), 2, "after {} ends", end - 1);
        let instance = 1 + u64::from(end);
        let next = Registration { instance, ..registration("w", 1) };
        let next = Registration { resume: Some(slot.session), started: held, ..next };
        bench.granted(register(next));
        let claim = OpKind::Claim(op::Claim { slot, instance, seq: 1, rows_max: 2 });
        held = match bench.granted(claim) {
            Reply::Granted(grants) => grants.into_iter().map(|grant| grant.held).collect(),
            reply => panic!("{reply:?}"),
        };
    }
    assert_eq!(rows(&held), 1, "a trial of one");
}

/// Three workers whose sessions end at the same time, each with this many attempts; returns how many sessions are
/// left after a tick.
fn left_after_a_tick(version: u32, attempts: usize) -> (Bench, usize) {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(version));
    bench.run("r", spec(), 3 * attempts as u32);
    for name in ["w1", "w2", "w3"] {
        let slot = bench.worker(name, 1);
        let replies = bench.all_granted((1..=attempts as u64).map(|seq| claim(slot, seq, 1)));
        let held = replies.into_iter().flat_map(|reply| match reply {
            Reply::Granted(granted) => granted.into_iter().map(|granted| granted.held),
            reply => panic!("{reply:?}"),
        });
        let (session, started) = (slot.session, held.collect());
        bench.granted(OpKind::Suspect(op::Suspect { session, started, grace_ms: 1000 }));
    }
    bench.tick_to(1000);
    let left = bench.ledger.worker_sessions().len();
    (bench, left)
}

/// The loss of many workers takes several ticks, each due as soon as the previous one is done.
pub(crate) fn tick_attempts() {
    let each = limits::TICK_ATTEMPTS_MAX * 2 / 3;
    assert_eq!(left_after_a_tick(SCHEDULING_VERSION - 1, each).1, 0, "as builds of before do");
    let (mut bench, left) = left_after_a_tick(SCHEDULING_VERSION, each);
    assert_eq!(left, 1, "the second session is the last one, and over the bound");
    assert!(bench.ledger.next_deadline().is_some_and(|at| at.0 <= bench.now()));
    bench.command(Body::Tick);
    assert!(bench.ledger.worker_sessions().is_empty());
    assert!(bench.ledger.next_deadline().is_none_or(|at| at.0 > bench.now()));
}

/// Rows that wait until the same time come back together; those of a later one with the next tick.
pub(crate) fn tick_rows() {
    rows_of_a_trial_that_is_cut_off_still_wait();
    replaced_incidents_take_no_place_of_others();
    let at_once = u64::from(limits::CLAIM_ROWS_MAX);
    let groups = limits::TICK_ROWS_MAX / at_once + 1;
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(SCHEDULING_VERSION));
    let run = bench.run("r", spec(), (groups * at_once) as u32);
    let slot = bench.worker("w", 1);
    for seq in 1..=groups {
        let held = bench.pull(slot, seq, limits::CLAIM_ROWS_MAX).remove(0);
        bench::fail(&mut bench, slot, held, FailureClass::Transient);
        bench.tick_to(seq);
    }
    let waiting = |bench: &Bench| bench.ledger.run_view(run).expect("a run").counts.waiting;
    assert_eq!(waiting(&bench), groups * at_once);
    bench.tick_to(5000);
    assert_eq!(waiting(&bench), at_once);
    bench.command(Body::Tick);
    assert_eq!(waiting(&bench), 0);
}

/// A member that remembers when replaced incidents would have ended does in a tick what one does that was loaded since.
fn replaced_incidents_take_no_place_of_others() {
    let at_once = u64::from(limits::CLAIM_ROWS_MAX);
    let groups = limits::TICK_ROWS_MAX / at_once + 1;
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(SCHEDULING_VERSION));
    bench.run("r", spec(), (groups * at_once) as u32);
    let (first, second) = (bench.worker("w1", 1), bench.worker("w2", 1));
    for seq in 1..=groups {
        let held = bench.pull(first, seq, limits::CLAIM_ROWS_MAX).remove(0);
        bench::fail(&mut bench, first, held, FailureClass::Transient);
    }
    bench.tick_to(1000);
    bench.command(Body::Tick);
    let held = bench.pull(second, 1, limits::CLAIM_ROWS_MAX).remove(0);
    assert_eq!(held.rows, Rows::range(0, limits::CLAIM_ROWS_MAX), "they failed first");
    bench::fail(&mut bench, second, held, FailureClass::Transient);
    let mut loaded = bench.reloaded();
    for bench in [&mut bench, &mut loaded] {
        bench.tick_to(limits::SECOND_SLOT_WAIT_MS);
    }
    assert_eq!(bench.ledger.state_digest(), loaded.ledger.state_digest());
}

/// Cordons that expire at the same time end in several ticks, each due at once.
pub(crate) fn tick_cordons() {
    let broken = limits::TICK_CORDONS_MAX + 1;
    let all = (broken * 100).div_ceil(limits::CORDONED_PERCENT_MAX);
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(SCHEDULING_VERSION));
    let workers: Vec<SlotRef> = (0..all.div_ceil(limits::SLOTS_MAX))
        .map(|n| bench.worker(&format!("w{n}"), limits::SLOTS_MAX))
        .collect();
    let number = |n: usize| SlotNo((n % limits::SLOTS_MAX) as u16);
    let slots: Vec<SlotRef> = (0..broken)
        .map(|n| SlotRef { slot: number(n), ..workers[n / limits::SLOTS_MAX] })
        .collect();
    let fail_at_each = |bench: &mut Bench, pull: u64| {
        for slot in &slots {
            let held = bench.pull(*slot, pull, 1).remove(0);
            bench::fail(bench, *slot, held, FailureClass::Transient);
        }
    };
    let run = bench.run("a", spec(), broken as u32);
    fail_at_each(&mut bench, 1);
    let (action, reason) = (rollout_ledger::RunAction::Pause, String::new());
    bench.granted(OpKind::ControlRun(op::ControlRun { run, action, reason }));
    bench.run("b", spec(), 2 * broken as u32);
    for pull in 2..=u64::from(limits::CORDON_AFTER_DEFAULT) {
        fail_at_each(&mut bench, pull);
    }
    let cordoned = |bench: &Bench| {
        let sessions = bench.ledger.worker_sessions().into_iter();
        let views = sessions.filter_map(|session| bench.ledger.worker_view(session));
        views.flat_map(|worker| worker.slots).filter(|slot| slot.cordon.is_some()).count()
    };
    assert_eq!(cordoned(&bench), broken);
    bench.tick_to(limits::FAILURE_CORDON_MS);
    assert_eq!(cordoned(&bench), 1);
    assert!(bench.ledger.next_deadline().is_some_and(|at| at.0 <= bench.now()));
    bench.command(Body::Tick);
    assert_eq!(cordoned(&bench), 0);
}

/// A tick whose rows are spent before it comes to a trial leaves the trial waiting, with its rows: they are granted once.
fn rows_of_a_trial_that_is_cut_off_still_wait() {
    let at_once = u64::from(limits::CLAIM_ROWS_MAX);
    let groups = limits::TICK_ROWS_MAX / at_once;
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(SCHEDULING_VERSION));
    let run = bench.run("r", spec(), (groups * at_once) as u32 + 8);
    let slot = bench.worker("w", 1);
    for seq in 1..=groups {
        let held = bench.pull(slot, seq, limits::CLAIM_ROWS_MAX).remove(0);
        bench::fail(&mut bench, slot, held, FailureClass::Transient);
        bench.tick_to(seq);
    }
    let held = bench.pull(slot, groups + 1, 8).remove(0);
    bench.granted(died(slot, 1, vec![held], FailureClass::OutOfMemory));
    let waiting = |bench: &Bench| bench.ledger.run_view(run).expect("a run").counts.waiting;
    assert_eq!(waiting(&bench), groups * at_once + 8, "a trial waits too");
    bench.tick_to(60_000);
    assert_eq!(waiting(&bench), 8, "the tick ends before the trial");
    let other = bench.worker("other", 1);
    let trial = bench.pull(other, 1, 8);
    bench.ledger.check_invariants().expect("after the tick that was cut");
    bench.command(Body::Tick);
    bench.ledger.check_invariants().expect("after the rest of it");
    assert_eq!(waiting(&bench), 0);
    let held: u64 = trial.iter().map(|held| held.rows.len()).sum();
    assert_eq!(bench.ledger.run_view(run).expect("a run").counts.running, held);
}
