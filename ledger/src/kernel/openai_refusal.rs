//! Why the ledger refuses a request about a file, an upload or a batch of OpenAI's API.
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
    /// No such file in the namespace.
    #[error("no file {0}")]
    FileUnknown(String),
    /// The input of a batch has the purpose `batch`.
    #[error("the purpose of file {0} is not batch")]
    FilePurpose(String),
    /// No such batch.
    #[error("no batch {0}")]
    BatchUnknown(String),
    /// An end never changes.
    #[error("the batch is {status}, which is final")]
    BatchEnded {
        /// Its status in OpenAI's API.
        status: String,
    },
    /// The batch was assigned again, or it is at another stage.
    #[error("the batch is {status} and has no work under this fence")]
    BatchFenceStale {
        /// Its status in OpenAI's API.
        status: String,
    },
    /// Its output files were written for another end.
    #[error("the batch is {status} and will not end as {ends_as}: write its output again")]
    BatchOtherEnd {
        /// Its status in OpenAI's API.
        status: String,
        /// The end that was expected.
        ends_as: String,
    },
    /// An API key has used up one of its limits.
    #[error("API key {key} may have {max} {what}, and has {used}")]
    KeyLimit {
        /// The id of the key.
        key: String,
        /// The limited thing.
        what: String,
        /// How many it has.
        used: u64,
        /// How many it may have.
        max: u64,
    },
    /// The run belongs to a batch that needs its rows.
    #[error("the run belongs to batch {batch}, which has not ended: cancel the batch first")]
    RunOfOpenBatch {
        /// The batch.
        batch: String,
    },
    /// The run of a batch ends once.
    #[error("the run of batch {batch} has ended: create a batch with the failed lines instead")]
    RunOfBatch {
        /// The batch.
        batch: String,
    },
}

impl From<OpenAiRefusal> for Rejection {
    fn from(why: OpenAiRefusal) -> Self {
        Self::OpenAi(why)
    }
}
