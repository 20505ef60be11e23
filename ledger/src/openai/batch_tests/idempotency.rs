//! Requests that create a batch, and their repeats.

use super::*;
use crate::kernel::limits;

fn with_key(id: &str, key: u8, body: u8) -> BatchDecl {
    BatchDecl { idempotency: Some([key; 32]), body_hash: [body; 32], ..decl(id) }
}

fn with_own_key(id: &str, key: &str, body: u8) -> BatchDecl {
    let metadata = [(crate::ROLLOUT_KEY.to_owned(), key.to_owned())].into();
    let spec = BatchSpec { metadata, ..batch_spec() };
    BatchDecl { spec, body_hash: [body; 32], ..decl(id) }
}

fn found(bench: &mut Bench, decl: BatchDecl, id: &str) {
    let reply = bench.granted(made(decl));
    assert_eq!(reply, Reply::Batch { id: id.into(), created: false });
}

fn reused(bench: &mut Bench, decl: BatchDecl, id: &str) {
    let why = bench.openai_refusal(made(decl));
    assert_eq!(why, OpenAiRefusal::IdempotencyKeyReused(id.into()));
}

#[test]
fn a_repeated_request_finds_its_batch_and_another_request_with_its_key_is_refused() {
    let mut bench = Bench::new();
    for first in [with_key("batch_1", 7, 1), with_own_key("batch_2", "nightly", 1)] {
        bench.granted(made(first));
    }
    found(&mut bench, with_key("batch_8", 7, 1), "batch_1");
    found(&mut bench, with_own_key("batch_9", "nightly", 1), "batch_2");
    // The same operation again, after its answer was lost.
    found(&mut bench, with_key("batch_1", 7, 1), "batch_1");
    found(&mut bench, decl("batch_1"), "batch_1");
    reused(&mut bench, with_key("batch_8", 7, 2), "batch_1");
    reused(&mut bench, with_own_key("batch_9", "nightly", 2), "batch_2");
    reused(&mut bench, BatchDecl { body_hash: [2; 32], ..decl("batch_1") }, "batch_1");
    let of = |key, own| bench.ledger.batch_of_request("default", key, own);
    assert_eq!(of(Some(&[7; 32]), None), Some("batch_1"));
    assert_eq!(of(None, Some("nightly")), Some("batch_2"));
    assert_eq!(of(Some(&[8; 32]), Some("weekly")), None);
    assert_eq!(bench.ledger.batch_of_request("team", None, Some("nightly")), None);
    bench.granted(made(with_key("batch_3", 8, 1)));
    assert_eq!(bench.users(), 3, "one for each batch");
}

#[test]
fn the_keys_of_namespaces_are_apart() {
    let mut bench = Bench::new();
    let (name, running_rows_max) = ("team".to_owned(), 0);
    bench.granted(OpKind::SetNamespace(op::SetNamespace { name, running_rows_max }));
    bench.granted(made(with_own_key("batch_1", "nightly", 1)));
    let other = BatchDecl { namespace: "team".into(), ..with_own_key("batch_2", "nightly", 1) };
    // The file belongs to the other namespace.
    let why = bench.openai_refusal(made(other));
    assert_eq!(why, OpenAiRefusal::FileUnknown("file-in".into()));
    let taken = BatchDecl { namespace: "team".into(), ..decl("batch_1") };
    reused(&mut bench, taken, "batch_1");
}

#[test]
fn an_idempotency_key_is_remembered_for_a_day_even_if_the_output_is_kept_for_an_hour() {
    let mut bench = Bench::new();
    let mut first = with_key("batch_1", 7, 1);
    first.spec.output_ttl_ms = *limits::FILE_TTL_MS.start();
    bench.granted(made(first));
    let created = bench.now;
    bench.granted(cancel("batch_1"));
    bench.tick_to(created + limits::IDEMPOTENCY_MS - 1);
    found(&mut bench, with_key("batch_2", 7, 1), "batch_1");
    bench.tick_to(created + limits::IDEMPOTENCY_MS);
    assert!(bench.ledger.batch_view("batch_1").is_none());
    bench.granted(made(with_key("batch_2", 7, 2)));
}

#[test]
fn a_key_of_the_clients_own_is_remembered_as_long_as_the_batch() {
    let mut bench = Bench::new();
    let mut first = with_own_key("batch_1", "nightly", 1);
    first.idempotency = Some([7; 32]);
    first.spec.output_ttl_ms = 3 * limits::IDEMPOTENCY_MS;
    bench.granted(made(first));
    let created = bench.now;
    bench.granted(cancel("batch_1"));
    bench.tick_to(created + 2 * limits::IDEMPOTENCY_MS);
    found(&mut bench, with_own_key("batch_2", "nightly", 1), "batch_1");
    // The other key is forgotten, and so free.
    let next = with_key("batch_3", 7, 2);
    bench.granted(made(next.clone()));
    bench.tick_to(created + 3 * limits::IDEMPOTENCY_MS);
    assert!(bench.ledger.batch_view("batch_1").is_none());
    bench.granted(made(with_own_key("batch_2", "nightly", 2)));
    assert_eq!(bench.status("batch_3"), BatchStatus::Validating, "it has not ended");
}

#[test]
fn a_file_that_an_open_batch_uses_is_neither_deleted_nor_expires() {
    let mut bench = Bench::new();
    let hour = *limits::FILE_TTL_MS.start();
    bench.granted(create_file("file-hour", FilePurpose::Batch, hour));
    bench.granted(create_file("file-data", FilePurpose::UserData, 0));
    let of = |id: &str, file: &str| {
        let spec = BatchSpec { input_file: file.into(), ..batch_spec() };
        made(BatchDecl { spec, ..decl(id) })
    };
    let why = bench.openai_refusal(of("batch_1", "file-data"));
    assert_eq!(why, OpenAiRefusal::FilePurpose("file-data".into()));
    let why = bench.openai_refusal(of("batch_1", "file-none"));
    assert_eq!(why, OpenAiRefusal::FileUnknown("file-none".into()));
    bench.granted(of("batch_1", "file-hour"));
    bench.granted(of("batch_2", "file-hour"));
    let delete = || OpKind::DeleteFile(op::DeleteFile { id: "file-hour".into() });
    bench.tick_to(bench.now + 2 * hour);
    for (users, end) in [(2, "batch_1"), (1, "batch_2")] {
        let id = "file-hour".to_owned();
        assert_eq!(bench.openai_refusal(delete()), OpenAiRefusal::FileInUse { id, users });
        bench.granted(cancel(end));
    }
    let due = bench.ledger.next_deadline().expect("the file");
    assert!(due.0 <= bench.now);
    let why = bench.openai_refusal(of("batch_3", "file-hour"));
    assert_eq!(why, OpenAiRefusal::FileUnknown("file-hour".into()), "its time is over");
    bench.tick_to(bench.now + 1);
    assert!(bench.ledger.api_file("file-hour").is_none());
}
