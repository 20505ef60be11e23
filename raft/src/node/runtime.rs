//! Owns: the threads that run consensus.
//!
//! Invariant: they serve nothing else, so load elsewhere in the process does not queue in front of heartbeats.
//! Absent: an orderly shutdown. [`crate::Node::shutdown`] finishes what must be finished before these threads end.

use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::errors::OpenError;

/// A runtime that may be dropped anywhere, also within another runtime.
pub(crate) struct OwnRuntime {
    runtime: Option<Runtime>,
    handle: Handle,
}

impl OwnRuntime {
    pub(crate) fn new(threads: usize) -> Result<Self, OpenError> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("raft")
            .enable_all()
            .build()
            .map_err(|error| OpenError::Start(format!("no threads for consensus: {error}")))?;
        let handle = runtime.handle().clone();
        Ok(Self { runtime: Some(runtime), handle })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// How long a dropped runtime may take to release its tasks' resources.
const END_LIMIT: Duration = Duration::from_secs(2);

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        // On a thread of its own, because waiting is not allowed within a runtime. Wait for it, because RocksDB must
        // not be open when the process runs its last destructors.
        let waiting = std::thread::Builder::new().name("raft-end".into());
        match waiting.spawn(move || runtime.shutdown_timeout(END_LIMIT)) {
            Ok(ended) => drop(ended.join()),
            Err(error) => tracing::warn!(%error, "cannot wait for the threads of consensus"),
        }
    }
}
