//! Stories of files and uploads. After each command, the invariants hold, and the image loads to the same state.

mod bounds;

use super::*;
use crate::id::{CoordEpoch, LedgerMs};
use crate::kernel::blob_ref::BlobRef;
use crate::kernel::limits;
use crate::kernel::openai_refusal::OpenAiRefusal;
use crate::kernel::reply::{Rejection, Reply};
use crate::kernel::versions::OPENAI_API_VERSION;
use crate::machine::command::{Body, Command, OpKind, Scope, ScopedOp, op};
use crate::machine::ledger::{EntryId, Ledger};
use content::Extent;
use file::{FilePurpose, FileSpec};
use std::collections::BTreeMap;
use upload::{UploadState, file_of_upload, part_of_upload};
use view::FilePage;

const MARK: &str = "0123456789abcdef";

struct Bench {
    ledger: Ledger,
    image: BTreeMap<Vec<u8>, Vec<u8>>,
    index: u64,
    now: u64,
}

fn spec(purpose: FilePurpose, ttl_ms: u64) -> FileSpec {
    let (namespace, filename) = ("default".to_owned(), "in.jsonl".to_owned());
    FileSpec { namespace, key: "key1".into(), filename, purpose, ttl_ms }
}

/// Content of one piece, which `byte` distinguishes.
fn content(id: &str, byte: u8, bytes: u32) -> Extent {
    let pieces = vec![BlobRef { digest: [byte; 32], bytes }];
    Extent { folder: format!("{MARK}-{id}"), pieces }
}

fn upload_id(n: u8) -> String {
    format!("upload_{n:032x}")
}

fn create(id: &str, byte: u8, request: Option<u8>, begun_at: u64) -> OpKind {
    create_with(id, spec(FilePurpose::Batch, 0), byte, request, begun_at)
}

fn create_with(id: &str, spec: FileSpec, byte: u8, request: Option<u8>, begun_at: u64) -> OpKind {
    OpKind::CreateFile(op::CreateFile {
        id: id.into(),
        spec: Box::new(spec),
        request: request.map(|byte| [byte; 16]),
        content: content(id, byte, 10),
        begun_at: LedgerMs(begun_at),
    })
}

fn delete(id: &str) -> OpKind {
    OpKind::DeleteFile(op::DeleteFile { id: id.into() })
}

fn create_upload(n: u8, bytes: u64) -> OpKind {
    let spec = Box::new(spec(FilePurpose::Batch, 0));
    OpKind::CreateUpload(op::CreateUpload { id: upload_id(n), spec, bytes })
}

fn add_part(n: u8, own: &str, bytes: u32, begun_at: u64) -> OpKind {
    let id = part_of_upload(&upload_id(n), own);
    let content = content(&id, bytes as u8, bytes);
    let (upload, begun_at) = (upload_id(n), LedgerMs(begun_at));
    OpKind::AddUploadPart(op::AddUploadPart { upload, id, content, begun_at })
}

fn complete(n: u8, parts: &[&str]) -> OpKind {
    let parts = parts.iter().map(|own| part_of_upload(&upload_id(n), own)).collect();
    OpKind::CompleteUpload(op::CompleteUpload { id: upload_id(n), parts })
}

fn cancel(n: u8) -> OpKind {
    OpKind::CancelUpload(op::CancelUpload { id: upload_id(n) })
}

fn refused(why: OpenAiRefusal) -> Reply {
    Reply::Rejected(why.into())
}

impl Bench {
    fn new() -> Self {
        let (ledger, image) = (Ledger::new([1; 16]), BTreeMap::new());
        let mut bench = Self { ledger, image, index: 0, now: 0 };
        bench.apply(Body::OpenEpoch);
        bench.apply(Body::SetVersion(OPENAI_API_VERSION));
        bench
    }

    fn apply(&mut self, body: Body) -> Reply {
        self.index += 1;
        let (at, wall_ms) = (LedgerMs(self.now), 1_000_000 + self.now);
        let command = Command { epoch: CoordEpoch(1), at, wall_ms, body };
        let entry = EntryId { index: self.index, term: 1 };
        let mut replies = self.ledger.apply(entry, &command.encode()).expect("it is known");
        self.ledger.check_invariants().expect("they hold");
        let delta = self.ledger.drain_dirty();
        self.image.extend(delta.puts);
        delta.deletes.iter().for_each(|key| drop(self.image.remove(key)));
        let loaded = Ledger::load(self.image.clone()).expect("the image loads");
        loaded.check_invariants().expect("they hold after loading");
        assert_eq!(loaded.state_digest(), self.ledger.state_digest());
        replies.pop().expect("a reply")
    }

