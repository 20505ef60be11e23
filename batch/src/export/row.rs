//! Owns: one line of output.
//!
//! A line is `id` (the row's own, or the item ID in hexadecimal digits), the row's other fields in their order and
//! byte for byte, then the row's outcome. If a row's field has the name of an outcome field, the outcome field keeps
//! the name and the row's field becomes `input_<name>`.
//! A row whose input is lost has no ID and no fields of its own; `error.row` gives its number, from 0.
//! Invariant: completions and errors have the same fields, except `error` and what was requested beyond a completion
//! (vectors, scores, further completions, logprobs), which only a result has. Equal inputs give equal bytes.
//! Absent: which file a line belongs to.

use std::borrow::Cow;
use std::fmt::Write;

use rollout_proto::v1;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::canonical::CanonicalError;
use crate::canonical::{Fields, plain_message, write_string};
use crate::input::rules::Rules;
use crate::item_id::ModelId;

/// The names of outcome fields.
pub const OUTPUT_FIELDS: [&str; 16] = [
    "completion",
    "finish_reason",
    "sampling_params",
    "model_uri",
    "model_content_id",
    "completion_blob_id",
    "generated_at",
    "prompt_tokens",
    "completion_tokens",
    "completions",
    "logprobs",
    "prompt_logprobs",
    "embedding",
    "score",
    "response",
    "error",
];
/// Those of them that only some results have.
const EXTRA_FIELDS: [&str; 6] =
    ["completions", "logprobs", "prompt_logprobs", "embedding", "score", "response"];

/// The outcome of a row.
#[derive(Debug, Clone, Copy)]
pub enum Outcome<'a> {
    /// A completion.
    Done {
        /// The part that it is in.
        part: &'a v1::BlobRef,
        /// The result's JSON.
        body: &'a [u8],
    },
    /// A permanent failure.
    Failed {
        /// The ledger's record of it.
        failure: &'a v1::FailedRow,
        /// The part with its evidence.
        part: Option<&'a v1::BlobRef>,
        /// That evidence.
        body: Option<&'a [u8]>,
        /// The failure's text, if it is longer than the ledger keeps and the format uses it.
        text: Option<&'a str>,
    },
}

/// A worker's result for a row. Fields of later versions are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ResultBody<'a> {
    #[serde(borrow)]
    completion: Option<&'a RawValue>,
    #[serde(borrow)]
    finish_reason: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    completion_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    generated_at: Option<&'a RawValue>,
    #[serde(borrow)]
    extra: Option<&'a RawValue>,
}

/// Writes the lines of one run.
#[derive(Debug)]
pub struct RowFormat {
    rules: Rules,
    /// The run's sampling parameters.
    sampling: String,
    /// The two fields that are the same in every line.
    constant: String,
}

impl RowFormat {
    /// For a run of this spec.
    pub fn new(spec: &v1::RunSpec, model: ModelId) -> Result<Self, CanonicalError> {
        let sampling = if spec.sampling_json.is_empty() { "{}" } else { &spec.sampling_json };
        let mut constant = String::from(",\"model_uri\":");
        write_string(spec.engine.as_ref().map_or("", |engine| &engine.model), &mut constant);
        constant += ",\"model_content_id\":\"";
        constant += &model.to_hex();
        constant += "\"";
        let rules = Rules::new(spec, model)?;
        Ok(Self { rules, sampling: sampling.to_owned(), constant })
    }

    /// Appends a row's line. An error says what is not valid JSON.
    pub fn write(
        &self,
        out: &mut String,
        item_id: [u8; 32],
        input: &[u8],
        outcome: &Outcome<'_>,
    ) -> Result<(), String> {
        let input = std::str::from_utf8(input).map_err(|_| "the input row is not UTF-8")?;
        let Fields(fields) = serde_json::from_str(input)
            .map_err(|error| format!("the input row: {}", plain_message(&error)))?;
        out.push_str("{\"id\":");
        match fields.iter().find(|(name, value)| name == "id" && value.get() != "null") {
            Some((_, id)) => out.push_str(id.get()),
            None => {
                out.push('"');
                out.push_str(&blake3::Hash::from_bytes(item_id).to_hex());
                out.push('"');
            }
        }
        let own = |name: &str| name == "sampling_params" && self.rules.task().samples();
        let sampling = match fields.iter().any(|(name, _)| own(name)) {
            true => self.rules.stored(input.as_bytes()).and_then(|row| row.sampling_json),
            false => None,
        };
        let echoed = |name: &str| name != "id" && !own(name);
        for (name, value) in fields.iter().filter(|(name, _)| echoed(name)) {
            out.push(',');
            write_string(&output_name(name, &fields), out);
            out.push(':');
            out.push_str(value.get());
        }
        self.write_outcome(out, outcome, sampling.as_deref())?;
        out.push_str("}\n");
        Ok(())
    }

