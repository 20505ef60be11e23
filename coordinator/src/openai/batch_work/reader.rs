//! Waiting for the store and the leader in a thread that may block, and a file's content as such a thread reads it.
//!
//! *Invariant:* every wait ends when the task is stopped.

use super::error::WorkError;
use bytes::{Buf, Bytes};
use futures::StreamExt;
use futures::stream::BoxStream;
use rollout_storage::BlobError;
use std::io::{self, Read};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// Waits on behalf of a task.
pub(super) struct Waits {
    runtime: Handle,
    stop: CancellationToken,
}

impl Waits {
    /// For a task of this runtime.
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self { runtime: Handle::current(), stop }
    }

    /// Waits for something, in a thread that may block.
    ///
    /// # Errors
    /// [`WorkError::Lost`] if the task is stopped.
    pub(super) fn wait<T>(&self, work: impl Future<Output = T>) -> Result<T, WorkError> {
        self.runtime.block_on(async {
            tokio::select! {
                done = work => Ok(done),
                () = self.stop.cancelled() => Err(WorkError::Lost),
            }
        })
    }
}

/// A stream of bytes as a reader. Its errors contain a [`WorkError`].
pub(super) struct ContentReader<'a> {
    waits: &'a Waits,
    stream: BoxStream<'static, Result<Bytes, BlobError>>,
    chunk: Bytes,
}

impl<'a> ContentReader<'a> {
    pub(super) fn new(
        waits: &'a Waits,
        stream: BoxStream<'static, Result<Bytes, BlobError>>,
    ) -> Self {
        Self { waits, stream, chunk: Bytes::new() }
    }
}

impl Read for ContentReader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.chunk.is_empty() {
            match self.waits.wait(self.stream.next()).map_err(io::Error::other)? {
                None => return Ok(0),
                Some(Ok(chunk)) => self.chunk = chunk,
                Some(Err(error)) => return Err(io::Error::other(WorkError::reading(&error))),
            }
        }
        let len = buf.len().min(self.chunk.len());
        self.chunk.copy_to_slice(&mut buf[..len]);
        Ok(len)
    }
}

/// The error of a task whose reader failed.
pub(super) fn of_reader(error: io::Error) -> WorkError {
    match error.downcast::<WorkError>() {
        Ok(error) => error,
        Err(error) => WorkError::failed(error),
    }
}
