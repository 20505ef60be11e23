//! Owns: an output as Parquet: our lines as rows of one fixed schema.
//!
//! Every column is optional; a row's own fields are in `input`, as JSON, but for `id`, `prompt` and `messages`. What is an
//! object or a list is JSON, but for `embedding`. One that is no list of numbers is in `extra`, as it is.
//! Invariant: equal lines give equal bytes, with one version of this program; a row group has at most [`GROUP_ROWS_MAX`]
//! rows and is ended at [`GROUP_BYTES`] bytes.
//! Absent: other schemas. Columns that differ from run to run could not be written before the last row was seen.

use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use serde_json::value::RawValue;

use crate::input::canonical::{Fields, Text};

/// The most rows of a row group.
const GROUP_ROWS_MAX: usize = 64 << 10;
/// Bytes of lines at which a row group is ended.
const GROUP_BYTES: usize = 64 << 20;

/// Columns of texts. A value that is no string is its JSON.
const TEXTS: [&str; 14] = [
    "id",
    "prompt",
    "messages",
    "input",
    "completion",
    "finish_reason",
    "generated_at",
    "sampling_params",
    "model_uri",
    "model_content_id",
    "completion_blob_id",
    "extra",
    "response",
    "error",
];
/// Columns of integers.
const COUNTS: [&str; 2] = ["prompt_tokens", "completion_tokens"];
const EMBEDDING: &str = "embedding";
const SCORE: &str = "score";
/// Fields that are together in `extra`; the last two where their own columns do not take them.
const EXTRAS: [&str; 5] = ["completions", "logprobs", "prompt_logprobs", EMBEDDING, SCORE];
const INPUT: usize = 3;
const EXTRA: usize = 11;

/// Writes a table.
pub(in crate::export) struct Table<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    texts: [Column<ByteArray>; TEXTS.len()],
    counts: [Column<i64>; COUNTS.len()],
    embedding: Vectors,
    score: Column<f64>,
    rows: usize,
    bytes: usize,
}

/// The values of a column, and for each row whether it has one.
struct Column<T> {
    values: Vec<T>,
    given: Vec<i16>,
}

/// The same of a column of lists.
#[derive(Default)]
struct Vectors {
    values: Vec<f64>,
    given: Vec<i16>,
    repeated: Vec<i16>,
}

impl<T> Default for Column<T> {
    fn default() -> Self {
        Self { values: Vec::new(), given: Vec::new() }
    }
}

impl<T> Column<T> {
    fn push(&mut self, value: Option<T>) {
        self.given.push(i16::from(value.is_some()));
        self.values.extend(value);
    }
}

impl Vectors {
    fn push(&mut self, vector: Option<Vec<f64>>) {
        match vector {
            None => self.level(0, 0),
            Some(vector) if vector.is_empty() => self.level(1, 0),
            Some(vector) => {
                for at in 0..vector.len() {
                    self.level(3, i16::from(at > 0));
                }
                self.values.extend(vector);
            }
        }
    }

    fn level(&mut self, given: i16, repeated: i16) {
        self.given.push(given);
        self.repeated.push(repeated);
    }
}

/// The schema, in the order in which columns are written.
fn schema() -> String {
    let mut text = "message rollout {\n".to_owned();
    for name in TEXTS {
        text += &format!("  optional binary {name} (STRING);\n");
    }
    for name in COUNTS {
        text += &format!("  optional int64 {name};\n");
    }
    text += &format!(
        "  optional group {EMBEDDING} (LIST) {{ repeated group list {{ optional double element; }} }}\n"
    );
    text + &format!("  optional double {SCORE};\n}}\n")
}

impl<W: Write + Send> Table<W> {
    pub(in crate::export) fn new(to: W) -> io::Result<Self> {
        let schema = Arc::new(parse_message_type(&schema()).map_err(io_error)?);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by("rollout".to_owned())
            .build();
        let writer = SerializedFileWriter::new(to, schema, Arc::new(properties));
        Ok(Self {
            writer: writer.map_err(io_error)?,
            texts: Default::default(),
            counts: Default::default(),
            embedding: Vectors::default(),
            score: Column::default(),
            rows: 0,
            bytes: 0,
        })
    }

    /// Appends rows, each of our lines one.
    pub(in crate::export) fn push(&mut self, lines: &str) -> io::Result<()> {
        for line in lines.lines() {
            let Fields(fields) = serde_json::from_str(line)?;
            self.row(&fields)?;
            self.rows += 1;
            self.bytes += line.len();
            if self.rows == GROUP_ROWS_MAX || self.bytes >= GROUP_BYTES {
                self.end_group()?;
            }
        }
        Ok(())
    }

