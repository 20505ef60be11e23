//! Owns: writing the content of a file to the store in pieces, and reading it.
//!
//! Invariant: a writer holds at most two pieces in memory, whatever the length of the content. Content that no operation
//! may name is removed when its writer is dropped, so a lost connection leaves none. From [`Written::name`] on an
//! operation may name it: then only a definite refusal removes it. What is left after an unknown outcome, the garbage
//! collector removes (`gc::content`). A reader verifies the digest of each piece before it hands on a byte of it, and
//! reads only the pieces that its range touches.
//! Absent: records of files, which the ledger has.

use crate::openai::error::ApiError;
use crate::openai::state::ApiState;
use axum::http::StatusCode;
use bytes::{Bytes, BytesMut};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use rollout_ledger::id::LedgerMs;
use rollout_ledger::{BlobRef, Extent};
use rollout_storage::{BlobError, BlobStore, content_key, content_prefix, folder_mark};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Bytes of a piece, except for the last one of a content.
pub(super) const PIECE_BYTES: usize = 16 << 20;
/// Bytes of a buffer for a content that may be short.
const SHORT_BYTES: usize = 256 << 10;
/// Bytes that a reader hands on at a time, so that a slow caller's connection shows progress.
const CHUNK_BYTES: usize = 64 << 10;

/// Content that is being written.
pub(super) struct ContentWriter {
    folder: Arc<Folder>,
    buffer: BytesMut,
    /// The piece that is being stored.
    storing: Option<JoinHandle<Result<BlobRef, BlobError>>>,
    pieces: Vec<BlobRef>,
    bytes: u64,
    begun_at: LedgerMs,
}

/// Content that is durable.
pub(super) struct Written {
    folder: Arc<Folder>,
    /// What an operation names.
    pub(super) extent: Extent,
    /// Ledger time before the first byte was written, which the operation must have.
    pub(super) begun_at: LedgerMs,
}

/// Content that an operation may name.
pub(super) struct Named(Arc<Folder>);

/// The folder of one content. Its objects are removed once nothing writes there, unless an operation may name them.
struct Folder {
    store: BlobStore,
    namespace: String,
    name: String,
    may_be_named: AtomicBool,
    runtime: Handle,
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.may_be_named.load(Ordering::SeqCst) {
            return;
        }
        let (store, prefix) = (self.store.clone(), content_prefix(&self.namespace, &self.name));
        self.runtime.spawn(async move {
            if let Err(error) = remove(&store, &prefix).await {
                tracing::warn!(%error, prefix, "could not remove the content of a failed request; the sweep will");
            }
        });
    }
}

async fn remove(store: &BlobStore, prefix: &str) -> Result<(), BlobError> {
    for key in store.list(prefix).await? {
        store.delete(&key).await?;
    }
    store.prune(prefix).await
}

impl ContentWriter {
    /// Begins to write content for the object `id`, which no other content has.
    pub(super) fn begin(api: &ApiState, namespace: &str, id: &str) -> Self {
        let (cluster, begun_at) = api.ledger(|l| (l.cluster_id(), l.clock()));
        let mark = folder_mark(&format!("{:032x}", u128::from_be_bytes(cluster)));
        let folder = Arc::new(Folder {
            store: api.store.clone(),
            namespace: namespace.to_owned(),
            name: format!("{mark}{id}"),
            may_be_named: AtomicBool::new(false),
            runtime: Handle::current(),
        });
        let (buffer, storing, pieces) = (BytesMut::new(), None, Vec::new());
        Self { folder, buffer, storing, pieces, bytes: 0, begun_at }
    }

    /// Bytes so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends bytes. Waits while two pieces are full.
    ///
    /// # Errors
    /// The store refused a piece.
    pub(super) async fn push(&mut self, mut bytes: Bytes) -> Result<(), BlobError> {
        self.bytes += bytes.len() as u64;
        while !bytes.is_empty() {
            let room = PIECE_BYTES - self.buffer.len();
            let some = bytes.split_to(room.min(bytes.len()));
            self.reserve(some.len());
            self.buffer.extend_from_slice(&some);
            if self.buffer.len() == PIECE_BYTES {
                self.store_piece().await?;
            }
        }
        Ok(())
    }

    /// Room in the buffer: little for a short content, and otherwise a piece, so that the buffer never grows beyond one.
    fn reserve(&mut self, more: usize) {
        let needed = self.buffer.len() + more;
        if needed > self.buffer.capacity() {
            let room = if needed <= SHORT_BYTES { SHORT_BYTES } else { PIECE_BYTES };
            self.buffer.reserve(room - self.buffer.len());
        }
    }

