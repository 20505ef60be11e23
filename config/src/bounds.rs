//! Bounds of single values, as the settings' fields declare them.
//!
//! *Invariant:* a value is checked after flags and variables replaced those of the file.
//! Absent: combinations of values. The owner of the settings checks those.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::key::{self, Key, Kind};
use crate::size;

/// A setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {reason}")]
pub struct SettingError {
    /// The key with its section.
    pub key: String,
    /// What is wrong, and which value would be accepted.
    pub reason: String,
}

impl SettingError {
    pub(crate) fn new(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { key: key.into(), reason: reason.into() }
    }
}

/// Refuses the first value that is out of its bounds.
///
/// # Errors
/// The key, the value and the bounds.
pub fn check<T: JsonSchema + Serialize>(settings: &T) -> Result<(), SettingError> {
    let settings = serde_json::to_value(settings)
        .map_err(|error| SettingError::new("configuration", error.to_string()))?;
    for key in key::keys_of::<T>() {
        let Some((section, name)) = key.path.split_once('.') else {
            check_value(&key, &settings[&key.path])?;
            continue;
        };
        match &settings[section.trim_end_matches("[]")] {
            Value::Array(blocks) => {
                blocks.iter().try_for_each(|block| check_value(&key, &block[name]))?;
            }
            block => check_value(&key, &block[name])?,
        }
    }
    Ok(())
}

fn check_value(key: &Key, value: &Value) -> Result<(), SettingError> {
    let (Kind::Integer(min, max) | Kind::Count(min, max, _) | Kind::Bytes(min, max)) = key.kind
    else {
        return Ok(());
    };
    let number = value.as_u64().or_else(|| size::parse(value.as_str()?).ok());
    match number.and_then(|number| key::outside(i128::from(number), min, max)) {
        Some(reason) => Err(SettingError::new(key.path.replace("[]", ""), reason)),
        None => Ok(()),
    }
}