    fn row(&mut self, fields: &[(std::borrow::Cow<'_, str>, &RawValue)]) -> io::Result<()> {
        let (mut input, mut extra) = (String::new(), String::new());
        let mut texts: [Option<ByteArray>; TEXTS.len()] = Default::default();
        let (mut counts, mut embedding, mut score) = ([None; COUNTS.len()], None, None);
        for (name, value) in fields {
            let text = value.get();
            if let Some(at) = TEXTS.iter().position(|known| known == name)
                && at != INPUT
                && at != EXTRA
            {
                texts[at] = text_of(value)?;
            } else if let Some(at) = COUNTS.iter().position(|known| known == name) {
                counts[at] = serde_json::from_str(text)?;
            } else if name == EMBEDDING
                && let Ok(vector) = serde_json::from_str(text)
            {
                embedding = vector;
            } else if name == SCORE
                && let Ok(number) = serde_json::from_str(text)
            {
                score = number;
            } else {
                let of = if EXTRAS.contains(&&**name) { &mut extra } else { &mut input };
                of.push_str(if of.is_empty() { "{" } else { "," });
                crate::input::canonical::write_string(name, of);
                of.push(':');
                of.push_str(text);
            }
        }
        for (at, mut object) in [(INPUT, input), (EXTRA, extra)] {
            if !object.is_empty() {
                object.push('}');
                texts[at] = Some(ByteArray::from(object.into_bytes()));
            }
        }
        for (column, text) in self.texts.iter_mut().zip(texts) {
            column.push(text);
        }
        for (column, count) in self.counts.iter_mut().zip(counts) {
            column.push(count);
        }
        self.embedding.push(embedding);
        self.score.push(score);
        Ok(())
    }

    fn end_group(&mut self) -> io::Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let mut group = self.writer.next_row_group().map_err(io_error)?;
        let written = (|| {
            for column in std::mem::take(&mut self.texts) {
                next::<ByteArrayType, _>(&mut group, &column.values, &column.given, None)?;
            }
            for column in std::mem::take(&mut self.counts) {
                next::<Int64Type, _>(&mut group, &column.values, &column.given, None)?;
            }
            let vectors = std::mem::take(&mut self.embedding);
            let repeated = Some(&vectors.repeated[..]);
            next::<DoubleType, _>(&mut group, &vectors.values, &vectors.given, repeated)?;
            let score = std::mem::take(&mut self.score);
            next::<DoubleType, _>(&mut group, &score.values, &score.given, None)
        })();
        written.and_then(|()| group.close().map(|_| ())).map_err(io_error)?;
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }

    /// Writes what is left, and gives the file back.
    pub(in crate::export) fn end(mut self) -> io::Result<W> {
        self.end_group()?;
        self.writer.into_inner().map_err(io_error)
    }
}

/// Writes the next column of a row group.
fn next<T: parquet::data_type::DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    given: &[i16],
    repeated: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let Some(mut column) = group.next_column()? else {
        return Err(ParquetError::General("the schema has no more columns".to_owned()));
    };
    column.typed::<T>().write_batch(values, Some(given), repeated)?;
    column.close()
}

/// A string's text, or any other value's JSON.
fn text_of(value: &RawValue) -> io::Result<Option<ByteArray>> {
    let json = value.get();
    Ok(match json.as_bytes().first() {
        Some(b'n') => None,
        Some(b'"') => {
            let Text(text) = serde_json::from_str(json)?;
            Some(ByteArray::from(text.into_owned().into_bytes()))
        }
        _ => Some(ByteArray::from(json.as_bytes().to_vec())),
    })
}

/// An error of the file below is that error.
fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        error => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};

    use super::*;

    #[test]
    fn a_line_is_a_row_and_equal_lines_are_equal_bytes() {
        let lines = concat!(
            r#"{"id":7,"prompt":"é","n":1.50,"x":[1],"completion":"a\n","finish_reason":"stop","#,
            r#""sampling_params":{"seed":1},"prompt_tokens":2,"logprobs":{"a":1},"embedding":[0.5,1]}"#,
            "\n",
            r#"{"id":"b","messages":[{"role":"u"}],"completion":null,"score":0.25,"embedding":[],"error":{"code":"C"}}"#,
            "\n"
        );
        let write = || {
            let mut table = Table::new(Vec::new()).unwrap();
            table.push(lines).unwrap();
            table.end().unwrap()
        };
        let bytes = write();
        assert_eq!(bytes, write());
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        let rows: Vec<String> =
            reader.get_row_iter(None).unwrap().map(|row| row.unwrap().to_string()).collect();
        for (row, parts) in [
            (
                0,
                &[
                    "id: \"7\"",
                    "prompt: \"é\"",
                    "input: \"{\"n\":1.50,\"x\":[1]}\"",
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
        let mut table = Table::new(Vec::new()).unwrap();
        table.push(&lines).unwrap();
        let bytes = table.end().unwrap();
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        let rows: Vec<String> =
            reader.get_row_iter(None).unwrap().map(|row| row.unwrap().to_string()).collect();
        for (row, value) in rows.iter().zip(values) {
            let extra = format!("extra: \"{{\"embedding\":{value},\"score\":{value}}}\"");
            for part in [extra.as_str(), "embedding: null", "score: null"] {
                assert!(row.contains(part), "{part}: {row}");
            }
        }
        assert!(
            rows[4].contains("embedding: [0.5]") && rows[4].contains("extra: null"),
            "{rows:?}"
        );
    }

    #[test]
    fn a_table_without_rows_is_a_table() {
        let bytes = Table::new(Vec::new()).unwrap().end().unwrap();
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        assert_eq!(reader.metadata().file_metadata().num_rows(), 0);
    }
}
