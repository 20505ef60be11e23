use std::sync::Arc;

use rollout_proto::v1;
use rollout_storage::{BlobStore, PartRow, PartWriter, SegmentWriter};

use super::*;
use crate::export::format::{Lines, OutputFormat};
use crate::export::segment::Step;

const ROWS: usize = 60;
const BODY_BYTES: usize = 1 << 20;

async fn put(store: &BlobStore, key: &str, bytes: bytes::Bytes) -> v1::BlobRef {
    let blob = store.put(key, bytes).await.unwrap();
    v1::BlobRef { key: blob.key, digest: blob.digest.to_vec().into(), bytes: blob.len }
}

fn length(row: usize) -> usize {
    // One that nearly fills a piece.
    if row == 20 { PIECE_BYTES as usize - 4096 } else { BODY_BYTES }
}

/// A segment with 75 MiB of results, those of neighbors in different parts; row 30 has failed.
async fn listed(store: &BlobStore) -> v1::ReadResultsResponse {
    let mut segment = SegmentWriter::new();
    let mut parts: Vec<(PartWriter, u32)> = Vec::new();
    let mut places = vec![(0, 0); ROWS];
    let mut failures = Vec::new();
    let long = [20_usize];
    for turn in 0..6 {
        let mut writer = (PartWriter::new(), 0);
        for row in (0..ROWS).filter(|row| row % 6 == turn && !long.contains(row)) {
            push(&mut writer, parts.len(), row, &mut places);
        }
        parts.push(writer);
    }
    for row in long {
        let mut writer = (PartWriter::new(), 0);
        push(&mut writer, parts.len(), row, &mut places);
        parts.push(writer);
    }
    for row in 0..ROWS {
        let body = format!("{{\"id\":{row},\"prompt\":\"a\"}}");
        segment.push([row as u8; 32], row as u64, body.as_bytes()).unwrap();
    }
    places[30] = (0, 0);
    failures.push(v1::FailedRow { row: 130, class: "transient".into(), ..Default::default() });
    let mut table = Vec::new();
    for (number, (writer, _)) in parts.into_iter().enumerate() {
        table.push(put(store, &format!("p{number}"), writer.finish()).await);
    }
    v1::ReadResultsResponse {
        blob: Some(put(store, "s", segment.finish()).await),
        first_row: 100,
        rows: ROWS as u32,
        parts: places.iter().map(|place| place.0).collect(),
        part_rows: places.iter().map(|place| place.1).collect(),
        part_table: table,
        failures,
        ..v1::ReadResultsResponse::default()
    }
}

fn push(
    (writer, rows): &mut (PartWriter, u32),
    part: usize,
    row: usize,
    places: &mut [(u32, u32)],
) {
    let head = "{\"completion_tokens\":1,\"completion\":\"";
    let text = "x".repeat(length(row) - head.len() - 2);
    let body = format!("{head}{text}\"}}");
    let (row_number, kind) = (100 + row as u64, PartRowKind::Completed);
    writer.push(PartRow { row: row_number, attempt: 1, kind, body: body.as_bytes() }).unwrap();
    places[row] = (part as u32 + 1, *rows);
    *rows += 1;
}

fn fetch_from(store: &BlobStore) -> Fetch {
    let engine = v1::EngineSpec { model: "m".into(), ..Default::default() };
    let spec = v1::RunSpec { engine: Some(engine), ..Default::default() };
    let lines = Lines::new(&spec, OutputFormat::Jsonl).unwrap();
    Fetch::new(store.clone(), lines, "r".to_owned(), false)
}

