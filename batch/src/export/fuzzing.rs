//! A segment's results without a cluster, for fuzz targets only.
//!
//! Invariant: the bytes take the same path as those of an export.
//! Absent: lists of segments; a target makes one.

use bytes::Bytes;
use futures::future;
use rollout_proto::v1;
use rollout_storage::BlobStore;

use super::Totals;
use super::format::{Lines, OutputFormat};
use super::owner;
use super::segment::Fetch;

/// Combines a segment's rows with their results, as an export does. `objects` supplies the blobs that the message
/// names, whatever their digests. Returns the number of rows.
///
/// # Errors
/// Why the segment is refused.
pub async fn results(
    mut listed: v1::ReadResultsResponse,
    objects: &[Bytes],
) -> Result<u64, String> {
    let store = BlobStore::open("memory://fuzz").map_err(|error| error.to_string())?;
    let mut stored = Vec::new();
    for bytes in objects {
        let key = blake3::hash(bytes).to_hex().to_string();
        stored.push(store.put(&key, bytes.clone()).await.map_err(|error| error.to_string())?);
    }
    if stored.is_empty() {
        return Err("there is no object".to_owned());
    }
    let openai = listed.number % 2 == 1;
    let texts = listed.failures.iter_mut().filter_map(|failure| failure.evidence.as_mut());
    let texts = texts.filter_map(|evidence| evidence.text.as_mut());
    let blobs = listed.blob.iter_mut().chain(&mut listed.part_table).chain(texts);
    for (position, blob) in blobs.enumerate() {
        let object = &stored[position % stored.len()];
        (blob.key, blob.digest) = (object.key.clone(), object.digest.to_vec().into());
    }
    let format = if openai { OutputFormat::OpenaiBatch } else { OutputFormat::Jsonl };
    let lines = Lines::new(&v1::RunSpec::default(), format).map_err(|error| error.to_string())?;
    let read = read(Fetch::new(store.clone(), lines, "r".to_owned(), true), listed).await;
    future::join_all(stored.iter().map(|object| store.delete(&object.key))).await;
    read
}

async fn read(fetch: Fetch, listed: v1::ReadResultsResponse) -> Result<u64, String> {
    let mut reading = fetch.begin(listed).await.map_err(|error| error.to_string())?;
    let mut totals = Totals::default();
    while let Some(piece) = reading.next().await.map_err(|error| error.to_string())? {
        totals.add(&piece);
    }
    Ok(totals.rows)
}

/// Reads the record of an output directory; returns the number of files that it names.
pub fn output_record(bytes: &[u8]) -> Option<usize> {
    owner::files_of_record(bytes)
}
