//! Fuzzes objects of the object store: row segments, result parts, manifests of checkpoints and of sealed runs, and
//! an export and a restore of a checkpoint that read several of them. The first byte selects the object. New decoders
//! get new bytes, so that kept inputs keep their meaning.

use bytes::Bytes;
use prost::Message as _;
use rollout_proto::v1;
use rollout_storage::{Part, PartRow, PartRowKind, PartWriter, Segment, SegmentWriter};

use super::{of, push_sized, take_sized};

const RESTORE: u8 = 255;

pub(crate) fn run(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match *kind {
        RESTORE => drop(restore(rest)),
        kind => object(kind, rest),
    }
}

fn object(kind: u8, rest: &[u8]) {
    match kind % 6 {
        0 => segment(rest),
        1 => part(rest),
        2 => drop(rollout_coordinator::fuzzing::checkpoint_manifest(rest)),
        3 => drop(v1::SealedRun::decode(rest)),
        4 => drop(v1::SealedSegments::decode(rest)),
        _ => export(rest),
    }
}

fn segment(bytes: &[u8]) {
    if let Ok(segment) = Segment::decode(Bytes::copy_from_slice(bytes)) {
        assert_eq!((0..segment.len()).filter_map(|row| segment.row(row)).count(), segment.len());
        assert!(segment.row(segment.len()).is_none());
    }
}

fn part(bytes: &[u8]) {
    if let Ok(part) = Part::decode(Bytes::copy_from_slice(bytes)) {
        assert_eq!(part.rows().count(), part.len());
    }
}

/// A leader's listing of a segment, and the objects that it names.
fn export(mut bytes: &[u8]) {
    let Some(listed) = take_sized(&mut bytes) else { return };
    let Ok(listed) = v1::ReadResultsResponse::decode(listed) else { return };
    let objects = std::iter::from_fn(|| take_sized(&mut bytes)).take(8);
    let objects: Vec<Bytes> = objects.map(Bytes::copy_from_slice).collect();
    let _ = futures::executor::block_on(rollout_batch::export::fuzzing::results(listed, &objects));
}

/// A rank's manifest, and the objects that it names as chunks. `None`: there is no manifest.
fn restore(mut bytes: &[u8]) -> Option<Result<u64, String>> {
    let manifest = v1::CheckpointManifest::decode(take_sized(&mut bytes)?).ok()?;
    let objects = std::iter::from_fn(|| take_sized(&mut bytes)).take(8);
    let objects: Vec<Bytes> = objects.map(Bytes::copy_from_slice).collect();
    Some(rollout_ctl::fuzzing::restored_rank(manifest, &objects))
}

/// A checkpoint of two files, the first of which has `bytes`, in two chunks of three and two.
fn checkpoint(bytes: u64) -> Vec<u8> {
    // The chunks get the digests of the objects.
    let chunk = |bytes| v1::BlobName { digest: Bytes::new(), bytes };
    let chunks = vec![chunk(3), chunk(2)];
    let model = v1::CheckpointFile { name: "model".into(), bytes, chunks, ..Default::default() };
    let empty = v1::CheckpointFile { name: "empty".into(), ..Default::default() };
    let (trainer, files) = ("t".to_owned(), vec![model, empty]);
    let manifest = v1::CheckpointManifest { format: 1, trainer, step: 7, files };
    let mut seed = vec![RESTORE];
    push_sized(&mut seed, &manifest.encode_to_vec());
    push_sized(&mut seed, b"abc");
    push_sized(&mut seed, b"de");
    seed
}

fn part_row(row: u64, body: &[u8]) -> PartRow<'_> {
    PartRow { row, attempt: 7 << 16, kind: PartRowKind::Completed, body }
}

/// A segment of three rows, two of them completed and one failed.
fn listed(openai: bool) -> Vec<u8> {
    let (mut segment, mut part) = (SegmentWriter::new(), PartWriter::new());
    for row in 0..3u8 {
        let body = br#"{"id":"a","custom_id":"c","prompt":"p","sampling_params":{"seed":1}}"#;
        segment.push([row; 32], u64::from(row), body).expect("it has room");
        let body = br#"{"completion":"x","prompt_tokens":1,"completion_tokens":2,"extra":{"response":{"status_code":200}}}"#;
        part.push(part_row(100 + u64::from(row), body)).expect("it has room");
    }
    let text = Some(v1::BlobRef::default());
    let failure = v1::FailedRow {
        row: 101,
        class: "transient".into(),
        evidence: Some(v1::Evidence { text, ..Default::default() }),
        ..Default::default()
    };
    let listed = v1::ReadResultsResponse {
        number: openai.into(),
        blob: Some(v1::BlobRef::default()),
        first_row: 100,
        rows: 3,
        parts: vec![1, 0, 1],
        part_rows: vec![0, 0, 2],
        part_table: vec![v1::BlobRef { bytes: 9, ..Default::default() }],
        failures: vec![failure],
        ..Default::default()
    };
    let mut seed = vec![5];
    push_sized(&mut seed, &listed.encode_to_vec());
    push_sized(&mut seed, &segment.finish());
    push_sized(&mut seed, &part.finish());
    push_sized(&mut seed, br#"{"response":{"status_code":400,"body":{}}}"#);
    seed
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let (mut segment, mut part) = (SegmentWriter::new(), PartWriter::new());
    for row in 0..3u8 {
        let body = &[b'x'; 40][..usize::from(row) * 20];
        segment.push([row; 32], u64::from(row), body).expect("it has room");
        part.push(part_row(row.into(), br#"{"choices":[]}"#)).expect("it has room");
    }
    let chunks = vec![v1::BlobName { digest: vec![1; 32].into(), bytes: 5 }];
    let file = v1::CheckpointFile { name: "f".into(), bytes: 5, chunks, ..Default::default() };
    let manifest = v1::CheckpointManifest {
        format: 1,
        trainer: "t".into(),
        files: vec![file],
        ..Default::default()
    };
    let chunks = vec![v1::SealedChunk::default()];
    let sealed = v1::SealedRun { format: 1, chunks, ..Default::default() };
    vec![
        of(0, &SegmentWriter::new().finish()),
        of(0, &segment.finish()),
        of(1, &PartWriter::new().finish()),
        of(1, &part.finish()),
        of(2, &manifest.encode_to_vec()),
        of(3, &sealed.encode_to_vec()),
        listed(false),
        listed(true),
        checkpoint(5),
        checkpoint(u64::MAX),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_restored_unless_it_claims_more_bytes_than_its_chunks_have() {
        let restored = |bytes| restore(&checkpoint(bytes)[1..]);
        assert_eq!(restored(5), Some(Ok(5)));
        let refused = "model has chunks that do not match its length".to_owned();
        assert_eq!(restored(u64::MAX), Some(Err(refused)));
    }
}
