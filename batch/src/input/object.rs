//! Owns: files of an input that are objects of a store: `s3://`, `gs://`, `az://`.
//!
//! Invariant: at most [`PIECES_AHEAD`] pieces are in memory. A piece whose connection breaks is requested again, and
//! all pieces come from the version of the object that was found first.
//! Absent: the objects' contents.

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use futures::StreamExt;
use rollout_storage::{BlobError, ObjectSource, SourceObject};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::files::{FILES_MAX, FilesError, InputFile};
use super::glob::{Glob, has_glob};
use crate::retries::retried;

/// Bytes per request.
const PIECE_BYTES: u64 = 2 << 20;
/// Pieces in memory: one that is read, one that waits, and those in flight.
const PIECES_AHEAD: usize = 6;

/// An object and the store that it is in.
pub(super) struct InputObject {
    source: ObjectSource,
    object: SourceObject,
    /// The runtime that fetches its pieces, because readers are threads.
    runtime: Handle,
}

/// The objects that a URL names, whose path may be a glob.
pub(super) async fn find(pattern: &str) -> Result<Vec<InputFile>, FilesError> {
    let failed = |source| FilesError::Store { pattern: pattern.to_owned(), source };
    let (source, key) = ObjectSource::open(pattern).map_err(failed)?;
    let found = match key.find(['*', '?', '[']) {
        None => match source.head(&key).await {
            Ok(object) => vec![object],
            Err(BlobError::Missing { .. }) => Vec::new(),
            Err(error) => return Err(failed(error)),
        },
        Some(at) => {
            let glob = Glob::parse(&key)?;
            let wanted = |key: &str| glob.matches(key);
            source.list(&key[..at], FILES_MAX, wanted).await.map_err(failed)?
        }
    };
    debug_assert!(has_glob(&key) || found.len() <= 1);
    let file = |object: SourceObject| {
        let (path, bytes) = (PathBuf::from(&object.url), object.bytes);
        let (source, runtime) = (source.clone(), Handle::current());
        InputFile { path, bytes, object: Some(Arc::new(InputObject { source, object, runtime })) }
    };
    Ok(found.into_iter().map(file).collect())
}

impl InputObject {
    /// Reads it from the beginning, in a thread that may block.
    pub(super) fn reader(self: &Arc<Self>) -> ObjectReader {
        let (pieces, arriving) = mpsc::channel(1);
        let this = Arc::clone(self);
        self.runtime.spawn(async move {
            let starts = (0..this.object.bytes).step_by(PIECE_BYTES as usize);
            let fetched = futures::stream::iter(starts)
                .map(|start| this.piece(start))
                .buffered(PIECES_AHEAD - 2);
            let mut fetched = std::pin::pin!(fetched);
            while let Some(piece) = fetched.next().await {
                // If the reader was dropped, stop fetching.
                if pieces.send(piece).await.is_err() {
                    return;
                }
            }
        });
        ObjectReader { arriving, piece: Bytes::new() }
    }

    async fn piece(&self, start: u64) -> Result<Bytes, BlobError> {
        let range = start..start.saturating_add(PIECE_BYTES);
        retried(|| self.source.read(&self.object, range.clone())).await
    }
}

/// An object that is being fetched.
pub(super) struct ObjectReader {
    arriving: mpsc::Receiver<Result<Bytes, BlobError>>,
    piece: Bytes,
}

impl Read for ObjectReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.arriving.blocking_recv() {
                Some(Ok(piece)) => self.piece = piece,
                Some(Err(error)) => return Err(io::Error::other(error)),
                None => return Ok(0),
            }
        }
        let len = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..len]);
        Ok(len)
    }
}
