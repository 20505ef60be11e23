//! Segments, parts and spools: encoded data decodes to itself, and no bytes make a decoder panic.

use bytes::Bytes;
use proptest::prelude::*;
use rollout_storage::{
    Full, PART_ROWS_MAX, Part, PartRow, PartRowKind, PartWriter, SEGMENT_BYTES_MAX,
    SEGMENT_ROWS_MAX, Segment, SegmentWriter, Spool,
};

type InputRow = ([u8; 32], u64, Vec<u8>);
type ResultRow = (u64, u64, bool, Vec<u8>);

fn segment(rows: &[InputRow]) -> Bytes {
    let mut writer = SegmentWriter::new();
    for (item_id, line, body) in rows {
        writer.push(*item_id, *line, body).unwrap();
    }
    assert_eq!(writer.len(), rows.len());
    let expected = writer.bytes();
    let bytes = writer.finish();
    assert_eq!(bytes.len(), expected);
    bytes
}

fn kind(completed: bool) -> PartRowKind {
    if completed { PartRowKind::Completed } else { PartRowKind::Failed }
}

fn part(rows: &[ResultRow]) -> Bytes {
    let mut writer = PartWriter::new();
    for (row, attempt, completed, body) in rows {
        let (row, attempt, kind) = (*row, *attempt, kind(*completed));
        writer.push(PartRow { row, attempt, kind, body }).unwrap();
    }
    writer.finish()
}

fn visit(bytes: Bytes) {
    if let Ok(segment) = Segment::decode(bytes.clone()) {
        assert!(segment.len() <= SEGMENT_ROWS_MAX);
        assert_eq!(segment.rows().count(), segment.len());
    }
    if let Ok(part) = Part::decode(bytes) {
        assert!(part.len() <= PART_ROWS_MAX);
        assert_eq!(part.rows().count(), part.len());
    }
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..60)
}

proptest! {
    #[test]
    fn a_segment_returns_its_rows(rows in prop::collection::vec((any::<[u8; 32]>(), any::<u64>(), body()), 0..50)) {
        let bytes = segment(&rows);
        prop_assert_eq!(&segment(&rows), &bytes);
        let decoded = Segment::decode(bytes.clone()).unwrap();
        prop_assert_eq!(decoded.len(), rows.len());
        for (at, (item_id, line, body)) in rows.iter().enumerate() {
            let row = decoded.row(at).unwrap();
            prop_assert_eq!((&row.item_id, row.line, row.body), (item_id, *line, &body[..]));
            prop_assert_eq!(&decoded.body(at).unwrap(), &body[..]);
        }
        prop_assert!(decoded.row(rows.len()).is_none());
        for len in 0..bytes.len() {
            prop_assert!(Segment::decode(bytes.slice(..len)).is_err());
        }
    }

    #[test]
    fn a_part_returns_its_rows(rows in prop::collection::vec((any::<u64>(), any::<u64>(), any::<bool>(), body()), 0..50)) {
        let decoded = Part::decode(part(&rows)).unwrap();
        let found: Vec<ResultRow> = decoded
            .rows()
            .map(|row| (row.row, row.attempt, row.kind == PartRowKind::Completed, row.body.to_vec()))
            .collect();
        prop_assert_eq!(found, rows);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        visit(bytes.into());
    }

    #[test]
    fn mutated_objects_never_panic(
        rows in prop::collection::vec((any::<u64>(), any::<u64>(), any::<bool>(), body()), 1..20),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        as_segment in any::<bool>(),
    ) {
        let mut bytes = if as_segment {
            segment(&rows.iter().map(|(row, _, _, body)| ([9; 32], *row, body.clone())).collect::<Vec<_>>())
        } else {
            part(&rows)
        }
        .to_vec();
        for (at, value) in changes {
            // The header and the offsets are the interesting places.
            let at = at.index(bytes.len().min(200));
            bytes[at] = value;
        }
        visit(bytes.into());
    }

    #[test]
    fn a_spool_cut_anywhere_keeps_the_whole_rows_before_the_cut(
        bodies in prop::collection::vec(body(), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spool");
        let ends = write_spool(&path, &bodies);
        let cut = cut.index(*ends.last().unwrap() as usize + 1) as u64;
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(cut).unwrap();
        let whole = ends.iter().filter(|end| **end <= cut).count();
        let (mut spool, rows) = Spool::open(&path).unwrap();
        prop_assert_eq!(rows.len(), whole);
        for (row, body) in rows.iter().zip(&bodies) {
            prop_assert_eq!(&row.body, body);
        }
        // Appending continues after the cut.
        spool.append(PartRow { row: 99, attempt: 1, kind: PartRowKind::Failed, body: b"more" }).unwrap();
        drop(spool);
        let (_, rows) = Spool::open(&path).unwrap();
        prop_assert_eq!(rows.len(), whole + 1);
        prop_assert_eq!(rows[whole].as_part_row().body, b"more");
    }

    #[test]
    fn a_spool_of_arbitrary_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("spool");
        std::fs::write(&path, bytes).unwrap();
        let _ = Spool::open(&path);
    }
}

