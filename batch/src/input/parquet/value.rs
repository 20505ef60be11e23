//! Owns: the conversion of a value of a Parquet column to JSON.
//!
//! Strings, numbers, booleans and lists convert directly; a struct is an object without its null members; a map is an
//! object with text keys. Bytes are base64, decimals are numbers with all their digits, dates, times and timestamps
//! are texts of RFC 3339, without an offset if the column has none; NaN and infinities are null.
//! Invariant: equal rows give equal lines. Nothing is rounded except a timestamp of the old type INT96, which its
//! reader gives in milliseconds.
//! Absent: columns.

use std::fmt::Write;

use parquet::basic::{LogicalType, TimeUnit};
use parquet::data_type::Decimal;
use parquet::record::{Field, List, Map, Row};
use parquet::schema::types::Type;
use time::format_description::well_known::Rfc3339;
use time::{Duration, OffsetDateTime};

use crate::canonical::write_string;

/// The JSON line of a row.
pub(super) fn line(row: &Row, schema: &Type) -> String {
    let mut out = String::from("{");
    for (index, (name, field)) in row.get_column_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write_string(name, &mut out);
        out.push(':');
        write(field, child(Some(schema), index), &mut out);
    }
    out.push('}');
    out
}

/// The type of a member of a group.
fn child(of: Option<&Type>, index: usize) -> Option<&Type> {
    match of? {
        Type::GroupType { fields, .. } => fields.get(index).map(|field| &**field),
        Type::PrimitiveType { .. } => None,
    }
}

/// The type of a list's elements: below the repeated group, if that has a single member.
fn element(of: Option<&Type>) -> Option<&Type> {
    let repeated = child(of, 0)?;
    match repeated {
        Type::GroupType { fields, .. } if fields.len() == 1 => child(Some(repeated), 0),
        _ => Some(repeated),
    }
}

fn write(field: &Field, of: Option<&Type>, out: &mut String) {
    // Writing to a string cannot fail.
    let _ = match field {
        Field::Null => write!(out, "null"),
        Field::Bool(value) => write!(out, "{value}"),
        Field::Byte(value) => write!(out, "{value}"),
        Field::Short(value) => write!(out, "{value}"),
        Field::Int(value) => write!(out, "{value}"),
        Field::Long(value) => return write_long(*value, of, out),
        Field::UByte(value) => write!(out, "{value}"),
        Field::UShort(value) => write!(out, "{value}"),
        Field::UInt(value) => write!(out, "{value}"),
        Field::ULong(value) => write!(out, "{value}"),
        Field::Float16(value) => return write_float(json_number(value.to_f32()), out),
        Field::Float(value) => return write_float(json_number(*value), out),
        Field::Double(value) => return write_float(json_number(*value), out),
        Field::Decimal(value) => return write_decimal(value, out),
        Field::Str(text) => return write_string(text, out),
        Field::Bytes(bytes) => return write_base64(bytes.data(), out),
        Field::Date(days) => {
            let nanos = i128::from(*days) * 86_400_000_000_000;
            return write_time(nanos, 10, i64::from(*days), out);
        }
        Field::TimeMillis(value) => return write_clock(i64::from(*value) * 1_000_000, out),
        Field::TimeMicros(value) => return write_clock(value.saturating_mul(1000), out),
        Field::TimestampMillis(value) => {
            return write_timestamp(i128::from(*value) * 1_000_000, *value, of, out);
        }
        Field::TimestampMicros(value) => {
            return write_timestamp(i128::from(*value) * 1000, *value, of, out);
        }
        Field::Group(row) => return write_group(row, of, out),
        Field::ListInternal(list) => return write_list(list, of, out),
        Field::MapInternal(map) => return write_map(map, of, out),
    };
}

fn write_group(row: &Row, of: Option<&Type>, out: &mut String) {
    out.push('{');
    let mut separator = "";
    for (index, (name, field)) in row.get_column_iter().enumerate() {
        if matches!(field, Field::Null) {
            continue;
        }
        out.push_str(separator);
        separator = ",";
        write_string(name, out);
        out.push(':');
        write(field, child(of, index), out);
    }
    out.push('}');
}

fn write_list(list: &List, of: Option<&Type>, out: &mut String) {
    let of = element(of);
    out.push('[');
    for (index, field) in list.elements().iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        write(field, of, out);
    }
    out.push(']');
}

fn write_map(map: &Map, of: Option<&Type>, out: &mut String) {
    let pair = child(of, 0);
    out.push('{');
    for (index, (key, field)) in map.entries().iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        match key {
            Field::Str(text) => write_string(text, out),
            other => {
                let mut text = String::new();
                write(other, child(pair, 0), &mut text);
                write_string(text.trim_matches('"'), out);
            }
        }
        out.push(':');
        write(field, child(pair, 1), out);
    }
    out.push('}');
}

/// A JSON number, or null.
fn json_number(value: impl serde::Serialize) -> String {
    serde_json::to_string(&value).unwrap_or_default()
}

fn write_float(text: String, out: &mut String) {
    let finite = text.bytes().any(|byte| byte.is_ascii_digit());
    out.push_str(if finite { &text } else { "null" });
}

