//! Bounds of workers, and of what is forgiven to rows and engines.

use crate::bench::{self, Bench, register, registration, rows, spec, text};
use rollout_ledger::id::SlotRef;
use rollout_ledger::{Evidence, FailureClass, HeldRows, OpKind, Registration, Reply, Rows, limits};

pub(crate) fn slots() {
    let mut bench = Bench::new();
    bench.invalid(register(registration("w", limits::SLOTS_MAX + 1)));
    bench.granted(register(registration("w", limits::SLOTS_MAX)));
}

fn many() -> impl Iterator<Item = OpKind> {
    (0..limits::WORKERS_MAX).map(|n| register(registration(&format!("w{n}"), 1)))
}

pub(crate) fn workers() {
    let mut bench = Bench::new();
    bench.all_granted(many());
    bench.over(limits::WORKERS_MAX as u64, register(registration("more", 1)));
    // One that is there already comes again.
    bench.granted(register(registration("w0", 1)));
}

fn cordon(slot: SlotRef, reason: String) -> OpKind {
    OpKind::Cordon { session: slot.session, slot: None, cordoned: true, reason }
}

pub(crate) fn cordons() {
    let mut bench = Bench::new();
    let replies = bench.all_granted(many());
    let sessions: Vec<_> = replies
        .into_iter()
        .map(|reply| match reply {
            Reply::Registered { session, .. } => session,
            reply => panic!("{reply:?}"),
        })
        .collect();
    bench.all_granted(sessions.iter().map(|s| cordon(bench::at(*s), String::new())));
    // Those that are gone are counted: a name stays cordoned.
    bench.granted(OpKind::Deregister { session: sessions[0] });
    let more = bench.worker("more", 1);
    bench.over(limits::CORDONS_MAX as u64, cordon(more, String::new()));
    let (session, reason) = (sessions[1], String::new());
    bench.granted(OpKind::Cordon { session, slot: None, cordoned: false, reason });
    bench.granted(cordon(more, String::new()));
}

pub(crate) fn message_bytes() {
    let mut bench = Bench::new();
    let slot = bench.worker("w", 1);
    bench.invalid(cordon(slot, text(limits::MESSAGE_BYTES_MAX + 1)));
    bench.granted(cordon(slot, text(limits::MESSAGE_BYTES_MAX)));
    // A failure's message is cut: what an engine said must not lose its row.
    let mut bench = Bench::new();
    let run = bench.run("r", spec(), 1);
    let slot = bench.worker("w", 1);
    let held = bench.pull(slot, 1, 1).remove(0);
    let (class, code) = (FailureClass::InvalidRow, "e".to_owned());
    let (message, evidence) = (text(limits::MESSAGE_BYTES_MAX + 1), Evidence::default());
    bench.granted(OpKind::Fail { slot, held, class, code, message, evidence });
    let failures = bench.ledger.failures(run, 1);
    assert_eq!(failures[0].1.history[0].message.len(), limits::MESSAGE_BYTES_MAX);
}

fn died(slot: SlotRef, number: u64, started: Vec<HeldRows>, class: FailureClass) -> OpKind {
    let (code, message) = ("e".to_owned(), String::new());
    OpKind::EngineDied {
        slot,
        number,
        started,
        class,
        code,
        message,
        evidence: Evidence::default(),
    }
}

/// Deaths without a row: nothing but the engine is to blame.
pub(crate) fn deaths_in_row() {
    let mut bench = Bench::new();
    let slot = bench.worker("w", 1);
    for number in 1..=limits::DEATHS_IN_ROW_MAX as u64 {
        let cordoned = |bench: &Bench| {
            bench.ledger.worker_view(slot.session).expect("a worker").slots[0].cordon.is_some()
        };
        assert!(!cordoned(&bench), "before death {number}");
        bench.granted(died(slot, number, Vec::new(), FailureClass::EngineDied));
        assert_eq!(cordoned(&bench), number == limits::DEATHS_IN_ROW_MAX as u64, "death {number}");
    }
}

/// What is remembered of deaths stays small, however many there are.
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
    let most = limits::DEATHS_HELD_MAX as u64;
    assert!(bytes(most - 1) < bytes(most), "so many are remembered");
    assert_eq!(bytes(most), bytes(most + 1), "and no more");
}

/// A row of a worker of its own, tried until it has failed for good; how many times that takes.
fn strikes(class: FailureClass) -> u32 {
    let mut bench = Bench::new();
    let run = bench.run("r", spec(), 1);
    let slot = bench.worker("w", 1);
    for time in 1.. {
        let held = bench.pull(slot, time, 1).remove(0);
        bench::fail(&mut bench, slot, held, class);
        if bench.ledger.item(run, 0).expect("a row").trouble.failed {
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
pub(crate) fn shun() {
    let mut bench = Bench::new();
    bench.run("r", spec(), 1);
    let (first, _other) = (bench.worker("w1", 1), bench.worker("w2", 1));
    let held = bench.pull(first, 1, 1);
    assert_eq!(held[0].rows, Rows::range(0, 1));
    let then = bench.now();
    bench.granted(died(first, 1, held, FailureClass::EngineDied));
    bench.tick_to(then + limits::SHUN_MS - 1);
    assert_eq!(rows(&bench.pull(first, 2, 1)), 0, "the other comes first");
    bench.tick_to(then + limits::SHUN_MS);
    assert_eq!(rows(&bench.pull(first, 3, 1)), 1, "it never asked");
}

/// Two rows are granted together until their worker's process has ended under them that often; then one of them is tried
/// alone.
pub(crate) fn abrupt_ends() {
    let mut bench = Bench::new();
    bench.run("r", spec(), 2);
    let slot = bench.worker("w", 1);
    let mut held = bench.pull(slot, 1, 2);
    for end in 1..=limits::ABRUPT_ENDS_MAX {
        assert_eq!(rows(&held), 2, "after {} ends", end - 1);
        let instance = 1 + u64::from(end);
        let next = Registration { instance, ..registration("w", 1) };
        let next = Registration { resume: Some(slot.session), started: held, ..next };
        bench.granted(register(next));
        let claim = OpKind::Claim { slot, instance, seq: 1, rows_max: 2 };
        held = match bench.granted(claim) {
            Reply::Granted(grants) => grants.into_iter().map(|grant| grant.held).collect(),
            reply => panic!("{reply:?}"),
        };
    }
    assert_eq!(rows(&held), 1, "a trial of one");
}
