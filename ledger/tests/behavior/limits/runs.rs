//! Bounds of runs, their input, their grants and their results.

use crate::bench::{self, Bench, claim, complete, create, open_client, rows, segment, spec, text};
use rollout_ledger::{
    Body, EngineSpec, FailureClass, HeldRows, Op, OpKind, Quota, Rejection, Reply, RunSpec, limits,
    op,
};
use std::collections::BTreeMap;

pub(crate) fn segment_rows() {
    let mut bench = Bench::new();
    let run = bench.run("r", spec(), 0);
    let add = |rows| OpKind::AddSegments(op::AddSegments { run, segments: vec![segment(0, rows)] });
    bench.invalid(add(limits::SEGMENT_ROWS_MAX + 1));
    bench.granted(add(limits::SEGMENT_ROWS_MAX));
}

pub(crate) fn segments_per_op() {
    let mut bench = Bench::new();
    let run = bench.run("r", spec(), 0);
    let add = |count: usize| {
        let segments = (0..count as u32).map(|number| segment(number, 1)).collect();
        OpKind::AddSegments(op::AddSegments { run, segments })
    };
    bench.over(limits::SEGMENTS_PER_OP_MAX as u64, add(limits::SEGMENTS_PER_OP_MAX + 1));
    bench.granted(add(limits::SEGMENTS_PER_OP_MAX));
}

pub(crate) fn run_rows() {
    let mut bench = Bench::new();
    let run = bench.run("r", spec(), 0);
    let whole = limits::RUN_ROWS_MAX / u64::from(limits::SEGMENT_ROWS_MAX);
    let left = limits::RUN_ROWS_MAX % u64::from(limits::SEGMENT_ROWS_MAX);
    let numbers: Vec<u32> = (0..whole as u32).collect();
    for some in numbers.chunks(limits::SEGMENTS_PER_OP_MAX) {
        let segments = some.iter().map(|n| segment(*n, limits::SEGMENT_ROWS_MAX)).collect();
        bench.granted(OpKind::AddSegments(op::AddSegments { run, segments }));
    }
    let last = |rows| {
        OpKind::AddSegments(op::AddSegments { run, segments: vec![segment(whole as u32, rows)] })
    };
    bench.over(limits::RUN_ROWS_MAX, last(left as u32 + 1));
    let Reply::Run { rows, .. } = bench.granted(last(left as u32)) else { panic!("no run") };
    assert_eq!(rows, limits::RUN_ROWS_MAX);
    let more = vec![segment(whole as u32 + 1, 1)];
    bench.over(limits::RUN_ROWS_MAX, OpKind::AddSegments(op::AddSegments { run, segments: more }));
}

pub(crate) fn claim_rows() {
    let mut bench = Bench::new();
    bench.run("r", spec(), limits::CLAIM_ROWS_MAX + 1);
    let slot = bench.worker("w", 1);
    assert_eq!(rows(&bench.pull(slot, 1, u32::MAX)), u64::from(limits::CLAIM_ROWS_MAX));
    assert_eq!(rows(&bench.pull(slot, 2, u32::MAX)), 1);
}

pub(crate) fn slot_rows() {
    let mut bench = Bench::new();
    bench.run("r", spec(), limits::SLOT_ROWS_MAX + 1);
    let slot = bench.worker("w", 1);
    let pulls = limits::SLOT_ROWS_MAX / limits::CLAIM_ROWS_MAX;
    let mut held = Vec::new();
    for seq in 1..=u64::from(pulls) {
        held.extend(bench.pull(slot, seq, u32::MAX));
    }
    assert_eq!(rows(&held), u64::from(limits::SLOT_ROWS_MAX));
    assert_eq!(rows(&bench.pull(slot, 9, 1)), 0, "it holds all that it may");
    bench.granted(OpKind::Nack(op::Nack { slot, held: vec![held.remove(0)] }));
    assert_eq!(rows(&bench.pull(slot, 10, 1)), 1);
}

pub(crate) fn part_rows() {
    let mut bench = Bench::new();
    let most = limits::PART_ROWS_MAX as u32;
    let run = bench.run("r", spec(), most + 1);
    let slot = bench.worker("w", 1);
    let first = bench.pull(slot, 1, most);
    let second = bench.pull(slot, 2, 1);
    let both: Vec<HeldRows> = first.iter().chain(&second).cloned().collect();
    bench.over(limits::PART_ROWS_MAX, complete(slot, run, both));
    let reply = bench.granted(complete(slot, run, first));
    assert!(matches!(reply, Reply::Taken { refused } if refused.is_empty()));
    assert_eq!(bench.ledger.run_view(run).expect("a run").counts.done, limits::PART_ROWS_MAX);
}

