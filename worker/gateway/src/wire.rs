//! Owns: the bytes of TCPStore's protocol, as torch 2.13 speaks it.
//!
//! Invariant: a value over a bound is refused before it is read. A reader that stops within a request is never used
//! again.
//! Absent: what a request means. Numbers are little-endian, as on every machine that torch runs on.

use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// The first bytes of every connection.
pub(super) const MAGIC: u32 = 0x3C85_F7CE;
/// Bytes of a key: the cluster's limit.
const KEY_BYTES_MAX: u64 = 1024;
/// Bytes of a value: the cluster's limit.
const VALUE_BYTES_MAX: u64 = 1 << 20;
/// Keys in one request.
const KEYS_MAX: u64 = 4096;

/// A client's request, by its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Query {
    Validate,
    Set,
    CompareSet,
    Get,
    Add,
    Check,
    Wait,
    NumKeys,
    Delete,
    Append,
    MultiGet,
    MultiSet,
    CancelWait,
    Ping,
    QueuePush,
    QueuePop,
    QueueLen,
    ListKeys,
    Barrier,
}

/// In the order of their numbers.
const QUERIES: [Query; 19] = [
    Query::Validate,
    Query::Set,
    Query::CompareSet,
    Query::Get,
    Query::Add,
    Query::Check,
    Query::Wait,
    Query::NumKeys,
    Query::Delete,
    Query::Append,
    Query::MultiGet,
    Query::MultiSet,
    Query::CancelWait,
    Query::Ping,
    Query::QueuePush,
    Query::QueuePop,
    Query::QueueLen,
    Query::ListKeys,
    Query::Barrier,
];

impl Query {
    pub(super) fn of(byte: u8) -> io::Result<Self> {
        QUERIES
            .get(usize::from(byte))
            .copied()
            .ok_or_else(|| bad(format!("{byte} is not a request to a store")))
    }
}

/// The error for input that this protocol does not have.
pub(super) fn bad(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// A count within a bound.
fn bounded(count: u64, max: u64, what: &str) -> io::Result<usize> {
    match count <= max {
        true => Ok(count as usize),
        false => Err(bad(format!("{count} {what}, the most is {max}"))),
    }
}

async fn sized(from: &mut (impl AsyncRead + Unpin), max: u64, what: &str) -> io::Result<Bytes> {
    let len = bounded(from.read_u64_le().await?, max, what)?;
    let mut bytes = vec![0; len];
    from.read_exact(&mut bytes).await?;
    Ok(bytes.into())
}

pub(super) async fn key(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Bytes> {
    sized(from, KEY_BYTES_MAX, "bytes of a key").await
}

pub(super) async fn value(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Bytes> {
    sized(from, VALUE_BYTES_MAX, "bytes of a value").await
}

/// The number of keys that follow.
pub(super) async fn count(from: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
    bounded(from.read_u64_le().await?, KEYS_MAX, "keys")
}

pub(super) async fn keys(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<Bytes>> {
    let count = count(from).await?;
    let mut keys = Vec::new();
    for _ in 0..count {
        keys.push(key(from).await?);
    }
    Ok(keys)
}

/// Appends bytes, prefixed with their length.
pub(super) fn put_sized(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u64_le(bytes.len() as u64);
    out.put_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_numbers_that_torch_gives_them() {
        let numbered = [(0, Query::Validate), (12, Query::CancelWait), (18, Query::Barrier)];
        for (number, query) in numbered {
            assert_eq!(Query::of(number).unwrap(), query);
        }
        assert!(Query::of(19).is_err());
    }

    #[tokio::test]
    async fn a_size_over_its_bound_is_refused_before_it_is_read() {
        let mut huge = &u64::MAX.to_le_bytes()[..];
        assert_eq!(value(&mut huge).await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        let mut ok = BytesMut::new();
        put_sized(&mut ok, b"key");
        assert_eq!(key(&mut &ok[..]).await.unwrap(), "key");
        let mut many = &4097u64.to_le_bytes()[..];
        assert!(keys(&mut many).await.is_err());
    }
}
