//! Bounds of shared stores.

use crate::bench::{Bench, job, open_client};
use rollout_ledger::id::SessionId;
use rollout_ledger::{
    Body, Op, OpKind, Rejection, Reply, RequestId, StoreAnswer, StoreName, StoreOp, limits, op,
};

fn store(job: &str) -> StoreName {
    StoreName { namespace: "default".into(), job: job.into(), round: 0 }
}

fn set(pairs: Vec<(Vec<u8>, Vec<u8>)>) -> StoreOp {
    StoreOp::Set { pairs }
}

/// What one operation is answered.
fn answer(bench: &mut Bench, job: &str, op: StoreOp) -> StoreAnswer {
    match bench.granted(OpKind::Store(op::UseStore { store: store(job), ops: vec![op] })) {
        Reply::Store(mut answers) => answers.pop().expect("an answer"),
        reply => panic!("{reply:?}"),
    }
}

fn done(bench: &mut Bench, job: &str, op: StoreOp) {
    assert_eq!(answer(bench, job, op), StoreAnswer::Done);
}

fn over(bench: &mut Bench, job: &str, bound: u64, op: StoreOp) {
    let answer = answer(bench, job, op);
    let StoreAnswer::Refused(Rejection::Limit { max, .. }) = answer else { panic!("{answer:?}") };
    assert_eq!(max, bound);
}

pub(crate) fn key_bytes() {
    let mut bench = Bench::new();
    let of = |bytes| set(vec![(vec![b'k'; bytes], Vec::new())]);
    over(&mut bench, "j", limits::STORE_KEY_BYTES_MAX as u64, of(limits::STORE_KEY_BYTES_MAX + 1));
    done(&mut bench, "j", of(limits::STORE_KEY_BYTES_MAX));
}

pub(crate) fn value_bytes() {
    let mut bench = Bench::new();
    let of = |bytes| set(vec![(b"k".to_vec(), vec![0; bytes])]);
    let most = limits::STORE_VALUE_BYTES_MAX;
    over(&mut bench, "j", most as u64, of(most + 1));
    done(&mut bench, "j", of(most));
    // Nor is any compared with what no key can have, and answered it.
    let expected = vec![0; most + 1];
    let compare = |expected| StoreOp::CompareSet { key: b"x".to_vec(), expected, desired: vec![1] };
    over(&mut bench, "j", most as u64, compare(expected));
    assert_eq!(
        answer(&mut bench, "j", compare(vec![0; most])),
        StoreAnswer::Value(Some(vec![0; most]))
    );
    // Nor does a value grow beyond it.
    let append = StoreOp::Append { key: b"k".to_vec(), value: vec![0] };
    over(&mut bench, "j", most as u64, append);
}

/// Sets keys of a store, by their numbers.
fn number(bench: &mut Bench, numbers: std::ops::Range<u64>) {
    let all: Vec<u64> = numbers.collect();
    for some in all.chunks(limits::STORE_PAIRS_MAX) {
        let pairs = some.iter().map(|n| (n.to_string().into_bytes(), Vec::new())).collect();
        done(bench, "j", set(pairs));
    }
}

fn another() -> StoreOp {
    set(vec![(b"more".to_vec(), Vec::new())])
}

pub(crate) fn entries() {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(limits::FLEET_VERSION));
    number(&mut bench, 0..limits::STORE_ENTRIES_MAX);
    over(&mut bench, "j", limits::STORE_ENTRIES_MAX, another());
    let push = StoreOp::Push { queue: b"q".to_vec(), value: Vec::new() };
    over(&mut bench, "j", limits::STORE_ENTRIES_MAX, push);
    answer(&mut bench, "j", StoreOp::Delete { key: b"7".to_vec() });
    done(&mut bench, "j", another());
}

/// Members of an earlier build refuse more.
pub(crate) fn entries_before() {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(limits::FLEET_VERSION - 1));
    number(&mut bench, 0..limits::STORE_ENTRIES_BEFORE_MAX);
    over(&mut bench, "j", limits::STORE_ENTRIES_BEFORE_MAX, another());
    bench.command(Body::SetVersion(limits::FLEET_VERSION));
    done(&mut bench, "j", another());
}