pub(crate) fn ops_per_command() {
    let mut bench = Bench::new();
    let ops = |count: usize| -> Vec<Op> {
        (0..count).map(|n| open_client(&format!("c{n}")).into()).collect()
    };
    let opened = bench.command(Body::Ops(ops(limits::OPS_PER_COMMAND_MAX)));
    assert!(opened.iter().all(|reply| matches!(reply, Reply::ClientOpened { .. })));
    let refused = bench.command(Body::Ops(ops(limits::OPS_PER_COMMAND_MAX + 1)));
    let max = limits::OPS_PER_COMMAND_MAX as u64;
    let over = |reply: &Reply| matches!(reply, Reply::Rejected(Rejection::Limit { max: bound, .. }) if *bound == max);
    assert!(!refused.is_empty() && refused.iter().all(over));
}

/// A grant from each of this many runs makes one attempt each.
pub(crate) fn grants_per_command() {
    let mut bench = Bench::new();
    let most = limits::GRANTS_PER_COMMAND_MAX;
    let made = bench.all_granted((0..most + 5).map(|n| create(&format!("r{n}"), spec())));
    let runs = made.into_iter().map(|reply| match reply {
        Reply::Run { run, .. } => run,
        reply => panic!("{reply:?}"),
    });
    let one = |run| OpKind::AddSegments(op::AddSegments { run, segments: vec![segment(0, 1)] });
    let adds: Vec<OpKind> = runs.map(one).collect();
    bench.all_granted(adds);
    let slot = bench.worker("w", 2);
    let other = rollout_ledger::id::SlotRef { slot: rollout_ledger::id::SlotNo(1), ..slot };
    let pulls = vec![claim(slot, 1, most).into(), claim(other, 1, 10).into()];
    let replies = bench.command(Body::Ops(pulls));
    let counts: Vec<usize> = replies
        .iter()
        .map(|reply| match reply {
            Reply::Granted(grants) => grants.len(),
            reply => panic!("{reply:?}"),
        })
        .collect();
    assert_eq!(counts, [most as usize, 0], "the command has no attempt left");
    assert_eq!(bench.pull(other, 1, 10).len(), 5, "the next one has");
}

pub(crate) fn names() {
    let mut bench = Bench::new();
    bench.invalid(create(&text(limits::NAME_BYTES_MAX + 1), spec()));
    bench.granted(create(&text(limits::NAME_BYTES_MAX), spec()));
    bench.invalid(open_client(&text(limits::NAME_BYTES_MAX + 1)));
    bench.granted(open_client(&text(limits::NAME_BYTES_MAX)));
    let label = |bytes| {
        let selector = BTreeMap::from([("k".to_owned(), text(bytes))]);
        RunSpec { selector, ..spec() }
    };
    bench.invalid(create("l", label(limits::NAME_BYTES_MAX + 1)));
    bench.granted(create("l", label(limits::NAME_BYTES_MAX)));
}

pub(crate) fn texts() {
    let mut bench = Bench::new();
    let model = |bytes| RunSpec {
        engine: EngineSpec { model: text(bytes), ..EngineSpec::default() },
        ..spec()
    };
    bench.invalid(create("r", model(limits::TEXT_BYTES_MAX + 1)));
    bench.granted(create("r", model(limits::TEXT_BYTES_MAX)));
}

pub(crate) fn json() {
    let mut bench = Bench::new();
    let sampling = |bytes| RunSpec { sampling_json: text(bytes), ..spec() };
    bench.invalid(create("r", sampling(limits::JSON_BYTES_MAX + 1)));
    bench.granted(create("r", sampling(limits::JSON_BYTES_MAX)));
}

pub(crate) fn labels() {
    let mut bench = Bench::new();
    let selector = |count: usize| RunSpec {
        selector: (0..count).map(|n| (format!("k{n}"), "v".to_owned())).collect(),
        ..spec()
    };
    bench.invalid(create("r", selector(limits::LABELS_MAX + 1)));
    bench.granted(create("r", selector(limits::LABELS_MAX)));
}

