//! Owns: an API key as it is printed.
//!
//! Invariant: a missing limit or end is `null`, and a dash in human-readable output. No field has a secret.

use std::time::{Duration, UNIX_EPOCH};

use rollout_proto::v1;
use serde::Serialize;

use crate::output::{self, count, duration};

/// What the holder of a key may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Limits {
    pub(super) requests_per_second: Option<u32>,
    pub(super) open_batches: Option<u32>,
    pub(super) waiting_rows: Option<String>,
    pub(super) stored_bytes: Option<String>,
}

/// A key, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Key {
    pub(super) key_id: String,
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) role: String,
    pub(super) created_at: String,
    #[serde(skip)]
    pub(super) created_wall_ms: u64,
    pub(super) left_ms: Option<String>,
    pub(super) limits: Limits,
}

impl From<v1::KeyInfo> for Key {
    fn from(wire: v1::KeyInfo) -> Self {
        let limits = wire.limits.unwrap_or_default();
        let bounded = |max: u64| (max > 0).then(|| max.to_string());
        let created = UNIX_EPOCH.checked_add(Duration::from_millis(wire.created_wall_ms));
        Self {
            key_id: wire.id,
            name: wire.name,
            namespace: wire.namespace,
            role: wire.role,
            created_at: created.map(output::rfc3339).unwrap_or_default(),
            created_wall_ms: wire.created_wall_ms,
            left_ms: wire.left_ms.map(|ms| ms.to_string()),
            limits: Limits {
                requests_per_second: Some(limits.requests_per_second).filter(|max| *max > 0),
                open_batches: Some(limits.open_batches).filter(|max| *max > 0),
                waiting_rows: bounded(limits.waiting_rows),
                stored_bytes: bounded(limits.stored_bytes),
            },
        }
    }
}

fn number(text: Option<&String>) -> Option<u64> {
    text.and_then(|text| text.parse().ok())
}

impl Key {
    /// The time until it expires, or a dash.
    pub(super) fn left(&self) -> String {
        match number(self.left_ms.as_ref()) {
            Some(ms) => duration(ms as f64 / 1000.0),
            None => "-".to_owned(),
        }
    }

    /// The limits in the order of [`LIMITS`].
    pub(super) fn limits(&self) -> [String; 4] {
        let Limits { requests_per_second, open_batches, waiting_rows, stored_bytes } = &self.limits;
        let shown = |max: Option<u64>, show: fn(u64) -> String| max.map_or("-".to_owned(), show);
        [
            shown(requests_per_second.map(u64::from), count),
            shown(open_batches.map(u64::from), count),
            shown(number(waiting_rows.as_ref()), count),
            shown(number(stored_bytes.as_ref()), output::bytes),
        ]
    }

    /// The description in lines.
    pub(super) fn described(&self) -> String {
        let [requests, batches, rows, bytes] = self.limits();
        format!(
            "id                   {}\nname                 {}\nnamespace            {}\n\
             role                 {}\ncreated              {}\nexpires in           {}\n\
             requests per second  {requests}\nopen batches         {batches}\n\
             waiting rows         {rows}\nstored bytes         {bytes}\n",
            self.key_id,
            self.name,
            self.namespace,
            self.role,
            self.created_at,
            self.left(),
        )
    }
}

/// Titles of columns of limits.
pub(super) const LIMITS: [&str; 4] = ["REQUESTS/S", "BATCHES", "ROWS", "BYTES"];

/// A key with all limits and an end.
#[cfg(test)]
pub(super) fn sample() -> v1::KeyInfo {
    v1::KeyInfo {
        id: "aB3dE6gH".into(),
        name: "ci".into(),
        namespace: "team".into(),
        role: "client".into(),
        limits: Some(v1::KeyLimits {
            requests_per_second: 50,
            open_batches: 10,
            waiting_rows: 1_000_000,
            stored_bytes: 10 << 30,
        }),
        created_wall_ms: 1_795_000_000_123,
        left_ms: Some(2_592_000_000),
    }
}

/// A key that does not expire, without limits.
#[cfg(test)]
pub(super) fn bare_sample() -> v1::KeyInfo {
    v1::KeyInfo {
        id: "Zz9Yy8Xx".into(),
        name: "dashboard".into(),
        role: "viewer".into(),
        limits: None,
        left_ms: None,
        created_wall_ms: 1_795_000_100_000,
        ..sample()
    }
}
