//! The bounds that many operations would be needed to reach: the ledger is filled without them.

use super::*;
use file::ApiFile;
use upload::Upload;

/// A ledger without an image.
fn bench() -> Bench {
    Bench::new()
}

/// Applies an operation without a check of the whole state.
fn quick(bench: &mut Bench, kind: OpKind) -> Reply {
    bench.index += 1;
    let (at, body) = (LedgerMs(bench.now), Body::Ops(vec![kind.into()]));
    let command = Command { epoch: CoordEpoch(1), at, wall_ms: 0, body };
    let entry = EntryId { index: bench.index, term: 1 };
    bench.ledger.apply(entry, &command.encode()).expect("it is known").remove(0)
}

fn file_in(namespace: &str, pieces: usize) -> ApiFile {
    let piece = BlobRef { digest: [1; 32], bytes: 1 };
    let content = vec![Extent { folder: "f".into(), pieces: vec![piece; pieces] }];
    ApiFile {
        spec: FileSpec { namespace: namespace.into(), ..spec(FilePurpose::Batch, 0) },
        request: None,
        bytes: pieces as u64,
        content,
        created_ms: 0,
        ends_at: None,
        users: 0,
    }
}

fn fill(bench: &mut Bench, namespace: &str, files: u64) {
    for n in 0..files {
        let id = format!("file-{namespace}{n}");
        bench.ledger.api_files.add_file(id, file_in(namespace, 0));
    }
}

fn is_full(reply: &Reply, max: u64) -> bool {
    matches!(reply, Reply::Rejected(Rejection::Limit { max: at, .. }) if *at == max)
}

#[test]
fn a_namespace_and_a_cluster_have_a_bounded_number_of_files() {
    let mut bench = bench();
    fill(&mut bench, "default", limits::FILES_MAX - 1);
    assert_eq!(quick(&mut bench, create("file-last", 1, None, 0)), Reply::Ok);
    let over = quick(&mut bench, create("file-over", 1, None, 0));
    assert!(is_full(&over, limits::FILES_MAX), "{over:?}");
    assert_eq!(quick(&mut bench, delete("file-last")), Reply::Ok);
    fill(&mut bench, "other", limits::ALL_FILES_MAX - limits::FILES_MAX);
    assert_eq!(quick(&mut bench, create("file-all", 1, None, 0)), Reply::Ok);
    assert_eq!(quick(&mut bench, delete("file-default0")), Reply::Ok);
    fill(&mut bench, "third", 1);
    let over = quick(&mut bench, create("file-over", 1, None, 0));
    assert!(is_full(&over, limits::ALL_FILES_MAX), "{over:?}");
}

#[test]
fn all_files_and_uploads_have_a_bounded_number_of_pieces() {
    let mut bench = bench();
    let files = limits::ALL_PIECES_MAX / limits::FILE_PIECES_MAX;
    for n in 0..files {
        let pieces = limits::FILE_PIECES_MAX as usize - usize::from(n == 0);
        bench.ledger.api_files.add_file(format!("file-f{n}"), file_in("other", pieces));
    }
    assert_eq!(quick(&mut bench, create("file-1", 1, None, 0)), Reply::Ok);
    assert_eq!(quick(&mut bench, create_upload(1, 10)), Reply::Ok);
    for over in [create("file-2", 1, None, 0), add_part(1, "a", 10, 0)] {
        let over = quick(&mut bench, over);
        assert!(is_full(&over, limits::ALL_PIECES_MAX), "{over:?}");
    }
}

#[test]
fn removed_content_that_is_not_gone_stops_new_content() {
    let mut bench = bench();
    for n in 0..limits::REMOVALS_MAX {
        bench.ledger.api_files.removals.add("default", format!("f{n}"), LedgerMs(0));
    }
    let over = quick(&mut bench, create("file-1", 1, None, 0));
    assert!(is_full(&over, limits::REMOVALS_MAX as u64), "{over:?}");
}

#[test]
fn all_namespaces_together_have_a_bounded_number_of_uploads() {
    let mut bench = bench();
    for n in 0..limits::ALL_UPLOADS_MAX {
        let upload = Upload {
            spec: FileSpec { namespace: "other".into(), ..spec(FilePurpose::Batch, 0) },
            bytes: 1,
            created_ms: 0,
            ends_at: LedgerMs(limits::UPLOAD_TTL_MS),
            state: UploadState::Pending,
            parts: BTreeMap::new(),
        };
        bench.ledger.api_files.add_upload(format!("upload_x{n}"), upload);
    }
    let over = quick(&mut bench, create_upload(1, 1));
    assert!(is_full(&over, limits::ALL_UPLOADS_MAX), "{over:?}");
}

#[test]
fn one_tick_removes_a_bounded_number_of_folders_and_the_next_one_continues() {
    let mut bench = bench();
    for n in 0..limits::TICK_FOLDERS_MAX {
        let ends_at = Some(LedgerMs(1));
        let content = vec![Extent { folder: format!("f{n}"), pieces: Vec::new() }];
        let file = ApiFile { ends_at, content, ..file_in("default", 0) };
        bench.ledger.api_files.add_file(format!("file-f{n}"), file);
    }
    let left = |bench: &Bench| bench.ledger.stored_usage("default").files;
    let ends = |bench: &mut Bench| {
        bench.ledger.api_files.end_due(LedgerMs(1));
        left(bench)
    };
    let half = limits::TICK_FOLDERS_MAX as u64 / 2;
    assert_eq!((ends(&mut bench), bench.ledger.next_deadline()), (half, Some(LedgerMs(1))));
    assert_eq!(ends(&mut bench), 0);
}

#[test]
fn texts_and_lists_at_their_bounds_are_accepted_and_longer_ones_refused() {
    let mut bench = bench();
    let named = |id: &str, bytes: usize| {
        let spec = FileSpec { filename: "n".repeat(bytes), ..spec(FilePurpose::Batch, 0) };
        create_with(id, spec, 1, None, 0)
    };
    let marked = |id: &str, bytes: usize| {
        let OpKind::CreateFile(mut op) = create(id, 1, None, 0) else { unreachable!() };
        op.content.folder = format!("{}-{id}", "m".repeat(bytes));
        OpKind::CreateFile(op)
    };
    let forget = |count: usize| {
        let (namespace, folders) = ("default".into(), vec![String::new(); count]);
        OpKind::ForgetContent(op::ForgetContent { namespace, folders })
    };
    bench.ok(create_upload(1, 10));
    let part = limits::UPLOAD_PART_BYTES_MAX as u32;
    for (good, bad) in [
        (
            named("file-1", limits::FILENAME_BYTES_MAX),
            named("file-2", limits::FILENAME_BYTES_MAX + 1),
        ),
        (
            marked("file-3", limits::CONTENT_MARK_BYTES_MAX),
            marked("file-4", limits::CONTENT_MARK_BYTES_MAX + 1),
        ),
        (forget(limits::FORGET_FOLDERS_MAX), forget(limits::FORGET_FOLDERS_MAX + 1)),
        (add_part(1, "a", part, 0), add_part(1, "b", part + 1, 0)),
        (
            create(&format!("file-{}", "i".repeat(limits::API_ID_BYTES_MAX)), 1, None, 0),
            named("file-5", 0),
        ),
    ] {
        bench.ok(good);
        let reply = bench.op(bad.clone());
        assert!(matches!(reply, Reply::Rejected(_)), "{bad:?}");
    }
}
