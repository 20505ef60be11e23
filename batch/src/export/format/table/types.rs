//! Owns: the types of a table's columns, folded over all rows of an output.
//!
//! Invariant: the types depend on the set of rows alone, not on how the rows are split, so equal runs have equal
//! tables. Every value of a column fits its type without loss.
//! Absent: the columns that are the same in all tables (`table`).

use std::collections::BTreeMap;
use std::io;

use serde_json::value::RawValue;

use super::fixed;
use crate::canonical::Fields;

/// The maximum of columns for rows' own fields. If there are more, one column of objects has them all.
pub(super) const OWN_COLUMNS_MAX: usize = 256;
/// A field with a longer name gets no column.
const NAME_BYTES_MAX: usize = 256;
/// Integers up to this one convert to doubles without loss.
const DOUBLE_INTEGER_MAX: u64 = 1 << 53;

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Kind {
    Bool,
    Int64,
    Uint64,
    Double,
    /// A string. For other values, their JSON.
    #[default]
    Text,
    /// The JSON of every value.
    Json,
}

/// Kinds of values that a column has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ValueKinds(u8);

impl ValueKinds {
    const BOOL: u8 = 1;
    const TEXT: u8 = 1 << 1;
    const INTEGER: u8 = 1 << 2;
    const NEGATIVE: u8 = 1 << 3;
    /// An integer that does not fit into i64.
    const BEYOND: u8 = 1 << 4;
    /// An integer that a double cannot represent.
    const LONG: u8 = 1 << 5;
    const DOUBLE: u8 = 1 << 6;
    const OTHER: u8 = 1 << 7;

    fn note(&mut self, value: &str) {
        self.0 |= match value.as_bytes().first() {
            Some(b'n') | None => 0,
            Some(b't' | b'f') => Self::BOOL,
            Some(b'"') => Self::TEXT,
            Some(b'{' | b'[') => Self::OTHER,
            Some(_) => number(value),
        };
    }

    fn has(self, facts: u8) -> bool {
        self.0 & facts != 0
    }

    fn kind(self) -> Kind {
        let numbers = Self::INTEGER | Self::DOUBLE;
        let classes = [Self::BOOL, Self::TEXT, numbers, Self::OTHER];
        match classes.iter().filter(|facts| self.has(**facts)).count() {
            0 => return Kind::Text,
            1 => {}
            _ => return Kind::Json,
        }
        match () {
            () if self.has(Self::BOOL) => Kind::Bool,
            () if self.has(Self::TEXT) => Kind::Text,
            () if self.has(Self::OTHER) => Kind::Json,
            () if self.has(Self::DOUBLE) && self.has(Self::LONG) => Kind::Json,
            () if self.has(Self::DOUBLE) => Kind::Double,
            () if self.has(Self::BEYOND) && self.has(Self::NEGATIVE) => Kind::Json,
            () if self.has(Self::BEYOND) => Kind::Uint64,
            () => Kind::Int64,
        }
    }
}

/// The flags of a number.
fn number(text: &str) -> u8 {
    if text.contains(['.', 'e', 'E']) {
        return if is_double(text) { ValueKinds::DOUBLE } else { ValueKinds::OTHER };
    }
    let long = |value: u64| if value > DOUBLE_INTEGER_MAX { ValueKinds::LONG } else { 0 };
    match (text.parse::<i64>(), text.parse::<u64>()) {
        (Ok(value), _) => {
            let negative = if value < 0 { ValueKinds::NEGATIVE } else { 0 };
            ValueKinds::INTEGER | negative | long(value.unsigned_abs())
        }
        (Err(_), Ok(_)) => ValueKinds::INTEGER | ValueKinds::BEYOND | ValueKinds::LONG,
        _ => ValueKinds::OTHER,
    }
}

/// Whether a double represents a number without losing a digit.
fn is_double(text: &str) -> bool {
    let value = text.parse::<f64>().ok().filter(|value| value.is_finite());
    value.is_some_and(|value| digits(text) == digits(&format!("{value:e}")))
}

/// The significant digits of a number, and its remaining power of ten.
fn digits(text: &str) -> (String, i64) {
    let text = text.trim_start_matches('-');
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent: i64 = exponent.trim_start_matches('+').parse().unwrap_or(i64::MAX);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = format!("{whole}{fraction}");
    let significant = all.trim_start_matches('0');
    let left = whole.len() as i64 - (all.len() - significant.len()) as i64;
    match significant.trim_end_matches('0') {
        "" => (String::new(), 0),
        digits => (digits.to_owned(), exponent.saturating_add(left)),
    }
}

/// Where a field first occurs: the series, the row in it, the position in the row.
type First = (usize, u64, usize);

