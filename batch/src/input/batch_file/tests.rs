use super::super::duplicates::Duplicates;
use super::super::scan::ScanControl;
use super::*;

const ENDPOINT: &str = "/v1/chat/completions";
const NO_LIMITS: Limits = Limits { rows: u64::MAX, bytes: u64::MAX };

fn checks() -> Checks {
    Checks { endpoint: ENDPOINT.to_owned(), model: None }
}

fn line(id: &str, model: &str) -> String {
    format!(
        r#"{{"custom_id":"{id}","method":"POST","url":"{ENDPOINT}","body":{{"model":"{model}"}}}}"#
    )
}

fn report(text: &[u8], limits: Limits) -> Report {
    let dir = tempfile::tempdir().unwrap();
    validate(text, checks(), limits, dir.path(), &ScanControl::default()).unwrap()
}

/// The code, the field and the line of each error.
fn errors(text: &str) -> Vec<(&'static str, Option<&'static str>, Option<u64>)> {
    let report = report(text.as_bytes(), NO_LIMITS);
    let errors = report.errors.iter();
    errors.map(|error| (error.fault.code.name(), error.fault.param, error.line)).collect()
}

#[test]
fn each_fault_of_a_line_has_its_code_field_and_line() {
    let good = line("a", "m");
    let with = |from: &str, to: &str| good.replace("\"a\"", "\"b\"").replace(from, to);
    let cases = [
        ("{".to_owned(), "invalid_json_line", None),
        (with("\"custom_id\":\"b\",", ""), "missing_required_parameter", Some("custom_id")),
        (with("\"b\"", "\"\""), "invalid_custom_id", Some("custom_id")),
        (with("\"b\"", "7"), "invalid_custom_id", Some("custom_id")),
        (with("\"method\":\"POST\",", ""), "missing_required_parameter", Some("method")),
        (with("POST", "GET"), "invalid_method", Some("method")),
        (with(ENDPOINT, "http://x"), "invalid_url", Some("url")),
        (with(ENDPOINT, "/v1/embeddings"), "url_mismatch", Some("url")),
        (with("{\"model\":\"m\"}", "[]"), "invalid_json_line", Some("body")),
        (with("\"model\":\"m\"", ""), "missing_required_parameter", Some("body.model")),
        (with("\"m\"", "\"n\""), "mismatched_model", Some("body.model")),
        (with("\"m\"", "7"), "mismatched_model", Some("body.model")),
        (with("\"m\"", "\"m\",\"stream\":true"), "streaming_unsupported", Some("body.stream")),
        (good.clone(), "duplicate_custom_id", Some("custom_id")),
    ];
    for (bad, code, param) in cases {
        assert_eq!(errors(&format!("{good}\n\n{bad}\n")), [(code, param, Some(3))], "{bad}");
    }
    let stream = with("\"m\"", "\"m\",\"stream\":false");
    assert_eq!(errors(&format!("{good}\n{stream}")), []);
}

#[test]
fn a_file_is_over_a_limit_or_has_nothing_to_run() {
    assert_eq!(errors("\n \n"), [("empty_file", None, None)]);
    let text = format!("{}\n{}\n", line("a", "m"), line("b", "m"));
    let (rows, bytes) = (2, text.len() as u64);
    let valid = report(text.as_bytes(), Limits { rows, bytes });
    let expected =
        Report { rows, lines: 2, bytes, model: Some("m".to_owned()), errors: Vec::new() };
    assert_eq!(valid, expected);
    let codes = |limits| {
        let report = report(text.as_bytes(), limits);
        report.errors.iter().map(|e| (e.fault.code, e.line)).collect::<Vec<_>>()
    };
    assert_eq!(codes(Limits { rows: 1, bytes }), [(LineCode::TooManyTasks, Some(2))]);
    assert_eq!(codes(Limits { rows, bytes: bytes - 1 }), [(LineCode::FileTooLarge, None)]);
}

#[test]
fn the_first_hundred_errors_are_listed_by_line() {
    let mut text = String::new();
    for _ in 0..60 {
        text += &format!("{}\n{{\n", line("a", "m"));
    }
    let errors = errors(&text);
    assert_eq!(errors.len(), ERRORS_MAX);
    assert!(errors.is_sorted_by_key(|error| error.2));
    assert_eq!(errors[0], ("invalid_json_line", None, Some(2)));
    assert_eq!(errors[1], ("duplicate_custom_id", Some("custom_id"), Some(3)));
}

#[test]
fn repeated_ids_are_found_in_temporary_files_too() {
    let dir = tempfile::tempdir().unwrap();
    let mut text = String::new();
    for n in 0..2000 {
        text += &format!("{}\n", line(&(n % 1999).to_string(), "m"));
    }
    let ids = Duplicates::new(1024, dir.path());
    let (from, rows, control) = (Position::default(), 0, &ScanControl::default());
    let pass = Pass { checks: checks(), limits: NO_LIMITS, from, rows, ids, control };
    let report = pass.run(text.as_bytes(), &mut |_| Ok(())).unwrap();
    let found: Vec<_> = report.errors.iter().map(|e| (e.fault.code, e.line)).collect();
    assert_eq!(found, [(LineCode::DuplicateCustomId, Some(2000))]);
    assert_eq!(report.errors[0].message, "line 1 has the same \"custom_id\"");
}

