//! Owns: the threads on which consensus lives.
//!
//! Invariant: they serve nothing else, so load elsewhere in the process delays no heartbeat by queueing.
//! Absent: waiting for them at the end; what must be finished is finished before by [`crate::Node::shutdown`].

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

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
