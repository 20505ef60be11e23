//! Owns: the canonical text of a JSON value.
//!
//! Canonical: no space between tokens; strings escaped in serde_json's way; numbers as they were written. The keys of
//! the outermost object, or of the objects of an outermost array, are sorted by their bytes; the keys of inner objects
//! keep their written order, because an engine may depend on it: it generates a schema's properties one after another,
//! and a chat template prints tools in their order.
//! Invariant: canonicalizing twice changes nothing. Values that differ in a string, a number or the order of inner keys
//! give different texts.
//! Absent: number arithmetic: 1.0 and 1 stay different, because a model may be given either.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Write;

use serde::Deserialize;
use serde_json::value::RawValue;

/// How deep arrays and objects may nest.
pub const DEPTH_MAX: usize = 64;

/// Why a value has no canonical text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CanonicalError {
    /// For example, a string has half of a surrogate pair.
    #[error("{0}")]
    Syntax(String),
    /// An object has a duplicate key.
    #[error("key {0:?} appears twice in one object")]
    KeyTwice(String),
    /// Arrays and objects nest too deeply.
    #[error("nested deeper than {DEPTH_MAX}")]
    TooDeep,
}

/// The canonical text of a syntactically correct value. Most strings are already canonical and are not copied.
pub fn canonical(raw: &RawValue) -> Result<Cow<'_, str>, CanonicalError> {
    let text = raw.get();
    // A string without an escape has only one spelling.
    if !text.starts_with(['{', '[']) && !text.contains('\\') {
        return Ok(Cow::Borrowed(text));
    }
    let mut out = String::with_capacity(text.len());
    write_value(text, true, DEPTH_MAX, &mut out)?;
    Ok(Cow::Owned(out))
}

/// The canonical text of JSON that this program generated, or got from the ledger.
pub fn canonical_text(text: &str) -> Result<String, CanonicalError> {
    let raw: &RawValue = serde_json::from_str(text).map_err(syntax)?;
    canonical(raw).map(Cow::into_owned)
}

fn write_value(
    text: &str,
    outermost: bool,
    depth: usize,
    out: &mut String,
) -> Result<(), CanonicalError> {
    let depth = depth.checked_sub(1).ok_or(CanonicalError::TooDeep)?;
    match text.as_bytes().first() {
        Some(b'"') => {
            let value: Text<'_> = serde_json::from_str(text).map_err(syntax)?;
            write_string(&value.0, out);
        }
        Some(b'[') => {
            let values: Vec<&RawValue> = serde_json::from_str(text).map_err(syntax)?;
            out.push('[');
            for (index, value) in values.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(value.get(), outermost, depth, out)?;
            }
            out.push(']');
        }
        Some(b'{') => {
            let Fields(mut fields) = serde_json::from_str(text).map_err(syntax)?;
            let mut keys = HashSet::with_capacity(fields.len());
            if let Some((twice, _)) = fields.iter().find(|(key, _)| !keys.insert(key)) {
                return Err(CanonicalError::KeyTwice(twice.to_string()));
            }
            if outermost {
                fields.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
            }
            out.push('{');
            for (index, (key, value)) in fields.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_string(&key, out);
                out.push(':');
                write_value(value.get(), false, depth, out)?;
            }
            out.push('}');
        }
        _ => out.push_str(text),
    }
    Ok(())
}

/// Appends a JSON string.
pub fn write_string(text: &str, out: &mut String) {
    match serde_json::to_string(text) {
        Ok(json) => out.push_str(&json),
        // invariant: every string can be written as JSON; `{:?}` quotes the text even in the impossible case.
        Err(_) => drop(write!(out, "{text:?}")),
    }
}

fn syntax(error: serde_json::Error) -> CanonicalError {
    CanonicalError::Syntax(plain_message(&error))
}

/// An error's text without the position that serde_json appends.
pub fn plain_message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// A string, borrowed if it has no escapes.
#[derive(Debug)]
pub(crate) struct Text<'a>(pub(crate) Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

/// An object's fields in order, with their values as they were written.
#[derive(Debug)]
pub(crate) struct Fields<'a>(pub(crate) Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Fields<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(Text(key)) = map.next_key()? {
                    fields.push((key, map.next_value()?));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_values_have_one_text() {
        let texts = [
            (r#" "A" "#, r#""A""#),
            (r#""\u0041\/""#, r#""A/""#),
            (r#"{ "b" : 1.0, "a" : [ true , null ] }"#, r#"{"a":[true,null],"b":1.0}"#),
            (r#"[{"content":"x","role":"u"}]"#, r#"[{"content":"x","role":"u"}]"#),
            (r#""tab\tend""#, r#""tab\tend""#),
            (r#"[[{"b":1,"a":2}],{"d":3,"c":4}]"#, r#"[[{"a":2,"b":1}],{"c":4,"d":3}]"#),
        ];
        for (text, expected) in texts {
            assert_eq!(canonical_text(text).unwrap(), expected);
        }
        assert_ne!(canonical_text("1").unwrap(), canonical_text("1.0").unwrap());
    }

    #[test]
    fn the_inner_order_is_kept_because_engines_may_depend_on_it() {
        let schema = r#"{"type":"object","properties":{"reasoning":{},"answer":{}}}"#;
        let text = format!(r#"{{"structured_outputs":{{"json":{schema}}},"n":1}}"#);
        let expected = format!(r#"{{"n":1,"structured_outputs":{{"json":{schema}}}}}"#);
        assert_eq!(canonical_text(&text).unwrap(), expected);
        let other = text.replace(r#""reasoning":{},"answer":{}"#, r#""answer":{},"reasoning":{}"#);
        assert_ne!(canonical_text(&other).unwrap(), expected);
    }

    #[test]
    fn ambiguous_json_is_refused() {
        assert!(matches!(canonical_text(r#""\ud800""#), Err(CanonicalError::Syntax(_))));
        for twice in [r#"{"a":1,"\u0061":2}"#, r#"{"b":[{"a":1,"b":3,"\u0061":2}]}"#] {
            let found = canonical_text(twice);
            assert_eq!(found, Err(CanonicalError::KeyTwice("a".to_owned())), "{twice}");
        }
        let deep = "[".repeat(DEPTH_MAX + 1) + &"]".repeat(DEPTH_MAX + 1);
        assert_eq!(canonical_text(&deep), Err(CanonicalError::TooDeep));
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<i64>().prop_map(Into::into),
            any::<String>().prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                prop::collection::vec((any::<String>(), inner), 0..4)
                    .prop_map(|fields| serde_json::Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn canonical_text_is_a_fixed_point_and_keeps_the_value(value in value()) {
            let pretty = serde_json::to_string_pretty(&value).unwrap();
            let once = canonical_text(&pretty).unwrap();
            prop_assert_eq!(&canonical_text(&once).unwrap(), &once);
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&once).unwrap(), value);
        }
    }
}
