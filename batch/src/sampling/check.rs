//! Owns: the bounds of sampling parameters.
//!
//! Invariant: it refuses only what vLLM refuses too: no run or row that an engine would answer is stopped here.
//! Absent: bounds that depend on a model: its vocabulary, its context.

use serde_json::{Map, Value};

use super::Sampling;
use crate::one_or_many::OneOrMany;

/// A key, and what is wrong with its value.
pub(crate) type Wrong = (&'static str, String);

/// vLLM's limit if `VLLM_MAX_N_SEQUENCES` is not set.
const COMPLETIONS_MAX: u32 = 16_384;

/// Constraints on a completion; exactly one of these.
const CONSTRAINTS: [&str; 6] =
    ["json", "regex", "choice", "grammar", "json_object", "structural_tag"];
/// Options of a constraint.
const CONSTRAINT_OPTIONS: [&str; 3] =
    ["disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"];

impl Sampling {
    /// Refuses out-of-bounds values, with the key as in a batch file.
    pub(crate) fn check(&self) -> Result<(), Wrong> {
        self.check_numbers()?;
        if self.n.is_some_and(|n| !(1..=COMPLETIONS_MAX).contains(&n)) {
            return Err(("sampling.n", format!("has to be 1 to {COMPLETIONS_MAX}")));
        }
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
        for (key, value) in [
            ("sampling.logprobs", self.logprobs),
            ("sampling.prompt_logprobs", self.prompt_logprobs),
        ] {
            if value.is_some_and(|count| count < -1) {
                return Err((key, "has to be -1 or more".to_owned()));
            }
        }
        let stops = self.stop.as_ref().map(OneOrMany::list).unwrap_or_default();
        texts("sampling.stop", &stops)?;
        texts("sampling.bad_words", self.bad_words.as_deref().unwrap_or_default())?;
        if self.allowed_token_ids.as_ref().is_some_and(Vec::is_empty) {
            return Err(("sampling.allowed_token_ids", "allows no token".to_owned()));
        }
        match &self.structured_outputs {
            Some(outputs) => constraint(outputs),
            None => Ok(()),
        }
    }

    fn check_numbers(&self) -> Result<(), Wrong> {
        let range = |key, value: Option<f64>, min: f64, max: f64| match value {
            Some(value) if !(min..=max).contains(&value) => {
                Err((key, format!("{value} is not {min} to {max}")))
            }
            _ => Ok(()),
        };
        let positive = |key, value: Option<f64>| match value {
            Some(value) if !(value > 0.0 && value.is_finite()) => {
                Err((key, format!("{value} is not above 0")))
            }
            _ => Ok(()),
        };
        range("sampling.temperature", self.temperature, 0.0, 100.0)?;
        range("sampling.top_p", self.top_p, 0.0, 1.0)?;
        positive("sampling.top_p", self.top_p)?;
        range("sampling.min_p", self.min_p, 0.0, 1.0)?;
        range("sampling.presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        range("sampling.frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        positive("sampling.repetition_penalty", self.repetition_penalty)?;
        let Some(biases) = &self.logit_bias else { return Ok(()) };
        for (token, bias) in biases {
            if token.parse::<u32>().is_err() {
                return Err(("sampling.logit_bias", format!("{token:?} is not a token id")));
            }
            if !bias.is_finite() {
                return Err(("sampling.logit_bias", format!("{bias} is not a number")));
            }
        }
        Ok(())
    }
}

fn texts(key: &'static str, texts: &[String]) -> Result<(), Wrong> {
    match texts.iter().any(String::is_empty) {
        true => Err((key, "has an empty text".to_owned())),
        false => Ok(()),
    }
}

fn constraint(outputs: &Map<String, Value>) -> Result<(), Wrong> {
    let wrong = |message: String| Err(("sampling.structured_outputs", message));
    let is_supported = |key: &&String| {
        CONSTRAINTS.contains(&key.as_str()) || CONSTRAINT_OPTIONS.contains(&key.as_str())
    };
    if let Some(unknown) = outputs.keys().find(|key| !is_supported(key)) {
        return wrong(format!("{unknown:?} is unknown; use one of {}", CONSTRAINTS.join(", ")));
    }
    let constraints = outputs.keys().filter(|key| CONSTRAINTS.contains(&key.as_str())).count();
    if constraints != 1 {
        return wrong(format!("has to have exactly one of {}", CONSTRAINTS.join(", ")));
    }
    if let Some(choice) = outputs.get("choice") {
        let texts = choice.as_array().is_some_and(|choices| {
            !choices.is_empty() && choices.iter().all(|choice| choice.is_string())
        });
        if !texts {
            return wrong("\"choice\" has to be a list of texts, not empty".to_owned());
        }
    }
    if outputs.get("regex").is_some_and(|regex| !regex.is_string()) {
        return wrong("\"regex\" has to be a text".to_owned());
    }
    Ok(())
}
