//! Owns: the sampling parameters, and the canonical JSON that ids and engines take them from.
//!
//! Invariant: only what was set appears, keys sorted, so a default that an engine changes changes no id.
//! Absent: defaults. They are the engine's.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::config::{OneOrMany, Wrong};

/// `[sampling]`: None is "not set".
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// Randomness, 0 to 100; 0 is greedy.
    pub temperature: Option<f64>,
    /// Nucleus sampling's mass, above 0 to 1.
    pub top_p: Option<f64>,
    /// The most likely tokens to choose from; -1 or 0 for all.
    pub top_k: Option<i64>,
    /// The least likelihood relative to the best token, 0 to 1.
    pub min_p: Option<f64>,
    /// The most tokens of a completion.
    pub max_tokens: Option<u32>,
    /// The least tokens of a completion.
    pub min_tokens: Option<u32>,
    /// The seed.
    pub seed: Option<i64>,
    /// Texts that end a completion.
    pub stop: Option<OneOrMany>,
    /// Token ids that end a completion.
    pub stop_token_ids: Option<Vec<u32>>,
    /// Whether to go on after the end-of-sequence token.
    pub ignore_eos: Option<bool>,
    /// Against tokens that appeared, -2 to 2.
    pub presence_penalty: Option<f64>,
    /// Against tokens by how often they appeared, -2 to 2.
    pub frequency_penalty: Option<f64>,
    /// Against tokens of prompt and completion, above 0; 1 is none.
    pub repetition_penalty: Option<f64>,
}

impl Sampling {
    pub(super) fn check(&self) -> Result<(), Wrong> {
        let range = |key, value: Option<f64>, min: f64, max: f64| match value {
            Some(value) if !(min..=max).contains(&value) => {
                Err((key, format!("{value} is not {min} to {max}")))
            }
            _ => Ok(()),
        };
        let positive = |key, value: Option<f64>| match value {
            Some(value) if value <= 0.0 => Err((key, format!("{value} is not above 0"))),
            _ => Ok(()),
        };
        range("sampling.temperature", self.temperature, 0.0, 100.0)?;
        range("sampling.top_p", self.top_p, 0.0, 1.0)?;
        positive("sampling.top_p", self.top_p)?;
        range("sampling.min_p", self.min_p, 0.0, 1.0)?;
        range("sampling.presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        range("sampling.frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        range("sampling.repetition_penalty", self.repetition_penalty, 0.0, 100.0)?;
        positive("sampling.repetition_penalty", self.repetition_penalty)?;
        if self.top_k.is_some_and(|k| k < -1) {
            return Err(("sampling.top_k", "has to be -1 or more".to_owned()));
        }
        if self.max_tokens == Some(0) {
            return Err(("sampling.max_tokens", "has to be 1 or more".to_owned()));
        }
        if let (Some(min), Some(max)) = (self.min_tokens, self.max_tokens)
            && min > max
        {
            return Err(("sampling.min_tokens", format!("{min} is more than max_tokens, {max}")));
        }
        let stops = self.stop.as_ref().map(OneOrMany::list).unwrap_or_default();
        if stops.len() > 64 || stops.iter().any(|stop| stop.is_empty() || stop.len() > 1024) {
            let message = "has to be at most 64 texts of 1 to 1024 bytes".to_owned();
            return Err(("sampling.stop", message));
        }
        Ok(())
    }

    /// The canonical JSON of what was set.
    pub fn canonical_json(&self) -> Result<String, serde_json::Error> {
        let mut fields: BTreeMap<&str, Value> = BTreeMap::new();
        let mut set = |key, value: Option<Value>| {
            if let Some(value) = value {
                fields.insert(key, value);
            }
        };
        set("temperature", self.temperature.map(Value::from));
        set("top_p", self.top_p.map(Value::from));
        set("top_k", self.top_k.map(Value::from));
        set("min_p", self.min_p.map(Value::from));
        set("max_tokens", self.max_tokens.map(Value::from));
        set("min_tokens", self.min_tokens.map(Value::from));
        set("seed", self.seed.map(Value::from));
        set("stop", self.stop.as_ref().map(|stop| Value::from(stop.list())));
        set("stop_token_ids", self.stop_token_ids.clone().map(Value::from));
        set("ignore_eos", self.ignore_eos.map(Value::from));
        set("presence_penalty", self.presence_penalty.map(Value::from));
        set("frequency_penalty", self.frequency_penalty.map(Value::from));
        set("repetition_penalty", self.repetition_penalty.map(Value::from));
        serde_json::to_string(&fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_set_is_in_the_canonical_json() {
        let parse = |text: &str| toml::from_str::<Sampling>(text).unwrap();
        assert_eq!(parse("").canonical_json().unwrap(), "{}");
        let text = "top_k = 5\nstop = \"\\n\"\ntemperature = 1\nignore_eos = false";
        let expected = r#"{"ignore_eos":false,"stop":["\n"],"temperature":1.0,"top_k":5}"#;
        assert_eq!(parse(text).canonical_json().unwrap(), expected);
        let same = "temperature = 1.0\nstop = [\"\\n\"]\nignore_eos = false\ntop_k = 5";
        assert_eq!(parse(same).canonical_json().unwrap(), expected);
        let canonical = crate::input::canonical::canonical_text(expected).unwrap();
        assert_eq!(canonical, expected);
    }
}