/// Fills a store to its last byte.
fn fill(bench: &mut Bench, job: &str) {
    let values = limits::STORE_BYTES_MAX / limits::STORE_VALUE_BYTES_MAX as u64;
    for n in 0..values {
        // A key of four bytes, and a value that makes a value's bound with it.
        let key = format!("{n:04}").into_bytes();
        done(bench, job, set(vec![(key, vec![0; limits::STORE_VALUE_BYTES_MAX - 4])]));
    }
}

pub(crate) fn bytes() {
    let mut bench = Bench::new();
    fill(&mut bench, "j");
    over(&mut bench, "j", limits::STORE_BYTES_MAX, set(vec![(b"x".to_vec(), Vec::new())]));
    // Changes that do not grow it are still accepted.
    done(&mut bench, "j", set(vec![(b"0001".to_vec(), b"less".to_vec())]));
    done(&mut bench, "j", set(vec![(b"x".to_vec(), Vec::new())]));
}

pub(crate) fn bytes_of_all() {
    let mut bench = Bench::new();
    for n in 0..limits::STORES_BYTES_MAX / limits::STORE_BYTES_MAX {
        fill(&mut bench, &format!("j{n}"));
    }
    let byte = || set(vec![(b"x".to_vec(), Vec::new())]);
    over(&mut bench, "more", limits::STORES_BYTES_MAX, byte());
    bench.granted(OpKind::DropStore(op::DropStore { store: store("j0") }));
    done(&mut bench, "more", byte());
}

pub(crate) fn stores() {
    let mut bench = Bench::new();
    let open = |job: String| OpKind::Store(op::UseStore { store: store(&job), ops: Vec::new() });
    bench.all_granted((0..limits::STORES_MAX).map(|n| open(format!("j{n}"))));
    bench.over(limits::STORES_MAX as u64, open("more".into()));
    bench.granted(open("j0".into()));
    // Remembered jobs take no room from new ones: when a job is forgotten, its round's store is dropped too, and
    // stores that outlive rounds have separate room.
    let mut bench = Bench::new();
    bench.granted(open("outlives".into()));
    for n in 0..=limits::JOBS_MAX {
        bench.granted(OpKind::CloseRendezvous(op::CloseRendezvous { job: job(&format!("j{n}")) }));
        let store = StoreName { round: 1, ..store(&format!("j{n}")) };
        bench.granted(OpKind::Store(op::UseStore { store, ops: Vec::new() }));
    }
    assert_eq!(bench.ledger.store_names().count(), limits::JOBS_MAX + 1);
}

pub(crate) fn ops() {
    let mut bench = Bench::new();
    let of = |count| {
        let ops = vec![StoreOp::Add { key: b"n".to_vec(), delta: 1 }; count];
        OpKind::Store(op::UseStore { store: store("j"), ops })
    };
    bench.over(limits::STORE_OPS_MAX as u64, of(limits::STORE_OPS_MAX + 1));
    let Reply::Store(answers) = bench.granted(of(limits::STORE_OPS_MAX)) else { panic!("none") };
    let sum = limits::STORE_OPS_MAX as i64;
    assert_eq!(answers.last(), Some(&StoreAnswer::Number(sum)), "of what was refused, nothing");
}

/// Keys and queues that have as much as they may, in a store of that name.
fn big(bench: &mut Bench, job: &str) {
    done(bench, job, set(vec![(b"k".to_vec(), vec![b'x'; limits::STORE_VALUE_BYTES_MAX])]));
    let value = vec![b'x'; limits::STORE_VALUE_BYTES_MAX];
    for n in 1..=limits::STORE_VALUE_OPS_MAX as i64 + 1 {
        let push = StoreOp::Push { queue: b"q".to_vec(), value: value.clone() };
        assert_eq!(answer(bench, job, push), StoreAnswer::Number(n));
    }
}

/// Not set, and answered with the whole value.
fn compare() -> StoreOp {
    let (expected, desired) = (b"not this".to_vec(), b"y".to_vec());
    StoreOp::CompareSet { key: b"k".to_vec(), expected, desired }
}