    /// Waits until no piece is being stored. The writer then holds less than a piece.
    ///
    /// # Errors
    /// The store refused a piece.
    pub(super) async fn settle(&mut self) -> Result<(), BlobError> {
        self.stored().await
    }

    /// Stores the rest, and waits until all of it is durable.
    ///
    /// # Errors
    /// The store refused a piece.
    pub(super) async fn finish(mut self) -> Result<Written, BlobError> {
        if !self.buffer.is_empty() {
            self.store_piece().await?;
        }
        self.stored().await?;
        let Self { folder, pieces, begun_at, .. } = self;
        let extent = Extent { folder: folder.name.clone(), pieces };
        Ok(Written { folder, extent, begun_at })
    }

    async fn store_piece(&mut self) -> Result<(), BlobError> {
        self.stored().await?;
        let (piece, folder) = (self.buffer.split().freeze(), self.folder.clone());
        // A task of its own, which has the folder: if this request ends, the folder is removed after the task has ended.
        self.storing = Some(tokio::spawn(async move {
            let (digest, bytes) = (*blake3::hash(&piece).as_bytes(), piece.len() as u32);
            let key = content_key(&folder.namespace, &folder.name, &digest);
            folder.store.put(&key, piece).await?;
            Ok(BlobRef { digest, bytes })
        }));
        Ok(())
    }

    /// Waits for the piece that is being stored.
    async fn stored(&mut self) -> Result<(), BlobError> {
        let Some(storing) = self.storing.take() else { return Ok(()) };
        let stored = storing.await.unwrap_or_else(|error| {
            let key = self.folder.name.clone();
            Err(BlobError::Unavailable { key, reason: error.to_string() })
        });
        self.pieces.push(stored?);
        Ok(())
    }
}

impl Written {
    /// From now on an operation may name the content: call it before the operation is proposed.
    pub(super) fn name(self) -> (Extent, LedgerMs, Named) {
        self.folder.may_be_named.store(true, Ordering::SeqCst);
        (self.extent, self.begun_at, Named(self.folder))
    }
}

impl Named {
    /// No operation has named the content, and none will: removes it.
    pub(super) fn remove(self) {
        self.0.may_be_named.store(false, Ordering::SeqCst);
    }

    /// The operation failed: removes the content, unless the operation may take effect nevertheless.
    pub(super) fn failed(self, error: ApiError) -> ApiError {
        if !error.status().is_server_error() {
            self.remove();
        }
        error
    }
}

/// A range of the bytes of a content, which ends within it, as a stream.
pub(super) fn read(
    store: BlobStore,
    namespace: &str,
    content: &[Extent],
    range: Range<u64>,
) -> BoxStream<'static, Result<Bytes, BlobError>> {
    let mut at = 0;
    let mut pieces = Vec::new();
    for Extent { folder, pieces: of_folder } in content {
        for piece in of_folder {
            let end = at + u64::from(piece.bytes);
            // The part of the range in this piece, relative to its first byte.
            let part = range.start.clamp(at, end) - at..range.end.clamp(at, end) - at;
            if !part.is_empty() {
                let key = content_key(namespace, folder, &piece.digest);
                pieces.push((key, piece.clone(), part.start as usize..part.end as usize));
            }
            at = end;
        }
    }
    let read = stream::iter(pieces).then(move |(key, piece, part)| {
        let store = store.clone();
        async move {
            let bytes = store.get(&key, &piece.digest).await?;
            // The digest is right, and so is the length.
            let chunks = part.clone().step_by(CHUNK_BYTES).map(move |from| {
                Ok::<_, BlobError>(bytes.slice(from..part.end.min(from + CHUNK_BYTES)))
            });
            Ok::<_, BlobError>(stream::iter(chunks))
        }
    });
    read.try_flatten().boxed()
}

/// The error of a caller whose content the store does not take or give.
pub(super) fn store_error(error: &BlobError) -> ApiError {
    let status = StatusCode::SERVICE_UNAVAILABLE;
    match error {
        BlobError::Missing { .. } | BlobError::Corrupt { .. } => {
            tracing::error!(%error, "content of a file cannot be read");
            let message = "The content of the file cannot be read: it is missing or damaged.";
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "content_unreadable", message)
                .without_retry()
        }
        BlobError::NoSpace { .. } => {
            tracing::error!(%error, "the store is full");
            ApiError::new(status, "store_full", "The object store has no space left.")
        }
        _ => {
            tracing::warn!(%error, "the store failed a request of the HTTP API");
            ApiError::new(status, "store_unavailable", "The object store does not answer.")
        }
    }
}