fn write_spool(path: &std::path::Path, bodies: &[Vec<u8>]) -> Vec<u64> {
    let (mut spool, rows) = Spool::open(path).unwrap();
    assert!(rows.is_empty());
    let mut ends = Vec::new();
    for (row, body) in (0..).zip(bodies) {
        let kind = PartRowKind::Completed;
        spool.append(PartRow { row, attempt: row, kind, body }).unwrap();
        ends.push(spool.len_bytes());
    }
    spool.sync().unwrap();
    ends
}

#[test]
fn a_changed_byte_before_a_good_frame_is_refused_and_in_the_last_frame_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("spool");
    let ends = write_spool(&path, &[b"one".to_vec(), b"two".to_vec(), b"three".to_vec()]);
    let good = std::fs::read(&path).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x40;
        std::fs::write(&path, &bad).unwrap();
        match Spool::open(&path) {
            Err(error) => assert!(error.is_corrupt() && (at as u64) < ends[1], "byte {at}"),
            Ok((_, rows)) => {
                assert!(at as u64 >= ends[1], "byte {at} went unnoticed");
                assert_eq!(rows.len(), 2);
            }
        }
    }
}

#[test]
fn a_cleared_spool_is_empty_and_a_removed_one_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/spool");
    write_spool(&path, &[b"one".to_vec()]);
    let (mut spool, rows) = Spool::open(&path).unwrap();
    assert_eq!(rows.len(), 1);
    spool.clear().unwrap();
    assert_eq!(spool.len_bytes(), 0);
    drop(spool);
    let (spool, rows) = Spool::open(&path).unwrap();
    assert!(rows.is_empty());
    spool.remove().unwrap();
    assert!(!path.exists());
}

#[test]
fn bounds_are_kept_and_say_what_to_do() {
    let mut writer = SegmentWriter::new();
    let most = SEGMENT_BYTES_MAX - 12 - 44;
    let too_large = writer.push([0; 32], 0, &vec![0; most + 1]);
    assert_eq!(too_large, Err(Full::RowTooLarge { len: most + 1, max: most }));
    writer.push([0; 32], 0, &vec![0; most]).unwrap();
    assert_eq!(writer.push([0; 32], 1, b""), Err(Full::Bytes));
    let bytes = writer.finish();
    assert_eq!(bytes.len(), SEGMENT_BYTES_MAX);
    assert_eq!(Segment::decode(bytes).unwrap().len(), 1);
    let mut writer = SegmentWriter::new();
    for line in 0..SEGMENT_ROWS_MAX as u64 {
        writer.push([1; 32], line, b"{}").unwrap();
    }
    assert_eq!(writer.push([1; 32], 0, b"{}"), Err(Full::Rows));
    assert_eq!(Segment::decode(writer.finish()).unwrap().len(), SEGMENT_ROWS_MAX);
}

#[test]
fn the_formats_are_stable() {
    let bytes = segment(&[([0xab; 32], 7, b"{}".to_vec())]);
    let digest = blake3::hash(&bytes).to_hex().to_string();
    assert_eq!(bytes.len(), 58);
    assert_eq!(&bytes[..12], b"RSEG\x01\0\0\0\x01\0\0\0");
    assert_eq!(&bytes[44..], b"\x07\0\0\0\0\0\0\0\x02\0\0\0{}");
    assert_eq!(digest.len(), 64);
    let bytes = part(&[(3, 9, false, b"{}".to_vec())]);
    assert_eq!(&bytes[..12], b"RPRT\x01\0\0\0\x01\0\0\0");
    assert_eq!(&bytes[12..], b"\x03\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x02\x02\0\0\0{}");
}