fn ids(lines: &str) -> Vec<u64> {
    let of = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    lines.lines().map(|line| of(line)["id"].as_u64().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_segment_of_long_results_comes_in_pieces_that_are_bounded_and_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let store = BlobStore::open(&format!("file://{}", dir.path().display())).unwrap();
    let listed = listed(&store).await;
    let fetch = Arc::new(fetch_from(&store));
    let mut steps = fetch.spawn(listed);
    let (mut pieces, mut done, mut failed, mut rows, mut tokens) = (0, vec![], vec![], 0, 0);
    while let Some(step) = steps.recv().await {
        let piece = match step.unwrap() {
            Step::Segment(segment) => {
                assert_eq!((segment.rows, pieces), (ROWS as u64, 0));
                continue;
            }
            Step::Rows(piece) => piece,
        };
        // A line has a few hundred bytes besides the result.
        let len = piece.completions.len() as u64;
        assert!(len < PIECE_BYTES + (1 << 20), "a piece of {len} bytes");
        assert_eq!(piece.rows, piece.done + piece.failed);
        done.extend(ids(&piece.completions));
        failed.extend(ids(&piece.errors));
        (pieces, rows) = (pieces + 1, rows + piece.rows);
        tokens += piece.completion_tokens;
    }
    assert_eq!((rows, tokens), (60, 59));
    assert_eq!(failed, [30]);
    assert_eq!(done, (0..60).filter(|row| *row != 30).collect::<Vec<_>>());
    assert!((5..=7).contains(&pieces), "{pieces} pieces of 75 MiB");
    // All of them fit into the cache.
    assert_eq!(fetch.parts.fetched(), 7);
}

#[tokio::test]
async fn a_row_without_an_outcome_is_an_error_behind_the_first_piece_too() {
    let dir = tempfile::tempdir().unwrap();
    let store = BlobStore::open(&format!("file://{}", dir.path().display())).unwrap();
    let mut listed = listed(&store).await;
    listed.parts[40] = 0;
    let fetch = fetch_from(&store);
    let mut reading = fetch.begin(listed).await.unwrap();
    let error = loop {
        match reading.next().await {
            Ok(piece) => assert!(piece.is_some(), "it was read to its end"),
            Err(error) => break error.to_string(),
        }
    };
    assert!(error.contains("row 140 has no outcome"), "{error}");
}

/// A segment of two rows for which a worker reported the largest possible number of tokens.
async fn boundless(store: &BlobStore, first_row: u64) -> v1::ReadResultsResponse {
    let (mut segment, mut part) = (SegmentWriter::new(), PartWriter::new());
    for row in 0..2 {
        segment.push([row as u8; 32], row, b"{\"prompt\":\"a\"}").unwrap();
        let body = format!("{{\"completion\":\"x\",\"prompt_tokens\":{}}}", u64::MAX);
        let (row, kind) = (first_row.wrapping_add(row), PartRowKind::Completed);
        part.push(PartRow { row, attempt: 1, kind, body: body.as_bytes() }).unwrap();
    }
    let part = v1::BlobRef { bytes: u64::MAX, ..put(store, "p", part.finish()).await };
    let other =
        v1::BlobRef { bytes: u64::MAX, ..put(store, "q", PartWriter::new().finish()).await };
    v1::ReadResultsResponse {
        blob: Some(put(store, "s", segment.finish()).await),
        first_row,
        rows: 2,
        parts: vec![1, 1],
        part_rows: vec![0, 1],
        part_table: vec![part, other],
        ..v1::ReadResultsResponse::default()
    }
}

#[tokio::test]
async fn huge_token_counts_and_lengths_do_not_overflow() {
    let store = BlobStore::open("memory://boundless-tokens").unwrap();
    let listed = boundless(&store, 7).await;
    let fetch = fetch_from(&store);
    // Both are cached, whatever length the list claims.
    fetch.parts.get(&listed.part_table[1]).await.unwrap();
    let mut reading = fetch.begin(listed).await.unwrap();
    let piece = reading.next().await.unwrap().unwrap();
    assert_eq!((piece.done, piece.prompt_tokens), (2, u64::MAX));
    let mut totals = crate::export::Totals::default();
    totals.add(&piece);
    totals.add(&piece);
    assert_eq!(totals.prompt_tokens, u64::MAX);
}

#[tokio::test]
async fn a_segment_of_rows_that_no_number_names_is_refused() {
    let store = BlobStore::open("memory://boundless-rows").unwrap();
    let listed = boundless(&store, u64::MAX).await;
    let error = fetch_from(&store).begin(listed).await.err().unwrap().to_string();
    assert!(error.contains("which no run has"), "{error}");
}