pub(crate) fn priority() {
    let mut bench = Bench::new();
    let of = |priority| RunSpec { priority, ..spec() };
    bench.invalid(create("r", of(limits::PRIORITY_MAX + 1)));
    bench.granted(create("r", of(limits::PRIORITY_MAX)));
}

pub(crate) fn weight() {
    let mut bench = Bench::new();
    let of = |weight| RunSpec { weight, ..spec() };
    bench.invalid(create("r", of(limits::WEIGHT_MAX + 1)));
    bench.granted(create("r", of(limits::WEIGHT_MAX)));
}

pub(crate) fn runs() {
    let mut bench = Bench::new();
    bench.all_granted((0..limits::RUNS_MAX).map(|n| create(&format!("r{n}"), spec())));
    bench.over(limits::RUNS_MAX as u64, create("more", spec()));
    // An existing run is found.
    bench.granted(create("r0", spec()));
}

/// The size of a sealed run does not depend on the size of its spec.
pub(crate) fn sealed_bytes() {
    let record = |json: usize| -> usize {
        let mut bench = Bench::new();
        let run = bench.run("r", RunSpec { sampling_json: text(json), ..spec() }, 3);
        let (action, reason) = (rollout_ledger::RunAction::Cancel, String::new());
        bench.granted(OpKind::ControlRun(op::ControlRun { run, action, reason }));
        bench.ledger.drain_dirty();
        let ended_index = bench.ledger.run_view(run).expect("a run").ended_index;
        bench.granted(OpKind::Seal(op::Seal { run, manifest: Default::default(), ended_index }));
        let delta = bench.ledger.drain_dirty();
        delta.puts.iter().map(|(_, value)| value.len()).max().unwrap_or_default()
    };
    let (small, large) = (record(1000), record(limits::JSON_BYTES_MAX));
    assert!((1000..=limits::SEALED_BYTES_MAX).contains(&small), "{small} bytes, its sampling too");
    assert!(large <= limits::SEALED_BYTES_MAX, "{large} bytes");
    assert!(large < small, "what does not fit is dropped");
}

pub(crate) fn quantum() {
    let mut bench = Bench::new();
    for name in ["a", "b"] {
        bench.run(name, spec(), 100);
    }
    let slot = bench.worker("w", 1);
    let lens = |held: Vec<HeldRows>| held.iter().map(|h| h.rows.len()).collect::<Vec<_>>();
    let turn = limits::QUANTUM_ROWS;
    assert_eq!(lens(bench.pull(slot, 1, turn)), [u64::from(turn)], "all of one turn");
    let both = lens(bench.pull(slot, 2, turn + 1));
    assert_eq!(both, [u64::from(turn), 1], "one more is the other's");
}

pub(crate) fn clients() {
    let mut bench = Bench::new();
    let opened = bench.all_granted((0..limits::CLIENTS_MAX).map(|n| open_client(&format!("c{n}"))));
    let sessions: Vec<_> = opened
        .into_iter()
        .map(|reply| match reply {
            Reply::ClientOpened { session } => session,
            reply => panic!("{reply:?}"),
        })
        .collect();
    bench.granted(request(sessions[0], 1, 0));
    bench.granted(request(sessions[1], 1, 0));
    bench.granted(open_client("more"));
    // One session made room: the oldest of those used at the same time.
    let known: Vec<bool> = (0..3)
        .map(|n| !matches!(bench.op(request(sessions[n], 2, 0)), Reply::Rejected(_)))
        .collect();
    assert_eq!(known, [false, true, true]);
    clients_of_one_holder();
}

/// From version 3 on an identity that opens many sessions ends its own.
fn clients_of_one_holder() {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(rollout_ledger::SCHEDULING_VERSION));
    let open = |holder: &str| {
        OpKind::OpenClient(op::OpenClient { name: "c".into(), holder: holder.into() })
    };
    let Reply::ClientOpened { session: quiet } = bench.granted(open("client/quiet")) else {
        panic!("no session")
    };
    assert!(bench.ledger.makes_room_of().is_none());
    bench.all_granted((1..limits::CLIENTS_MAX).map(|_| open("client/greedy")));
    bench.tick_to(bench.now() + 1000);
    let next = bench.ledger.makes_room_of().expect("it is full");
    assert_eq!((next.holder, next.unused_ms >= 1000), ("client/greedy", true));
    bench.all_granted((0..100).map(|_| open("client/greedy")));
    bench.granted(open("client/other"));
    assert_eq!(bench.ledger.client_holder(quiet), Some("client/quiet"), "the oldest of all");
    bench.ledger.check_invariants().expect("they hold");
}

