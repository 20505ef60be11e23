use std::collections::HashSet;
use std::path::Path;

use proptest::prelude::*;
use rollout_storage::Segment;

use super::*;

fn rules() -> Rules {
    crate::submission::spec::rules(&Default::default()).unwrap()
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> InputFile {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    InputFile::local(path, bytes.len() as u64)
}

fn run(files: &[InputFile], options: &ScanOptions) -> (Scan, Vec<FinishedSegment>) {
    let mut segments = Vec::new();
    let mut sink = |segment| {
        segments.push(segment);
        Ok(())
    };
    let scan =
        scan(files, &rules(), options, &ScanControl::default(), Some(&mut sink)).expect("scan");
    (scan, segments)
}

fn bodies(segments: &[FinishedSegment]) -> Vec<(u64, String)> {
    let mut rows = Vec::new();
    for segment in segments {
        let decoded = Segment::decode(segment.bytes.clone()).unwrap();
        assert_eq!(decoded.len(), segment.rows as usize);
        for row in decoded.rows() {
            rows.push((row.line, String::from_utf8(row.body.to_vec()).unwrap()));
        }
    }
    rows
}

fn item_ids(segments: &[FinishedSegment]) -> Vec<[u8; 32]> {
    let decode = |segment: &FinishedSegment| Segment::decode(segment.bytes.clone()).unwrap();
    let decoded: Vec<_> = segments.iter().map(decode).collect();
    decoded.iter().flat_map(|segment| segment.rows().map(|row| row.item_id)).collect()
}

#[test]
fn rows_come_in_order_with_their_lines_and_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let files = [
        write(dir.path(), "a", b"\xef\xbb\xbf {\"prompt\" : \"a\"} \r\n\n{\"prompt\":\"b\"}"),
        write(dir.path(), "b", b"\n{\"prompt\":\"c\",\"id\":\"x\"}\n"),
    ];
    let (scan, segments) = run(&files, &ScanOptions::default());
    let expected =
        [(1, r#"{"prompt" : "a"}"#), (3, r#"{"prompt":"b"}"#), (2, r#"{"prompt":"c","id":"x"}"#)];
    let expected: Vec<_> = expected.map(|(line, body)| (line, body.to_owned())).to_vec();
    assert_eq!(bodies(&segments), expected);
    assert_eq!((scan.rows, scan.lines, scan.segments, scan.error_count), (3, 5, 1, 0));
}

#[test]
fn segments_are_full_and_do_not_depend_on_threads_or_files() {
    let dir = tempfile::tempdir().unwrap();
    let lines: Vec<String> = (0..30_000)
        .map(|n| format!("{{\"prompt\":\"{}\",\"n\":{n}}}\n", "x".repeat(n % 400)))
        .collect();
    let whole = [write(dir.path(), "whole", lines.concat().as_bytes())];
    let (scan, segments) = run(&whole, &ScanOptions { threads: 4, ..ScanOptions::default() });
    assert_eq!(scan.rows, 30_000);
    assert_eq!(scan.repeated, 30_000 - 400);
    assert!(segments[..segments.len() - 1].iter().all(|segment| segment.rows == 4096));
    let halves = [
        write(dir.path(), "h1", lines[..7_777].concat().as_bytes()),
        write(dir.path(), "h2", lines[7_777..].concat().as_bytes()),
    ];
    let (_, again) = run(&halves, &ScanOptions { threads: 1, ..ScanOptions::default() });
    // Line numbers count within a file; everything else is the same.
    let texts = |segments: &[FinishedSegment]| {
        bodies(segments).into_iter().map(|(_, body)| body).collect::<Vec<_>>()
    };
    assert_eq!(texts(&again), texts(&segments));
    assert_eq!(item_ids(&again), item_ids(&segments));
    let (_, same) = run(&whole, &ScanOptions { threads: 2, ..ScanOptions::default() });
    assert!(same.iter().zip(&segments).all(|(a, b)| a.bytes == b.bytes));
    let distinct: HashSet<_> = item_ids(&segments).into_iter().collect();
    assert_eq!(distinct.len(), 30_000, "equal rows are different items");
}

#[test]
fn reordering_keeps_ids_and_an_inserted_row_adds_one() {
    let dir = tempfile::tempdir().unwrap();
    let rows = ["{\"prompt\":\"a\"}\n", "{\"prompt\":\"b\"}\n", "{\"prompt\":\"a\"}\n"];
    let ids_of = |name: &str, text: String| {
        let (_, segments) =
            run(&[write(dir.path(), name, text.as_bytes())], &ScanOptions::default());
        item_ids(&segments).into_iter().collect::<HashSet<_>>()
    };
    let base = ids_of("base", rows.concat());
    assert_eq!(base.len(), 3);
    assert_eq!(ids_of("turned", [rows[2], rows[0], rows[1]].concat()), base);
    let more = ids_of("more", format!("{{\"prompt\":\"new\"}}\n{}", rows.concat()));
    assert_eq!(more.difference(&base).count(), 1);
    assert!(base.is_subset(&more));
}

#[test]
fn every_broken_line_is_named_and_no_segment_follows_it() {
    let dir = tempfile::tempdir().unwrap();
    let files = [
        write(dir.path(), "a", b"{\"prompt\":\"a\"}\n{\"prompt\":1}\n\xff\n{\"prompt\":\"z\"}\n"),
        write(dir.path(), "b", b"  {\"prompt\" \"a\"}\n"),
    ];
    let (scan, segments) = run(&files, &ScanOptions::default());
    let places: Vec<_> =
        scan.errors.iter().map(|error| (error.file, error.line, error.column)).collect();
    assert_eq!(places, [(0, 2, 11), (0, 3, 1), (1, 1, 13)]);
    assert_eq!((scan.error_count, scan.rows), (3, 2));
    assert!(segments.is_empty());
    let counting = ScanOptions { past_errors: true, ..ScanOptions::default() };
    let (again, segments) = run(&files, &counting);
    assert_eq!((again.error_count, again.rows), (3, 2));
    let rows = [(1, r#"{"prompt":"a"}"#), (4, r#"{"prompt":"z"}"#)];
    assert_eq!(bodies(&segments), rows.map(|(line, body)| (line, body.to_owned())));
}

#[test]
fn two_rows_with_one_id_are_named_both_within_any_memory() {
    let dir = tempfile::tempdir().unwrap();
    let mut text = String::new();
    for n in 0..5_000 {
        text += &format!("{{\"prompt\":\"p\",\"id\":{}}}\n", n % 4_990);
    }
    let files = [
        write(dir.path(), "a", text.as_bytes()),
        write(dir.path(), "b", b"{\"prompt\":\"p\",\"id\":\"7\"}\n{\"prompt\":\"p\",\"id\":7}\n"),
    ];
    for ids_budget_bytes in [1 << 20, 1000] {
        let temp_dir = dir.path().to_owned();
        let options =
            ScanOptions { ids_budget_bytes, temp_dir, errors_max: 11, ..ScanOptions::default() };
        let (scan, _) = run(&files, &options);
        assert_eq!(scan.error_count, 11);
        assert_eq!((scan.errors[0].file, scan.errors[0].line), (0, 4_991));
        assert!(scan.errors[0].message.ends_with("a:1"), "{}", scan.errors[0].message);
        assert_eq!((scan.errors[10].file, scan.errors[10].line), (1, 2));
        assert!(scan.errors[10].message.ends_with("a:8"), "{}", scan.errors[10].message);
        let few = ScanOptions { errors_max: 3, ..options };
        let (scan, _) = run(&files, &few);
        assert_eq!((scan.errors.len(), scan.error_count), (3, 11));
    }
}

#[test]
fn a_scan_ends_when_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let text = "{\"prompt\":\"a\"}\n".repeat(400_000) + &"x\n".repeat(2_000_000);
    let files = [write(dir.path(), "a", text.as_bytes())];
    let control = ScanControl::default();
    let mut closed = |_| Err(SinkClosed);
    let options = ScanOptions::default();
    let outcome = scan(&files, &rules(), &options, &control, Some(&mut closed));
    assert!(matches!(outcome, Err(ScanError::Stopped)));
    control.stop.store(true, Ordering::Relaxed);
    assert!(matches!(scan(&files, &rules(), &options, &control, None), Err(ScanError::Stopped)));
    let early = ScanOptions { stop_after_errors: 20, ..ScanOptions::default() };
    let (scan, _) = run(&files, &early);
    assert!(scan.error_count >= 20);
    assert!(scan.error_count < 2_000_000, "it read on");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_bytes_give_rows_and_errors_on_their_lines(
        lines in prop::collection::vec(
            prop_oneof![
                Just(b"{\"prompt\":\"x\"}".to_vec()),
                Just(b"{\"prompt\":\"x\",\"id\":1}".to_vec()),
                Just(b"  ".to_vec()),
                prop::collection::vec(any::<u8>(), 0..40),
            ],
            0..12,
        )
    ) {
        let dir = tempfile::tempdir().unwrap();
        let bytes = lines.join(&b'\n');
        let (scan, _) = run(&[write(dir.path(), "a", &bytes)], &ScanOptions::default());
        prop_assert!(scan.errors.iter().all(|error| error.line >= 1 && error.line <= scan.lines));
        prop_assert!(scan.errors.iter().all(|error| error.column >= 1));
        prop_assert_eq!(scan.errors.len() as u64, scan.error_count);
        let split = bytes.split(|byte| *byte == b'\n').count() as u64;
        prop_assert!(scan.lines == split || scan.lines + 1 == split);
    }
}
