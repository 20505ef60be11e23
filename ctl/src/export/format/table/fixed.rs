//! Owns: the columns that every table has, whatever its rows are.
//!
//! Invariant: columns here never change their type.
//! Absent: `id` and rows' own fields, whose types follow from the rows (`types`).

/// Columns of texts before rows' own. A value that is no string is its JSON.
pub(super) const ASKED: [&str; 2] = ["prompt", "messages"];
/// Columns of texts behind rows' own.
pub(super) const TEXTS: [&str; 11] = [
    INPUT,
    "completion",
    "finish_reason",
    "generated_at",
    "sampling_params",
    "model_uri",
    "model_content_id",
    "completion_blob_id",
    EXTRA,
    "response",
    "error",
];
/// Columns of integers.
pub(super) const COUNTS: [&str; 2] = ["prompt_tokens", "completion_tokens"];
/// Rows' own fields that have no column.
pub(super) const INPUT: &str = "input";
/// What else came of a row.
pub(super) const EXTRA: &str = "extra";
pub(super) const EMBEDDING: &str = "embedding";
pub(super) const SCORE: &str = "score";
/// Fields that are together in `extra`; the last two where their own columns do not take them.
pub(super) const EXTRAS: [&str; 5] =
    ["completions", "logprobs", "prompt_logprobs", EMBEDDING, SCORE];

/// Whether a column of that name is in every table, or its values are.
pub(super) fn has(name: &str) -> bool {
    name == "id"
        || ASKED.contains(&name)
        || TEXTS.contains(&name)
        || COUNTS.contains(&name)
        || EXTRAS.contains(&name)
}
