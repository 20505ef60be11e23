//! Owns: a line of the OpenAI Batch format's output and error files: `{id, custom_id, response, error}`.
//!
//! Invariant: a response is written as the engine gave it, byte for byte. The ID follows from the item, so equal runs
//! give equal files.
//! Absent: what a body contains.

use std::borrow::Cow;

use rollout_proto::v1;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::canonical::{plain_message, write_string};
use crate::export::row::Outcome;

/// Why a batch ended before a row had an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfinished {
    /// Its completion window expired.
    Expired,
    /// It was cancelled.
    Cancelled,
}

impl Unfinished {
    fn code(self) -> &'static str {
        match self {
            Self::Expired => "batch_expired",
            Self::Cancelled => "batch_cancelled",
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::Expired => {
                "This request could not be executed before the completion window expired."
            }
            Self::Cancelled => "This request was not executed because the batch was cancelled.",
        }
    }
}

/// The error of a row whose outcome does not fit into its file.
const LEFT_OUT_CODE: &str = "output_too_large";
const LEFT_OUT_MESSAGE: &str = "The outcome of this request does not fit into the files of the batch; `rollout export` writes it.";

/// Writes such lines.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenaiLines {
    /// Rows without an outcome get an error line that says so; if none, they get no line.
    pub unfinished: Option<Unfinished>,
    /// The message of a row that failed without a response says how many attempts it had.
    pub attempts: bool,
}

#[derive(Deserialize)]
struct Input<'a> {
    #[serde(borrow)]
    custom_id: &'a RawValue,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    extra: Option<Extra<'a>>,
}

/// What an engine returns beside or instead of a text.
#[derive(Deserialize)]
struct Extra<'a> {
    #[serde(borrow)]
    response: Option<&'a RawValue>,
}

impl OpenaiLines {
    /// Appends a row's line: of the output file if it is done, of the error file if it failed. `input` is the body of
    /// the segment's row.
    ///
    /// # Errors
    /// The input or the result is not what a worker reads or writes.
    pub fn write(
        self,
        out: &mut String,
        item_id: [u8; 32],
        input: &[u8],
        outcome: &Outcome<'_>,
    ) -> Result<(), String> {
        begin(out, item_id, input)?;
        match *outcome {
            Outcome::Done { body, .. } => {
                let body: Body<'_> = serde_json::from_slice(body)
                    .map_err(|error| format!("the result: {}", plain_message(&error)))?;
                let response = body.extra.and_then(|extra| extra.response);
                let response = response.ok_or("the result has no response")?;
                out.push_str(",\"response\":");
                out.push_str(response.get());
                out.push_str(",\"error\":null}\n");
            }
            Outcome::Failed { failure, text, .. } => {
                // The ledger may keep a shortened form of a long answer.
                let answered = text.and_then(response_of).or_else(|| response_of(&failure.message));
                match answered {
                    Some(response) => {
                        out.push_str(",\"response\":");
                        out.push_str(response.get());
                        out.push_str(",\"error\":null}\n");
                    }
                    None => write_error(out, &failure.code, &self.message(failure)),
                }
            }
        }
        Ok(())
    }

    /// Appends the line of a row without an outcome, of the error file, unless such rows get none.
    ///
    /// # Errors
    /// The input is not what a worker reads.
    pub fn write_unfinished(
        self,
        out: &mut String,
        item_id: [u8; 32],
        input: &[u8],
    ) -> Result<(), String> {
        let Some(why) = self.unfinished else { return Ok(()) };
        begin(out, item_id, input)?;
        write_error(out, why.code(), why.message());
        Ok(())
    }

    pub(super) fn write_left_out(
        self,
        out: &mut String,
        item_id: [u8; 32],
        input: &[u8],
    ) -> Result<(), String> {
        begin(out, item_id, input)?;
        write_error(out, LEFT_OUT_CODE, LEFT_OUT_MESSAGE);
        Ok(())
    }

    pub(super) fn write_without_input(self, out: &mut String, failure: &v1::FailedRow) {
        out.push_str("{\"id\":\"batch_req_row_");
        out.push_str(&failure.row.to_string());
        out.push_str("\",\"custom_id\":null");
        write_error(out, &failure.code, &self.message(failure));
    }

    fn message(self, failure: &v1::FailedRow) -> Cow<'_, str> {
        match self.attempts && failure.attempts > 0 {
            true => format!("{} (attempts: {})", failure.message, failure.attempts).into(),
            false => (&*failure.message).into(),
        }
    }
}

/// Appends the fields that every line has.
fn begin(out: &mut String, item_id: [u8; 32], input: &[u8]) -> Result<(), String> {
    let input: Input<'_> = serde_json::from_slice(input)
        .map_err(|error| format!("the input row: {}", plain_message(&error)))?;
    let hex = blake3::Hash::from_bytes(item_id).to_hex();
    out.push_str("{\"id\":\"batch_req_");
    out.push_str(&hex[..32]);
    out.push_str("\",\"custom_id\":");
    out.push_str(input.custom_id.get());
    Ok(())
}

