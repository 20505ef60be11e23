//! Settings of a batch's run that OpenAI's API does not have: the field `rollout` of a request.
//!
//! *Invariant:* equal settings are stored as equal texts, and absent ones as an empty text. The ledger's own bounds of
//! a run decide which values are allowed.

use crate::openai::error::ApiError;
use rollout_ledger::{EngineSpec, Rejection, RunSpec};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const FIELD: &str = "rollout";

/// The settings that a request gave, with the names that they have in a batch file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RunOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts_max: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt_timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    running_rows_max: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tail_duplicates: Option<bool>,
}

impl RunOptions {
    /// The settings in a request.
    ///
    /// # Errors
    /// 400 if a setting is unknown or out of bounds.
    pub(super) fn of_request(field: Option<&Value>) -> Result<Self, ApiError> {
        let Some(field) = field else { return Ok(Self::default()) };
        let options = Self::deserialize(field);
        let options = options.map_err(|error| ApiError::malformed(FIELD, &error))?;
        let engine = EngineSpec { model: "any".into(), ..EngineSpec::default() };
        let mut spec = RunSpec { engine, ..Self::defaults() };
        options.apply_to(&mut spec);
        match spec.check() {
            Ok(()) => Ok(options),
            Err(Rejection::Invalid(why)) => {
                Err(ApiError::invalid(FIELD, format!("{FIELD}: {why}.")))
            }
            Err(other) => Err(ApiError::from(&other)),
        }
    }

    /// The settings of a batch, as [`Self::to_json`] wrote them.
    ///
    /// # Errors
    /// They have a setting that this build does not know.
    pub(crate) fn of_json(json: &str) -> serde_json::Result<Self> {
        if json.is_empty() { Ok(Self::default()) } else { serde_json::from_str(json) }
    }

    /// The text that the ledger keeps.
    pub(super) fn to_json(&self) -> String {
        if *self == Self::default() {
            return String::new();
        }
        // A struct of numbers has a form in JSON.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The spec of a run whose batch gave no settings. Its failed rows never pause it: nobody would resume it before
    /// its window ends.
    pub(crate) fn defaults() -> RunSpec {
        RunSpec {
            priority: 5,
            weight: 1,
            attempts_max: 3,
            failures_max: u64::MAX,
            ..RunSpec::default()
        }
    }

    /// Changes what was given.
    pub(crate) fn apply_to(&self, spec: &mut RunSpec) {
        spec.priority = self.priority.unwrap_or(spec.priority);
        spec.weight = self.weight.unwrap_or(spec.weight);
        spec.attempts_max = self.attempts_max.unwrap_or(spec.attempts_max);
        spec.attempt_timeout_ms = self.attempt_timeout_ms.unwrap_or(spec.attempt_timeout_ms);
        spec.running_rows_max = self.running_rows_max.unwrap_or(spec.running_rows_max);
        spec.tail_duplicates = self.tail_duplicates.unwrap_or(spec.tail_duplicates);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn settings_are_kept_as_they_were_given() {
        let given = json!({ "weight": 7, "priority": 9, "tail_duplicates": true });
        let options = RunOptions::of_request(Some(&given)).expect("settings");
        let json = options.to_json();
        assert_eq!(json, r#"{"priority":9,"weight":7,"tail_duplicates":true}"#);
        assert_eq!(RunOptions::of_json(&json).expect("known"), options);
        let mut spec = RunOptions::defaults();
        options.apply_to(&mut spec);
        assert_eq!((spec.priority, spec.weight, spec.attempts_max), (9, 7, 3));
        assert!(spec.tail_duplicates);
    }

    #[test]
    fn no_settings_are_an_empty_text() {
        for none in [None, Some(&json!({})), Some(&json!({ "weight": null }))] {
            let options = RunOptions::of_request(none).expect("settings");
            assert_eq!(options.to_json(), "");
        }
        assert_eq!(RunOptions::of_json("").expect("none"), RunOptions::default());
    }

    #[test]
    fn unknown_settings_and_values_out_of_bounds_are_refused() {
        for (wrong, says) in [
            (json!({ "priorty": 1 }), "unknown field `priorty`"),
            (json!({ "priority": 10 }), "priority is over 9"),
            (json!({ "weight": 0 }), "weight is not 1 to 100"),
            (json!({ "attempts_max": 9 }), "attempts_max is not 1 to 8"),
            (json!({ "attempt_timeout_ms": -1 }), "invalid value"),
            (json!("fast"), "invalid type"),
        ] {
            let error = RunOptions::of_request(Some(&wrong)).expect_err("refused");
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