pub(crate) fn value_ops() {
    let mut bench = Bench::new();
    big(&mut bench, "j");
    let pop = || StoreOp::Pop { queue: b"q".to_vec() };
    let most = limits::STORE_VALUE_OPS_MAX;
    for op in [compare(), pop()] {
        // A refused request has no effect: no element is popped without an answer.
        let mut ops = vec![StoreOp::Delete { key: b"k".to_vec() }];
        ops.extend(vec![op; most + 1]);
        bench.over(most as u64, OpKind::Store(op::UseStore { store: store("j"), ops }));
    }
    let there = bench.ledger.store(&store("j")).expect("used");
    assert_eq!((there.len(), there.queue_len(b"q")), (1, most + 1));
    for op in [compare(), pop()] {
        let mut ops = vec![StoreOp::Add { key: b"n".to_vec(), delta: 1 }; 100];
        ops.extend(vec![op; most]);
        let reply = bench.granted(OpKind::Store(op::UseStore { store: store("j"), ops }));
        let Reply::Store(answers) = reply else { panic!("{reply:?}") };
        let whole = |a: &&StoreAnswer| matches!(a, StoreAnswer::Value(Some(v)) if v.len() == limits::STORE_VALUE_BYTES_MAX);
        assert_eq!(answers.iter().filter(whole).count(), most);
    }
}

fn session(bench: &mut Bench) -> SessionId {
    opened(bench, open_client("c"))
}

fn session_of(bench: &mut Bench, holder: &str) -> SessionId {
    opened(bench, OpKind::OpenClient(op::OpenClient { name: "c".into(), holder: holder.into() }))
}

fn opened(bench: &mut Bench, kind: OpKind) -> SessionId {
    match bench.granted(kind) {
        Reply::ClientOpened { session } => session,
        reply => panic!("{reply:?}"),
    }
}

/// Operations of that client.
fn asked(session: SessionId, (seq, ack_upto): (u64, u64), ops: Vec<StoreOp>) -> Op {
    let request = Some(RequestId { session, seq, ack_upto });
    Op { request, kind: OpKind::Store(op::UseStore { store: store("j"), ops }) }
}

/// The answers that the client does not acknowledge have as many bytes of values as they may.
fn remember_most(bench: &mut Bench, session: SessionId) -> u64 {
    let one = limits::STORE_VALUE_BYTES_MAX as u64;
    let answers = limits::CLIENT_REPLIES_BYTES_MAX / one;
    for seq in 1..=answers {
        bench.granted(asked(session, (seq, 0), vec![compare()]));
    }
    answers
}

pub(crate) fn reply_bytes_of_a_client() {
    let mut bench = Bench::new();
    big(&mut bench, "j");
    let session = session(&mut bench);
    let last = remember_most(&mut bench, session);
    let bound = limits::CLIENT_REPLIES_BYTES_MAX;
    bench.over(bound, asked(session, (last + 1, 0), vec![compare()]));
    // A remembered answer is repeated, and a client that acknowledges has room.
    bench.granted(asked(session, (last, 0), vec![compare()]));
    bench.granted(asked(session, (last + 2, 1), vec![compare()]));
    bench.over(bound, asked(session, (last + 3, 1), vec![compare()]));
    bench.granted(asked(session, (last + 4, last + 3), vec![compare()]));
}

pub(crate) fn reply_bytes_of_all() {
    let mut bench = Bench::new();
    big(&mut bench, "j");
    let clients = limits::REPLIES_BYTES_MAX / limits::CLIENT_REPLIES_BYTES_MAX;
    let other = session(&mut bench);
    let add = || vec![StoreOp::Add { key: b"n".to_vec(), delta: 1 }];
    bench.granted(asked(other, (1, 0), add()));
    let all: Vec<SessionId> = (0..clients).map(|_| session(&mut bench)).collect();
    let mut seq = 0;
    for session in &all {
        seq = remember_most(&mut bench, *session);
    }
    let mut restored = bench.reloaded();
    bench.tick_to(1);
    // A remembered answer is repeated, an operation without a value is accepted, and no session is dropped for it.
    bench.granted(asked(all[0], (seq, 0), vec![compare()]));
    bench.granted(asked(other, (2, 0), add()));
    bench.granted(asked(all[1], (seq, 0), vec![compare()]));
    // A request for a value is answered: the longest-unused session with values is dropped.
    let pop = || StoreOp::Pop { queue: b"q".to_vec() };
    let whole = vec![b'x'; limits::STORE_VALUE_BYTES_MAX];
    let popped = Reply::Store(vec![StoreAnswer::Value(Some(whole))]);
    assert_eq!(bench.granted(asked(other, (3, 0), vec![pop()])), popped);
    let unknown = |bench: &mut Bench, session| {
        let reply = bench.op(asked(session, (seq, 0), vec![compare()]));
        matches!(reply, Reply::Rejected(Rejection::SessionUnknown))
    };
    assert!(unknown(&mut bench, all[2]), "its outcome is unknown, as of all that are forgotten");
    let mut others = all.iter().filter(|session| **session != all[2]);
    assert!(others.all(|session| !unknown(&mut bench, *session)));
    assert_eq!(bench.granted(asked(other, (3, 0), vec![pop()])), popped, "once");
    // A ledger loaded from its image does the same, and no session is dropped for its own request, although it comes
    // first.
    let twice = || asked(all[0], (seq + 1, 1), vec![compare(), compare()]);
    let reply = restored.granted(twice());
    assert!(unknown(&mut restored, all[1]), "all were used at one time: the oldest but one");
    assert_eq!(restored.granted(twice()), reply);
    assert!(all[2..].iter().all(|other| !unknown(&mut restored, *other)));
    reply_bytes_of_one_holder();
    reply_bytes_of_equal_holders();
}

