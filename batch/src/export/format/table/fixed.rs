//! Owns: the columns that every table has, whatever its rows are.
//!
//! Invariant: columns here never change their type.
//! Absent: `id` and rows' own fields, whose types follow from the rows (`types`).

/// Text columns before rows' own fields. A value that is not a string becomes its JSON.
pub(super) const ASKED: [&str; 2] = ["prompt", "messages"];
/// Text columns after rows' own fields.
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
/// Further results of a row.
pub(super) const EXTRA: &str = "extra";
pub(super) const EMBEDDING: &str = "embedding";
pub(super) const SCORE: &str = "score";
/// Fields that are combined in `extra`; the last two only if their own columns cannot hold them.
pub(super) const EXTRAS: [&str; 5] =
    ["completions", "logprobs", "prompt_logprobs", EMBEDDING, SCORE];

/// Whether every table has a column of that name, or holds its values in another column.
pub(super) fn has(name: &str) -> bool {
    name == "id"
        || ASKED.contains(&name)
        || TEXTS.contains(&name)
        || COUNTS.contains(&name)
        || EXTRAS.contains(&name)
}
