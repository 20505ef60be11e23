//! Why the ledger refuses a request about a file or an upload of OpenAI's API.
//!
//! *Invariant:* refusals are replies: replicated, and the same at every member. Add variants at the end: the order is
//! stored.

use crate::kernel::reply::Rejection;
use serde::{Deserialize, Serialize};

/// A refusal about objects of OpenAI's API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum OpenAiRefusal {
    /// Another object has the id.
    #[error("{0} exists with another content")]
    FileConflict(String),
    /// A request with the same idempotency key had another content.
    #[error("the idempotency key was used for {0}, which has another content or description")]
    IdempotencyKeyReused(String),
    /// Batches that have not ended use the file.
    #[error("{id} is used by {users} batches that have not ended")]
    FileInUse {
        /// The file.
        id: String,
        /// How many.
        users: u32,
    },
    /// The content was written too long ago, or is being removed.
    #[error("the content was removed, or took longer than an hour to arrive: send it again")]
    ContentStale,
    /// No such upload.
    #[error("no upload {0}: it has expired or never existed")]
    UploadUnknown(String),
    /// The upload accepts no more requests.
    #[error("upload {id} is {state}")]
    UploadEnded {
        /// The upload.
        id: String,
        /// Its state.
        state: String,
    },
    /// The upload has no such part.
    #[error("the upload has no part {0}")]
    PartUnknown(String),
    /// The parts have another length than the file that was announced.
    #[error("the listed parts have {bytes} bytes, and the upload was created with {declared}")]
    UploadBytes {
        /// Bytes of the parts.
        bytes: u64,
        /// The announced length.
        declared: u64,
    },
    /// The API key may not store that much.
    #[error("API key {key} may store {max} bytes, and has stored {used}")]
    StorageLimit {
        /// The key's id.
        key: String,
        /// Bytes that it has stored.
        used: u64,
        /// How many it may store.
        max: u64,
    },
}

impl From<OpenAiRefusal> for Rejection {
    fn from(why: OpenAiRefusal) -> Self {
        Self::OpenAi(why)
    }
}