    fn op(&mut self, kind: OpKind) -> Reply {
        self.apply(Body::Ops(vec![kind.into()]))
    }

    fn ok(&mut self, kind: OpKind) {
        assert_eq!(self.op(kind.clone()), Reply::Ok, "{kind:?}");
    }

    /// Ledger time reaches `now`, in steps that a command may make.
    fn tick_to(&mut self, now: u64) {
        while self.now < now {
            self.now = now.min(self.now + limits::CLOCK_STEP_MAX_MS);
            self.apply(Body::Tick);
        }
    }

    fn ids(&self, purpose: Option<FilePurpose>) -> Vec<String> {
        let namespace = "default";
        let page = FilePage { namespace, purpose, after: None, descending: false, max: 100 };
        let (files, more) = self.ledger.api_file_page(page);
        assert!(!more);
        files.into_iter().map(|(id, _)| id.to_owned()).collect()
    }

    fn removable(&self) -> Vec<String> {
        let folders = self.ledger.removable_content(None, 100).into_iter();
        folders.map(|(_, folder)| folder.split_once('-').expect("a mark").1.to_owned()).collect()
    }

    fn forget(&mut self, ids: &[&str]) {
        let folders = ids.iter().map(|id| format!("{MARK}-{id}")).collect();
        let namespace = "default".to_owned();
        self.ok(OpKind::ForgetContent(op::ForgetContent { namespace, folders }));
    }
}

#[test]
fn a_repeated_creation_changes_nothing_and_one_with_other_content_is_refused() {
    let mut bench = Bench::new();
    bench.ok(create("file-1", 1, None, 0));
    bench.ok(create("file-1", 1, None, 0));
    let conflict = OpenAiRefusal::FileConflict("file-1".into());
    assert_eq!(bench.op(create("file-1", 2, None, 0)), refused(conflict));
    assert_eq!(bench.ids(None), ["file-1"]);
    assert_eq!(bench.ledger.stored_usage("default").bytes, 10);
}

#[test]
fn an_idempotency_key_creates_one_file_and_refuses_another_content() {
    let mut bench = Bench::new();
    bench.ok(create("file-1", 1, Some(1), 0));
    let found =
        |bench: &Bench| bench.ledger.api_file_of_request("default", [1; 16]).map(str::to_owned);
    bench.ok(create("file-2", 1, Some(1), 0));
    assert_eq!((bench.ids(None), found(&bench)), (vec!["file-1".into()], Some("file-1".into())));
    let mut other = Extent { pieces: Vec::new(), ..content("file-3", 1, 10) };
    other.pieces.push(BlobRef { digest: [9; 32], bytes: 10 });
    let op = op::CreateFile {
        id: "file-3".into(),
        spec: Box::new(spec(FilePurpose::Batch, 0)),
        request: Some([1; 16]),
        content: other,
        begun_at: LedgerMs(0),
    };
    let reused = OpenAiRefusal::IdempotencyKeyReused("file-1".into());
    assert_eq!(bench.op(OpKind::CreateFile(op)), refused(reused));
    bench.ok(delete("file-1"));
    assert_eq!(found(&bench), None);
    bench.ok(create("file-4", 1, Some(1), 0));
    assert_eq!(bench.ids(None), ["file-4"]);
}

