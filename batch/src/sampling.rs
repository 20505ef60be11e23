//! Owns: the sampling parameters of a run and of a row, and the canonical JSON from which IDs and engines take them.
//!
//! Invariant: only parameters that were set appear, by name, so an engine's change of a default changes no ID. The
//! inside of a parameter keeps its order, because an engine may generate it in that order. A row's parameters override
//! the run's, key by key. The run's parameters must be known here and within bounds; a row's are checked here, and the
//! engine decides about them.
//! Absent: defaults. They are the engine's.

use std::collections::BTreeMap;

use rollout_config::nearest;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::canonical::{CanonicalError, Fields, canonical_text, plain_message};
use crate::one_or_many::OneOrMany;

mod check;

pub(crate) use self::check::Wrong;

/// `[sampling]`, or a row's `sampling_params`: None is "not set".
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// Completions of a row, 1 to 16,384.
    pub n: Option<u32>,
    /// Randomness, 0 to 100; 0 is greedy.
    pub temperature: Option<f64>,
    /// The probability mass of nucleus sampling, above 0 to 1.
    pub top_p: Option<f64>,
    /// The most likely tokens to choose from; -1 or 0 for all.
    pub top_k: Option<i64>,
    /// The minimum probability relative to the best token, 0 to 1.
    pub min_p: Option<f64>,
    /// The maximum number of tokens of a completion.
    pub max_tokens: Option<u32>,
    /// The minimum number of tokens of a completion.
    pub min_tokens: Option<u32>,
    pub seed: Option<i64>,
    /// Texts that end a completion.
    pub stop: Option<OneOrMany>,
    /// Token ids that end a completion.
    pub stop_token_ids: Option<Vec<u32>>,
    /// Texts that may not be generated.
    pub bad_words: Option<Vec<String>>,
    /// Whether to continue after the end-of-sequence token.
    pub ignore_eos: Option<bool>,
    /// Penalty for tokens that appeared, -2 to 2.
    pub presence_penalty: Option<f64>,
    /// Penalty for tokens by how often they appeared, -2 to 2.
    pub frequency_penalty: Option<f64>,
    /// Penalty for tokens of prompt and completion, above 0; 1 is none.
    pub repetition_penalty: Option<f64>,
    /// The bias added to a token's logit, by token ID.
    pub logit_bias: Option<BTreeMap<String, f64>>,
    /// The only tokens that may be generated, by token id.
    pub allowed_token_ids: Option<Vec<u32>>,
    /// Whether special tokens are omitted from the text.
    pub skip_special_tokens: Option<bool>,
    /// Whether spaces separate special tokens in the text.
    pub spaces_between_special_tokens: Option<bool>,
    /// Whether the text that ended a completion is part of it.
    pub include_stop_str_in_output: Option<bool>,
    /// The maximum number of tokens for a reasoning model's thinking.
    pub thinking_token_budget: Option<i64>,
    /// Arguments for plug-ins of the engine.
    pub extra_args: Option<serde_json::Map<String, Value>>,
    /// How many of the most likely tokens return log probabilities for each token; -1 for all.
    pub logprobs: Option<i64>,
    /// The same for the prompt's tokens.
    pub prompt_logprobs: Option<i64>,
    /// The required form of a completion: one of json, regex, choice, grammar and others.
    pub structured_outputs: Option<serde_json::Map<String, Value>>,
    /// Arguments of the model's chat template for rows with messages; a row's own override them, key by key.
    pub chat_template_kwargs: Option<serde_json::Map<String, Value>>,
}

/// Why an engine may not run a row with its parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SamplingProblem {
    /// A value that engines refuse.
    Refused(String),
    /// A parameter that is unknown here; an engine may know it.
    Unknown(String),
}

/// Applies a macro to every parameter, by name.
macro_rules! each {
    ($call:ident) => {
        $call!(
            n,
            temperature,
            top_p,
            top_k,
            min_p,
            max_tokens,
            min_tokens,
            seed,
            stop,
            stop_token_ids,
            bad_words,
            ignore_eos,
            presence_penalty,
            frequency_penalty,
            repetition_penalty,
            logit_bias,
            allowed_token_ids,
            skip_special_tokens,
            spaces_between_special_tokens,
            include_stop_str_in_output,
            thinking_token_budget,
            extra_args,
            logprobs,
            prompt_logprobs,
            structured_outputs,
            chat_template_kwargs
        )
    };
}

