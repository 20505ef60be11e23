//! Owns: the errors of a snapshot file.
//!
//! Invariant: the text names the file, the error and the remedy.
//! Absent: repair. An incomplete file is useless.

use std::io;
use std::path::PathBuf;

/// A snapshot file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct SnapshotFileError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    #[source]
    pub problem: SnapshotProblem,
}

/// What is wrong with a snapshot file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotProblem {
    /// It is another kind of file.
    #[error("this is not a rollout snapshot")]
    Foreign,
    /// A newer program wrote it.
    #[error(
        "the snapshot has format {found}, this program reads up to {supported}: use the program that wrote it, or a newer one"
    )]
    Newer {
        /// The file's version.
        found: u32,
        /// The newest version that this program reads.
        supported: u32,
    },
    /// It is truncated.
    #[error(
        "the snapshot is cut short: it ends after {bytes} bytes, in the middle of {what}; copy it again, or take another"
    )]
    Truncated {
        /// Its length.
        bytes: u64,
        /// The part that is missing.
        what: &'static str,
    },
    /// Bytes changed since it was written.
    #[error("the snapshot is damaged at byte {at}: {what}; copy it again, or take another")]
    Damaged {
        /// The offset at which the damage was noticed.
        at: u64,
        /// The part that does not match.
        what: String,
    },
    /// It cannot be read.
    #[error("cannot read: {0}")]
    Io(io::Error),
}
