//! The objects behind segments and parts: named only, or really written.
//!
//! Invariant: with blobs, an object is durable before the ledger learns of it, as in production.
//! Absent: reading them back; no engine runs here.

use anyhow::Context as _;
use bytes::Bytes;
use rollout_proto::v1;
use rollout_storage::{
    BlobStore, PartRow, PartRowKind, PartWriter, SegmentWriter, part_key, segment_key,
};

use super::load::NAMESPACE;

/// Bytes of a row with blobs: the prompts for which the submit figures are stated.
const BODY_BYTES: usize = 200;
/// Bytes that a part of synthetic rows claims to have for each.
const PART_ROW_BYTES: u64 = 120;

/// How objects are made.
#[derive(Debug, Clone)]
pub(in crate::bench) enum Objects {
    /// Only digests, except the first segment of a run, which is in the cluster's store: by it members recognize the
    /// store.
    Named(BlobStore),
    /// Segments and parts in the cluster's store.
    Written(BlobStore),
}

impl Objects {
    /// One segment of a run.
    pub(in crate::bench) async fn segment(
        &self,
        (namespace, folder): (&str, &str),
        number: u32,
        rows: u32,
    ) -> anyhow::Result<v1::BlobRef> {
        let store = match self {
            Self::Written(store) => store,
            Self::Named(store) => {
                let segment = synthetic_segment((namespace, folder), number, rows);
                if number == 0 {
                    store.put(&segment.key, Bytes::from_static(b"no rows")).await?;
                }
                return Ok(segment);
            }
        };
        let mut writer = SegmentWriter::new();
        let mut body = vec![b'x'; BODY_BYTES];
        let mut item = [0; 32];
        for row in 0..rows {
            let line = u64::from(number) * 4096 + u64::from(row);
            let digits = format!("{{\"prompt\":\"{line:012} ");
            body[..digits.len()].copy_from_slice(digits.as_bytes());
            body[BODY_BYTES - 2..].copy_from_slice(b"\"}");
            item[..8].copy_from_slice(&line.to_le_bytes());
            writer.push(item, line, &body).ok().context("a segment is full too early")?;
        }
        let bytes = writer.finish();
        let key = segment_key(namespace, folder, blake3::hash(&bytes).as_bytes());
        put(store, &key, bytes).await
    }

    /// One part with the rows of `sets`; `unique` is never the same twice.
    pub(in crate::bench) async fn part(
        &self,
        folder: &str,
        sets: &[v1::HeldRows],
        unique: [u64; 4],
    ) -> anyhow::Result<v1::BlobRef> {
        let Self::Written(store) = self else {
            return Ok(named_part((NAMESPACE, folder), sets, unique));
        };
        let body = [b'y'; BODY_BYTES];
        let mut writer = PartWriter::new();
        for set in sets {
            for row in set.rows.iter().flat_map(v1::Rows::iter) {
                let kind = PartRowKind::Completed;
                let row = PartRow { row, attempt: set.attempt, kind, body: &body };
                writer.push(row).ok().context("a part is full too early")?;
            }
        }
        let bytes = writer.finish();
        let key = part_key(NAMESPACE, folder, blake3::hash(&bytes).as_bytes());
        put(store, &key, bytes).await
    }
}

/// The reference of an unwritten part; `unique` is never the same twice.
pub(in crate::bench) fn named_part(
    (namespace, folder): (&str, &str),
    sets: &[v1::HeldRows],
    unique: [u64; 4],
) -> v1::BlobRef {
    let mut digest = [0; 32];
    for (bytes, number) in digest.chunks_exact_mut(8).zip(unique) {
        bytes.copy_from_slice(&number.to_le_bytes());
    }
    let rows: u64 = sets.iter().flat_map(|set| &set.rows).map(v1::Rows::count).sum();
    v1::BlobRef {
        key: part_key(namespace, folder, &digest),
        digest: Bytes::copy_from_slice(&digest),
        bytes: rows * PART_ROW_BYTES,
    }
}

/// The reference of an unwritten segment.
fn synthetic_segment((namespace, folder): (&str, &str), number: u32, rows: u32) -> v1::BlobRef {
    let mut hasher = blake3::Hasher::new();
    hasher.update(folder.as_bytes()).update(&number.to_le_bytes());
    let digest = *hasher.finalize().as_bytes();
    v1::BlobRef {
        key: segment_key(namespace, folder, &digest),
        digest: digest.to_vec().into(),
        bytes: u64::from(rows) * 250,
    }
}

async fn put(store: &BlobStore, key: &str, bytes: Bytes) -> anyhow::Result<v1::BlobRef> {
    let blob = store.put(key, bytes).await?;
    Ok(v1::BlobRef { key: blob.key, digest: Bytes::copy_from_slice(&blob.digest), bytes: blob.len })
}
