//! An upload: a file whose parts arrive in any order.
//!
//! *Invariant:* only a pending upload has parts. Its completion moves those that are named into a file, and those that are
//! not to what is removed. An upload is forgotten [`limits::UPLOAD_TTL_MS`] after its creation, whatever its state, so a
//! repeat of the last request until then gets the same answer.
//!
//! Absent: the file of a completed upload, whose id follows from that of the upload.

use crate::kernel::id::LedgerMs;
use crate::openai::content::Extent;
use crate::openai::file::{FILE_ID_PREFIX, FileSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The prefix of the id of an upload.
pub const UPLOAD_ID_PREFIX: &str = "upload_";
/// The prefix of the id of a part. The letters and digits of its upload's id follow, then its own.
pub const PART_ID_PREFIX: &str = "part_";
/// Letters and digits of an upload's id. All have as many, so that the id of a part shows which upload it belongs to.
pub const UPLOAD_ID_DRAWN: usize = 32;

/// What became of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UploadState {
    /// It accepts parts.
    Pending,
    /// It is a file.
    Completed,
    /// It was cancelled.
    Cancelled,
}

impl UploadState {
    /// Its name in OpenAI's API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Completed => "completed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// An upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upload {
    /// The file that it becomes.
    pub spec: FileSpec,
    /// How many bytes that file has.
    pub bytes: u64,
    /// Wall time of its creation, in milliseconds since 1970. Informational only.
    pub created_ms: u64,
    /// When it is forgotten, in ledger time.
    pub ends_at: LedgerMs,
    /// Its state.
    pub state: UploadState,
    /// Its parts by id, while it is pending.
    pub parts: BTreeMap<String, Extent>,
}

impl Upload {
    /// Bytes of its parts.
    pub(super) fn received(&self) -> u64 {
        self.parts.values().map(Extent::bytes).sum()
    }

    /// Pieces of its parts.
    pub(super) fn pieces(&self) -> u64 {
        self.parts.values().map(|part| part.pieces.len() as u64).sum()
    }
}

/// The letters and digits of an upload's id.
fn drawn(upload: &str) -> &str {
    upload.strip_prefix(UPLOAD_ID_PREFIX).unwrap_or_default()
}

/// The id of the file that an upload becomes.
pub fn file_of_upload(upload: &str) -> String {
    format!("{FILE_ID_PREFIX}{}", drawn(upload))
}

/// The id of a part of an upload. `own` distinguishes it from the others: letters and digits.
pub fn part_of_upload(upload: &str, own: &str) -> String {
    format!("{PART_ID_PREFIX}{}{own}", drawn(upload))
}

/// The id of the upload to which a part belongs.
pub(super) fn upload_of_part(part: &str) -> Option<String> {
    let drawn = part.strip_prefix(PART_ID_PREFIX)?.get(..UPLOAD_ID_DRAWN)?;
    Some(format!("{UPLOAD_ID_PREFIX}{drawn}"))
}

/// Whether an id is one of a part of this upload.
pub(super) fn is_part_of(part: &str, upload: &str) -> bool {
    let own = part.strip_prefix(PART_ID_PREFIX).and_then(|part| part.strip_prefix(drawn(upload)));
    own.is_some_and(|own| !own.is_empty())
}
