//! Owns: reading a snapshot's files in pieces.
//!
//! Invariant: every file yields at least one piece, so that an empty file arrives too.
//! Absent: where the pieces go.

use std::fs::File;
use std::io::Read;

use rollout_storage::{ImageStore, Manifest, Snapshot, Staged, StorageError};

/// Bytes in one piece.
pub(crate) const PIECE_BYTES: usize = 1 << 20;

/// Calls `each` with name, offset and bytes of every piece, in order, until it fails. Blocks.
pub(crate) fn for_each_piece<E: From<StorageError>>(
    snapshot: &Snapshot,
    manifest: &Manifest,
    mut each: impl FnMut(&str, u64, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut buffer = vec![0; PIECE_BYTES];
    for file in &manifest.files {
        let path = snapshot.dir().join(&file.name);
        let failed = |source| StorageError::Io { path: path.clone(), action: "read", source };
        let mut from = File::open(&path).map_err(failed)?;
        let mut offset = 0;
        loop {
            let read = from.read(&mut buffer).map_err(failed)?;
            if read == 0 && offset > 0 {
                break;
            }
            each(&file.name, offset, &buffer[..read])?;
            if read == 0 {
                break;
            }
            offset += read as u64;
        }
    }
    Ok(())
}

/// Stages a snapshot taken on this host, as if it had been received. Blocks.
pub(crate) fn stage_copy(image: &ImageStore, taken: &Snapshot) -> Result<Staged, StorageError> {
    let manifest = taken.manifest()?;
    let staging = image.stage()?;
    for_each_piece(taken, &manifest, |name, offset, bytes| {
        staging.write_file(name, offset, bytes)
    })?;
    staging.finish(&manifest)
}
