//! Owns: how a RocksDB is opened, for the log and for the image alike.
//!
//! Invariant: a database that opens holds everything that was ever acknowledged from it. Recovery stops at the first
//! bad record of the write-ahead log, so the surviving data is a prefix of the written data, even if a power loss kept
//! a newer log file and lost the tail of an older one. A comparison with the mark of the last fsync checks that the
//! prefix is long enough.
//! Absent: column families' contents, and tuning that only one of the two needs.

use std::path::{Path, PathBuf};

use rocksdb::{ColumnFamilyDescriptor, DB, DBRecoveryMode, Options};

use crate::durable;
use crate::error::StorageError;
use crate::sync_mark::SyncMark;

/// The database's directory within the directory that also holds its mark.
pub(crate) fn database_dir(dir: &Path) -> PathBuf {
    dir.join("db")
}

/// Options that both databases share.
pub(crate) fn base_options() -> Options {
    let mut options = Options::default();
    options.set_paranoid_checks(true);
    options.set_wal_recovery_mode(DBRecoveryMode::PointInTime);
    // A recycled log file has old records after the new ones, which no recovery mode can tell apart safely.
    options.set_recycle_log_file_num(0);
    options.set_track_and_verify_wals_in_manifest(true);
    // RocksDB's diagnostic log, which only people read: the latest is enough.
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(1 << 20);
    // The manifest lists every table that ever existed until it is rewritten.
    options.set_max_manifest_file_size(4 << 20);
    options
}

/// Written bytes in memory that are not in a table file yet.
pub(crate) fn write_buffer_bytes(db: &DB) -> u64 {
    // Informational only; if it is unavailable, 0.
    let stats = rocksdb::perf::get_memory_usage_stats(Some(&[db]), None);
    stats.map_or(0, |stats| stats.mem_table_total)
}

/// Opens the database in `dir`, and creates it if `dir` has neither database nor mark.
pub(crate) fn open(
    dir: &Path,
    options: &mut Options,
    families: Vec<ColumnFamilyDescriptor>,
) -> Result<(DB, SyncMark), StorageError> {
    durable::create_dir_all(dir)?;
    let mark = SyncMark::load(dir)?;
    let path = database_dir(dir);
    if mark.is_some() && !path.join("CURRENT").is_file() {
        return Err(StorageError::corrupt(&path, "the database is missing"));
    }
    // RocksDB creates its directory but does not sync the parent.
    durable::create_dir_all(&path)?;
    options.create_if_missing(mark.is_none());
    options.create_missing_column_families(mark.is_none());
    let db =
        DB::open_cf_descriptors(options, &path, families).map_err(StorageError::rocks(&path))?;
    let recovered = db.latest_sequence_number();
    match mark {
        Some((mark, synced)) if recovered >= synced => Ok((db, mark)),
        Some((_, synced)) => Err(StorageError::corrupt(
            &path,
            format!("writes up to {synced} were acknowledged, only {recovered} can be read back"),
        )),
        None if recovered == 0 => Ok((db, SyncMark::create(dir)?)),
        None => {
            Err(StorageError::corrupt(dir, "the file SYNCED is missing beside a used database"))
        }
    }
}
