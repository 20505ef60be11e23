//! Owns: the values of one column of a row group.
//!
//! Invariant: each row has one entry in each column, which may be null.
//! Absent: which column a value belongs to.

use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::writer::SerializedRowGroupWriter;
use parquet::schema::types::{Type, TypePtr};
use serde_json::value::RawValue;

use super::types::Kind;
use crate::canonical::Text;

/// The values of a column, and for each row whether it has one.
pub(super) struct Column<T> {
    values: Vec<T>,
    given: Vec<i16>,
}

/// The same of a column of lists of numbers.
#[derive(Default)]
pub(super) struct Vectors {
    values: Vec<f64>,
    given: Vec<i16>,
    repeated: Vec<i16>,
}

/// The same of a column whose type follows from its rows.
pub(super) enum Typed {
    Bool(Column<bool>),
    Integers(Kind, Column<i64>),
    Double(Column<f64>),
    Texts(Kind, Column<ByteArray>),
}

impl<T> Default for Column<T> {
    fn default() -> Self {
        Self { values: Vec::new(), given: Vec::new() }
    }
}

impl<T> Column<T> {
    pub(super) fn push(&mut self, value: Option<T>) {
        self.given.push(i16::from(value.is_some()));
        self.values.extend(value);
    }
}

impl<T> Column<T> {
    /// Writes it as the next column of a row group.
    pub(super) fn write<P: DataType<T = T>, W: Write + Send>(
        &self,
        group: &mut SerializedRowGroupWriter<'_, W>,
    ) -> Result<(), ParquetError> {
        next::<P, W>(group, &self.values, &self.given, None)
    }
}

impl Vectors {
    pub(super) fn push(&mut self, vector: Option<Vec<f64>>) {
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

    pub(super) fn write<W: Write + Send>(
        &self,
        group: &mut SerializedRowGroupWriter<'_, W>,
    ) -> Result<(), ParquetError> {
        next::<DoubleType, W>(group, &self.values, &self.given, Some(&self.repeated))
    }
}

impl Typed {
    pub(super) fn new(kind: Kind) -> Self {
        match kind {
            Kind::Bool => Self::Bool(Column::default()),
            Kind::Int64 | Kind::Uint64 => Self::Integers(kind, Column::default()),
            Kind::Double => Self::Double(Column::default()),
            Kind::Text | Kind::Json => Self::Texts(kind, Column::default()),
        }
    }

    pub(super) fn push(&mut self, value: Option<&RawValue>) -> io::Result<()> {
        let value = value.filter(|value| value.get() != "null");
        let json = value.map(RawValue::get);
        match self {
            Self::Bool(column) => column.push(json.map(serde_json::from_str).transpose()?),
            // The bits of an unsigned integer are written unchanged.
            Self::Integers(Kind::Uint64, column) => {
                let value = json.map(serde_json::from_str::<u64>).transpose()?;
                column.push(value.map(u64::cast_signed));
            }
            Self::Integers(_, column) => column.push(json.map(serde_json::from_str).transpose()?),
            Self::Double(column) => {
                let value = json.map(|json| json.parse::<f64>().map_err(io::Error::other));
                column.push(value.transpose()?);
            }
            Self::Texts(Kind::Json, column) => {
                column.push(json.map(|json| ByteArray::from(json.as_bytes().to_vec())));
            }
            Self::Texts(_, column) => column.push(value.map(text_of).transpose()?),
        }
        Ok(())
    }

    pub(super) fn write<W: Write + Send>(
        &self,
        group: &mut SerializedRowGroupWriter<'_, W>,
    ) -> Result<(), ParquetError> {
        match self {
            Self::Bool(column) => column.write::<BoolType, W>(group),
            Self::Integers(_, column) => column.write::<Int64Type, W>(group),
            Self::Double(column) => column.write::<DoubleType, W>(group),
            Self::Texts(_, column) => column.write::<ByteArrayType, W>(group),
        }
    }
}

/// A string's text, or any other value's JSON.
pub(super) fn text_of(value: &RawValue) -> io::Result<ByteArray> {
    let json = value.get();
    Ok(match json.as_bytes().first() {
        Some(b'"') => {
            let Text(text) = serde_json::from_str(json)?;
            ByteArray::from(text.into_owned().into_bytes())
        }
        _ => ByteArray::from(json.as_bytes().to_vec()),
    })
}

/// A column of a schema.
pub(super) fn field(name: &str, kind: Kind) -> Result<TypePtr, ParquetError> {
    let (physical, logical) = match kind {
        Kind::Bool => (Physical::BOOLEAN, None),
        Kind::Int64 => (Physical::INT64, None),
        Kind::Uint64 => {
            let logical = LogicalType::Integer { bit_width: 64, is_signed: false };
            (Physical::INT64, Some(logical))
        }
        Kind::Double => (Physical::DOUBLE, None),
        Kind::Text | Kind::Json => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
    };
    let built = Type::primitive_type_builder(name, physical)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(logical)
        .build();
    Ok(Arc::new(built?))
}

/// Writes the next column of a row group.
fn next<T: DataType, W: Write + Send>(
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
