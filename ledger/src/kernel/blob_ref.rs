//! An object in the store, as commands and replies name it.
//!
//! *Invariant:* the encoding is part of commands and never changes.
//! Absent: the object's key, and where its store is.

use serde::{Deserialize, Serialize};

/// An object in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobRef {
    /// blake3 of its bytes. With the run it gives the object's key.
    pub digest: [u8; 32],
    /// Its length in bytes.
    pub bytes: u32,
}
