use std::path::PathBuf;

use super::*;

fn header() -> SnapshotHeader {
    SnapshotHeader {
        cluster_id: "ab".repeat(16),
        member: "c1".into(),
        index: u64::MAX,
        term: 3,
        taken_unix_ms: 1_795_000_000_123,
        cluster_version: 1,
        program: "0.1.0".into(),
        salvaged: false,
        members: vec![SnapshotMember {
            name: "c1".into(),
            peer_addr: "c1:7421".into(),
            client_addr: "c1:7420".into(),
            zone: "z1".into(),
        }],
    }
}

fn records() -> Vec<(Vec<u8>, Vec<u8>)> {
    let long = vec![7; BLOCK_BYTES + 1];
    vec![
        (b"A".to_vec(), b"first".to_vec()),
        (b"B".to_vec(), Vec::new()),
        (b"C".to_vec(), long),
        (b"D".to_vec(), b"last".to_vec()),
    ]
}

fn written(records: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut file = SnapshotFileWriter::new(Vec::new(), &header()).unwrap();
    records.iter().for_each(|(key, value)| file.record(key, value).unwrap());
    file.finish().unwrap().0
}

struct OnDisk {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

fn on_disk(bytes: &[u8]) -> OnDisk {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.snap");
    std::fs::write(&path, bytes).unwrap();
    OnDisk { _dir: dir, path }
}

type Records = Vec<(Vec<u8>, Vec<u8>)>;

/// Reads a file to its end.
fn read(bytes: &[u8]) -> Result<(Records, SnapshotSummary), SnapshotProblem> {
    let file = on_disk(bytes);
    let mut reader = SnapshotFileReader::open(&file.path).map_err(|error| error.problem)?;
    let all = reader.by_ref().collect::<Result<Vec<_>, _>>().map_err(|error| error.problem)?;
    assert_eq!(reader.header(), &header());
    Ok((all, reader.summary().expect("a file without an error is whole")))
}

#[test]
fn written_records_are_read_back_and_the_digest_covers_the_bytes() {
    let bytes = written(&records());
    let (all, summary) = read(&bytes).unwrap();
    assert_eq!(all, records());
    assert_eq!((summary.records, summary.bytes), (4, bytes.len() as u64));
    let (body, end) = bytes.split_at(bytes.len() - DIGEST_BYTES);
    assert_eq!(blake3::hash(body).as_bytes(), end);
    assert_eq!(summary.digest, end);
    assert_eq!(read(&written(&[])).unwrap().0, []);
}

#[test]
fn every_bit_that_is_flipped_is_found() {
    let good = written(&[records()[0].clone(), records()[1].clone()]);
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(read(&bad).is_err(), "bit {bit} went unnoticed");
    }
}

#[test]
fn a_file_truncated_anywhere_is_refused_as_truncated() {
    let good = written(&[records()[0].clone()]);
    for len in 0..good.len() {
        let problem = read(&good[..len]).expect_err("a cut file");
        let expected = match len {
            0..8 => matches!(problem, SnapshotProblem::Foreign),
            _ => matches!(problem, SnapshotProblem::Truncated { .. }),
        };
        assert!(expected, "length {len}: {problem}");
    }
    let mut longer = good.clone();
    longer.push(0);
    assert!(matches!(read(&longer), Err(SnapshotProblem::Damaged { .. })));
}

#[test]
fn another_kind_of_file_and_a_newer_format_are_named_in_the_error() {
    assert!(matches!(read(b"PAR1 and so on, and on"), Err(SnapshotProblem::Foreign)));
    let mut newer = written(&[]);
    newer[8] = 2;
    let problem = read(&newer).expect_err("a newer format");
    assert!(matches!(problem, SnapshotProblem::Newer { found: 2, supported: 1 }), "{problem}");
}

#[test]
fn records_out_of_order_are_no_image() {
    let mut swapped = records();
    swapped.swap(0, 1);
    assert!(matches!(read(&written(&swapped)), Err(SnapshotProblem::Damaged { .. })));
}

#[test]
fn the_bytes_of_the_format_are_locked() {
    let bytes = written(&records());
    let digest = blake3::hash(&bytes).to_hex();
    assert_eq!(
        (bytes.len(), &digest[..16]),
        (262_549, "17cb427479b4db4d"),
        "the format has changed"
    );
}
