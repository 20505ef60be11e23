use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::*;

/// A table of three rows in two row groups, with a list of structs and a timestamp in nanoseconds.
fn table() -> File {
    let schema = "message m {
        optional binary text (STRING);
        required int64 at (TIMESTAMP(NANOS, false));
        optional group messages (LIST) { repeated group list { optional group element {
            required binary role (STRING); optional binary name (STRING); } } }
    }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = tempfile::tempfile().unwrap();
    let mut writer =
        SerializedFileWriter::new(file.try_clone().unwrap(), schema, Default::default()).unwrap();
    let text = |text: &str| ByteArray::from(text.as_bytes().to_vec());
    for (texts, defined, at) in
        [(vec![text("é\n")], vec![1, 0], vec![1, 2]), (vec![text("")], vec![1], vec![3])]
    {
        let rows = at.len();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&texts, Some(&defined), None).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&at, None, None).unwrap();
        column.close().unwrap();
        // Each row has two messages, and the second one has a name.
        let roles = vec![text("user"); 2 * rows];
        let repeated: Vec<i16> = [0, 1].repeat(rows);
        let mut column = group.next_column().unwrap().unwrap();
        let defined = vec![3; 2 * rows];
        let typed = column.typed::<ByteArrayType>();
        typed.write_batch(&roles, Some(&defined), Some(&repeated)).unwrap();
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let names = vec![text("n"); rows];
        let typed = column.typed::<ByteArrayType>();
        typed.write_batch(&names, Some(&[3, 4].repeat(rows)), Some(&repeated)).unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
    file
}

fn text(file: File) -> io::Result<String> {
    let read = AtomicU64::new(0);
    let bytes = file.metadata()?.len();
    let mut text = String::new();
    ParquetText::open(file, &read)?.read_to_string(&mut text)?;
    assert_eq!(read.load(Ordering::Relaxed), bytes, "all of the file counts as read");
    Ok(text)
}

#[test]
fn rows_are_lines_with_nested_columns_as_json() {
    let messages = r#""messages":[{"role":"user"},{"role":"user","name":"n"}]}"#;
    let at = |nanos: u32| format!("\"at\":\"1970-01-01T00:00:00.00000000{nanos}\",");
    let expected = format!(
        "{{\"text\":\"é\\n\",{}{messages}\n{{\"text\":null,{}{messages}\n{{\"text\":\"\",{}{messages}\n",
        at(1),
        at(2),
        at(3)
    );
    assert_eq!(text(table()).unwrap(), expected);
}

#[test]
fn a_broken_file_is_an_error() {
    use std::os::unix::fs::FileExt;
    let file = table();
    let len = file.metadata().unwrap().len();
    file.set_len(len - 1).unwrap();
    assert!(text(file).unwrap_err().to_string().contains("not a valid Parquet file"));
    // Whichever byte changes, the result is rows or an error.
    for at in (4..len - 8).step_by(3) {
        let file = table();
        file.write_all_at(&[0xff], at).unwrap();
        let _ = ParquetText::open(file, &AtomicU64::new(0))
            .and_then(|mut rows| io::copy(&mut rows, &mut io::sink()));
    }
}

/// A dictionary page that claims two billion values, for which the library would allocate 64 GB.
#[test]
fn a_page_of_more_values_than_its_bytes_can_be_is_an_error() {
    let file: &[u8] = include_bytes!("../../../testdata/dictionary-of-too-many-values.parquet");
    let mut broken = tempfile::tempfile().unwrap();
    io::Write::write_all(&mut broken, file).unwrap();
    let error = text(broken).unwrap_err().to_string();
    assert!(error.contains("Parquet file"), "{error}");
}
