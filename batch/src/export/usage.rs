//! Owns: the tokens that a result reports.
//!
//! Invariant: a result without counts, or with counts that are no numbers, has none. It is a result all the same.
//! Absent: sums.

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Tokens of one row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) prompt_tokens: u64,
    /// Of these, from a cache.
    pub(super) cached_tokens: u64,
    pub(super) completion_tokens: u64,
    /// Of these, for reasoning.
    pub(super) reasoning_tokens: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Counted<'a> {
    prompt_tokens: u64,
    completion_tokens: u64,
    #[serde(borrow)]
    extra: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Extra {
    response: Response,
}

#[derive(Deserialize)]
struct Response {
    body: Body,
}

#[derive(Deserialize)]
struct Body {
    usage: Detailed,
}

/// The routes for completions and for responses have different names.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Detailed {
    #[serde(alias = "input_tokens_details", deserialize_with = "or_nothing")]
    prompt_tokens_details: Details,
    #[serde(alias = "output_tokens_details", deserialize_with = "or_nothing")]
    completion_tokens_details: Details,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details {
    #[serde(deserialize_with = "or_nothing")]
    cached_tokens: u64,
    #[serde(deserialize_with = "or_nothing")]
    reasoning_tokens: u64,
}

fn or_nothing<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    from: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}

impl Usage {
    /// Of a result's JSON.
    pub(super) fn of(body: &[u8]) -> Self {
        let Ok(counted) = serde_json::from_slice::<Counted<'_>>(body) else {
            return Self::default();
        };
        let details = counted.extra.and_then(|extra| serde_json::from_str(extra.get()).ok());
        let details = details.map(|extra: Extra| extra.response.body.usage).unwrap_or_default();
        Self {
            prompt_tokens: counted.prompt_tokens,
            cached_tokens: details.prompt_tokens_details.cached_tokens,
            completion_tokens: counted.completion_tokens,
            reasoning_tokens: details.completion_tokens_details.reasoning_tokens,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(usage: &str) -> (u64, u64, u64, u64) {
        let response = format!(r#"{{"status_code":200,"body":{{"usage":{usage}}}}}"#);
        let extra = format!(r#"{{"response":{response}}}"#);
        let body = format!(r#"{{"prompt_tokens":5,"completion_tokens":7,"extra":{extra}}}"#);
        let used = Usage::of(body.as_bytes());
        (used.prompt_tokens, used.cached_tokens, used.completion_tokens, used.reasoning_tokens)
    }

    /// A usage with these names of details.
    fn detailed(prompt: &str, completion: &str) -> String {
        let (cached, reasoning) = (r#"{"cached_tokens":2}"#, r#"{"reasoning_tokens":3}"#);
        format!(r#"{{"{prompt}_details":{cached},"{completion}_details":{reasoning}}}"#)
    }

    #[test]
    fn details_are_those_of_an_openai_response() {
        assert_eq!(of(&detailed("prompt_tokens", "completion_tokens")), (5, 2, 7, 3));
        assert_eq!(of(&detailed("input_tokens", "output_tokens")), (5, 2, 7, 3));
        let no_number = r#"{"prompt_tokens_details":{"cached_tokens":null}}"#;
        for none in ["null", "{}", "[]", r#"{"prompt_tokens_details":null}"#, no_number] {
            assert_eq!(of(none), (5, 0, 7, 0), "{none}");
        }
        assert_eq!(Usage::of(b"no JSON"), Usage::default());
        assert_eq!(Usage::of(br#"{"prompt_tokens":1}"#).prompt_tokens, 1);
    }
}
