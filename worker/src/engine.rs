//! Owns: the engine as a slot sees it: it takes one row and returns a completion or a classified failure.
//!
//! Invariant: rows are independent. A slot runs up to its concurrency at once and waits for no batch. Dropping the
//! future of [`Engine::run`] cancels the row. A row's time begins when the engine gets it, never before.
//! Absent: attempts, retries, and delivery of results. An engine knows nothing of the cluster.

mod environment;
pub(crate) mod evidence;
mod host;
mod mock;
mod mock_host;
mod oom_kills;
pub(crate) mod openai;
mod program;
pub(crate) mod request;
mod xid;

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use rollout_engine_protocol::Loaded;
use rollout_proto::v1::FailureClass;

pub(crate) use self::host::Death;
pub(crate) use self::host::process_totals::ProcessTotals;
pub(crate) use self::mock_host::mock_engine;

use self::host::HostEngine;
use self::mock::MockEngine;
use self::openai::OpenAiEngine;
use crate::config::{EngineConfig, EngineKind};
use crate::run::RunInfo;

/// How much of an engine's last output, or of a failure's long message, is kept, in bytes.
pub(crate) const LAST_WORDS_BYTES_MAX: usize = 16 << 10;

/// One execution of one row.
#[derive(Debug, Clone)]
pub(crate) struct EngineRow {
    pub(crate) run: Arc<RunInfo>,
    pub(crate) row: u64,
    pub(crate) attempt: u64,
    pub(crate) item_id: [u8; 32],
    /// The row's JSON object, as it was submitted.
    pub(crate) body: Bytes,
    /// Tokens that it may take, by the slot's estimate.
    pub(crate) tokens: u64,
}

/// An engine's result for a row.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Completion {
    pub(crate) text: String,
    pub(crate) finish_reason: String,
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
    /// Further results, as a JSON object: `completions`, `logprobs`, `prompt_logprobs`, `embedding`, `score`,
    /// `response`. Empty if there are none.
    pub(crate) extra: String,
}

/// Why an engine has no result for a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EngineFailure {
    pub(crate) class: FailureClass,
    pub(crate) code: Cow<'static, str>,
    pub(crate) message: String,
    /// The engine itself is unreachable: the slot takes no more rows until a probe succeeds.
    pub(crate) unreachable: bool,
    /// The cause is the request of the row or its run: it says nothing about the engine.
    pub(crate) by_request: bool,
    pub(crate) end: RowEnd,
}

/// What a failure says about the row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum RowEnd {
    /// The row failed, or the engine failed with this row.
    #[default]
    Failed,
    /// The engine's process died after the row started; [`News::Died`] names the row, before or after this.
    Died,
    /// The engine's process never received the row.
    NotStarted,
}

/// What an engine in a separate process reports to its slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum News {
    /// The engine accepts rows, for the first time or again.
    Ready,
    Died(Box<Death>),
}

impl EngineFailure {
    pub(crate) fn new(
        class: FailureClass,
        code: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> Self {
        let (code, message) = (code.into(), message.into());
        let (unreachable, by_request) = (false, false);
        Self { class, code, message, unreachable, by_request, end: RowEnd::Failed }
    }

    pub(crate) fn invalid(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(FailureClass::InvalidRow, code, message)
    }
}

/// A row that takes too long counts as a transient failure: another engine may be faster.
fn timed_out(limit: Duration) -> EngineFailure {
    let message = format!("no result within {limit:?}");
    let failure = EngineFailure::new(FailureClass::Transient, "ATTEMPT_TIMEOUT", message);
    EngineFailure { by_request: true, ..failure }
}

/// Runs a row that an engine has from now on, for as long as its run allows.
async fn timed(
    limit: Option<Duration>,
    row: impl Future<Output = Result<Completion, EngineFailure>>,
) -> Result<Completion, EngineFailure> {
    match limit {
        Some(limit) => {
            tokio::time::timeout(limit, row).await.unwrap_or_else(|_| Err(timed_out(limit)))
        }
        None => row.await,
    }
}

/// Runs a row; a panic is a failure of the engine.
pub(crate) async fn run_caught(
    engine: &dyn Engine,
    row: EngineRow,
) -> Result<Completion, EngineFailure> {
    let run = std::panic::AssertUnwindSafe(engine.run(row)).catch_unwind();
    run.await.unwrap_or_else(|_| {
        let message = "the engine panicked";
        Err(EngineFailure::new(FailureClass::EngineDied, "ENGINE_PANIC", message))
    })
}

pub(crate) trait Engine: Send + Sync {
    /// Runs a row, for at most the `attempt_timeout` of its run from when the engine gets it. If the engine does not
    /// get the row within that time, it comes back as not started.
    fn run(&self, row: EngineRow) -> BoxFuture<'_, Result<Completion, EngineFailure>>;

    /// Checks whether the engine can run rows now; else the reason.
    fn probe(&self) -> BoxFuture<'_, Result<(), String>>;

    /// False while its process is down: no rows may be started.
    fn is_up(&self) -> bool {
        true
    }

    /// Its counters so far, if it counts.
    fn process_totals(&self) -> Option<ProcessTotals> {
        None
    }

    /// Returns when [`process_totals`](Self::process_totals) has changed since it was last read; never for an engine
    /// that does not count.
    fn progressed(&self) -> BoxFuture<'_, ()> {
        futures::future::pending().boxed()
    }

    /// What it reports as loaded; nothing before it is up for the first time.
    fn loaded(&self) -> Option<Loaded> {
        None
    }

    /// The next news of its process; never for an engine without one.
    fn news(&self) -> BoxFuture<'_, News> {
        futures::future::pending().boxed()
    }
}

/// Which slot an engine is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotPlace {
    /// Among the worker's slots.
    pub(crate) number: u32,
    /// Among those of its block.
    pub(crate) of_block: u32,
}

/// Makes the engine of one slot. `dir` is the agent's directory, in which an engine's process may leave files.
pub(crate) fn build(
    config: &EngineConfig,
    slot: SlotPlace,
    dir: &Path,
) -> anyhow::Result<Arc<dyn Engine>> {
    Ok(match config.kind {
        EngineKind::Mock if config.process => {
            Arc::new(HostEngine::start(program::mock(config, slot.number, dir)?))
        }
        EngineKind::Vllm => Arc::new(HostEngine::start(program::vllm(config, slot, dir)?)),
        EngineKind::Mock => Arc::new(MockEngine::new(config)?),
        EngineKind::Openai => Arc::new(OpenAiEngine::new(config)?),
    })
}

#[cfg(test)]
pub(crate) fn test_row(run: RunInfo, row: u64, body: &str) -> EngineRow {
    EngineRow {
        run: Arc::new(run),
        row,
        attempt: 7,
        item_id: *blake3::hash(body.as_bytes()).as_bytes(),
        body: Bytes::copy_from_slice(body.as_bytes()),
        tokens: 0,
    }
}
