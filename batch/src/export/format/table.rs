//! Owns: an output as Parquet: each output line is a row.
//!
//! Every column is optional. `id` and rows' own fields have the types of their values (`types`). If there are too many
//! of these, or their names clash with a name that the table needs, they are in `input`, as JSON. An object or a list
//! becomes JSON, except `embedding`. An `embedding` that is not a list of numbers is in `extra`, unchanged.
//! Invariant: equal lines give equal bytes, with one version of this program. A row group has at most
//! [`GROUP_ROWS_MAX`] rows and ends at [`GROUP_BYTES`] bytes.
//! Absent: finding the schema, which needs all rows (`spool`).

mod column;
mod fixed;
mod types;

use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::Type;
use serde_json::value::RawValue;

use self::column::{Column, Typed, Vectors, field, text_of};
use self::fixed::{ASKED, COUNTS, EMBEDDING, EXTRA, EXTRAS, INPUT, SCORE, TEXTS};
use self::types::Kind;
pub(in crate::export) use self::types::{Schema, Types};
use crate::canonical::{Fields, write_string};

/// The most rows of a row group.
const GROUP_ROWS_MAX: usize = 64 << 10;
/// Bytes of lines at which a row group ends.
const GROUP_BYTES: usize = 64 << 20;

pub(in crate::export) struct Table<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    schema: Schema,
    group: Group,
    rows: usize,
    bytes: usize,
}

/// The rows of a row group.
struct Group {
    id: Typed,
    requests: [Column<ByteArray>; ASKED.len()],
    own: Vec<Typed>,
    texts: [Column<ByteArray>; TEXTS.len()],
    counts: [Column<i64>; COUNTS.len()],
    embedding: Vectors,
    score: Column<f64>,
}

/// The columns in their written order.
fn columns(schema: &Schema) -> Result<Type, ParquetError> {
    let text = |name: &&str| field(name, Kind::Text);
    let mut fields = vec![field("id", schema.id)?];
    fields.extend(ASKED.iter().map(text).collect::<Result<Vec<_>, _>>()?);
    for (name, kind) in &schema.own {
        fields.push(field(name, *kind)?);
    }
    fields.extend(TEXTS.iter().map(text).collect::<Result<Vec<_>, _>>()?);
    for name in COUNTS {
        fields.push(field(name, Kind::Int64)?);
    }
    let vectors = format!(
        "message m {{ optional group {EMBEDDING} (LIST) {{ repeated group list {{ optional double element; }} }} }}"
    );
    fields.extend(parse_message_type(&vectors)?.get_fields().iter().cloned());
    fields.push(field(SCORE, Kind::Double)?);
    Type::group_type_builder("rollout").with_fields(fields).build()
}

impl Group {
    fn new(schema: &Schema) -> Self {
        Self {
            id: Typed::new(schema.id),
            requests: Default::default(),
            own: schema.own.iter().map(|(_, kind)| Typed::new(*kind)).collect(),
            texts: Default::default(),
            counts: Default::default(),
            embedding: Vectors::default(),
            score: Column::default(),
        }
    }

    fn push(&mut self, values: Values<'_>) -> io::Result<()> {
        self.id.push(values.id)?;
        for (column, text) in self.requests.iter_mut().zip(values.requests) {
            column.push(text);
        }
        for (column, value) in self.own.iter_mut().zip(values.own) {
            column.push(value)?;
        }
        for (column, text) in self.texts.iter_mut().zip(values.texts) {
            column.push(text);
        }
        for (column, count) in self.counts.iter_mut().zip(values.counts) {
            column.push(count);
        }
        self.embedding.push(values.embedding);
        self.score.push(values.score);
        Ok(())
    }

    fn write<W: Write + Send>(
        self,
        writer: &mut SerializedFileWriter<W>,
    ) -> Result<(), ParquetError> {
        let mut group = writer.next_row_group()?;
        self.id.write(&mut group)?;
        for column in self.requests {
            column.write::<ByteArrayType, W>(&mut group)?;
        }
        for column in self.own {
            column.write(&mut group)?;
        }
        for column in self.texts {
            column.write::<ByteArrayType, W>(&mut group)?;
        }
        for column in self.counts {
            column.write::<Int64Type, W>(&mut group)?;
        }
        self.embedding.write(&mut group)?;
        self.score.write::<DoubleType, W>(&mut group)?;
        group.close().map(|_| ())
    }
}

