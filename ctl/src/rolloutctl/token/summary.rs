//! Owns: a join token as it is printed.

use std::collections::BTreeMap;

use rollout_proto::v1;
use serde::Serialize;

/// A token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Token {
    pub(super) name: String,
    pub(super) role: String,
    pub(super) holder: Option<String>,
    pub(super) namespaces: Vec<String>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) uses: u32,
    pub(super) uses_max: u32,
    #[serde(serialize_with = "crate::output::u64_string")]
    pub(super) left_ms: u64,
}

impl From<v1::TokenInfo> for Token {
    fn from(wire: v1::TokenInfo) -> Self {
        Self {
            name: wire.name,
            role: wire.role,
            holder: (!wire.holder.is_empty()).then_some(wire.holder),
            namespaces: wire.namespaces,
            labels: wire.labels.into_iter().collect(),
            uses: wire.uses,
            uses_max: wire.uses_max,
            left_ms: wire.left_ms,
        }
    }
}

impl Token {
    /// The identities that it admits.
    pub(super) fn who(&self) -> String {
        match &self.holder {
            Some(holder) => format!("{} {holder}", self.role),
            None => self.role.clone(),
        }
    }

    /// The namespaces of its certificates.
    pub(super) fn of_namespaces(&self) -> String {
        if self.namespaces.is_empty() { "all".into() } else { self.namespaces.join(",") }
    }

    /// Seconds until it expires.
    pub(super) fn left_s(&self) -> f64 {
        self.left_ms as f64 / 1000.0
    }
}