impl Sampling {
    /// The parameters in a run's spec.
    pub fn of_spec(sampling_json: &str) -> Result<Self, CanonicalError> {
        match sampling_json.trim() {
            "" => Ok(Self::default()),
            json => serde_json::from_str(json)
                .map_err(|error| CanonicalError::Syntax(nearest::explain(&plain_message(&error)))),
        }
    }

    /// The canonical JSON of the run's parameters, overridden by a row's, and why an engine may refuse the row. An
    /// error says why the row's value is not an object of parameters.
    ///
    /// The engine decides which parameters are valid: a row with an unsupported one is one failed row.
    pub fn of_row(&self, row: &RawValue) -> Result<(String, Option<SamplingProblem>), String> {
        let wrong = |error: serde_json::Error| nearest::explain(&plain_message(&error));
        let describe = |error: CanonicalError| error.to_string();
        let Fields(fields) = serde_json::from_str(row.get()).map_err(wrong)?;
        if let Some((key, _)) = fields.iter().find(|(_, value)| value.get() == "null") {
            return Err(format!("{key} is null; leave it out"));
        }
        match serde_json::from_str::<Self>(row.get()) {
            Ok(own) => {
                let merged = own.over(self);
                let problem = merged.check().err().map(refused);
                Ok((merged.canonical_json().map_err(describe)?, problem))
            }
            // Unchanged: its name or type is unknown here.
            Err(error) => {
                let run = self.canonical_json().map_err(describe)?;
                let mut all: BTreeMap<&str, &RawValue> =
                    serde_json::from_str(&run).map_err(wrong)?;
                all.extend(fields.iter().map(|(key, value)| (&**key, *value)));
                let all = serde_json::to_string(&all).map_err(wrong)?;
                let problem = self
                    .problem_of(&fields)
                    .unwrap_or_else(|| SamplingProblem::Refused(wrong(error)));
                Ok((canonical_text(&all).map_err(describe)?, Some(problem)))
            }
        }
    }

    /// Why an engine may refuse a row's parameters when some are unknown or have the wrong type. A known, invalid
    /// parameter takes precedence over an unknown one.
    fn problem_of(
        &self,
        fields: &[(std::borrow::Cow<'_, str>, &RawValue)],
    ) -> Option<SamplingProblem> {
        let mut unknown = None;
        let mut valid = Self::default();
        for (key, value) in fields {
            // The parser does not name the field of an invalid value, so each field is tried alone. Every known
            // parameter accepts null.
            if let Err(reason) = one(key, RawValue::NULL) {
                unknown.get_or_insert(SamplingProblem::Unknown(reason));
                continue;
            }
            match one(key, value) {
                Ok(one) => valid = one.over(&valid),
                Err(reason) => return Some(SamplingProblem::Refused(format!("{key}: {reason}"))),
            }
        }
        valid.over(self).check().err().map(refused).or(unknown)
    }

    /// These parameters, completed by those of `below`.
    fn over(self, below: &Self) -> Self {
        macro_rules! take {
            ($($name:ident),+) => { Self { $($name: self.$name.or_else(|| below.$name.clone())),+ } };
        }
        each!(take)
    }

    /// Whether nothing was set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The canonical JSON of what was set.
    pub fn canonical_json(&self) -> Result<String, CanonicalError> {
        let stop = self.stop.as_ref().map(OneOrMany::list);
        let mut fields = serde_json::Map::new();
        let mut set = |key: &str, value: Result<Value, serde_json::Error>| match value {
            Ok(Value::Null) => Ok(()),
            Ok(value) => {
                fields.insert(key.to_owned(), value);
                Ok(())
            }
            Err(error) => Err(CanonicalError::Syntax(plain_message(&error))),
        };
        macro_rules! put {
            (stop) => { set("stop", serde_json::to_value(&stop))? };
            ($name:ident) => { set(stringify!($name), serde_json::to_value(&self.$name))? };
            ($($name:ident),+) => { $(put!($name);)+ };
        }
        each!(put);
        canonical_text(&Value::Object(fields).to_string())
    }
}

/// One parameter alone.
fn one(key: &str, value: &RawValue) -> Result<Sampling, String> {
    let object = serde_json::to_string(&BTreeMap::from([(key, value)]));
    object
        .and_then(|object| serde_json::from_str(&object))
        .map_err(|error| nearest::explain(&plain_message(&error)))
}

/// An out-of-bounds value, by its key in a row.
fn refused((key, message): Wrong) -> SamplingProblem {
    SamplingProblem::Refused(format!("{}: {message}", key.strip_prefix("sampling.").unwrap_or(key)))
}

#[cfg(test)]
mod tests;