#[test]
fn removed_content_is_listed_until_no_late_operation_can_name_it() {
    let mut bench = Bench::new();
    bench.ok(create("file-1", 1, None, 0));
    bench.now = 1000;
    bench.ok(delete("file-1"));
    bench.ok(delete("file-1"));
    assert_eq!((bench.ids(None), bench.removable()), (Vec::new(), vec!["file-1".to_owned()]));
    let stale = refused(OpenAiRefusal::ContentStale);
    assert_eq!(bench.op(create("file-1", 1, None, 0)), stale, "its objects may be gone");
    bench.forget(&["file-1", "file-unknown"]);
    assert!(bench.removable().is_empty());
    let folder = format!("{MARK}-file-1");
    assert!(bench.ledger.has_content("default", &folder, "file-1"));
    let end = 1000 + limits::CONTENT_WRITE_MS_MAX;
    assert_eq!(bench.ledger.next_deadline(), Some(LedgerMs(end)));
    bench.tick_to(end - 1);
    assert_eq!(bench.op(create("file-1", 1, None, 1000)), stale);
    bench.tick_to(end);
    assert!(!bench.ledger.has_content("default", &folder, "file-1"));
    assert_eq!(bench.op(create("file-1", 1, None, 0)), stale, "its age");
    assert_eq!(bench.ledger.next_deadline(), None);
}

#[test]
fn content_that_took_too_long_is_refused() {
    let mut bench = Bench::new();
    bench.tick_to(limits::CONTENT_WRITE_MS_MAX + 1);
    let stale = refused(OpenAiRefusal::ContentStale);
    assert_eq!(bench.op(create("file-1", 1, None, 0)), stale);
    bench.ok(create("file-1", 1, None, 1));
    bench.ok(create_upload(1, 10));
    assert_eq!(bench.op(add_part(1, "a", 10, 0)), stale);
    bench.ok(add_part(1, "a", 10, 1));
}

#[test]
fn a_file_expires_and_its_content_is_removed() {
    let mut bench = Bench::new();
    let ttl = *limits::FILE_TTL_MS.start();
    let spec = |ttl_ms| spec(FilePurpose::UserData, ttl_ms);
    bench.ok(create_with("file-1", spec(ttl), 1, None, 0));
    bench.ok(create_with("file-2", spec(0), 1, None, 0));
    for bad in [1, ttl - 1, limits::FILE_TTL_MS.end() + 1] {
        let reply = bench.op(create_with("file-3", spec(bad), 1, None, 0));
        assert!(matches!(reply, Reply::Rejected(Rejection::Invalid(_))), "{reply:?}");
    }
    bench.tick_to(ttl - 1);
    assert_eq!(bench.ids(None), ["file-1", "file-2"]);
    bench.tick_to(ttl);
    assert_eq!(
        (bench.ids(None), bench.removable()),
        (vec!["file-2".into()], vec!["file-1".into()])
    );
    assert_eq!(bench.ledger.stored_usage("default").files, 1);
}

#[test]
fn an_upload_becomes_a_file_of_its_parts_in_the_listed_order() {
    let mut bench = Bench::new();
    bench.ok(create_upload(1, 60));
    bench.ok(create_upload(1, 60));
    for (own, bytes) in [("c", 30), ("a", 10), ("x", 40), ("b", 20)] {
        bench.ok(add_part(1, own, bytes, 0));
        bench.ok(add_part(1, own, bytes, 0));
    }
    assert_eq!(bench.ledger.stored_bytes_of_key("key1"), 100);
    let bytes = OpenAiRefusal::UploadBytes { bytes: 30, declared: 60 };
    assert_eq!(bench.op(complete(1, &["a", "b"])), refused(bytes));
    let unknown = OpenAiRefusal::PartUnknown(part_of_upload(&upload_id(1), "d"));
    assert_eq!(bench.op(complete(1, &["a", "b", "c", "d"])), refused(unknown));
    let twice = bench.op(complete(1, &["a", "a", "x"]));
    assert!(matches!(twice, Reply::Rejected(Rejection::Invalid(_))), "{twice:?}");
    bench.ok(complete(1, &["a", "b", "c"]));
    bench.ok(complete(1, &["a", "b", "c"]));
    let file = bench.ledger.api_file(&file_of_upload(&upload_id(1))).expect("a file");
    assert_eq!(file.content.iter().map(Extent::bytes).collect::<Vec<_>>(), [10, 20, 30]);
    assert_eq!(bench.ledger.stored_bytes_of_key("key1"), 60);
    assert_eq!(bench.removable(), [part_of_upload(&upload_id(1), "x")]);
    let ended =
        |state: &str| refused(OpenAiRefusal::UploadEnded { id: upload_id(1), state: state.into() });
    assert_eq!(bench.op(add_part(1, "e", 1, 0)), ended("completed"));
    assert_eq!(bench.op(cancel(1)), ended("completed"));
    let part = part_of_upload(&upload_id(1), "a");
    assert!(bench.ledger.has_content("default", &format!("{MARK}-{part}"), &part));
    assert!(!bench.ledger.has_content("default", &format!("other-{part}"), &part));
    // The upload is forgotten; its file stays.
    bench.tick_to(limits::UPLOAD_TTL_MS);
    assert!(bench.ledger.api_upload(&upload_id(1)).is_none());
    assert!(bench.ledger.has_content("default", &format!("{MARK}-{part}"), &part));
    assert_eq!(bench.ids(None).len(), 1);
}