/// The values of one row, by column.
struct Values<'a> {
    id: Option<&'a RawValue>,
    requests: [Option<ByteArray>; ASKED.len()],
    own: Vec<Option<&'a RawValue>>,
    texts: [Option<ByteArray>; TEXTS.len()],
    counts: [Option<i64>; COUNTS.len()],
    embedding: Option<Vec<f64>>,
    score: Option<f64>,
}

impl<'a> Values<'a> {
    fn of(
        fields: &[(std::borrow::Cow<'_, str>, &'a RawValue)],
        schema: &Schema,
    ) -> io::Result<Self> {
        let mut values = Self {
            id: None,
            requests: Default::default(),
            own: vec![None; schema.own.len()],
            texts: Default::default(),
            counts: Default::default(),
            embedding: None,
            score: None,
        };
        let (mut input, mut extra) = (String::new(), String::new());
        for (name, value) in fields {
            if !values.take(name, value, schema)? {
                let of = if EXTRAS.contains(&&**name) { &mut extra } else { &mut input };
                of.push_str(if of.is_empty() { "{" } else { "," });
                write_string(name, of);
                of.push(':');
                of.push_str(value.get());
            }
        }
        for (name, mut object) in [(INPUT, input), (EXTRA, extra)] {
            if let Some(at) = place(&TEXTS, name)
                && !object.is_empty()
            {
                object.push('}');
                values.texts[at] = Some(ByteArray::from(object.into_bytes()));
            }
        }
        Ok(values)
    }

    /// Puts a value into its column; false if there is no such column.
    fn take(&mut self, name: &str, value: &'a RawValue, schema: &Schema) -> io::Result<bool> {
        let json = value.get();
        let text = || if json == "null" { Ok(None) } else { text_of(value).map(Some) };
        if name == "id" {
            self.id = Some(value);
        } else if let Some(at) = place(&ASKED, name) {
            self.requests[at] = text()?;
        } else if let Some(at) = place(&TEXTS, name).filter(|_| name != INPUT && name != EXTRA) {
            self.texts[at] = text()?;
        } else if let Some(at) = place(&COUNTS, name) {
            self.counts[at] = serde_json::from_str(json)?;
        } else if name == EMBEDDING
            && let Ok(vector) = serde_json::from_str(json)
        {
            self.embedding = vector;
        } else if name == SCORE
            && let Ok(number) = serde_json::from_str(json)
        {
            self.score = number;
        } else if let Some(at) = schema.own.iter().position(|(own, _)| own == name)
            && self.own[at].is_none()
        {
            self.own[at] = Some(value);
        } else {
            return Ok(false);
        }
        Ok(true)
    }
}

fn place(names: &[&str], name: &str) -> Option<usize> {
    names.iter().position(|column| *column == name)
}

impl<W: Write + Send> Table<W> {
    pub(in crate::export) fn new(to: W, schema: &Schema) -> io::Result<Self> {
        let columns = Arc::new(columns(schema).map_err(io_error)?);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by("rollout".to_owned())
            .build();
        let writer = SerializedFileWriter::new(to, columns, Arc::new(properties));
        Ok(Self {
            writer: writer.map_err(io_error)?,
            schema: schema.clone(),
            group: Group::new(schema),
            rows: 0,
            bytes: 0,
        })
    }

    /// Appends rows, one per line.
    pub(in crate::export) fn push(&mut self, lines: &str) -> io::Result<()> {
        for line in lines.lines() {
            let Fields(fields) = serde_json::from_str(line)?;
            self.group.push(Values::of(&fields, &self.schema)?)?;
            self.rows += 1;
            self.bytes += line.len();
            if self.rows == GROUP_ROWS_MAX || self.bytes >= GROUP_BYTES {
                self.end_group()?;
            }
        }
        Ok(())
    }

    fn end_group(&mut self) -> io::Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let group = std::mem::replace(&mut self.group, Group::new(&self.schema));
        (self.rows, self.bytes) = (0, 0);
        group.write(&mut self.writer).map_err(io_error)
    }

    /// Writes the rest, and returns the file.
    pub(in crate::export) fn end(mut self) -> io::Result<W> {
        self.end_group()?;
        self.writer.into_inner().map_err(io_error)
    }
}

/// An error of the underlying file is returned as it is.
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
mod tests;
