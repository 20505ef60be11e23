use parquet::file::reader::{FileReader, SerializedFileReader};

use super::*;

/// The table of lines.
fn written(lines: &str) -> Vec<u8> {
    let mut types = Types::default();
    for (row, line) in (0..).zip(lines.lines()) {
        types.note(line, 0, row).unwrap();
    }
    let mut table = Table::new(Vec::new(), &types.schema()).unwrap();
    table.push(lines).unwrap();
    table.end().unwrap()
}

fn rows(lines: &str) -> Vec<String> {
    let reader = SerializedFileReader::new(bytes::Bytes::from(written(lines))).unwrap();
    reader.get_row_iter(None).unwrap().map(|row| row.unwrap().to_string()).collect()
}

#[test]
fn a_line_is_a_row_and_equal_lines_are_equal_bytes() {
    let lines = concat!(
        r#"{"id":7,"prompt":"é","n":1.50,"x":[1],"completion":"a\n","finish_reason":"stop","#,
        r#""sampling_params":{"seed":1},"prompt_tokens":2,"logprobs":{"a":1},"embedding":[0.5,1]}"#,
        "\n",
        r#"{"id":"b","messages":[{"role":"u"}],"completion":null,"score":0.25,"embedding":[],"error":{"code":"C"}}"#,
        "\n"
    );
    let bytes = written(lines);
    assert_eq!(bytes, written(lines));
    let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
    let rows: Vec<String> =
        reader.get_row_iter(None).unwrap().map(|row| row.unwrap().to_string()).collect();
    for (row, parts) in [
        (
            0,
            &[
                "id: \"7\"",
                "prompt: \"é\"",
                "n: 1.5",
                "x: \"[1]\"",
                "completion: \"a\n\"",
                "embedding: [0.5, 1.0]",
                "prompt_tokens: 2",
                "extra: \"{\"logprobs\":{\"a\":1}}\"",
                "score: null",
            ][..],
        ),
        (
            1,
            &[
                "id: \"b\"",
                "messages: \"[{\"role\":\"u\"}]\"",
                "completion: null",
                "embedding: []",
                "score: 0.25",
                "input: null",
                "n: null",
                "error: \"{\"code\":\"C\"}\"",
            ],
        ),
    ] {
        for part in parts {
            assert!(rows[row].contains(part), "{part}: {}", rows[row]);
        }
    }
}

#[test]
fn a_result_that_is_not_of_numbers_costs_its_row_a_column_and_nothing_else() {
    let values = ["[0.5,null]", "[[0.5]]", "\"AAAA\"", "[1e999]"];
    let mut lines = String::new();
    for value in values {
        lines += &format!("{{\"id\":\"a\",\"embedding\":{value},\"score\":{value}}}\n");
    }
    lines += "{\"id\":\"b\",\"embedding\":[0.5],\"score\":null}\n";
    let bytes = written(&lines);
    let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
    let rows: Vec<String> =
        reader.get_row_iter(None).unwrap().map(|row| row.unwrap().to_string()).collect();
    for (row, value) in rows.iter().zip(values) {
        let extra = format!("extra: \"{{\"embedding\":{value},\"score\":{value}}}\"");
        for part in [extra.as_str(), "embedding: null", "score: null"] {
            assert!(row.contains(part), "{part}: {row}");
        }
    }
    assert!(rows[4].contains("embedding: [0.5]") && rows[4].contains("extra: null"), "{rows:?}");
}

#[test]
fn a_table_without_rows_is_a_table() {
    let bytes = written("");
    let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
    assert_eq!(reader.metadata().file_metadata().num_rows(), 0);
}

#[test]
fn ids_and_own_fields_have_the_types_of_their_values() {
    let found = rows(concat!(
        r#"{"id":9007199254740993,"prompt":"a","u":18446744073709551615,"f":-0.25,"b":true,"s":"7","input":3,"a b.c":1}"#,
        "\n",
        r#"{"id":-1,"prompt":"b","u":0,"f":2,"b":null,"s":"","m":7,"a b.c":null}"#,
        "\n",
        r#"{"id":null,"prompt":"c","m":"7","m":"twice"}"#,
        "\n"
    ));
    for (row, parts) in [
        (
            0,
            &[
                "id: 9007199254740993",
                "u: 18446744073709551615",
                "f: -2.5E-1",
                "b: true",
                "s: \"7\"",
                "input: \"{\"input\":3}\"",
                "a b.c: 1",
            ][..],
        ),
        (1, &["id: -1", "u: 0", "f: 2.0", "b: null", "s: \"\"", "m: \"7\"", "a b.c: null"]),
        (2, &["id: null", "s: null", "m: \"\"7\"\"", "input: \"{\"m\":\"twice\"}\""]),
    ] {
        for part in parts {
            assert!(found[row].contains(part), "{part}: {}", found[row]);
        }
    }
    let mixed = rows("{\"id\":7}\n{\"id\":\"b\"}\n");
    assert!(mixed[0].contains("id: \"7\"") && mixed[1].contains("id: \"b\""), "{mixed:?}");
}
