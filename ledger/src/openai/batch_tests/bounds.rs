//! Bounds of batches. Those that many operations would be needed to reach: the ledger is filled without them.

use super::*;
use crate::kernel::id::BatchNo;
use crate::kernel::limits;
use crate::openai::batch::{Batch, BatchCursor, BatchEnd, Stage};

/// Applies an operation without a check of the whole state.
fn quick(bench: &mut Bench, kind: OpKind) -> Reply {
    bench.index += 1;
    let (at, body) = (LedgerMs(bench.now), Body::Ops(vec![kind.into()]));
    let command = Command { epoch: CoordEpoch(1), at, wall_ms: 0, body };
    let entry = EntryId { index: bench.index, term: 1 };
    bench.ledger.apply(entry, &command.encode()).expect("it is known").remove(0)
}

fn is_full(reply: &Reply, max: u64) -> bool {
    matches!(reply, Reply::Rejected(Rejection::Limit { max: at, .. }) if *at == max)
}

fn ended() -> Stage {
    Stage::Ended(Box::new(BatchEnd {
        status: BatchStatus::Cancelled,
        at: LedgerMs(0),
        index: 1,
        ended_ms: 0,
        run: None,
        in_progress_ms: None,
        finalizing_ms: None,
        cancelling_ms: None,
        expires_ms: None,
        total: 0,
        completed: 0,
        usage: None,
        output_file: None,
        error_file: None,
        errors: Vec::new(),
    }))
}

/// Adds batches with so many bytes of texts, which were created at time 0.
fn fill(bench: &mut Bench, namespace: &str, count: u64, bytes: usize, stage: &Stage) {
    let first = bench.ledger.batches.by_no.len() as u64;
    for n in first..first + count {
        let spec = BatchSpec { options_json: "x".repeat(bytes), ..batch_spec() };
        let batch = Batch {
            id: format!("batch_filled{n}"),
            namespace: namespace.into(),
            key: String::new(),
            body_hash: [0; 32],
            idempotency: None,
            spec,
            folder: String::new(),
            created_ms: 0,
            created_at: LedgerMs(0),
            owner: None,
            fence: BatchFence::default(),
            model: String::new(),
            stage: stage.clone(),
        };
        bench.ledger.batches.add(BatchNo(n), batch);
    }
}

fn is_made(bench: &mut Bench, id: &str) {
    let reply = quick(bench, create(id));
    assert_eq!(reply, Reply::Batch { id: id.into(), created: true });
}

/// The bench after the time for which idempotency keys are remembered.
fn later() -> Bench {
    let mut bench = Bench::new();
    bench.tick_to(limits::IDEMPOTENCY_MS);
    bench
}

#[test]
fn a_namespace_and_a_cluster_have_a_bounded_number_of_open_batches() {
    let validating = Stage::Validating(BatchCursor::default());
    let mut bench = Bench::new();
    fill(&mut bench, "default", limits::BATCHES_OPEN_IN_NAMESPACE_MAX as u64 - 1, 0, &validating);
    is_made(&mut bench, "batch_1");
    let over = quick(&mut bench, create("batch_2"));
    let max = limits::BATCHES_OPEN_IN_NAMESPACE_MAX as u64;
    let expected =
        matches!(over, Reply::Rejected(Rejection::OverQuota { max: at, .. }) if at == max);
    assert!(expected, "{over:?}");
    let mut bench = Bench::new();
    fill(&mut bench, "other", limits::BATCHES_OPEN_MAX as u64 - 1, 0, &validating);
    is_made(&mut bench, "batch_1");
    let over = quick(&mut bench, create("batch_2"));
    assert!(is_full(&over, limits::BATCHES_OPEN_MAX as u64), "{over:?}");
}

#[test]
fn the_oldest_ended_batch_makes_room_unless_its_idempotency_key_is_remembered() {
    let most = limits::BATCHES_IN_NAMESPACE_MAX;
    let mut bench = later();
    fill(&mut bench, "default", most, 0, &ended());
    is_made(&mut bench, "batch_1");
    assert!(bench.ledger.batch_view("batch_filled0").is_none());
    assert!(bench.ledger.batch_view("batch_filled1").is_some());
    assert_eq!(bench.ledger.batches.by_no.len() as u64, most);
    let mut bench = Bench::new();
    fill(&mut bench, "default", most, 0, &ended());
    let over = quick(&mut bench, create("batch_1"));
    assert!(is_full(&over, most), "{over:?}");
    // Batches of other namespaces make no room.
    let mut bench = later();
    fill(&mut bench, "other", limits::BATCHES_MAX, 0, &ended());
    let over = quick(&mut bench, create("batch_1"));
    assert!(is_full(&over, limits::BATCHES_MAX), "{over:?}");
}

#[test]
fn the_texts_of_batches_have_a_bounded_length() {
    let (each, own) = (1 << 20, limits::BATCH_BYTES_IN_NAMESPACE_MAX >> 20);
    let long = |id: &str| {
        let options_json = "x".repeat(limits::BATCH_OPTIONS_BYTES_MAX);
        made(BatchDecl { spec: BatchSpec { options_json, ..batch_spec() }, ..decl(id) })
    };
    let mut bench = later();
    fill(&mut bench, "default", own, each, &ended());
    assert!(matches!(quick(&mut bench, long("batch_1")), Reply::Batch { .. }));
    assert_eq!(bench.ledger.batches.by_no.len() as u64, own, "one made room");
    let mut bench = Bench::new();
    fill(&mut bench, "default", own, each, &ended());
    let over = quick(&mut bench, long("batch_1"));
    assert!(is_full(&over, limits::BATCH_BYTES_IN_NAMESPACE_MAX), "{over:?}");
    let mut bench = later();
    fill(&mut bench, "other", limits::BATCH_BYTES_MAX >> 20, each, &ended());
    let over = quick(&mut bench, long("batch_1"));
    assert!(is_full(&over, limits::BATCH_BYTES_MAX), "{over:?}");
}

