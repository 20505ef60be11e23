//! A file of OpenAI's API: its description, and the objects with its content.
//!
//! *Invariant:* a file never changes after its creation, except for the number of its users. It does not end while it has
//! users.
//!
//! Absent: the order of files in a list. Ids begin with the time of their creation, so the order of ids is that of
//! creation.

use crate::kernel::id::LedgerMs;
use crate::kernel::limits;
use crate::kernel::names::check_name;
use crate::kernel::reply::Rejection;
use crate::machine::version_gate::came_with;
use crate::openai::content::Extent;
use serde::{Deserialize, Serialize};

/// The prefix of the id of a file.
pub const FILE_ID_PREFIX: &str = "file-";

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum FilePurpose {
    /// The input of a batch.
    Batch,
    /// The output or the errors of a batch. Clients cannot create one.
    BatchOutput,
    /// Anything else of a client.
    UserData,
}

came_with!(FilePurpose, FILE_PURPOSES, {
    5: FilePurpose::Batch | FilePurpose::BatchOutput | FilePurpose::UserData,
});

/// A file as its creator described it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSpec {
    /// Its namespace, which must exist.
    pub namespace: String,
    /// The id of the API key for which it counts; empty: none.
    pub key: String,
    /// Its name. Informational only.
    pub filename: String,
    /// What it is for.
    pub purpose: FilePurpose,
    /// For how long it is kept, in ledger time from its creation; 0: until it is deleted.
    pub ttl_ms: u64,
}

impl FileSpec {
    pub(super) fn check(&self) -> Result<(), Rejection> {
        if !self.key.is_empty() {
            check_name("key's", &self.key)?;
        }
        if !(1..=limits::FILENAME_BYTES_MAX).contains(&self.filename.len()) {
            let max = limits::FILENAME_BYTES_MAX;
            return Err(Rejection::Invalid(format!("a filename has 1 to {max} bytes")));
        }
        if self.ttl_ms != 0 && !limits::FILE_TTL_MS.contains(&self.ttl_ms) {
            let (min, max) = (limits::FILE_TTL_MS.start(), limits::FILE_TTL_MS.end());
            return Err(Rejection::Invalid(format!("a file is kept for {min} to {max} ms")));
        }
        Ok(())
    }

    /// When a file that is created now ends.
    pub(super) fn ends_at(&self, now: LedgerMs) -> Option<LedgerMs> {
        (self.ttl_ms != 0).then(|| LedgerMs(now.0.saturating_add(self.ttl_ms)))
    }
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiFile {
    /// Its description.
    pub spec: FileSpec,
    /// Hash of the idempotency key with which it was created. A second file of the namespace never has the same one.
    pub request: Option<[u8; 16]>,
    /// Its content.
    pub content: Vec<Extent>,
    /// The length of its content in bytes.
    pub bytes: u64,
    /// Wall time of its creation, in milliseconds since 1970. Informational only.
    pub created_ms: u64,
    /// When it is deleted, in ledger time.
    pub ends_at: Option<LedgerMs>,
    /// Batches that have not ended and use it.
    pub users: u32,
}

impl ApiFile {
    /// When it expires, unless it is used longer.
    pub(super) fn due(&self) -> Option<LedgerMs> {
        self.ends_at.filter(|_| self.users == 0)
    }
}