fn request(session: rollout_ledger::id::SessionId, seq: u64, ack_upto: u64) -> Op {
    let request = Some(rollout_ledger::RequestId { session, seq, ack_upto });
    Op {
        request,
        kind: OpKind::DropStore(op::DropStore { store: rollout_ledger::StoreName::default() }),
    }
}

pub(crate) fn client_replies() {
    let mut bench = Bench::new();
    let Reply::ClientOpened { session } = bench.granted(open_client("c")) else {
        panic!("no session")
    };
    let most = limits::CLIENT_REPLIES_MAX as u64;
    for seq in 1..=most {
        bench.granted(request(session, seq, 0));
    }
    bench.over(most, request(session, most + 1, 0));
    bench.granted(request(session, most + 1, 1));
}

pub(crate) fn client_ttl() {
    let mut bench = Bench::new();
    let open = open_client;
    let Reply::ClientOpened { session } = bench.granted(open("c")) else { panic!("no session") };
    let Reply::ClientOpened { session: used } = bench.granted(open("u")) else {
        panic!("no session")
    };
    bench.tick_to(limits::CLIENT_TTL_MS - 1);
    bench.granted(request(used, 1, 0));
    bench.tick_to(limits::CLIENT_TTL_MS);
    assert_eq!(bench.refused(request(session, 1, 0)), Rejection::SessionUnknown);
    bench.granted(request(used, 2, 0));
}

pub(crate) fn clock_step() {
    let mut bench = Bench::new();
    let wild = bench.command_at(limits::CLOCK_STEP_MAX_MS + 1, Body::Tick);
    let step_ms = limits::CLOCK_STEP_MAX_MS + 1;
    assert_eq!(wild, [Reply::Rejected(Rejection::ClockStep { step_ms })]);
    assert_eq!(bench.ledger.clock().0, 0);
    assert_eq!(bench.command_at(limits::CLOCK_STEP_MAX_MS, Body::Tick), [Reply::Ok]);
    assert_eq!(bench.ledger.clock().0, limits::CLOCK_STEP_MAX_MS);
    bench.tick_to(limits::CLOCK_STEP_MAX_MS);
}

pub(crate) fn speculate_after() {
    let mut bench = Bench::new();
    let run = bench.run("r", RunSpec { tail_duplicates: true, ..spec() }, 3);
    let digest = *blake3::hash(&[1; 32]).as_bytes();
    bench.granted(OpKind::CloseInput(op::CloseInput { run, rows: 3, digest }));
    let (first, second) = (bench.worker("w1", 1), bench.worker("w2", 1));
    assert_eq!(rows(&bench.pull(first, 1, 10)), 3);
    let speculative = |seq| {
        OpKind::ClaimSpeculatively(op::ClaimSpeculatively {
            slot: second,
            instance: 1,
            seq,
            rows_max: 10,
        })
    };
    bench.tick_to(limits::SPECULATE_AFTER_MS - 1);
    assert_eq!(bench.granted(speculative(1)), Reply::Granted(Vec::new()));
    bench.tick_to(limits::SPECULATE_AFTER_MS);
    let Reply::Granted(grants) = bench.granted(speculative(2)) else { panic!("no grants") };
    assert_eq!(grants.iter().map(|grant| grant.held.rows.len()).sum::<u64>(), 3);
}

/// The attempts that a run may request, and those remembered for a row.
pub(crate) fn history() {
    let mut bench = Bench::new();
    let of = |attempts_max| RunSpec { attempts_max, ..spec() };
    bench.invalid(create("r", of(limits::HISTORY_MAX as u32 + 1)));
    let run = bench.run("r", of(limits::HISTORY_MAX as u32), 1);
    let slot = bench.worker("w", 1);
    for time in 1..=limits::HISTORY_MAX as u64 + 1 {
        let held = bench.pull(slot, time, 1).remove(0);
        bench::fail(&mut bench, slot, held, FailureClass::Transient);
        let item = bench.ledger.item(run, 0).expect("a row");
        let remembered = time.min(limits::HISTORY_MAX as u64);
        assert_eq!(item.failure_record.history.len() as u64, remembered, "after {time}");
        assert_eq!(item.failure_record.failed, time == limits::HISTORY_MAX as u64, "after {time}");
        if item.failure_record.failed {
            bench.granted(OpKind::RetryRows(op::RetryRows { run, rows: None }));
        }
        let wait = bench.now() + 60_000;
        bench.tick_to(wait);
    }
    a_refusal_of_the_store_outlives_the_history_of_its_row();
}

