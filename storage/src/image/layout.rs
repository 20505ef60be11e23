//! Owns: the names below an image's root, and which of them counts.
//!
//! Layout: `CURRENT` (the live image's name), `image-<n>/` (`db/` and `SYNCED`), `snapshots/<n>/`, and the unfinished
//! `staging-<n>/`, `snapshots/tmp-<n>`. Numbers only grow.
//! Invariant: `CURRENT` changes by one rename, after everything it names is durable. An image that it does not name is
//! a leftover, which the next opening removes.
//! Absent: opening databases, except for the check for an unfinished first creation.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::StorageError;
use crate::{durable, record};

const CONTEXT: &[u8] = b"image/CURRENT";
const IMAGE: &str = "image-";
const STAGING: &str = "staging-";
const TEMPORARY: &str = "tmp-";

pub(super) struct Layout {
    root: PathBuf,
    next: AtomicU64,
}

impl Layout {
    pub(super) fn open(root: &Path) -> Result<Self, StorageError> {
        durable::create_dir_all(&root.join("snapshots"))?;
        let layout = Self { root: root.to_owned(), next: AtomicU64::new(1) };
        let mut highest = 0;
        for name in names(root)?.into_iter().chain(names(&layout.snapshots())?) {
            let digits = name.rsplit('-').next().unwrap_or_default();
            highest = highest.max(digits.parse().unwrap_or(0));
        }
        layout.next.store(highest + 1, Ordering::Relaxed);
        Ok(layout)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The live image's directory; `None` if none was ever completed.
    pub(super) fn current(&self) -> Result<Option<PathBuf>, StorageError> {
        let path = self.root.join("CURRENT");
        let Some(bytes) = durable::read_optional(&path)? else { return Ok(None) };
        let name = record::open(CONTEXT, &bytes)
            .ok()
            .and_then(|payload| std::str::from_utf8(payload).ok())
            .filter(|name| name.starts_with(IMAGE) && !name.contains('/'))
            .ok_or_else(|| {
                StorageError::corrupt(&path, "the pointer to the image is unreadable")
            })?;
        let dir = self.root.join(name);
        if !dir.is_dir() {
            return Err(StorageError::corrupt(&path, format!("it names {name}, which is missing")));
        }
        Ok(Some(dir))
    }

    /// Creates the first, empty image. If there are images without a pointer and none was ever written, an earlier
    /// creation was interrupted; anything else is damage.
    pub(super) fn create_first(&self) -> Result<PathBuf, StorageError> {
        for name in names(&self.root)? {
            let dir = self.root.join(&name);
            if !name.starts_with(IMAGE) {
                continue;
            }
            let (db, _) = super::open_image(&dir)?;
            if db.latest_sequence_number() > 0 {
                let path = self.root.join("CURRENT");
                return Err(StorageError::corrupt(&path, format!("missing beside a used {name}")));
            }
        }
        let dir = self.next_image();
        drop(super::open_image(&dir)?);
        self.point_to(&dir)?;
        Ok(dir)
    }

    /// Makes `dir` the live image, durably.
    pub(super) fn point_to(&self, dir: &Path) -> Result<(), StorageError> {
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        durable::write_atomic(&self.root.join("CURRENT"), &record::seal(CONTEXT, name.as_bytes()))
    }

    pub(super) fn next_image(&self) -> PathBuf {
        self.root.join(format!("{IMAGE}{:06}", self.next_number()))
    }

    pub(super) fn next_staging(&self) -> PathBuf {
        self.root.join(format!("{STAGING}{:06}", self.next_number()))
    }

    /// The directory in which a snapshot is made, and its final name.
    pub(super) fn next_snapshot(&self) -> (PathBuf, PathBuf) {
        let number = self.next_number();
        let dir = self.snapshots();
        (dir.join(format!("{TEMPORARY}{number:06}")), dir.join(format!("{number:06}")))
    }

    /// The newest complete snapshot. Removes older ones, which no handle uses yet.
    pub(super) fn latest_snapshot(&self) -> Result<Option<PathBuf>, StorageError> {
        let dir = self.snapshots();
        let mut numbers: Vec<(u64, String)> =
            names(&dir)?.into_iter().filter_map(|name| Some((name.parse().ok()?, name))).collect();
        numbers.sort_unstable();
        let latest = numbers.pop();
        for (_, name) in numbers {
            durable::remove_dir_all(&dir.join(name))?;
        }
        Ok(latest.map(|(_, name)| dir.join(name)))
    }

    /// Removes what interrupted installations and snapshots left.
    pub(super) fn remove_leftovers(&self, live: &Path) -> Result<(), StorageError> {
        for name in names(&self.root)? {
            let dir = self.root.join(&name);
            if (name.starts_with(IMAGE) || name.starts_with(STAGING)) && dir != live {
                tracing::info!(dir = %dir.display(), "removing the rest of an interrupted installation");
                durable::remove_dir_all(&dir)?;
            }
        }
        for name in names(&self.snapshots())? {
            if name.starts_with(TEMPORARY) {
                durable::remove_dir_all(&self.snapshots().join(name))?;
            }
        }
        Ok(())
    }

    /// Removes a replaced image. If that fails now, the next opening does it.
    pub(super) fn remove_image(&self, dir: &Path) {
        if let Err(error) = durable::remove_dir_all(dir) {
            tracing::warn!(%error, "cannot remove a replaced image, it stays until the next start");
        }
    }

    /// Removes an image whose installation failed, unless the failure came after the pointer moved.
    pub(super) fn remove_image_unless_current(&self, dir: &Path) {
        match self.current() {
            Ok(current) if current.as_deref() != Some(dir) => self.remove_image(dir),
            _ => tracing::warn!(dir = %dir.display(), "keeping an image that failed to install"),
        }
    }

    fn snapshots(&self) -> PathBuf {
        self.root.join("snapshots")
    }

    fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

fn names(dir: &Path) -> Result<Vec<String>, StorageError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(StorageError::io(dir, "list"))? {
        let entry = entry.map_err(StorageError::io(dir, "list"))?;
        names.push(entry.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names)
}