fn is_invalid(bench: &mut Bench, spec: BatchSpec) {
    let why = bench.refused(made(BatchDecl { spec, ..decl("batch_1") }));
    assert!(matches!(why, Rejection::Invalid(_)), "{why:?}");
}

#[test]
fn a_request_has_bounded_fields() {
    let mut bench = Bench::new();
    let windows = limits::BATCH_WINDOW_MS;
    for window_ms in [windows.start() - 1, windows.end() + 1] {
        is_invalid(&mut bench, BatchSpec { window_ms, ..batch_spec() });
    }
    for output_ttl_ms in [limits::FILE_TTL_MS.start() - 1, limits::FILE_TTL_MS.end() + 1] {
        is_invalid(&mut bench, BatchSpec { output_ttl_ms, ..batch_spec() });
    }
    let options_json = "x".repeat(limits::BATCH_OPTIONS_BYTES_MAX + 1);
    is_invalid(&mut bench, BatchSpec { options_json, ..batch_spec() });
    is_invalid(&mut bench, BatchSpec { endpoint: String::new(), ..batch_spec() });
    let endpoint = "/".repeat(limits::NAME_BYTES_MAX + 1);
    is_invalid(&mut bench, BatchSpec { endpoint, ..batch_spec() });
    // Characters, not bytes.
    let key = |n: usize, chars: usize| format!("{n:02}{}", "\u{e9}".repeat(chars - 2));
    let value = |chars: usize| "\u{e9}".repeat(chars);
    let (key_max, value_max) = (limits::METADATA_KEY_CHARS_MAX, limits::METADATA_VALUE_CHARS_MAX);
    let pairs = |count: usize| (0..count).map(|n| (key(n, key_max), value(value_max)));
    let metadata = |pairs: Vec<(String, String)>| BatchSpec {
        metadata: pairs.into_iter().collect(),
        ..batch_spec()
    };
    is_invalid(&mut bench, metadata(pairs(limits::METADATA_PAIRS_MAX + 1).collect()));
    is_invalid(&mut bench, metadata(vec![(key(0, key_max + 1), String::new())]));
    is_invalid(&mut bench, metadata(vec![(key(0, 2), value(value_max + 1))]));
    let largest = BatchSpec {
        window_ms: *windows.end(),
        output_ttl_ms: *limits::FILE_TTL_MS.end(),
        options_json: "x".repeat(limits::BATCH_OPTIONS_BYTES_MAX),
        endpoint: "/".repeat(limits::NAME_BYTES_MAX),
        ..metadata(pairs(limits::METADATA_PAIRS_MAX).collect())
    };
    bench.granted(made(BatchDecl { spec: largest, ..decl("batch_1") }));
}

#[test]
fn a_batch_has_bounded_rows_segments_and_errors() {
    let mut bench = Bench::new();
    bench.create("batch_1");
    let fence = bench.assign("batch_1", FIRST);
    let errors = |count: usize| {
        let errors = vec![error(1); count];
        OpKind::FailBatch(op::FailBatch { batch: "batch_1".into(), fence, errors })
    };
    let of_text = |message: usize, code: usize| {
        let (message, code) = ("m".repeat(message), "c".repeat(code));
        let errors = vec![BatchError { code, message, ..error(1) }];
        OpKind::FailBatch(op::FailBatch { batch: "batch_1".into(), fence, errors })
    };
    for bad in [
        errors(0),
        errors(limits::BATCH_ERRORS_MAX + 1),
        of_text(limits::REASON_BYTES_MAX + 1, 1),
        of_text(1, limits::NAME_BYTES_MAX + 1),
        segments("batch_1", fence, 0, &[limits::SEGMENT_ROWS_MAX + 1]),
        segments("batch_1", fence, 0, &vec![1; limits::SEGMENTS_PER_OP_MAX + 1]),
    ] {
        let why = bench.refused(bad);
        assert!(matches!(why, Rejection::Invalid(_)), "{why:?}");
    }
    let at = |rows: u64, count: usize| {
        let cursor = BatchCursor { offset: 10 * rows, lines: rows, rows };
        (vec![segment(0, 1); count], Stage::Validating(cursor))
    };
    // As if it had as many rows and segments as these.
    let filled = |rows: u64, count: usize, more: &[u32]| {
        let (have, stage) = at(rows, count);
        let mut copy = bench.ledger.clone();
        copy.batches.append("batch_1", have, stage);
        let mut full = Bench { ledger: copy, image: BTreeMap::new(), ..Bench::new() };
        full.index = bench.index;
        let OpKind::AddBatchSegments(mut add) = segments("batch_1", fence, count as u64, more)
        else {
            panic!("segments");
        };
        let more: u64 = more.iter().map(|rows| u64::from(*rows)).sum();
        (add.lines, add.offset) = (rows + more, 10 * (rows + more));
        quick(&mut full, OpKind::AddBatchSegments(add))
    };
    let rows = limits::BATCH_ROWS_MAX;
    assert_eq!(filled(rows - 8, 1, &[8]), Reply::Ok);
    assert!(is_full(&filled(rows - 8, 1, &[9]), rows));
    let count = limits::BATCH_SEGMENTS_MAX;
    assert_eq!(filled(count as u64, count - 1, &[1]), Reply::Ok);
    assert!(is_full(&filled(count as u64, count - 1, &[1, 1]), count as u64));
    bench.granted(errors(limits::BATCH_ERRORS_MAX));
}