/// The types of the rows so far.
#[derive(Debug, Default)]
pub(in crate::export) struct Types {
    id: ValueKinds,
    own: BTreeMap<String, (ValueKinds, First)>,
    too_many: bool,
}

/// The columns of a table that depend on its rows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::export) struct Schema {
    pub(super) id: Kind,
    /// Rows' own fields, in the order of their first occurrence.
    pub(super) own: Vec<(String, Kind)>,
}

impl Types {
    /// Records one line, which is a row of a series.
    pub(in crate::export) fn note(
        &mut self,
        line: &str,
        series: usize,
        row: u64,
    ) -> io::Result<()> {
        let Fields(fields) = serde_json::from_str(line)?;
        for (at, (name, value)) in fields.iter().enumerate() {
            match &**name {
                "id" => self.id.note(value.get()),
                name if fixed::has(name) || name.len() > NAME_BYTES_MAX => {}
                name => self.own(name, value, (series, row, at)),
            }
        }
        Ok(())
    }

    fn own(&mut self, name: &str, value: &RawValue, at: First) {
        if !self.own.contains_key(name) {
            if self.own.len() == OWN_COLUMNS_MAX {
                self.too_many = true;
                return;
            }
            self.own.insert(name.to_owned(), (ValueKinds::default(), at));
        }
        if let Some((seen, first)) = self.own.get_mut(name) {
            seen.note(value.get());
            *first = at.min(*first);
        }
    }

    /// The columns that hold all of them.
    pub(in crate::export) fn schema(&self) -> Schema {
        let id = match self.id.kind() {
            // IDs of several types become texts.
            Kind::Json => Kind::Text,
            kind => kind,
        };
        if self.too_many {
            return Schema { id, own: Vec::new() };
        }
        let mut own: Vec<_> = self.own.iter().collect();
        own.sort_unstable_by_key(|(_, (_, first))| *first);
        let own = own.into_iter().map(|(name, (seen, _))| (name.clone(), seen.kind())).collect();
        Schema { id, own }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(values: &[&str]) -> Kind {
        let mut seen = ValueKinds::default();
        values.iter().for_each(|value| seen.note(value));
        seen.kind()
    }

    #[test]
    fn a_column_has_the_type_that_holds_all_of_its_values_without_a_loss() {
        for (values, expected) in [
            (&["null", "1", "-9223372036854775808"][..], Kind::Int64),
            (&["9007199254740993"], Kind::Int64),
            (&["1", "18446744073709551615"], Kind::Uint64),
            (&["-1", "18446744073709551615"], Kind::Json),
            (&["18446744073709551616"], Kind::Json),
            (&["1", "1.50", "1e3", "0.30000000000000004"], Kind::Double),
            (&["1.5", "9007199254740993"], Kind::Json),
            (&["0.1000000000000000000001"], Kind::Json),
            (&["1e999"], Kind::Json),
            (&["1e-999"], Kind::Json),
            (&["-0.0", "0e5"], Kind::Double),
            (&["true", "false", "null"], Kind::Bool),
            (&["true", "0"], Kind::Json),
            (&["\"a\"", "null"], Kind::Text),
            (&["\"7\"", "7"], Kind::Json),
            (&["[1]"], Kind::Json),
            (&["null"], Kind::Text),
        ] {
            assert_eq!(kind(values), expected, "{values:?}");
        }
    }

    #[test]
    fn columns_do_not_depend_on_how_the_rows_come() {
        let rows = [
            (0, 0, r#"{"id":1,"b":1,"prompt":"p","completion":"c"}"#),
            (0, 1, r#"{"id":2,"a":null,"b":2.5}"#),
            (1, 0, r#"{"id":null,"c":true,"a":"x"}"#),
        ];
        let schema = |order: &[usize]| {
            let mut types = Types::default();
            order.iter().for_each(|at| {
                let (series, row, line) = rows[*at];
                types.note(line, series, row).unwrap();
            });
            types.schema()
        };
        let own = [("b", Kind::Double), ("a", Kind::Text), ("c", Kind::Bool)];
        let own = own.map(|(name, kind)| (name.to_owned(), kind)).to_vec();
        assert_eq!(schema(&[0, 1, 2]), Schema { id: Kind::Int64, own });
        assert_eq!(schema(&[2, 1, 0]), schema(&[0, 1, 2]));

        let mut types = Types::default();
        for n in 0..=OWN_COLUMNS_MAX as u64 {
            types.note(&format!("{{\"id\":\"a\",\"n{n}\":1}}"), 0, n).unwrap();
        }
        assert_eq!(types.schema(), Schema { id: Kind::Text, own: Vec::new() });
    }
}