#[test]
fn the_parts_of_a_cancelled_and_of_an_expired_upload_are_removed() {
    let mut bench = Bench::new();
    for n in 1..=2 {
        bench.ok(create_upload(n, 10));
        bench.ok(add_part(n, "a", 10, 0));
    }
    let parts: Vec<_> = (1..=2).map(|n| part_of_upload(&upload_id(n), "a")).collect();
    bench.ok(cancel(1));
    bench.ok(cancel(1));
    assert_eq!(bench.ledger.api_upload(&upload_id(1)).expect("kept").state, UploadState::Cancelled);
    assert_eq!(bench.removable(), parts[..1]);
    let ended = OpenAiRefusal::UploadEnded { id: upload_id(1), state: "cancelled".into() };
    assert_eq!(bench.op(complete(1, &["a"])), refused(ended.clone()));
    assert_eq!(bench.op(add_part(1, "b", 10, 0)), refused(ended));
    bench.tick_to(limits::UPLOAD_TTL_MS);
    assert_eq!(bench.removable(), parts);
    let unknown = OpenAiRefusal::UploadUnknown(upload_id(2));
    assert_eq!(bench.op(complete(2, &["a"])), refused(unknown.clone()));
    assert_eq!(bench.op(cancel(2)), refused(unknown));
    assert_eq!(bench.ledger.stored_usage("default"), usage::StoredUsage::default());
}

#[test]
fn a_page_begins_after_an_id_even_if_its_file_is_deleted() {
    let mut bench = Bench::new();
    for n in 0..7 {
        let purpose = if n % 2 == 0 { FilePurpose::Batch } else { FilePurpose::BatchOutput };
        bench.ok(create_with(&format!("file-{n}"), spec(purpose, 0), 1, None, 0));
    }
    let page = |bench: &Bench, after: Option<&str>, descending, purpose| {
        let page = FilePage { namespace: "default", purpose, after, descending, max: 3 };
        let (files, more) = bench.ledger.api_file_page(page);
        let ids = files.into_iter().map(|(id, _)| id["file-".len()..].parse().expect("a number"));
        (ids.collect::<Vec<u8>>(), more)
    };
    assert_eq!(page(&bench, None, true, None), (vec![6, 5, 4], true));
    bench.ok(delete("file-4"));
    assert_eq!(page(&bench, Some("file-4"), true, None), (vec![3, 2, 1], true));
    assert_eq!(page(&bench, Some("file-1"), true, None), (vec![0], false));
    assert_eq!(page(&bench, Some("file-0"), true, None), (vec![], false));
    assert_eq!(page(&bench, Some("file-3"), false, None), (vec![5, 6], false));
    assert_eq!(page(&bench, None, false, Some(FilePurpose::BatchOutput)), (vec![1, 3, 5], false));
    assert_eq!(page(&bench, None, false, Some(FilePurpose::UserData)), (vec![], false));
}

#[test]
fn a_caller_of_one_namespace_changes_no_file_of_another() {
    let mut bench = Bench::new();
    bench.ok(OpKind::SetNamespace(op::SetNamespace { name: "team".into(), running_rows_max: 0 }));
    bench.ok(create("file-1", 1, None, 0));
    bench.ok(create_upload(1, 10));
    for kind in [
        create("file-2", 1, None, 0),
        delete("file-1"),
        create_upload(2, 10),
        add_part(1, "a", 10, 0),
        complete(1, &[]),
        cancel(1),
    ] {
        let scope = Scope::Namespaces(vec!["team".into()]);
        let ops = vec![ScopedOp { scope, op: kind.into() }];
        let denied = Reply::Rejected(Rejection::NamespaceDenied("default".into()));
        assert_eq!(bench.apply(Body::ScopedOps(ops)), denied);
    }
    let namespace = FileSpec { namespace: "none".into(), ..spec(FilePurpose::Batch, 0) };
    let reply = bench.op(create_with("file-2", namespace, 1, None, 0));
    assert_eq!(reply, Reply::Rejected(Rejection::NamespaceUnknown("none".into())));
}

