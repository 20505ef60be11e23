//! Owns: the finished rows of one earlier revision.
//!
//! Invariant: a row counts as finished if the ledger names its result and no failure; segments have the digests that
//! the ledger keeps. No result of a lost segment is reused.
//! Absent: the results' bytes.

use std::collections::HashMap;

use futures::StreamExt;
use rollout_proto::{Client, v1};
use rollout_storage::{BlobError, BlobStore, Segment};

use super::join::{Items, RowLocation, temporary};
use crate::export;
use crate::export::parts::{PartCache, digest_of, fetch};
use crate::submission::error::BatchError;

/// Segments that are fetched concurrently.
const SEGMENTS_AHEAD: usize = 4;

/// An earlier revision that has ended.
#[derive(Debug)]
pub struct Source {
    /// The run.
    pub described: v1::DescribeRunResponse,
    /// Where its objects are.
    pub store: BlobStore,
}

/// The parts of an earlier revision.
#[derive(Debug)]
pub(super) struct SourceParts {
    pub(super) parts: Vec<v1::BlobRef>,
    pub(super) cache: PartCache,
}

impl Source {
    /// Records every finished item; `rank` is this source's number, the latest being first.
    pub(super) async fn read(
        self,
        client: &Client,
        rank: u16,
        cache_bytes: u64,
        items: &mut Items,
    ) -> Result<SourceParts, BatchError> {
        let (store, mut parts, mut numbers) = (&self.store, Vec::new(), HashMap::new());
        let listing = export::listing(client, store, &self.described).await?;
        let listed = listing.segments.map(|listed| async {
            let listed = listed?;
            let any = listed.parts.iter().any(|part| *part > 0);
            let segment = if any { input(store, &listed).await? } else { None };
            Ok::<_, BatchError>((listed, segment))
        });
        let mut segments = std::pin::pin!(listed.buffered(SEGMENTS_AHEAD));
        while let Some(next) = segments.next().await {
            let (listed, Some(segment)) = next? else { continue };
            let global: Vec<u32> = listed
                .part_table
                .iter()
                .map(|blob| {
                    *numbers.entry(blob.digest.clone()).or_insert_with(|| {
                        parts.push(blob.clone());
                        parts.len() as u32 - 1
                    })
                })
                .collect();
            let mut failed = listed.failures.iter().map(|failure| failure.row).peekable();
            let outcomes = listed.parts.iter().zip(&listed.part_rows);
            for ((row, of), (part, part_row)) in
                (listed.first_row..).zip(segment.rows()).zip(outcomes)
            {
                if failed.next_if_eq(&row).is_some() || *part == 0 {
                    continue;
                }
                let Some(part) = global.get(*part as usize - 1) else { continue };
                let location = RowLocation { source: rank, row, part: *part, part_row: *part_row };
                items.finished(&of.item_id, location).map_err(temporary)?;
            }
        }
        Ok(SourceParts { parts, cache: PartCache::new(self.store.clone(), cache_bytes) })
    }
}

/// The rows of a segment; `None` if its bytes are lost.
async fn input(
    store: &BlobStore,
    listed: &v1::ReadResultsResponse,
) -> Result<Option<Segment>, BatchError> {
    let Some(blob) = &listed.blob else { return Ok(None) };
    let Ok(digest) = digest_of(blob) else { return Ok(None) };
    match fetch(store, &blob.key, &digest).await {
        Ok(bytes) => Ok(Segment::decode(bytes).ok()),
        Err(BlobError::Missing { .. } | BlobError::Corrupt { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