    /// Appends the line of a failed row whose input is no longer readable.
    pub fn write_without_input(
        &self,
        out: &mut String,
        failure: &v1::FailedRow,
    ) -> Result<(), String> {
        out.push_str("{\"id\":null");
        self.write_outcome(
            out,
            &Outcome::Failed { failure, part: None, body: None, text: None },
            None,
        )?;
        out.push_str("}\n");
        Ok(())
    }

    fn write_outcome(
        &self,
        out: &mut String,
        outcome: &Outcome<'_>,
        sampling: Option<&str>,
    ) -> Result<(), String> {
        let (part, body) = match *outcome {
            Outcome::Done { part, body } => (Some(part), Some(body)),
            Outcome::Failed { part, body, .. } => (part, body),
        };
        let body = match body {
            Some(bytes) => parse_body(bytes)?,
            None => ResultBody::default(),
        };
        let failed = match outcome {
            Outcome::Done { .. } => None,
            Outcome::Failed { failure, .. } => Some(*failure),
        };
        let raw =
            |value: Option<&RawValue>| value.map_or("null".to_owned(), |v| v.get().to_owned());
        out.push_str(",\"completion\":");
        match (failed, body.completion) {
            (None, Some(completion)) => out.push_str(completion.get()),
            (None, None) => return Err("the result has no completion".to_owned()),
            (Some(_), _) => out.push_str("null"),
        }
        out.push_str(",\"finish_reason\":");
        match failed {
            Some(_) => out.push_str("\"error\""),
            None => out.push_str(&raw(body.finish_reason)),
        }
        out.push_str(",\"sampling_params\":");
        out.push_str(sampling.unwrap_or(&self.sampling));
        out.push_str(&self.constant);
        out.push_str(",\"completion_blob_id\":");
        match part.and_then(|part| <[u8; 32]>::try_from(&part.digest[..]).ok()) {
            Some(digest) => {
                write_string(&blake3::Hash::from_bytes(digest).to_hex(), out);
            }
            None => out.push_str("null"),
        }
        for (name, value) in [
            ("generated_at", body.generated_at),
            ("prompt_tokens", body.prompt_tokens),
            ("completion_tokens", body.completion_tokens),
        ] {
            // Writing to a string cannot fail.
            let _ = write!(out, ",\"{name}\":{}", raw(value));
        }
        if let Some(extra) = body.extra.filter(|_| failed.is_none()) {
            write_extra(out, extra)?;
        }
        if let Some(failure) = failed {
            out.push_str(",\"error\":{\"class\":");
            write_string(&failure.class, out);
            out.push_str(",\"code\":");
            write_string(&failure.code, out);
            out.push_str(",\"message\":");
            write_string(&failure.message, out);
            let _ = write!(out, ",\"attempts\":{},\"row\":{}}}", failure.attempts, failure.row);
        }
        Ok(())
    }
}

fn write_extra(out: &mut String, extra: &RawValue) -> Result<(), String> {
    let Fields(fields) = serde_json::from_str(extra.get())
        .map_err(|error| format!("the result: {}", plain_message(&error)))?;
    for (name, value) in fields.iter().filter(|(name, _)| EXTRA_FIELDS.contains(&&**name)) {
        let _ = write!(out, ",\"{name}\":{}", value.get());
    }
    Ok(())
}

fn parse_body(bytes: &[u8]) -> Result<ResultBody<'_>, String> {
    serde_json::from_slice(bytes).map_err(|error| format!("the result: {}", plain_message(&error)))
}