#[test]
fn a_pass_over_the_rest_of_a_file_reports_what_one_over_the_whole_file_does() {
    let mut text: String = (0..10).map(|n| line(&n.to_string(), "m") + "\n").collect();
    // Of the first line, and of one that the rest has too.
    text += &format!("{}\n{}\n{}\n", line("0", "m"), line("8", "m"), line("a", "other"));
    let dir = tempfile::tempdir().unwrap();
    let control = &ScanControl::default();
    let run = |pass: Pass<'_>, each: &mut EachRow<'_>| {
        let rest = &text.as_bytes()[pass.from.offset as usize..];
        pass.run(rest, each).unwrap()
    };
    let begin = || Pass {
        checks: checks(),
        limits: NO_LIMITS,
        from: Position::default(),
        rows: 0,
        ids: Duplicates::new(1 << 20, dir.path()),
        control,
    };
    let mut seen = Vec::new();
    let whole = run(begin(), &mut |row| {
        seen.push((row.row.id_json.as_deref().unwrap().to_owned(), row.line, row.next));
        Ok(())
    });
    let codes = |report: &Report| -> Vec<_> {
        report.errors.iter().map(|error| (error.fault.code.name(), error.line)).collect()
    };
    let (repeated, other) = ("duplicate_custom_id", "mismatched_model");
    assert_eq!(codes(&whole), [(repeated, Some(11)), (repeated, Some(12)), (other, Some(13))]);
    assert_eq!(seen.len(), 12, "rows before the first error");
    for before in [1, 5, 10, 12] {
        let mut pass = begin();
        for (id, line, next) in &seen[..before] {
            pass.ids.push(Duplicates::hash(id), 0, *line).unwrap();
            (pass.rows, pass.from) = (pass.rows + 1, *next);
        }
        pass.checks.model = Some("m".to_owned());
        let mut rows = 0;
        let rest = run(pass, &mut |_| {
            rows += 1;
            Ok(())
        });
        assert_eq!((rest, rows), (whole.clone(), 12 - before), "after {before} rows");
    }
}

#[test]
fn the_receiver_of_rows_may_refuse_one_or_end_the_pass() {
    let text = format!("{}\n{}\n{}\n", line("a", "m"), line("b", "m"), line("c", "m"));
    let dir = tempfile::tempdir().unwrap();
    let pass = |each: &mut EachRow<'_>| {
        let ids = Duplicates::new(1 << 20, dir.path());
        let (from, rows, control) = (Position::default(), 0, &ScanControl::default());
        let pass = Pass { checks: checks(), limits: NO_LIMITS, from, rows, ids, control };
        pass.run(text.as_bytes(), each)
    };
    let mut seen = 0;
    let report = pass(&mut |row| {
        seen += 1;
        if row.line == 2 { Err(NotTaken::Invalid("too large".into())) } else { Ok(()) }
    });
    let report = report.unwrap();
    assert_eq!((seen, report.rows), (2, 3), "no row after an error");
    assert_eq!((report.errors[0].line, &*report.errors[0].message), (Some(2), "too large"));
    let stopped = pass(&mut |_| Err(NotTaken::Stopped));
    assert!(matches!(stopped, Err(ValidateError::Stopped)));
}

#[test]
fn a_caller_can_stop_validation() {
    let control = ScanControl::default();
    control.stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let dir = tempfile::tempdir().unwrap();
    let text = line("a", "m");
    let stopped = validate(text.as_bytes(), checks(), NO_LIMITS, dir.path(), &control);
    assert!(matches!(stopped, Err(ValidateError::Stopped)));
}

fn rows(bytes: &[u8], position: Position) -> Vec<(u64, String, Position)> {
    let checks = Checks { model: Some("m".to_owned()), ..checks() };
    let mut file = BatchFile::new(&bytes[position.offset as usize..], position, checks);
    let mut rows = Vec::new();
    while let Some(row) = file.next_line().unwrap() {
        let row = row.unwrap();
        rows.push((row.line, row.text.to_owned(), row.next));
    }
    rows
}

#[test]
fn reading_from_any_position_gives_the_rest_of_the_rows() {
    // More than one chunk, with a mark of the byte order, empty lines and none at the end.
    let mut text = "\u{feff}".to_owned();
    for n in 0..20_000 {
        text +=
            &format!("{}{}", line(&n.to_string(), "m"), if n % 7 == 0 { "\r\n\n" } else { "\n" });
    }
    let text = text.trim_end().as_bytes();
    assert!(text.len() > CHUNK_BYTES);
    let all = rows(text, Position::default());
    assert_eq!(all.len(), 20_000);
    for at in [0, 1, 9_999, 12_345, 19_998, 19_999] {
        assert_eq!(rows(text, all[at].2), all[at + 1..], "after row {at}");
    }
    assert_eq!(all[19_999].2.offset, text.len() as u64);
}

#[test]
fn a_line_that_is_too_long_is_an_error_of_that_line() {
    let mut text = format!("{}\n", line("a", "m")).into_bytes();
    text.resize(text.len() + LINE_BYTES_MAX + 1, b'x');
    text.extend(format!("\n{}\n", line("b", "m")).into_bytes());
    let report = report(&text, NO_LIMITS);
    let found: Vec<_> = report.errors.iter().map(|e| (e.fault.code, e.line)).collect();
    assert_eq!(found, [(LineCode::InvalidJsonLine, Some(2))]);
    assert_eq!((report.rows, report.lines), (2, 3));
    assert_eq!(report.bytes, text.len() as u64);
}
