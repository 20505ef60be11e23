//! Owns: a namespace as it is printed.
//!
//! Invariant: a missing bound is `null`, and a dash in human-readable output.

use rollout_proto::v1;
use serde::Serialize;

use crate::output::count;

/// The usage, and the quota.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct QuotaUsage {
    #[serde(serialize_with = "crate::output::u64_string")]
    pub(super) used: u64,
    pub(super) max: Option<String>,
}

impl QuotaUsage {
    fn new(used: u64, max: u64) -> Self {
        Self { used, max: (max > 0).then(|| max.to_string()) }
    }

    /// `12 of 40`, or `12` without a bound.
    pub(super) fn text(&self) -> String {
        let max = self.max.as_ref().and_then(|max| max.parse().ok());
        match max {
            Some(max) => format!("{} of {}", count(self.used), count(max)),
            None => count(self.used),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Namespace {
    pub(super) name: String,
    pub(super) runs: QuotaUsage,
    pub(super) pending_rows: QuotaUsage,
    pub(super) running_rows: QuotaUsage,
}

impl From<v1::NamespaceInfo> for Namespace {
    fn from(wire: v1::NamespaceInfo) -> Self {
        Self {
            name: wire.name,
            runs: QuotaUsage::new(wire.runs.into(), wire.runs_max.into()),
            pending_rows: QuotaUsage::new(wire.pending_rows, wire.pending_rows_max),
            running_rows: QuotaUsage::new(wire.running_rows, wire.running_rows_max),
        }
    }
}

impl Namespace {
    /// The description in lines.
    pub(super) fn described(&self) -> String {
        format!(
            "name          {}\nruns          {}\npending rows  {}\nrunning rows  {}\n",
            self.name,
            self.runs.text(),
            self.pending_rows.text(),
            self.running_rows.text()
        )
    }
}

#[cfg(test)]
impl Namespace {
    /// With one bound, and without the others.
    pub(super) fn sample() -> Self {
        Self::from(v1::NamespaceInfo {
            name: "team".into(),
            runs: 2,
            runs_max: 5,
            pending_rows: 1200,
            ..Default::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_bound_is_not_shown() {
        let shown = Namespace::sample();
        assert_eq!(
            shown.described(),
            "name          team\nruns          2 of 5\npending rows  1,200\nrunning rows  0\n"
        );
        let json = serde_json::to_value(&shown).unwrap();
        assert_eq!(json["runs"], serde_json::json!({"used": "2", "max": "5"}));
        assert!(json["pendingRows"]["max"].is_null());
    }
}