/// The answer of a server that refused the request, if the failure's text is one.
fn response_of(text: &str) -> Option<&RawValue> {
    serde_json::from_str::<Extra<'_>>(text).ok()?.response
}

fn write_error(out: &mut String, code: &str, message: &str) {
    out.push_str(",\"response\":null,\"error\":{\"code\":");
    write_string(code, out);
    out.push_str(",\"message\":");
    write_string(message, out);
    out.push_str("}}\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUT: &[u8] =
        br#"{"custom_id": "a\u00e9", "method":"POST","url":"/v1/embeddings","body":{}}"#;

    fn line(outcome: &Outcome<'_>) -> Result<String, String> {
        let mut out = String::new();
        OpenaiLines::default().write(&mut out, [0xab; 32], INPUT, outcome).map(|()| out)
    }

    fn failed(message: &str, text: Option<&str>) -> String {
        let failure = v1::FailedRow {
            class: "invalid_row".into(),
            code: "ENGINE_REFUSED_ROW".into(),
            message: message.into(),
            ..Default::default()
        };
        line(&Outcome::Failed { failure: &failure, part: None, body: None, text }).unwrap()
    }

    #[test]
    fn a_response_is_written_as_the_engine_gave_it() {
        let part = v1::BlobRef::default();
        let body = br#"{"completion":"","extra":{"response":{"status_code":200,"request_id":"r","body":{ "x": 1.50 }}}}"#;
        let found = line(&Outcome::Done { part: &part, body }).unwrap();
        let expected = format!(
            r#"{{"id":"batch_req_{}","custom_id":"a\u00e9","response":{{"status_code":200,"request_id":"r","body":{{ "x": 1.50 }}}},"error":null}}"#,
            "ab".repeat(16)
        );
        assert_eq!(found, expected + "\n");
        let error = line(&Outcome::Done { part: &part, body: b"{\"completion\":\"x\"}" });
        assert!(error.unwrap_err().contains("no response"));
    }

    #[test]
    fn a_row_without_an_outcome_gets_a_line_that_says_why_the_batch_ended() {
        let written = |unfinished| {
            let mut out = String::new();
            OpenaiLines { unfinished, attempts: true }
                .write_unfinished(&mut out, [0xab; 32], INPUT)
                .unwrap();
            out
        };
        let expected = |error: &str| {
            let id = "ab".repeat(16);
            format!(
                r#"{{"id":"batch_req_{id}","custom_id":"a\u00e9","response":null,"error":{error}}}"#
            ) + "\n"
        };
        let expired = r#"{"code":"batch_expired","message":"This request could not be executed before the completion window expired."}"#;
        assert_eq!(written(Some(Unfinished::Expired)), expected(expired));
        assert!(written(Some(Unfinished::Cancelled)).contains(r#""code":"batch_cancelled""#));
        assert_eq!(written(None), "");
    }

    #[test]
    fn a_line_without_its_outcome_is_short() {
        let mut out = String::new();
        OpenaiLines::default().write_left_out(&mut out, [0xab; 32], INPUT).unwrap();
        assert!(out.contains(r#""code":"output_too_large""#), "{out}");
        // The bounds of a batch's files count on this.
        assert!(out.len() - r#""a\u00e9""#.len() <= 256, "{out}");
    }

    #[test]
    fn a_refusal_is_the_servers_answer_or_an_error_object() {
        let answer = r#"{"response":{"status_code":400,"request_id":"r","body":{"error":{}}}}"#;
        let expected =
            r#","response":{"status_code":400,"request_id":"r","body":{"error":{}}},"error":null}"#;
        assert!(failed(answer, None).contains(expected));
        assert!(failed(&answer[..30], Some(answer)).contains(expected), "from the longer text");
        let expected =
            r#","response":null,"error":{"code":"ENGINE_REFUSED_ROW","message":"no \"luck\""}}"#;
        assert!(failed("no \"luck\"", Some("words")).contains(expected));
        let (code, message) = ("WORKER_LOST".into(), "the worker died".into());
        let failure = v1::FailedRow { code, message, attempts: 2, ..Default::default() };
        let (mut out, lines) = (String::new(), OpenaiLines { attempts: true, unfinished: None });
        let outcome = Outcome::Failed { failure: &failure, part: None, body: None, text: None };
        lines.write(&mut out, [0; 32], INPUT, &outcome).unwrap();
        let expected =
            r#""error":{"code":"WORKER_LOST","message":"the worker died (attempts: 2)"}"#;
        assert!(out.contains(expected), "{out}");
    }
}
