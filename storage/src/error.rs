//! Owns: the errors of durable storage.
//!
//! Invariant: every error names its file or object, and says whether a retry can help.
//! Absent: recovery. A corrupt file is never repaired or skipped here; the text says how to rebuild the member.

use std::io;
use std::path::{Path, PathBuf};

use crate::blob::BlobError;
use crate::space::means_no_space;

/// An error with bytes on this host's disk, or in the object store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The operating system refused an operation on a file.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What was attempted, as a verb phrase.
        action: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// RocksDB refused an operation for a reason other than corruption.
    #[error("{}: rocksdb: {message}", path.display())]
    Rocks {
        /// The database's directory.
        path: PathBuf,
        /// RocksDB's own text.
        message: String,
    },
    /// Bytes on disk differ from those written. The member must stop and must not vote.
    #[error(
        "{}: corrupt: {what}; stop this member and replace it under a new id (see docs/operating/rebuild.md)",
        path.display()
    )]
    Corrupt {
        /// The file, or the directory of the database.
        path: PathBuf,
        /// Which record, and what is wrong with it.
        what: String,
    },
    /// A directory belongs to another owner than the configuration says.
    #[error(
        "{}: {what} is {found} on disk but {expected} in the configuration; point the configuration at \
         the right directory, or give this member an empty one and join it under a new id",
        path.display()
    )]
    Mismatch {
        /// The file with the value on disk.
        path: PathBuf,
        /// The value's name.
        what: &'static str,
        /// The value on disk.
        found: String,
        /// The configured value.
        expected: String,
    },
    /// A caller broke the order of log indexes; nothing was written.
    #[error("{}: log index {given} is out of order, {expected} is next", path.display())]
    OutOfOrder {
        /// The log's directory.
        path: PathBuf,
        /// The only index that can be written next.
        expected: u64,
        /// The index that was given.
        given: u64,
    },
    /// An argument, or bytes from a peer, are outside the bounds of what can be stored; nothing was changed.
    #[error("{}: refused: {what}", path.display())]
    Refused {
        /// The intended file or directory.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The object store failed.
    #[error(transparent)]
    Blob(#[from] BlobError),
}

impl StorageError {
    /// Whether the bytes on disk are damaged, so that only a rebuild helps.
    pub fn is_corrupt(&self) -> bool {
        matches!(self, Self::Corrupt { .. })
    }

    /// Whether the disk, or the writer's quota on it, is full.
    pub fn is_no_space(&self) -> bool {
        match self {
            Self::Io { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            // RocksDB has no error kind for this, but the system's text is in the message.
            Self::Rocks { message, .. } => means_no_space(message),
            _ => false,
        }
    }

    pub(crate) fn corrupt(path: &Path, what: impl Into<String>) -> Self {
        Self::Corrupt { path: path.to_owned(), what: what.into() }
    }

    #[cfg(feature = "rocksdb")]
    pub(crate) fn refused(path: &Path, what: impl Into<String>) -> Self {
        Self::Refused { path: path.to_owned(), what: what.into() }
    }

    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, action, source }
    }

    #[cfg(feature = "rocksdb")]
    pub(crate) fn rocks(path: &Path) -> impl Fn(rocksdb::Error) -> Self {
        let path = path.to_owned();
        move |error| match error.kind() {
            rocksdb::ErrorKind::Corruption => {
                Self::Corrupt { path: path.clone(), what: error.into_string() }
            }
            _ => Self::Rocks { path: path.clone(), message: error.into_string() },
        }
    }
}

/// Bytes that are not an object of the expected format. The error does not name their source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The bytes do not begin with the format's magic number.
    #[error("not a {expected} object")]
    Magic {
        /// The format that was expected.
        expected: &'static str,
    },
    /// The format version is newer than this program, or was never used.
    #[error("format version {found} is unknown, this program reads up to {supported}")]
    Version {
        /// The version in the bytes.
        found: u8,
        /// The newest version that this program reads.
        supported: u8,
    },
    /// The checksum does not match the bytes.
    #[error("checksum mismatch")]
    Checksum,
    /// The bytes contradict themselves.
    #[error("malformed: {0}")]
    Malformed(&'static str),
}
