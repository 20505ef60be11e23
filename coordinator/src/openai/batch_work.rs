//! The work that a batch gives to a member: reading its file ([`validation`]) and writing its output ([`assembly`]).
//!
//! The leader assigns it in the ledger, so every member looks there for its own ([`driver`]), whether or not it serves
//! the HTTP API.
//!
//! *Invariant:* each operation carries the fence of the assignment, so a member whose work went to another one changes
//! nothing. The work keeps at most [`memory::WORK_MIB`] in memory, and has threads of its own: it delays neither
//! heartbeats nor callers.
//! Absent: who gets the work (`leader::batch_owners`).

mod assembly;
mod context;
mod driver;
mod earlier;
mod error;
mod memory;
mod output;
mod reader;
mod run_spec;
mod segments;
#[cfg(test)]
mod tests;
mod validation;

use crate::grpc::Shared;
use crate::openai::forward::Forwarding;
use crate::openai::state::ApiState;
use anyhow::{Context as _, Result};
use context::Context;
use driver::Driver;
use rollout_storage::BlobStore;
use std::sync::Arc;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

/// Threads for output, and for waiting.
const THREADS: usize = 2;
/// Threads that read files, and those of a store in a file system.
const BLOCKING_THREADS: usize = 8;

/// The work while it goes on. Its threads end when this is dropped, also within another runtime.
pub(crate) struct BatchWork(Option<Runtime>);

impl BatchWork {
    /// Looks for work until `stop`.
    ///
    /// # Errors
    /// The system has no threads left, or the certificate cannot be used.
    pub(crate) fn start(
        shared: Arc<Shared>,
        store: BlobStore,
        stop: CancellationToken,
    ) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("batch-work")
            .enable_all()
            .build()
            .context("no threads for batches")?;
        let (node, temp_dir) = (shared.node.clone(), shared.config.raft.data_dir.clone());
        let api = ApiState::new(Arc::new(Forwarding::new(shared).context("[tls]")?), store);
        let member = move || node.identity().map(|identity| identity.member_id);
        let driver = Driver::new(Context::new(api, temp_dir), Box::new(member));
        runtime.spawn(async move {
            tokio::select! {
                () = driver.run() => {}
                () = stop.cancelled() => {}
            }
        });
        Ok(Self(Some(runtime)))
    }
}

impl Drop for BatchWork {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