/// From version 3 on an identity whose sessions fill the memory ends its own sessions.
fn reply_bytes_of_one_holder() {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(rollout_ledger::SCHEDULING_VERSION));
    big(&mut bench, "j");
    let quiet = session_of(&mut bench, "client/quiet");
    let answer = bench.granted(asked(quiet, (1, 0), vec![compare()]));
    bench.tick_to(bench.now() + 1000);
    let most = limits::REPLIES_BYTES_MAX / limits::CLIENT_REPLIES_BYTES_MAX;
    let greedy: Vec<SessionId> =
        (0..most).map(|_| session_of(&mut bench, "client/greedy")).collect();
    for session in &greedy {
        remember_most(&mut bench, *session);
    }
    let known = |bench: &Bench| {
        greedy.iter().filter(|id| bench.ledger.client_holder(**id).is_some()).count()
    };
    assert_eq!(known(&bench), greedy.len() - 1, "one of them made room for the last");
    assert_eq!(bench.ledger.client_holder(greedy[0]), None, "the oldest of them");
    // A ledger loaded from its image behaves the same.
    let restored = bench.reloaded();
    for mut bench in [bench, restored] {
        let other = session_of(&mut bench, "client/other");
        remember_most(&mut bench, other);
        assert_eq!(known(&bench), greedy.len() - 2, "and another for those of another identity");
        let again = bench.granted(asked(quiet, (1, 0), vec![compare()]));
        assert_eq!(again, answer, "it was used before all others");
    }
}

/// Of two identities with equal bytes, the one that asks for more makes the room itself.
fn reply_bytes_of_equal_holders() {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(rollout_ledger::SCHEDULING_VERSION));
    big(&mut bench, "j");
    let half = limits::REPLIES_BYTES_MAX / limits::CLIENT_REPLIES_BYTES_MAX / 2;
    let mut sessions = |holder: &str| -> Vec<SessionId> {
        (0..half).map(|_| session_of(&mut bench, holder)).collect()
    };
    let (first, second) = (sessions("client/one"), sessions("client/two"));
    for session in first.iter().chain(&second) {
        remember_most(&mut bench, *session);
    }
    let more = session_of(&mut bench, "client/two");
    bench.granted(asked(more, (1, 0), vec![compare()]));
    assert!(first.iter().all(|id| bench.ledger.client_holder(*id).is_some()));
    assert_eq!(bench.ledger.client_holder(second[0]), None);
}

pub(crate) fn pairs() {
    let mut bench = Bench::new();
    let of = |count: usize| {
        let pair = |n: usize| (n.to_string().into_bytes(), Vec::new());
        set((0..count).map(pair).collect())
    };
    over(&mut bench, "j", limits::STORE_PAIRS_MAX as u64, of(limits::STORE_PAIRS_MAX + 1));
    assert!(bench.ledger.store(&store("j")).expect("used").is_empty(), "all of them or none");
    done(&mut bench, "j", of(limits::STORE_PAIRS_MAX));
}

pub(crate) fn ttl() {
    let mut bench = Bench::new();
    done(&mut bench, "j", set(vec![(b"k".to_vec(), Vec::new())]));
    bench.tick_to(limits::STORE_TTL_MS - 1);
    assert!(bench.ledger.store(&store("j")).is_some());
    bench.tick_to(limits::STORE_TTL_MS);
    assert!(bench.ledger.store(&store("j")).is_none());
}
