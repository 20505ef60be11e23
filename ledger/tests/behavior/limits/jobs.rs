//! Bounds of training jobs: participants, rendezvous, barriers.

use crate::bench::{Bench, job, participant};
use rollout_ledger::{
    BarrierEnd, BarrierFailure, BarrierMembers, BarrierSpec, DepartureReason, JobRefusal, OpKind,
    ParticipantDecl, Policy, Rejection, RendezvousConfig, Reply, StoreName, limits, op,
};

fn participate(of: &str, decl: ParticipantDecl) -> OpKind {
    OpKind::Participate(op::Participate { job: job(of), participant: Box::new(decl) })
}

fn arrive(barrier: &str, generation: u64, name: &str, spec: BarrierSpec) -> OpKind {
    OpKind::Arrive(op::Arrive {
        job: job("j"),
        barrier: barrier.into(),
        generation,
        incarnation: None,
        participant: Box::new(participant(name)),
        spec,
    })
}

fn barrier_of(members: BarrierMembers, timeout_ms: u64) -> BarrierSpec {
    BarrierSpec { members, policy: Policy::Fail, timeout_ms }
}

pub(crate) fn jobs() {
    let mut bench = Bench::new();
    let one = |n: usize| participate(&format!("j{n}"), participant("a"));
    bench.all_granted((0..limits::JOBS_MAX).map(one));
    bench.over(limits::JOBS_MAX as u64, participate("more", participant("a")));
    bench.granted(participate("j0", participant("b")));
    room_for_jobs();
}

fn room_for_jobs() {
    let mut bench = Bench::new();
    let close =
        |n: usize| OpKind::CloseRendezvous(op::CloseRendezvous { job: job(&format!("j{n}")) });
    let there = |bench: &Bench, n: usize| bench.ledger.job(&job(&format!("j{n}"))).is_some();
    let store = |round| StoreName { namespace: "default".into(), job: "j0".into(), round };
    let open = |round| OpKind::Store(op::UseStore { store: store(round), ops: Vec::new() });
    bench.granted(close(0));
    bench.all_granted((0..3).map(open));
    bench.tick_to(1);
    bench.all_granted((1..limits::JOBS_MAX).map(close));
    bench.granted(participate("j1", participant("a")));
    bench.tick_to(2);
    // What is refused makes no room.
    let nobody = ParticipantDecl { keep_alive_ms: 0, ..participant("a") };
    bench.invalid(participate("more", nobody));
    assert!(there(&bench, 0));
    // Unused for longest: it goes, with the stores of its rounds, which the next of its name would find.
    bench.granted(participate("more", participant("a")));
    assert!(!there(&bench, 0) && there(&bench, 1) && there(&bench, 2));
    let stores: Vec<bool> = (0..3).map(|n| bench.ledger.store(&store(n)).is_some()).collect();
    assert_eq!(stores, [true, false, false], "that of round 0 outlives rounds");
    // A job with participants stays, and using an existing job removes no other.
    bench.granted(close(0));
    assert!(there(&bench, 1) && !there(&bench, 2));
    bench.granted(close(0));
    assert!(there(&bench, 3));
    bench.ledger.check_invariants().unwrap();
}

pub(crate) fn participants() {
    let mut bench = Bench::new();
    let one = |n: usize| participate("j", participant(&format!("p{n}")));
    bench.all_granted((0..limits::PARTICIPANTS_MAX).map(one));
    bench.over(limits::PARTICIPANTS_MAX as u64, participate("j", participant("more")));
    // An existing participant is replaced.
    bench.granted(participate("j", participant("p0")));
    let config = |max| RendezvousConfig { min: 1, max, join_timeout_ms: 1, last_call_ms: 1 };
    let join = |max: usize| {
        OpKind::Join(op::Join {
            job: job("terms"),
            participant: Box::new(participant("a")),
            config: config(max as u32),
        })
    };
    bench.invalid(join(limits::PARTICIPANTS_MAX + 1));
    bench.granted(join(limits::PARTICIPANTS_MAX));
    let count = |n: usize| barrier_of(BarrierMembers::Count(n as u32), 1);
    bench.invalid(arrive("b", 1, "p1", count(limits::PARTICIPANTS_MAX + 1)));
    bench.granted(arrive("b", 1, "p1", count(limits::PARTICIPANTS_MAX)));
}

pub(crate) fn departures() {
    let mut bench = Bench::new();
    let most = limits::DEPARTURES_MAX;
    for n in 0..=most {
        let decl = participant(&format!("p{n}"));
        let Reply::Participant { incarnation, .. } = bench.granted(participate("j", decl)) else {
            panic!("no ticket")
        };
        bench.granted(OpKind::Leave(op::Leave { incarnation }));
        let view = bench.ledger.job(&job("j")).expect("a job");
        assert_eq!(view.departures().count(), (n + 1).min(most));
    }
    let view = bench.ledger.job(&job("j")).expect("a job");
    assert_eq!(view.departures().next().map(|d| d.name.as_str()), Some("p1"), "the oldest went");
    departures_of_names_taken_again();
}

