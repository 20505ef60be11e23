//! A number of slots or `"auto"`, and the names of devices.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::SLOTS_MAX;

/// `slots = "auto"`, until the devices are known.
pub const SLOTS_AUTO: u32 = u32::MAX;

/// A device of `[[engine]] devices`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Device {
    /// An index into the agent's own devices.
    Number(u32),
    /// A UUID, as `nvidia-smi -L` shows it, or a MIG instance's.
    Name(String),
}

/// A number of slots, or `"auto"`.
pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Slots {
        Number(u32),
        Word(String),
    }
    match Slots::deserialize(from)? {
        Slots::Number(number) => Ok(number),
        Slots::Word(word) if word == "auto" => Ok(SLOTS_AUTO),
        Slots::Word(word) => {
            Err(serde::de::Error::custom(format!("{word:?} is neither a number nor \"auto\"")))
        }
    }
}

pub(super) fn serialize<S: serde::Serializer>(slots: &u32, to: S) -> Result<S::Ok, S::Error> {
    if *slots == SLOTS_AUTO { to.serialize_str("auto") } else { to.serialize_u32(*slots) }
}

pub(super) fn schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"anyOf": [
        {"type": "integer", "minimum": 1, "maximum": SLOTS_MAX}, {"const": "auto"}
    ]})
}

pub(super) fn devices(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": {"type": ["integer", "string"]}})
}
