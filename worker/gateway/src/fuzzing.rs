//! Reads a connection's bytes as the gateway does, for fuzz targets only.
//!
//! Invariant: reading ends at the end of the bytes or with an error.
//! Absent: the effects of requests.

use std::io;

use crate::wire::{self, Query};

/// Reads requests until the bytes end or are not a request.
///
/// # Errors
/// Why reading ended.
pub async fn read(mut bytes: &[u8]) -> io::Result<()> {
    let from = &mut bytes;
    while let Some((first, rest)) = from.split_first() {
        *from = rest;
        match Query::of(*first)? {
            Query::Set | Query::Append | Query::QueuePush | Query::Add => {
                wire::key(from).await?;
                wire::value(from).await?;
            }
            Query::CompareSet => {
                wire::key(from).await?;
                wire::value(from).await?;
                wire::value(from).await?;
            }
            Query::Check | Query::Wait | Query::MultiGet | Query::ListKeys => {
                wire::keys(from).await?;
            }
            Query::MultiSet => {
                for _ in 0..wire::count(from).await? {
                    wire::key(from).await?;
                    wire::value(from).await?;
                }
            }
            _ => {
                wire::key(from).await?;
            }
        }
    }
    Ok(())
}