/// The store refuses a second worker, when the row's history has no room any more for the first refusal.
fn a_refusal_of_the_store_outlives_the_history_of_its_row() {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(rollout_ledger::SCHEDULING_VERSION));
    let run = bench.run("r", RunSpec { attempts_max: limits::HISTORY_MAX as u32, ..spec() }, 1);
    let (first, second) = (bench.worker("w1", 1), bench.worker("w2", 1));
    let held = bench.pull(first, 1, 1).remove(0);
    bench::fail(&mut bench, first, held, FailureClass::StoreRefused);
    let mut bench = bench.reloaded();
    for time in 0..limits::HISTORY_MAX as u64 {
        let slot = if time.is_multiple_of(2) { second } else { first };
        let class = match time {
            0 => FailureClass::InputUnreadable,
            _ => FailureClass::Transient,
        };
        let held = bench.pull(slot, 2 + time, 1).remove(0);
        bench::fail(&mut bench, slot, held, class);
        let wait = bench.now() + 60_000;
        bench.tick_to(wait);
    }
    let item = bench.ledger.item(run, 0).expect("a row");
    assert!(item.failure_record.history.iter().all(|t| t.class != FailureClass::StoreRefused));
    let held = bench.pull(second, 100, 1).remove(0);
    bench::fail(&mut bench, second, held, FailureClass::StoreRefused);
    let view = bench.ledger.run_view(run).expect("a run");
    assert!(view.reason.ends_with("(workers w1, w2)"), "{}", view.reason);
}

pub(crate) fn holders() {
    let mut bench = Bench::new();
    let open = |bytes| OpKind::OpenClient(op::OpenClient { name: "c".into(), holder: text(bytes) });
    bench.invalid(open(limits::HOLDER_BYTES_MAX + 1));
    bench.granted(open(limits::HOLDER_BYTES_MAX));
}

pub(crate) fn notify_urls() {
    let mut bench = Bench::new();
    let told = |bytes| RunSpec { notify_url: text(bytes), ..spec() };
    bench.invalid(create("r", told(limits::NOTIFY_URL_BYTES_MAX + 1)));
    bench.granted(create("r", told(limits::NOTIFY_URL_BYTES_MAX)));
}

pub(crate) fn namespaces() {
    let mut bench = Bench::new();
    let make = |name: &str| {
        let quota = Quota { namespace: name.into(), create: true, ..Quota::default() };
        OpKind::SetQuota(quota)
    };
    // `default` is there from the start.
    bench.all_granted((1..limits::NAMESPACES_MAX).map(|n| make(&format!("n{n}"))));
    bench.over(limits::NAMESPACES_MAX as u64, make("more"));
    bench.granted(make("n1"));
}

/// The histories of this many failed and done rows are kept; one more is not.
pub(crate) fn done_histories() {
    let mut bench = Bench::new();
    let all = limits::DONE_HISTORIES_MAX as u32 + 1;
    let run = bench.run("r", spec(), all);
    let slot = bench.worker("w", 1);
    let mut seq = 0;
    let mut pull = |bench: &mut Bench| {
        seq += 1;
        bench.pull(slot, seq, limits::CLAIM_ROWS_MAX)
    };
    loop {
        let held = pull(&mut bench);
        if held.is_empty() {
            break;
        }
        held.into_iter().for_each(|held| {
            bench::fail(&mut bench, slot, held, FailureClass::Transient);
        });
    }
    let wait = bench.now() + 60_000;
    bench.tick_to(wait);
    while bench.ledger.run_view(run).expect("a run").counts.done < u64::from(all) {
        let held = pull(&mut bench);
        assert!(!held.is_empty(), "rows are left");
        bench.granted(complete(slot, run, held));
    }
    let told =
        |row: u64| !bench.ledger.item(run, row).expect("a row").failure_record.history.is_empty();
    let kept = (0..u64::from(all)).filter(|row| told(*row)).count() as u64;
    assert_eq!(kept, limits::DONE_HISTORIES_MAX);
}
