//! Why the ledger refuses a request about a batch of OpenAI's API.
//!
//! *Invariant:* refusals are replies: replicated, and the same at every member. Add variants at the end: the order is
//! stored.

use crate::kernel::reply::Rejection;
use serde::{Deserialize, Serialize};

/// A refusal about batches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum BatchRefusal {
    /// No such batch.
    #[error("no batch {0}")]
    Unknown(String),
    /// The idempotency key, or the id, was used for another request.
    #[error("batch {batch} was created under the same idempotency key with another request")]
    KeyReused {
        /// The batch of the first request.
        batch: String,
    },
    /// An end never changes.
    #[error("the batch is {status}, which is final")]
    Ended {
        /// Its status in OpenAI's API.
        status: String,
    },
    /// The batch was assigned again, or it is at another stage.
    #[error("the batch has no work under this fence: it was assigned again, or it is {status}")]
    FenceStale {
        /// Its status in OpenAI's API.
        status: String,
    },
    /// Its output files were written for another end.
    #[error("the batch is {status} and will not end as {ends_as}: write its output again")]
    OtherEnd {
        /// Its status in OpenAI's API.
        status: String,
        /// The end that was expected.
        ends_as: String,
    },
    /// An API key has used up one of its limits.
    #[error("API key {key} may have {max} {what}, and has {used}")]
    OverKeyLimit {
        /// The id of the key.
        key: String,
        /// The limited thing.
        what: String,
        /// How many it has.
        used: u64,
        /// How many it may have.
        max: u64,
    },
    /// The run belongs to a batch, which alone ends it.
    #[error("the run belongs to batch {batch}, which has not ended: cancel the batch first")]
    RunInUse {
        /// The batch.
        batch: String,
    },
    /// The rows of a batch run once.
    #[error("the run belongs to batch {batch}: create a batch with the failed lines instead")]
    RunIsFinal {
        /// The batch.
        batch: String,
    },
}

impl From<BatchRefusal> for Rejection {
    fn from(why: BatchRefusal) -> Self {
        Self::Batch(why)
    }
}