/// A number, unless the column is a time in nanoseconds.
fn write_long(value: i64, of: Option<&Type>, out: &mut String) {
    let logical = of.and_then(|of| of.get_basic_info().logical_type_ref());
    match logical {
        Some(LogicalType::Timestamp { unit: TimeUnit::NANOS, .. }) => {
            write_timestamp(value.into(), value, of, out);
        }
        Some(LogicalType::Time { unit: TimeUnit::NANOS, .. }) => write_clock(value, out),
        _ => {
            let _ = write!(out, "{value}");
        }
    }
}

fn write_timestamp(nanos: i128, raw: i64, of: Option<&Type>, out: &mut String) {
    let logical = of.and_then(|of| of.get_basic_info().logical_type_ref());
    let local = matches!(logical, Some(LogicalType::Timestamp { is_adjusted_to_u_t_c: false, .. }));
    let length = if local { usize::MAX - 1 } else { usize::MAX };
    write_time(nanos, length, raw, out);
}

/// A point in time, cut to `length` characters: `usize::MAX` keeps all of them, and one less drops the offset. A time
/// that RFC 3339 cannot represent is written as the column's number.
fn write_time(nanos: i128, length: usize, raw: i64, out: &mut String) {
    let time = OffsetDateTime::from_unix_timestamp_nanos(nanos).ok();
    match time.and_then(|time| time.format(&Rfc3339).ok()) {
        Some(text) => {
            let end = match length {
                usize::MAX => text.len(),
                length if length == usize::MAX - 1 => text.len() - 1,
                length => length.min(text.len()),
            };
            write_string(&text[..end], out);
        }
        None => {
            let _ = write!(out, "{raw}");
        }
    }
}

/// A time of day.
fn write_clock(nanos: i64, out: &mut String) {
    let day = Duration::DAY.whole_nanoseconds();
    let text = OffsetDateTime::from_unix_timestamp_nanos(i128::from(nanos).rem_euclid(day))
        .ok()
        .and_then(|time| time.format(&Rfc3339).ok());
    match text {
        // After the date, before the Z.
        Some(text) => write_string(&text[11..text.len() - 1], out),
        None => {
            let _ = write!(out, "{nanos}");
        }
    }
}

/// All digits of a decimal; one of more than 128 bits becomes its bytes.
fn write_decimal(value: &Decimal, out: &mut String) {
    let bytes = value.data();
    if bytes.len() > 16 {
        return write_base64(bytes, out);
    }
    let sign = if bytes.first().is_some_and(|byte| byte & 0x80 != 0) { u8::MAX } else { 0 };
    let mut wide = [sign; 16];
    wide[16 - bytes.len()..].copy_from_slice(bytes);
    let number = i128::from_be_bytes(wide);
    let scale = usize::try_from(value.scale()).unwrap_or(0);
    let digits = format!("{:0>width$}", number.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    let (sign, point) = (if number < 0 { "-" } else { "" }, if scale > 0 { "." } else { "" });
    let _ = write!(out, "{sign}{whole}{point}{fraction}");
}

fn write_base64(bytes: &[u8], out: &mut String) {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    out.push('"');
    for three in bytes.chunks(3) {
        let mut word = [0; 4];
        word[1..=three.len()].copy_from_slice(three);
        let word = u32::from_be_bytes(word);
        for digit in 0..4 {
            match digit <= three.len() {
                true => out.push(DIGITS[(word >> (18 - 6 * digit) & 63) as usize] as char),
                false => out.push('='),
            }
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use parquet::data_type::ByteArray;

    use super::*;

    fn json(field: &Field) -> String {
        let mut out = String::new();
        write(field, None, &mut out);
        out
    }

    #[test]
    fn values_that_json_lacks_have_a_documented_text() {
        for (field, text) in [
            (Field::Bytes(ByteArray::from(vec![0xff, 0, 1, 2])), "\"/wABAg==\""),
            (Field::Bytes(ByteArray::from(b"Man".to_vec())), "\"TWFu\""),
            (Field::Decimal(Decimal::from_i32(-5, 9, 2)), "-0.05"),
            (Field::Decimal(Decimal::from_i64(1230, 9, 2)), "12.30"),
            (Field::Decimal(Decimal::from_i32(7, 9, 0)), "7"),
            (Field::Date(20_000), "\"2024-10-04\""),
            (Field::TimestampMillis(1_700_000_000_123), "\"2023-11-14T22:13:20.123Z\""),
            (Field::TimestampMicros(-1), "\"1969-12-31T23:59:59.999999Z\""),
            (Field::TimeMillis(3_600_001), "\"01:00:00.001\""),
            (Field::TimestampMillis(i64::MAX), "9223372036854775807"),
            (Field::Double(f64::NAN), "null"),
            (Field::Double(1.0), "1.0"),
            (Field::Float(0.1), "0.1"),
            (Field::ULong(u64::MAX), "18446744073709551615"),
            (Field::Str("a\"\n".into()), r#""a\"\n""#),
        ] {
            assert_eq!(json(&field), text, "{field:?}");
        }
    }
}
