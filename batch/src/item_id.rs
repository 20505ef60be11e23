//! Owns: the identity of an item: its model, request, sampling parameters and key.
//!
//! Layout, version 1: `blake3(version ‖ f(model id) ‖ f(asked) ‖ f(sampling) ‖ f(key))`, where `f(x)` is the length of
//! x (u64 LE) and x; the model id is `blake3("rollout model 1" ‖ f(uri) ‖ f(revision) ‖ f(task) ‖ f(options))`; asked
//! is the canonical JSON of `prompt` or `messages`, of an object of these with `chat_template_kwargs` and `lora`, of
//! `query` and `document`, or of `body`, `method` and `url`; sampling is that of the row's parameters over the run's;
//! the key is 1 and the canonical JSON of the row's own id, or 0 and its occurrence number among equal rows (u64 LE).
//! Invariant: no two inputs give the same bytes to the hash, and the golden values below never change: a change of the
//! layout needs a new version.
//! Absent: the position of a row; reordering an input re-runs nothing.

pub mod positional;

use std::fmt;

/// The version of the layout, the first byte that is hashed.
pub const ITEM_ID_VERSION: u8 = 1;

/// The identity of a model: everything that changes results, apart from prompt and sampling.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ModelId(pub [u8; 32]);

impl ModelId {
    /// The identity of a model URI, revision, task and canonical JSON of options.
    pub fn new(uri: &str, revision: &str, task: &str, options_json: &str) -> Self {
        let mut bytes = b"rollout model 1".to_vec();
        for field in [uri, revision, task, options_json] {
            frame(&mut bytes, &[field.as_bytes()]);
        }
        Self(*blake3::hash(&bytes).as_bytes())
    }

    /// Sixty-four lower-case hexadecimal digits.
    pub fn to_hex(self) -> String {
        blake3::Hash::from_bytes(self.0).to_hex().to_string()
    }
}

impl fmt::Debug for ModelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelId({})", self.to_hex())
    }
}

/// Distinguishes equal rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key<'a> {
    /// The canonical JSON of the row's own id, a string or an integer.
    Own(&'a str),
    /// How many equal rows without an ID come before it.
    Occurrence(u64),
}

/// Computes the ids of one run's items.
#[derive(Debug, Clone)]
pub struct ItemIds {
    /// The bytes that are hashed before the request.
    head: Vec<u8>,
    /// The bytes that are hashed between the request and the key, for rows without parameters of their own.
    sampling: Vec<u8>,
    buffer: Vec<u8>,
}

impl ItemIds {
    /// For one model and the canonical JSON of one set of sampling parameters.
    pub fn new(model: ModelId, sampling_json: &str) -> Self {
        let mut head = vec![ITEM_ID_VERSION];
        frame(&mut head, &[&model.0]);
        let mut sampling = Vec::new();
        frame(&mut sampling, &[sampling_json.as_bytes()]);
        Self { head, sampling, buffer: Vec::new() }
    }

    /// The id of one item; `request_json` is canonical.
    pub fn item_id(&mut self, request_json: &str, key: Key<'_>) -> [u8; 32] {
        self.begin(request_json);
        self.buffer.extend_from_slice(&self.sampling);
        self.end(key)
    }

    /// The ID of an item with its own parameters; `sampling_json` is the canonical JSON of the run's parameters,
    /// overridden by these.
    pub fn item_id_sampled(
        &mut self,
        request_json: &str,
        sampling_json: &str,
        key: Key<'_>,
    ) -> [u8; 32] {
        self.begin(request_json);
        frame(&mut self.buffer, &[sampling_json.as_bytes()]);
        self.end(key)
    }

    fn begin(&mut self, request_json: &str) {
        self.buffer.clear();
        self.buffer.extend_from_slice(&self.head);
        frame(&mut self.buffer, &[request_json.as_bytes()]);
    }

    fn end(&mut self, key: Key<'_>) -> [u8; 32] {
        match key {
            Key::Occurrence(number) => frame(&mut self.buffer, &[&[0], &number.to_le_bytes()]),
            Key::Own(id) => frame(&mut self.buffer, &[&[1], id.as_bytes()]),
        }
        *blake3::hash(&self.buffer).as_bytes()
    }
}

/// Appends the total length of the pieces, then the pieces.
fn frame(bytes: &mut Vec<u8>, pieces: &[&[u8]]) {
    let len: usize = pieces.iter().map(|piece| piece.len()).sum();
    bytes.extend_from_slice(&(len as u64).to_le_bytes());
    pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
}

#[cfg(test)]
mod tests;
