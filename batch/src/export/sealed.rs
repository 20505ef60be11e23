//! Owns: the list of a sealed run's segments with their outcomes, read from its manifest.
//!
//! Invariant: the same messages in the same order as the leader listed before the run was sealed. The ledger keeps the
//! manifest's digest, and the manifest keeps those of its chunks.
//! Absent: bytes of rows.

use futures::{Stream, StreamExt, TryStreamExt, stream};
use prost::Message;
use rollout_proto::v1;
use rollout_storage::BlobStore;

use super::parts::{ObjectError, digest_of, fetch};
use crate::submission::error::BatchError;

const FORMAT: u32 = 1;

/// Reads the manifest that the ledger names.
pub(super) async fn manifest(
    store: &BlobStore,
    name: &str,
    blob: &v1::BlobRef,
) -> Result<v1::SealedRun, BatchError> {
    let sealed: v1::SealedRun = read(store, name, blob).await?;
    check(name, sealed.format)?;
    Ok(sealed)
}

/// Its segments, in order.
pub(super) fn segments<'a>(
    store: &'a BlobStore,
    name: String,
    chunks: Vec<v1::SealedChunk>,
) -> impl Stream<Item = Result<v1::ReadResultsResponse, BatchError>> + Send + 'a {
    let chunks = stream::iter(chunks).then(move |chunk| {
        let (name, blob) = (name.clone(), chunk.blob.unwrap_or_default());
        async move {
            let listed: v1::SealedSegments = read(store, &name, &blob).await?;
            check(&name, listed.format)?;
            Ok::<_, BatchError>(stream::iter(listed.segments.into_iter().map(Ok)))
        }
    });
    chunks.try_flatten()
}

async fn read<T: Message + Default>(
    store: &BlobStore,
    name: &str,
    blob: &v1::BlobRef,
) -> Result<T, BatchError> {
    let object = |error: ObjectError| match error {
        ObjectError::Store(error) => BatchError::Store(error),
        other => inconsistent(name, other.to_string()),
    };
    let digest = digest_of(blob).map_err(object)?;
    let bytes = fetch(store, &blob.key, &digest).await?;
    T::decode(bytes).map_err(|error| inconsistent(name, format!("object {}: {error}", blob.key)))
}

fn check(name: &str, format: u32) -> Result<(), BatchError> {
    match format {
        FORMAT => Ok(()),
        newer => Err(inconsistent(
            name,
            format!("its manifest has format {newer}, this version reads {FORMAT}"),
        )),
    }
}

fn inconsistent(name: &str, message: String) -> BatchError {
    BatchError::Inconsistent { name: name.to_owned(), message }
}
