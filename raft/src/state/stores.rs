//! Owns: the durable parts of a member, its log and its image, and where they are in its data directory.
//!
//! Invariant: whatever uses a store keeps its guard, which tells when both are closed.
//! Absent: what the stores contain.

use std::path::Path;
use std::sync::Arc;

use rollout_ledger::seeded::{Bug, seeded};
use rollout_storage::{ImageStore, LogOptions, RaftLog};

use crate::errors::OpenError;

/// The name of the log's directory below the data directory.
pub(crate) const LOG_DIR: &str = "log";
/// The name of the image's directory below the data directory.
pub(crate) const IMAGE_DIR: &str = "image";

/// The durable parts of a member, open. Clones share them.
#[derive(Clone)]
pub(crate) struct Stores {
    pub(crate) log: RaftLog,
    pub(crate) image: ImageStore,
    /// Held, and dropped last, by whatever holds a store: gone when both are closed.
    pub(crate) open: Arc<StoresOpen>,
}

/// A guard for the open stores of a member.
pub(crate) struct StoresOpen;

impl Stores {
    /// Opens, or creates, both stores. Blocks.
    pub(crate) fn open(dir: &Path) -> Result<Self, OpenError> {
        let log = RaftLog::open(
            &dir.join(LOG_DIR),
            LogOptions { unsafe_no_fsync: seeded(Bug::AckBeforeFsync), ..LogOptions::default() },
        )?;
        let image = ImageStore::open(&dir.join(IMAGE_DIR))?;
        Ok(Self { log, image, open: Arc::new(StoresOpen) })
    }
}
