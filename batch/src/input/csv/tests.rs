use super::*;

fn read(text: &[u8], delimiter: u8) -> (String, Option<Vec<String>>) {
    let mut csv = CsvText::open(Box::new(io::Cursor::new(text.to_vec())), delimiter).unwrap();
    let columns = csv.columns();
    let mut lines = String::new();
    csv.read_to_string(&mut lines).unwrap();
    (lines, columns)
}

/// The lines that are not empty, with their numbers.
fn numbered(text: &[u8]) -> Vec<(usize, String)> {
    let (lines, _) = read(text, b',');
    let lines = lines.lines().enumerate().filter(|(_, line)| !line.is_empty());
    lines.map(|(at, line)| (at + 1, line.to_owned())).collect()
}

#[test]
fn the_name_of_a_file_gives_its_format() {
    for (name, delimiter) in [
        ("a.csv", Some(b',')),
        ("A.CSV", Some(b',')),
        ("a.tsv", Some(b'\t')),
        ("d/a.csv.gz", Some(b',')),
        ("s3://b/a.tsv.zst", Some(b'\t')),
        ("a.jsonl", None),
        ("a.csv.jsonl", None),
        ("csv", None),
        ("a.gz", None),
    ] {
        assert_eq!(delimiter_of(Path::new(name)), delimiter, "{name}");
    }
}

#[test]
fn values_are_texts_and_empty_ones_null() {
    let (lines, columns) = read(b"id,prompt,\n7,\"a \"\"b\"\", c\",1.50\n,x,\n", b',');
    assert_eq!(columns.unwrap(), ["id", "prompt", ""]);
    let expected = concat!(
        "\n",
        r#"{"id":"7","prompt":"a \"b\", c","":"1.50"}"#,
        "\n",
        r#"{"id":null,"prompt":"x","":null}"#,
        "\n"
    );
    assert_eq!(lines, expected);
    assert_eq!(read(b"a\tb\n1,5\t\"x\ty\"", b'\t').0, "\n{\"a\":\"1,5\",\"b\":\"x\\ty\"}\n");
    assert_eq!(read(b"\xef\xbb\xbfa\r\nx\r\n", b',').0, "\n{\"a\":\"x\"}\n");
    assert_eq!(read(b"", b','), (String::new(), None));
    assert_eq!(read(b"a,b\n", b',').0, "");
}

#[test]
fn a_row_has_the_number_of_the_line_on_which_it_begins() {
    for end in ["\n", "\r\n"] {
        let text = ["", "a,b", "1,\"x", "", "y\"", "", "2,z", "3", "4,w"].join(end);
        let expected = [
            (3, format!("{{\"a\":\"1\",\"b\":{}}}", serde_json::json!(format!("x{end}{end}y")))),
            (7, r#"{"a":"2","b":"z"}"#.to_owned()),
            (8, "!the row has 1 value, and the header 2".to_owned()),
            (9, r#"{"a":"4","b":"w"}"#.to_owned()),
        ];
        assert_eq!(numbered(text.as_bytes()), expected);
    }
}

#[test]
fn an_invalid_row_is_reported_and_the_rows_after_it_are_read() {
    let found = numbered(b"a\nx\xff\ny\n");
    assert!(found[0].1.starts_with("!it is not UTF-8"), "{found:?}");
    assert_eq!(found[1], (3, "{\"a\":\"y\"}".to_owned()));
    let found = numbered(b"a\nx\n\"y\nz\n");
    assert_eq!(found[1], (3, "!a quote in it is not closed before the file ends".to_owned()));
    assert_eq!(
        numbered(b"a,b,a\n1,2,3\n"),
        [(1, "!the header: column \"a\" appears twice".into())]
    );
    let found = numbered(format!("a\n{}\ny\n", "x".repeat(LINE_BYTES_MAX + 1)).as_bytes());
    assert!(found[0].1.starts_with("!the row has more than "), "{found:?}");
    assert_eq!(found[1], (3, "{\"a\":\"y\"}".to_owned()));
    let found = numbered(format!("a\n{}\ny\n", ",".repeat(COLUMNS_MAX)).as_bytes());
    assert!(found[0].1.starts_with("!the row has more than "), "{found:?}");
    assert_eq!(found.len(), 2);
}

#[test]
fn many_empty_lines_are_made_a_buffer_at_a_time() {
    let text = format!("a\n{}x\n", "\n".repeat(3 * BUFFER_BYTES));
    assert_eq!(numbered(text.as_bytes()), [(3 * BUFFER_BYTES + 2, "{\"a\":\"x\"}".to_owned())]);
    let mut csv = CsvText::open(Box::new(io::Cursor::new(text)), b',').unwrap();
    csv.fill().unwrap();
    assert_eq!(csv.lines.len(), BUFFER_BYTES);
}
