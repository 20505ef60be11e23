//! Owns: the file that `rolloutctl snapshot save` writes: one moment of a cluster's ledger, to be restored elsewhere.
//!
//! ```text
//! "ROLLSNAP" | version u32 | header: len u32, record | block: len u32, record | ... | 0 u32 | records u64 | blake3
//! ```
//!
//! Numbers are little endian. A record is an envelope of [`crate::record`], whose context is its offset in the file. The
//! header is JSON, so that a person who opens the file sees what it is. A block has records of the image in the order of
//! their keys, each `key len u32, value len u32, key, value`. The digest covers every byte before it.
//!
//! Invariant: if a reader reaches the end without an error, it has returned exactly the records that the writer got: a
//! changed, missing or additional byte is an error. The same records and header give the same bytes.
//! Absent: what records mean, and where the file goes.

mod error;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

use serde::{Deserialize, Serialize};

pub use self::error::{SnapshotFileError, SnapshotProblem};
pub use self::reader::{SnapshotFileReader, SnapshotSummary};
pub use self::writer::SnapshotFileWriter;
use crate::decimal;

/// The version of the written format. Older versions are read; newer ones are refused with an error that names the
/// version.
pub const SNAPSHOT_FILE_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"ROLLSNAP";
/// Size of the records after which a block is closed.
const BLOCK_BYTES: usize = 256 << 10;
/// The longest header or block that is accepted. A block exceeds [`BLOCK_BYTES`] by at most one record.
const LEN_MAX: usize = 256 << 20;
const DIGEST_BYTES: usize = 32;

/// The header of a snapshot file. Fields are only added; a reader skips unknown ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotHeader {
    /// The id of the cluster, 32 lower-case hex digits.
    pub cluster_id: String,
    /// The member that wrote it.
    pub member: String,
    /// The last log index that it includes.
    #[serde(with = "decimal")]
    pub index: u64,
    /// The term of that entry.
    #[serde(with = "decimal")]
    pub term: u64,
    /// When it was taken, in milliseconds since 1970.
    #[serde(with = "decimal")]
    pub taken_unix_ms: u64,
    /// The version that gates the cluster's commands and formats.
    pub cluster_version: u32,
    /// The program that wrote it.
    pub program: String,
    /// True if it was made from one member's directory, without a quorum: acknowledged changes may be missing.
    pub salvaged: bool,
    /// The members at that moment.
    pub members: Vec<SnapshotMember>,
}

/// A member of the cluster at the time of the snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotMember {
    /// Its name.
    pub name: String,
    /// The address at which other members reached it.
    pub peer_addr: String,
    /// The address at which workers and clients reached it.
    pub client_addr: String,
    /// Its zone, or empty.
    pub zone: String,
}
