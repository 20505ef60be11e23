//! Owns: the positional sample id, version 1, of the runtime that `rollout` follows.
//!
//! `blake3(1 ‖ model content id ‖ prompt ‖ postcard(sampling) ‖ index LE)`: the id of a row at a position, kept to
//! match results of that runtime.
//! Invariant: the digest fixed in the test; postcard is not self-describing, so the struct's field order matters.
//! Absent: any use for a run's items: an inserted row would change the id of every later one.

use serde::Serialize;

/// The version of the sampling struct's wire shape, the first byte that is hashed.
pub const SAMPLING_PARAMS_SCHEMA_VERSION: u8 = 1;

/// The sampling parameters of version 1, in the order of their encoding.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SamplingParamsV1 {
    /// Randomness; 0 is greedy.
    pub temperature: f32,
    /// The probability mass of nucleus sampling.
    pub top_p: f32,
    /// How many of the most likely tokens count; -1 for all.
    pub top_k: i32,
    /// The most tokens of a completion.
    pub max_tokens: u32,
    /// The seed, if one was set.
    pub seed: Option<u64>,
    /// Texts that end a completion.
    pub stop: Vec<String>,
    /// Whether the answer is streamed; no batch does that.
    pub stream: bool,
}

impl Default for SamplingParamsV1 {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: -1,
            max_tokens: 16,
            seed: None,
            stop: Vec::new(),
            stream: false,
        }
    }
}

/// The sample id of the prompt at position `index`.
pub fn sample_id(
    model: &[u8; 32],
    prompt: &str,
    params: &SamplingParamsV1,
    index: u64,
) -> Result<[u8; 32], postcard::Error> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[SAMPLING_PARAMS_SCHEMA_VERSION]);
    hasher.update(model);
    hasher.update(prompt.as_bytes());
    hasher.update(&postcard::to_stdvec(params)?);
    hasher.update(&index.to_le_bytes());
    Ok(*hasher.finalize().as_bytes())
}
