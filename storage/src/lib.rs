//! Durable bytes.
//!
//! With the feature `rocksdb`, the stores of a member: [`RaftLog`], the log with its fsync thread, and [`ImageStore`],
//! the ledger's image with its snapshots. Without it, what every host needs: [`BlobStore`] with the two immutable
//! objects, [`Segment`] and [`Part`], a worker's [`Spool`], a directory's [`Identity`], and the file from which a
//! cluster is restored ([`SnapshotFileReader`]).
//!
//! This crate knows neither Raft nor the ledger. Its rules: acknowledged data is fsynced, every record has a version
//! and a checksum, a torn tail is cut, and any other damage is an error that is never skipped.

#![warn(missing_docs)]

pub mod record;

mod blob;
mod decimal;
mod durable;
mod error;
mod identity;
#[cfg(feature = "rocksdb")]
mod image;
#[cfg(feature = "rocksdb")]
mod log;
mod part;
#[cfg(feature = "rocksdb")]
mod rocks;
mod segment;
mod snapshot_file;
mod space;
mod spool;
#[cfg(feature = "rocksdb")]
mod sync_mark;
mod table;

pub use blob::{
    BLOB_BYTES_MAX, BlobError, BlobRef, BlobStore, CONTENT_ROOT, ObjectSource, SourceObject,
    checkpoint_key, checkpoint_prefix, content_key, content_prefix, evidence_key, folder_mark,
    manifest_key, part_key, run_folder, run_prefix, same_store, segment_key, training_prefix,
};
pub use error::{FormatError, StorageError};
pub use identity::Identity;
#[cfg(feature = "rocksdb")]
pub use image::{
    ImageBatch, ImageReader, ImageStore, Manifest, ManifestFile, Reclaim, Snapshot, Staged, Staging,
};
#[cfg(feature = "rocksdb")]
pub use log::{FsyncTimes, LogBounds, LogOptions, LogStats, RaftLog, SyncCallback};
pub use part::{
    PART_BYTES_CLOSE, PART_BYTES_MAX, PART_ROWS_CLOSE, PART_ROWS_MAX, Part, PartRow, PartRowKind,
    PartWriter,
};
pub use segment::{SEGMENT_BYTES_MAX, SEGMENT_ROWS_MAX, Segment, SegmentRow, SegmentWriter};
pub use snapshot_file::{
    SNAPSHOT_FILE_VERSION, SnapshotFileError, SnapshotFileReader, SnapshotFileWriter,
    SnapshotHeader, SnapshotMember, SnapshotProblem, SnapshotSummary,
};
pub use space::{NO_SPACE_EXIT, Space, end_without_space, means_no_space, space};
pub use spool::{SPOOL_BYTES_MAX, Spool, SpoolSync, SpooledRow};
pub use table::Full;
