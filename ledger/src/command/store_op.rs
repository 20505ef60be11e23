//! Operations on shared stores, and their names.

use serde::{Deserialize, Serialize};

/// The name of a shared store.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StoreName {
    /// The job's namespace.
    pub namespace: String,
    /// The job.
    pub job: String,
    /// The round of its rendezvous; 0 for what outlives rounds.
    pub round: u64,
}

/// An operation on a shared store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreOp {
    /// Gives keys their values, all of them or none.
    Set {
        /// Keys and values.
        #[serde(with = "crate::bytes_field::pairs")]
        pairs: Vec<(Vec<u8>, Vec<u8>)>,
    },
    /// Adds to the number that the key's value spells, 0 where there is none, and answers the sum.
    Add {
        /// The key.
        #[serde(with = "crate::bytes_field")]
        key: Vec<u8>,
        /// How much, less than nothing included.
        delta: i64,
    },
    /// Sets the key if its value is the expected one, or if it has none and nothing is expected.
    /// Answers the value that it has then; of a key without one, what was expected.
    CompareSet {
        /// The key.
        #[serde(with = "crate::bytes_field")]
        key: Vec<u8>,
        /// What its value has to be.
        #[serde(with = "crate::bytes_field")]
        expected: Vec<u8>,
        /// What it becomes.
        #[serde(with = "crate::bytes_field")]
        desired: Vec<u8>,
    },
    /// Adds bytes to the end of the key's value.
    Append {
        /// The key.
        #[serde(with = "crate::bytes_field")]
        key: Vec<u8>,
        /// The bytes.
        #[serde(with = "crate::bytes_field")]
        value: Vec<u8>,
    },
    /// Removes a key; answers 1, or 0 where it had no value.
    Delete {
        /// The key.
        #[serde(with = "crate::bytes_field")]
        key: Vec<u8>,
    },
    /// Adds to the end of a queue and answers its length.
    Push {
        /// The queue.
        #[serde(with = "crate::bytes_field")]
        queue: Vec<u8>,
        /// What to add.
        #[serde(with = "crate::bytes_field")]
        value: Vec<u8>,
    },
    /// Takes the first of a queue.
    Pop {
        /// The queue.
        #[serde(with = "crate::bytes_field")]
        queue: Vec<u8>,
    },
}