#[test]
fn malformed_ids_folders_and_sizes_are_refused() {
    let mut bench = Bench::new();
    let long = format!("file-{}", "a".repeat(limits::API_ID_BYTES_MAX + 1));
    for id in ["file-", "file-/", "file-a.b", "1", &long] {
        let reply = bench.op(create(id, 1, None, 0));
        assert!(matches!(reply, Reply::Rejected(Rejection::Invalid(_))), "{id}: {reply:?}");
    }
    let with = |content: Extent| {
        OpKind::CreateFile(op::CreateFile {
            id: "file-1".into(),
            spec: Box::new(spec(FilePurpose::Batch, 0)),
            request: None,
            content,
            begun_at: LedgerMs(0),
        })
    };
    let folder = |folder: &str| Extent { folder: folder.into(), ..content("file-1", 1, 1) };
    for bad in [
        folder("file-1"),
        folder("-file-1"),
        folder("a/b-file-1"),
        folder("0-file-2"),
        content("file-1", 1, 0),
        content("file-1", 1, limits::CONTENT_PIECE_BYTES_MAX + 1),
    ] {
        let reply = bench.op(with(bad.clone()));
        assert!(matches!(reply, Reply::Rejected(Rejection::Invalid(_))), "{bad:?}: {reply:?}");
    }
    let piece = BlobRef { digest: [1; 32], bytes: 1 };
    let pieces = vec![piece; limits::FILE_PIECES_MAX as usize + 1];
    let reply = bench.op(with(Extent { pieces, ..content("file-1", 1, 1) }));
    assert!(matches!(reply, Reply::Rejected(Rejection::Limit { .. })), "{reply:?}");
    for bytes in [0, limits::UPLOAD_BYTES_MAX + 1] {
        let reply = bench.op(create_upload(1, bytes));
        assert!(matches!(reply, Reply::Rejected(Rejection::Invalid(_))), "{bytes}: {reply:?}");
    }
}

#[test]
fn an_upload_has_a_bounded_number_of_parts_and_a_namespace_of_uploads() {
    let mut bench = Bench::new();
    bench.ok(create_upload(1, 10));
    let parts = (0..limits::UPLOAD_PARTS_MAX).map(|n| add_part(1, &format!("p{n}"), 1, 0).into());
    bench.apply(Body::Ops(parts.collect()));
    let max = limits::UPLOAD_PARTS_MAX as u64;
    let full = Rejection::Limit { what: "parts of an upload".into(), max };
    assert_eq!(bench.op(add_part(1, "more", 1, 0)), Reply::Rejected(full));
    let uploads = (1..limits::UPLOADS_MAX).map(|n| {
        let (id, spec) = (format!("upload_{:032x}", n + 1), spec(FilePurpose::Batch, 0));
        OpKind::CreateUpload(op::CreateUpload { id, spec: Box::new(spec), bytes: 1 }).into()
    });
    bench.apply(Body::Ops(uploads.collect()));
    let reply = bench.op(create_upload(0, 1));
    assert!(matches!(reply, Reply::Rejected(Rejection::Limit { .. })), "{reply:?}");
}

#[test]
fn a_restored_cluster_has_the_files_and_uploads() {
    let mut bench = Bench::new();
    bench.ok(create("file-1", 1, None, 0));
    bench.ok(create("file-2", 1, None, 0));
    bench.ok(delete("file-2"));
    bench.ok(create_upload(1, 10));
    let restored = bench.ledger.restored([2; 16], 0);
    restored.check_invariants().expect("they hold");
    assert!(restored.api_file("file-1").is_some() && restored.api_upload(&upload_id(1)).is_some());
    assert_eq!(restored.removable_content(None, 9).len(), 1);
}