fn departures_of_names_taken_again() {
    let mut bench = Bench::new();
    let most = limits::DEPARTURES_MAX;
    let came = |bench: &mut Bench, n: usize| {
        let reply = bench.granted(participate("j", participant(&format!("p{n}"))));
        let Reply::Participant { incarnation, .. } = reply else { panic!("no ticket") };
        incarnation
    };
    let lost = came(&mut bench, 0);
    bench.granted(OpKind::LoseParticipant(op::LoseParticipant {
        incarnation: lost,
        silent_ms: Some(7),
    }));
    // Others are replaced, and return after leaving, more often than there is room for.
    for n in 1..=most {
        came(&mut bench, n);
        came(&mut bench, n);
    }
    for n in 1..=most {
        let incarnation = came(&mut bench, n);
        bench.granted(OpKind::Leave(op::Leave { incarnation }));
        came(&mut bench, n);
    }
    let view = bench.ledger.job(&job("j")).expect("a job");
    assert_eq!(view.departures().count(), most);
    let first = view.departures().next().expect("departures");
    assert_eq!(
        (first.name.as_str(), first.why),
        ("p0", DepartureReason::Lost),
        "nobody has come since"
    );
    let both = barrier_of(BarrierMembers::Members(vec!["p0".into(), "p1".into()]), 1000);
    bench.granted(arrive("b", 1, "p1", both));
    let view = bench.ledger.job(&job("j")).expect("a job");
    let end = view.generations("b").next().and_then(|g| g.end.clone());
    let Some(BarrierEnd::Failed(BarrierFailure::Gone(gone))) = end else { panic!("{end:?}") };
    assert_eq!(gone.name, "p0");
}

pub(crate) fn keep_alive() {
    let mut bench = Bench::new();
    let of = |keep_alive_ms| ParticipantDecl { keep_alive_ms, ..participant("a") };
    let (least, most) = (*limits::KEEP_ALIVE_MS.start(), *limits::KEEP_ALIVE_MS.end());
    for outside in [least - 1, most + 1] {
        bench.invalid(participate("j", of(outside)));
    }
    for inside in [least, most] {
        bench.granted(participate("j", of(inside)));
    }
}

pub(crate) fn timeouts() {
    let mut bench = Bench::new();
    let join = |join_timeout_ms, last_call_ms| {
        OpKind::Join(op::Join {
            job: job("j"),
            participant: Box::new(participant("a")),
            config: RendezvousConfig { min: 2, max: 2, join_timeout_ms, last_call_ms },
        })
    };
    let most = limits::JOB_TIMEOUT_MS_MAX;
    bench.invalid(join(most + 1, 1));
    bench.invalid(join(1, most + 1));
    bench.granted(join(most, most));
    let two = |timeout_ms| barrier_of(BarrierMembers::Count(2), timeout_ms);
    bench.invalid(arrive("b", 1, "a", two(most + 1)));
    bench.granted(arrive("b", 1, "a", two(most)));
}

pub(crate) fn barriers() {
    let mut bench = Bench::new();
    let waits =
        |n: usize| arrive(&format!("b{n}"), 1, "a", barrier_of(BarrierMembers::Count(2), 1000));
    bench.all_granted((0..limits::BARRIERS_MAX).map(waits));
    bench.over(limits::BARRIERS_MAX as u64, waits(limits::BARRIERS_MAX));
    // A barrier that does not wait makes room.
    bench.granted(arrive("b3", 1, "b", barrier_of(BarrierMembers::Count(2), 1000)));
    bench.granted(waits(limits::BARRIERS_MAX));
    let view = bench.ledger.job(&job("j")).expect("a job");
    assert_eq!(view.generations("b3").count(), 0, "it is the one");
}

pub(crate) fn generations() {
    let mut bench = Bench::new();
    let most = limits::GENERATIONS_MAX as u64;
    let alone = || barrier_of(BarrierMembers::Count(1), 1000);
    for number in 1..=most + 1 {
        bench.granted(arrive("b", number, "a", alone()));
        let view = bench.ledger.job(&job("j")).expect("a job");
        assert_eq!(view.generations("b").count() as u64, number.min(most));
    }
    let why = bench.refused(arrive("b", 1, "b", alone()));
    assert!(matches!(why, Rejection::Job(JobRefusal::BarrierGeneration { .. })), "{why:?}");
}

pub(crate) fn ttl() {
    let mut bench = Bench::new();
    let Reply::Participant { incarnation, .. } = bench.granted(participate("j", participant("a")))
    else {
        panic!("no ticket")
    };
    bench.granted(OpKind::Leave(op::Leave { incarnation }));
    bench.tick_to(limits::JOB_TTL_MS - 1);
    assert!(bench.ledger.job(&job("j")).is_some());
    bench.tick_to(limits::JOB_TTL_MS);
    assert!(bench.ledger.job(&job("j")).is_none());
    ttl_with_stores();
}

/// The next job of a name counts rounds from 1: it finds no store of a round, and no store in use is dropped.
fn ttl_with_stores() {
    let mut bench = Bench::new();
    let store = |round| StoreName { namespace: "default".into(), job: "j".into(), round };
    bench.granted(OpKind::CloseRendezvous(op::CloseRendezvous { job: job("j") }));
    bench.tick_to(limits::JOB_TTL_MS - 1);
    bench.granted(OpKind::Store(op::UseStore { store: store(1), ops: Vec::new() }));
    bench.tick_to(limits::JOB_TTL_MS);
    let there = |bench: &Bench| {
        (bench.ledger.job(&job("j")).is_some(), bench.ledger.store(&store(1)).is_some())
    };
    assert_eq!(there(&bench), (true, true), "it is in use");
    bench.tick_to(limits::JOB_TTL_MS * 2 - 1);
    assert_eq!(there(&bench), (true, false));
    bench.tick_to(limits::JOB_TTL_MS * 2);
    assert_eq!(there(&bench), (false, false));
    bench.ledger.check_invariants().unwrap();
}
