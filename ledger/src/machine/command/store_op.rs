//! Operations on shared stores, and their names.

use crate::machine::version_gate::came_with;
use serde::{Deserialize, Serialize};

/// The name of a shared store.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StoreName {
    /// The job's namespace.
    pub namespace: String,
    /// The job.
    pub job: String,
    /// The round of its rendezvous; 0 for a store that outlives rounds.
    pub round: u64,
}

/// An operation on a shared store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreOp {
    /// Sets keys to values, all or none.
    Set {
        /// Keys and values.
        #[serde(with = "crate::kernel::bytes_field::pairs")]
        pairs: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// Adds to the number in the key's value, 0 if there is none, and answers the sum.
    Add {
        /// The key.
        #[serde(with = "crate::kernel::bytes_field")]
        key: Vec<u8>,
        /// How much, less than nothing included.
        delta: i64,
    },
    /// Sets the key if its value is the expected one, or if it has none and nothing is expected. Answers the value
    /// afterward; for a key without a value, the expected one.
    CompareSet {
        /// The key.
        #[serde(with = "crate::kernel::bytes_field")]
        key: Vec<u8>,
        /// The expected value.
        #[serde(with = "crate::kernel::bytes_field")]
        expected: Vec<u8>,
        /// The new value.
        #[serde(with = "crate::kernel::bytes_field")]
        desired: Vec<u8>,
    },
    /// Adds bytes to the end of the key's value.
    Append {
        /// The key.
        #[serde(with = "crate::kernel::bytes_field")]
        key: Vec<u8>,
        /// The bytes.
        #[serde(with = "crate::kernel::bytes_field")]
        value: Vec<u8>,
    },
    /// Removes a key; answers 1, or 0 if it had no value.
    Delete {
        /// The key.
        #[serde(with = "crate::kernel::bytes_field")]
        key: Vec<u8>,
    },
    /// Appends to a queue and answers its length.
    Push {
        /// The queue.
        #[serde(with = "crate::kernel::bytes_field")]
        queue: Vec<u8>,
        /// The element.
        #[serde(with = "crate::kernel::bytes_field")]
        value: Vec<u8>,
    },
    /// Pops the first element of a queue.
    Pop {
        /// The queue.
        #[serde(with = "crate::kernel::bytes_field")]
        queue: Vec<u8>,
    },
}

came_with!(StoreOp, STORE_OPS, {
    1: StoreOp::Set { .. } | StoreOp::Add { .. } | StoreOp::CompareSet { .. }
        | StoreOp::Append { .. } | StoreOp::Delete { .. } | StoreOp::Push { .. }
        | StoreOp::Pop { .. },
});

impl StoreOp {
    /// Whether it makes the store larger.
    pub(crate) fn grows(&self) -> bool {
        match self {
            Self::Set { .. }
            | Self::Add { .. }
            | Self::CompareSet { .. }
            | Self::Append { .. }
            | Self::Push { .. } => true,
            Self::Delete { .. } | Self::Pop { .. } => false,
        }
    }
}
