//! The bytes of everything that outlives a process and is no database: objects, spools, identities, snapshot files, and the
//! names of objects.
//!
//! *Invariant:* a build reads what earlier builds wrote, so no line changes. `ROLLOUT_REWRITE=1` writes the file anew, which
//! needs a reason why the old bytes exist nowhere.
//! Absent: the Raft log and the image, which are whole directories in `raft/tests/testdata`, and what records of the ledger
//! mean.

use rollout_recorded::check;
use rollout_storage::{
    Identity, Part, PartRow, PartRowKind, PartWriter, SNAPSHOT_FILE_VERSION, Segment,
    SegmentWriter, SnapshotFileReader, SnapshotFileWriter, SnapshotHeader, SnapshotMember, Spool,
    checkpoint_key, checkpoint_prefix, content_key, content_prefix, evidence_key, folder_mark,
    manifest_key, part_key, record, run_folder, run_prefix, segment_key, training_prefix,
};
use std::fmt::Write as _;
use std::path::Path;

/// The lines of the file.
#[derive(Default)]
struct FormatLines(Vec<String>);

impl FormatLines {
    fn bytes(&mut self, name: &str, bytes: &[u8]) {
        let mut line = format!("{name} ");
        for byte in bytes {
            // invariant: writing to a string does not fail.
            let _ = write!(line, "{byte:02x}");
        }
        self.0.push(line);
    }

    fn text(&mut self, name: &str, text: &str) {
        self.0.push(format!("{name} {text}"));
    }
}

const CLUSTER: &str = "0123456789abcdef0123456789abcdef";
const DIGEST: [u8; 32] = [0xab; 32];

fn rows() -> [PartRow<'static>; 2] {
    [
        PartRow {
            row: 3,
            attempt: 90_112,
            kind: PartRowKind::Completed,
            body: b"{\"text\":\"a\"}",
        },
        PartRow { row: 70_000, attempt: 90_113, kind: PartRowKind::Failed, body: b"{}" },
    ]
}

/// What workers and clients put into an object store.
fn objects(kept: &mut FormatLines) {
    kept.bytes("segment_without_rows", &SegmentWriter::new().finish());
    let mut writer = SegmentWriter::new();
    writer.push([7; 32], 1, b"{\"prompt\":\"a\"}").unwrap();
    writer.push([8; 32], 70_000, b"{}").unwrap();
    let segment = writer.finish();
    kept.bytes("segment", &segment);
    assert_eq!(Segment::decode(segment).unwrap().len(), 2);
    kept.bytes("part_without_rows", &PartWriter::new().finish());
    let mut writer = PartWriter::new();
    rows().into_iter().for_each(|row| writer.push(row).unwrap());
    let part = writer.finish();
    kept.bytes("part", &part);
    assert!(Part::decode(part).unwrap().rows().eq(rows()));
}

/// Where these are in the store.
fn names(kept: &mut FormatLines) {
    let folder = run_folder("chat", CLUSTER, 300);
    kept.text("run_folder", &folder);
    kept.text("folder_mark", &folder_mark(CLUSTER));
    kept.text("run_prefix", &run_prefix("team", &folder));
    kept.text("segment_key", &segment_key("team", &folder, &DIGEST));
    kept.text("part_key", &part_key("team", &folder, &DIGEST));
    kept.text("manifest_key", &manifest_key("team", &folder, &DIGEST));
    kept.text("evidence_key", &evidence_key("team", &folder, &DIGEST));
    kept.text("training_prefix", &training_prefix("team", "sft"));
    kept.text("checkpoint_prefix", &checkpoint_prefix("team", "sft", 300));
    kept.text("checkpoint_key", &checkpoint_key("team", "sft", 300, &DIGEST));
    let folder = format!("{}file-1", folder_mark(CLUSTER));
    kept.text("content_prefix", &content_prefix("team", &folder));
    kept.text("content_key", &content_key("team", &folder, &DIGEST));
}

/// Files of a worker's and of a member's directory.
fn files(kept: &mut FormatLines, dir: &Path) {
    kept.bytes("record", &record::seal(b"context", b"payload"));
    let path = dir.join("spool");
    let (mut spool, _) = Spool::open(&path).unwrap();
    rows().into_iter().for_each(|row| spool.append(row).unwrap());
    spool.sync().unwrap();
    drop(spool);
    kept.bytes("spool", &std::fs::read(&path).unwrap());
    let (_, back) = Spool::open(&path).unwrap();
    assert!(back.iter().map(|row| row.as_part_row()).eq(rows()));
    let identity = Identity { cluster_id: CLUSTER.into(), member_id: u64::MAX, name: "c1".into() };
    identity.create(dir).unwrap();
    let text = std::fs::read_to_string(Identity::path(dir)).unwrap();
    text.lines().for_each(|line| kept.text("identity", line));
    assert!(text.ends_with('\n'));
    assert_eq!(Identity::load(dir).unwrap(), Some(identity));
}

/// The header is JSON, of which each field is read for ever.
fn snapshot(kept: &mut FormatLines, dir: &Path) {
    let member = SnapshotMember {
        name: "c1".into(),
        peer_addr: "h1:6".into(),
        client_addr: "h1:7".into(),
        zone: "a".into(),
    };
    let header = SnapshotHeader {
        cluster_id: CLUSTER.into(),
        member: "c1".into(),
        index: u64::MAX,
        term: 300,
        taken_unix_ms: 1_795_000_000_000,
        cluster_version: 3,
        program: "0.1.0".into(),
        salvaged: true,
        members: vec![member],
    };
    let mut writer = SnapshotFileWriter::new(Vec::new(), &header).unwrap();
    let records = [(b"M".to_vec(), b"first".to_vec()), (b"Z".to_vec(), Vec::new())];
    records.iter().for_each(|(key, value)| writer.record(key, value).unwrap());
    let (file, digest) = writer.finish().unwrap();
    kept.text("snapshot_version", &SNAPSHOT_FILE_VERSION.to_string());
    kept.text("snapshot_header", &serde_json::to_string(&header).unwrap());
    kept.bytes("snapshot", &file);
    kept.bytes("snapshot_digest", &digest);
    let path = dir.join("of.snap");
    std::fs::write(&path, &file).unwrap();
    let mut reader = SnapshotFileReader::open(&path).unwrap();
    let back: Vec<_> = reader.by_ref().map(|record| record.unwrap()).collect();
    assert_eq!(back, records);
    assert_eq!(*reader.header(), header);
}

#[test]
fn the_bytes_of_files_and_objects_are_locked() {
    let dir = tempfile::tempdir().unwrap();
    let mut kept = FormatLines::default();
    objects(&mut kept);
    names(&mut kept);
    files(&mut kept, dir.path());
    snapshot(&mut kept, dir.path());
    check(
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/testdata/formats.txt"),
        &(kept.0.join("\n") + "\n"),
    );
}