/// The output name of a row's field.
fn output_name<'a>(name: &'a str, fields: &[(Cow<'_, str>, &RawValue)]) -> Cow<'a, str> {
    if !OUTPUT_FIELDS.contains(&name) {
        return Cow::Borrowed(name);
    }
    let mut output = format!("input_{name}");
    while fields.iter().any(|(other, _)| *other == output) {
        output.insert_str(0, "input_");
    }
    Cow::Owned(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format() -> RowFormat {
        let engine = v1::EngineSpec { model: "m".into(), ..Default::default() };
        let spec = v1::RunSpec {
            engine: Some(engine),
            sampling_json: "{\"seed\":1}".into(),
            ..Default::default()
        };
        RowFormat::new(&spec, ModelId([0xab; 32])).unwrap()
    }

    fn part() -> v1::BlobRef {
        v1::BlobRef { key: "k".into(), digest: vec![0xcd; 32].into(), bytes: 1 }
    }

    fn done(input: &str, body: &str) -> String {
        let mut out = String::new();
        let part = part();
        let outcome = Outcome::Done { part: &part, body: body.as_bytes() };
        format().write(&mut out, [0x11; 32], input.as_bytes(), &outcome).unwrap();
        out
    }

    const BODY: &str = r#"{"completion":"\u00e9!","finish_reason":"stop","prompt_tokens":2,"completion_tokens":3,"generated_at":"2026-01-01T00:00:00Z","later":1}"#;

    #[test]
    fn fields_come_back_byte_for_byte_with_the_result_behind_them() {
        let line = done(r#"{ "n" : 1.50, "prompt":"a", "id": 7 }"#, BODY);
        let expected = format!(
            concat!(
                r#"{{"id":7,"n":1.50,"prompt":"a","completion":"\u00e9!","finish_reason":"stop","#,
                r#""sampling_params":{{"seed":1}},"model_uri":"m","model_content_id":"{}","#,
                r#""completion_blob_id":"{}","generated_at":"2026-01-01T00:00:00Z","#,
                r#""prompt_tokens":2,"completion_tokens":3}}"#,
                "\n"
            ),
            "ab".repeat(32),
            "cd".repeat(32)
        );
        assert_eq!(line, expected);
        let line = done(r#"{"prompt":"a"}"#, BODY);
        assert!(line.starts_with(&format!(r#"{{"id":"{}","prompt""#, "11".repeat(32))), "{line}");
    }

    #[test]
    fn a_field_with_a_reserved_name_is_exported_under_another() {
        let line = done(r#"{"prompt":"a","error":1,"completion":2,"input_completion":3}"#, BODY);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["input_error"], 1);
        assert_eq!(value["input_input_completion"], 2);
        assert_eq!(value["input_completion"], 3);
        assert_eq!(value["completion"], "é!");
        assert!(value.get("error").is_none());
    }

    #[test]
    fn a_line_shows_the_parameters_that_its_row_had() {
        let line = done(r#"{"prompt":"a","sampling_params":{"n":2}}"#, BODY);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["sampling_params"], serde_json::json!({"n": 2, "seed": 1}));
        assert!(value.get("input_sampling_params").is_none());
        let line = done(r#"{"prompt":"a","sampling_params":null}"#, BODY);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["sampling_params"], serde_json::json!({"seed": 1}));
    }

    #[test]
    fn further_results_of_a_row_are_in_its_line_byte_for_byte() {
        let extra = r#"{"embedding":[0.10,1e-3],"later":1,"score":0.50}"#;
        let body = format!(r#"{{"completion":"","finish_reason":"stop","extra":{extra}}}"#);
        let line = done(r#"{"prompt":"a","score":7}"#, &body);
        assert!(line.ends_with(",\"embedding\":[0.10,1e-3],\"score\":0.50}\n"), "{line}");
        assert!(line.contains(r#""input_score":7"#), "{line}");
    }

    #[test]
    fn a_failed_row_has_the_same_shape_and_its_error() {
        let failure = v1::FailedRow {
            row: 0,
            class: "transient".into(),
            code: "RO-1".into(),
            message: "no \"luck\"".into(),
            attempts: 3,
            evidence: None,
        };
        let mut out = String::new();
        let outcome = Outcome::Failed { failure: &failure, part: None, body: None, text: None };
        format().write(&mut out, [0; 32], br#"{"prompt":"a","id":"x"}"#, &outcome).unwrap();
        let failed: serde_json::Value = serde_json::from_str(&out).unwrap();
        let good: serde_json::Value =
            serde_json::from_str(&done(r#"{"prompt":"a","id":"x"}"#, BODY)).unwrap();
        let names = |value: &serde_json::Value| {
            let map = value.as_object().unwrap();
            map.keys().filter(|key| *key != "error").cloned().collect::<Vec<_>>()
        };
        assert_eq!(names(&failed), names(&good));
        assert_eq!(failed["completion"], serde_json::Value::Null);
        assert_eq!(failed["finish_reason"], "error");
        assert_eq!(failed["error"]["message"], "no \"luck\"");
        assert_eq!(failed["error"]["attempts"], 3);
    }

    #[test]
    fn a_result_that_is_no_result_is_refused() {
        for body in ["", "[]", "{}", "{\"completion\":\"x\"", "\u{7f}"] {
            let mut out = String::new();
            let part = part();
            let outcome = Outcome::Done { part: &part, body: body.as_bytes() };
            let input = br#"{"prompt":"a"}"#;
            assert!(format().write(&mut out, [0; 32], input, &outcome).is_err(), "{body:?}");
        }
    }
}
