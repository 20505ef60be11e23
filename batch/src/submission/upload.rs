//! Owns: the one pass that checks an input and makes its segments durable in the store.
//!
//! Segments are written while the input is still read, under names that nothing refers to yet; the run is created once
//! the whole input is valid. Objects of an invalid input belong to no run and are garbage-collected.
//! Invariant: at most [`PUTS_MAX`] puts and [`QUEUE_MAX`] segments wait, and declarations are in order.
//! Absent: the cluster.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use rollout_proto::v1;
use rollout_storage::{BlobError, BlobStore, segment_key};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::error::BatchError;
use crate::input::files::InputFile;
use crate::input::rules::Rules;
use crate::input::scan::{
    FinishedSegment, Scan, ScanControl, ScanError, ScanOptions, SinkClosed, scan,
};
use crate::retries::retried;

/// Segments written concurrently.
pub const PUTS_MAX: usize = 8;
/// Finished segments that wait to be written.
pub const QUEUE_MAX: usize = 4;

/// An input whose segments are durable.
#[derive(Debug, Clone)]
pub struct Uploaded {
    /// The result of reading it. If it has errors, segments are missing.
    pub scan: Scan,
    pub segments: Vec<v1::SegmentDecl>,
}

impl Uploaded {
    /// blake3 over the segments' digests in order.
    pub fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        for segment in &self.segments {
            hasher.update(segment.blob.as_ref().map_or(&[], |blob| &blob.digest));
        }
        *hasher.finalize().as_bytes()
    }
}

/// Where segments go.
#[derive(Debug, Clone)]
pub struct Destination {
    pub store: BlobStore,
    pub namespace: String,
    /// The folder of the run's objects within that.
    pub folder: String,
}

/// Reads the whole input without writing anything.
pub async fn check(
    files: Vec<InputFile>,
    rules: Rules,
    options: ScanOptions,
    control: Arc<ScanControl>,
) -> Result<Scan, BatchError> {
    let work = move || scan(&files, &rules, &options, &control, None);
    Ok(tokio::task::spawn_blocking(work).await.unwrap_or(Err(ScanError::Stopped))?)
}

/// Reads the whole input without writing anything, and passes on each segment as long as there is no error.
pub async fn check_each(
    files: Vec<InputFile>,
    rules: Rules,
    options: ScanOptions,
    control: Arc<ScanControl>,
    mut each: impl FnMut(FinishedSegment) -> Result<(), SinkClosed> + Send + 'static,
) -> Result<Scan, BatchError> {
    let work = move || scan(&files, &rules, &options, &control, Some(&mut each));
    Ok(tokio::task::spawn_blocking(work).await.unwrap_or(Err(ScanError::Stopped))?)
}

/// Reads the whole input and returns the digests of the segments that it would make, without writing anything.
pub async fn fingerprint(
    files: Vec<InputFile>,
    rules: Rules,
    options: ScanOptions,
    control: Arc<ScanControl>,
) -> Result<(Scan, Vec<[u8; 32]>), BatchError> {
    let work = move || {
        let mut digests = Vec::new();
        let mut sink = |segment: FinishedSegment| {
            digests.push(*blake3::hash(&segment.bytes).as_bytes());
            Ok(())
        };
        let scanned = scan(&files, &rules, &options, &control, Some(&mut sink));
        scanned.map(|scan| (scan, digests))
    };
    Ok(tokio::task::spawn_blocking(work).await.unwrap_or(Err(ScanError::Stopped))?)
}

/// Reads the whole input and writes its segments; `seen` gets each, in order, before it is written.
pub async fn upload(
    files: Vec<InputFile>,
    rules: Rules,
    options: ScanOptions,
    control: Arc<ScanControl>,
    destination: &Destination,
    mut seen: impl FnMut(&FinishedSegment),
) -> Result<Uploaded, BatchError> {
    let (queue, finished) = mpsc::channel::<FinishedSegment>(QUEUE_MAX);
    let scanning = tokio::task::spawn_blocking(move || {
        let mut sink = |segment| queue.blocking_send(segment).map_err(|_| SinkClosed);
        scan(&files, &rules, &options, &control, Some(&mut sink))
    });
    let mut puts = ReceiverStream::new(finished)
        .map(|segment| {
            seen(&segment);
            put_segment(destination, segment)
        })
        .buffered(PUTS_MAX);
    let mut segments = Vec::new();
    let mut refused = None;
    while let Some(outcome) = puts.next().await {
        match outcome {
            Ok(segment) => segments.push(segment),
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    // Closes the queue, which ends the scan.
    drop(puts);
    let scan = scanning.await.unwrap_or(Err(ScanError::Stopped));
    match (refused, scan) {
        (Some(source), _) => {
            Err(BatchError::Upload { url: destination.store.url().to_owned(), source })
        }
        (None, scan) => Ok(Uploaded { scan: scan?, segments }),
    }
}

async fn put_segment(
    destination: &Destination,
    segment: FinishedSegment,
) -> Result<v1::SegmentDecl, BlobError> {
    let digest = *blake3::hash(&segment.bytes).as_bytes();
    let key = segment_key(&destination.namespace, &destination.folder, &digest);
    let blob = put(&destination.store, &key, segment.bytes).await?;
    Ok(v1::SegmentDecl { number: segment.number, rows: segment.rows, blob: Some(blob) })
}

/// Writes an object, with retries for transient errors.
pub async fn put(store: &BlobStore, key: &str, bytes: Bytes) -> Result<v1::BlobRef, BlobError> {
    let wire = |blob: rollout_storage::BlobRef| v1::BlobRef {
        key: blob.key,
        digest: blob.digest.to_vec().into(),
        bytes: blob.len,
    };
    retried(|| store.put(key, bytes.clone())).await.map(wire)
}

/// Copies an object to another key, which `blob` then names.
pub async fn move_to(
    store: &BlobStore,
    blob: &mut Option<v1::BlobRef>,
    key: impl FnOnce(&[u8; 32]) -> String,
) -> Result<(), BlobError> {
    let Some(named) = blob else { return Ok(()) };
    let digest = <[u8; 32]>::try_from(&named.digest[..]).unwrap_or_default();
    let bytes = store.get(&named.key, &digest).await?;
    *named = put(store, &key(&digest), bytes).await?;
    Ok(())
}
