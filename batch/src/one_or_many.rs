//! Owns: a value that a user writes as one text or as a list of texts.
//!
//! Invariant: one text and a list of that text mean the same.
//! Absent: the meaning of the texts.

use serde::Deserialize;

/// A string, or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl OneOrMany {
    pub fn list(&self) -> Vec<String> {
        match self {
            Self::One(one) => vec![one.clone()],
            Self::Many(many) => many.clone(),
        }
    }
}
