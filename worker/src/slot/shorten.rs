//! Owns: a failure's message, shortened to a byte limit.
//!
//! Invariant: a long message is cut at its end. An answer of a server that refused a request of the OpenAI Batch
//! format (`{"response": {…, "body": {"error": {"message": …}}}}`) stays an answer, with its error's message cut, so
//! that an export of the run contains it.
//! Absent: where the whole text goes (`failure_report`).

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Replaces the rest of a message that was cut.
const CUT: &str = "…";
/// How much of a word next to the cut is kept, in bytes.
const WORD_BYTES_MAX: usize = 64;

#[derive(Deserialize, Serialize)]
struct ResultLine {
    response: Response,
}

#[derive(Deserialize, Serialize)]
struct Response {
    status_code: u16,
    request_id: String,
    body: Body,
}

#[derive(Deserialize, Serialize)]
struct Body {
    error: Error,
}

#[derive(Deserialize, Serialize)]
struct Error {
    message: String,
    #[serde(rename = "type", default, skip_serializing_if = "is_not_kept")]
    kind: Value,
    #[serde(default, skip_serializing_if = "is_not_kept")]
    code: Value,
}

fn is_not_kept(word: &Value) -> bool {
    word.is_null() || word.to_string().len() > WORD_BYTES_MAX
}

/// A message in at most this many bytes.
pub(super) fn shortened(message: &str, bytes_max: usize) -> String {
    if message.len() <= bytes_max {
        return message.to_owned();
    }
    let cut = || message[..message.floor_char_boundary(bytes_max)].to_owned();
    answer(message, bytes_max).unwrap_or_else(cut)
}

/// The same for a message that is an answer; none if it is not one, or if there is no room.
fn answer(message: &str, bytes_max: usize) -> Option<String> {
    let mut answer: ResultLine = serde_json::from_str(message).ok()?;
    let mut words = std::mem::replace(&mut answer.response.body.error.message, CUT.to_owned());
    let spare = bytes_max.checked_sub(serde_json::to_string(&answer).ok()?.len())?;
    let bytes = serde_json::to_string(&words).ok()?.len().checked_sub("\"\"".len())?;
    if let Some(over) = bytes.checked_sub(spare).filter(|over| *over > 0) {
        // A byte of a text takes at least one byte in JSON.
        words.truncate(words.floor_char_boundary(words.len().saturating_sub(over)));
        words.push_str(CUT);
    }
    answer.response.body.error.message = words;
    serde_json::to_string(&answer).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(message: &str, kind: &str) -> Value {
        let error = json!({"message": message, "type": kind, "param": null, "code": 400});
        json!({"response": {"status_code": 400, "request_id": "r", "body": {"error": error}}})
    }

    #[test]
    fn an_answer_stays_one_and_keeps_as_much_of_its_message_as_there_is_room_for() {
        for letter in ["x", "é", "\"", "\n", "\u{1}", "🦀"] {
            for length in [500, 5000] {
                let answer = refused(&letter.repeat(length), "BadRequestError").to_string();
                let short = shortened(&answer, 512);
                assert!(short.len() <= 512, "{}", short.len());
                let told: Value = serde_json::from_str(&short).unwrap();
                let error = &told["response"]["body"]["error"];
                assert_eq!(
                    (&error["type"], &error["code"]),
                    (&json!("BadRequestError"), &json!(400))
                );
                assert_eq!(told["response"]["status_code"], 400);
                let kept = error["message"].as_str().unwrap();
                assert_eq!(kept.trim_start_matches(letter), CUT, "{letter:?}");
                assert!(letter != "x" || short.len() == 512, "room is left: {short}");
            }
        }
        let long_kind = refused("short", &"k".repeat(5000)).to_string();
        let told: Value = serde_json::from_str(&shortened(&long_kind, 512)).unwrap();
        assert_eq!(told["response"]["body"]["error"], json!({"message": "short", "code": 400}));
    }

    #[test]
    fn any_other_message_is_cut_at_its_end() {
        let fits = refused("short", "T").to_string();
        assert_eq!(shortened(&fits, 512), fits, "to the letter");
        assert_eq!(shortened(&"é".repeat(400), 511), "é".repeat(255));
        let id = "r".repeat(600);
        let strange = json!({"response": {"status_code": 400, "request_id": id, "body": {"error": {"message": ""}}}});
        assert_eq!(shortened(&strange.to_string(), 512).len(), 512);
    }
}
