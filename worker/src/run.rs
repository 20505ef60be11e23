//! Owns: what a worker must know of a run: model, task, sampling, store.
//!
//! Invariant: a worker fetches a run from the leader once, whatever the number of slots and rows. It keeps a bounded
//! number and evicts the run fetched first.
//! Absent: the run's state; grants carry it.

use std::collections::{HashMap, VecDeque};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use rollout_proto::v1;
use serde_json::{Map, Value};
use tokio::sync::Mutex;

const RUNS_MAX: usize = 256;

/// The task of a run's rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Task {
    /// A completion.
    #[default]
    Generate,
    /// A vector.
    Embed,
    /// How well a document answers a query.
    Score,
    /// Rows are requests of the OpenAI Batch format.
    Openai,
}

impl Task {
    /// The name in a run's spec.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Generate => "generate",
            Self::Embed => "embed",
            Self::Score => "score",
            Self::Openai => "openai",
        }
    }
}

impl FromStr for Task {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "" | "generate" => Ok(Self::Generate),
            "embed" => Ok(Self::Embed),
            "score" => Ok(Self::Score),
            "openai" => Ok(Self::Openai),
            other => Err(format!("the task {other:?} is not known")),
        }
    }
}

/// What the rows of a run have in common.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RunInfo {
    pub(crate) number: u32,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Where its objects are, within its namespace.
    pub(crate) folder: String,
    pub(crate) model: String,
    /// Empty: any.
    pub(crate) revision: String,
    pub(crate) task: Task,
    /// Exactly the fields that were set.
    pub(crate) sampling: Map<String, Value>,
    /// Empty for the cluster's store.
    pub(crate) store_url: String,
    /// How long an engine may run one row.
    pub(crate) attempt_timeout: Option<Duration>,
    /// How long the run may take, from its creation.
    pub(crate) deadline: Option<Duration>,
}

/// Why a run cannot be loaded.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum RunError {
    /// The cluster has no such run, so its rows are void.
    #[error("run {run} is gone: {reason}")]
    Gone { run: u32, reason: String },
    /// The run requires something that no worker supports.
    #[error("run {run}: {reason}")]
    Unusable { run: u32, reason: String },
    /// No member answered; ask again.
    #[error("run {run}: {reason}")]
    Unavailable { run: u32, reason: String },
}

impl RunInfo {
    pub(crate) fn from_wire(answer: v1::GetRunResponse) -> Result<Self, RunError> {
        let run = answer.run;
        let unusable = |reason: String| RunError::Unusable { run, reason };
        let spec = answer.spec.ok_or_else(|| unusable("it has no spec".to_owned()))?;
        let sampling = match spec.sampling_json.trim() {
            "" => Map::new(),
            json => serde_json::from_str(json)
                .map_err(|error| unusable(format!("its sampling is not a JSON object: {error}")))?,
        };
        let engine = spec.engine.unwrap_or_default();
        Ok(Self {
            number: run,
            namespace: answer.namespace,
            name: answer.name,
            folder: answer.folder,
            task: engine.task.parse().map_err(unusable)?,
            model: engine.model,
            revision: engine.revision,
            sampling,
            store_url: spec.store_url,
            attempt_timeout: (spec.attempt_timeout_ms > 0)
                .then(|| Duration::from_millis(spec.attempt_timeout_ms)),
            deadline: (spec.deadline_ms > 0).then(|| Duration::from_millis(spec.deadline_ms)),
        })
    }

    #[cfg(test)]
    pub(crate) fn for_test(number: u32) -> Self {
        Self {
            number,
            namespace: "default".to_owned(),
            name: format!("run-{number}"),
            folder: format!("run-{number}/f"),
            model: "m".to_owned(),
            revision: String::new(),
            task: Task::Generate,
            sampling: Map::new(),
            store_url: String::new(),
            attempt_timeout: None,
            deadline: None,
        }
    }
}

/// Asks the leader for a run.
pub(crate) type FetchRun =
    Box<dyn Fn(u32) -> BoxFuture<'static, Result<RunInfo, RunError>> + Send + Sync>;

pub(crate) struct Runs {
    fetch: FetchRun,
    cache: Mutex<RunCache>,
}

#[derive(Default)]
struct RunCache {
    runs: HashMap<u32, Arc<RunInfo>>,
    order: VecDeque<u32>,
}

impl Runs {
    pub(crate) fn new(fetch: FetchRun) -> Self {
        Self { fetch, cache: Mutex::default() }
    }

    pub(crate) async fn get(&self, run: u32) -> Result<Arc<RunInfo>, RunError> {
        // Held during the request: other callers would ask the same leader.
        let mut cache = self.cache.lock().await;
        if let Some(info) = cache.runs.get(&run) {
            return Ok(info.clone());
        }
        let info = Arc::new((self.fetch)(run).await?);
        if cache.order.len() >= RUNS_MAX
            && let Some(oldest) = cache.order.pop_front()
        {
            cache.runs.remove(&oldest);
        }
        cache.order.push_back(run);
        cache.runs.insert(run, info.clone());
        Ok(info)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_run_is_fetched_once_from_the_leader_and_again_after_a_failure() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let runs = Runs::new(Box::new(move |run| {
            let nth = count.fetch_add(1, Ordering::SeqCst);
            async move {
                match nth {
                    0 => Err(RunError::Unavailable { run, reason: "no leader".into() }),
                    _ => Ok(RunInfo::for_test(run)),
                }
            }
            .boxed()
        }));
        assert!(runs.get(1).await.is_err());
        let (one, two) = tokio::join!(runs.get(1), runs.get(1));
        assert_eq!(one.unwrap(), two.unwrap());
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn sampling_must_be_an_object() {
        let answer = |json: &str| v1::GetRunResponse {
            run: 1,
            spec: Some(v1::RunSpec { sampling_json: json.into(), ..Default::default() }),
            ..Default::default()
        };
        assert!(RunInfo::from_wire(answer("")).unwrap().sampling.is_empty());
        assert_eq!(RunInfo::from_wire(answer(r#"{"n":1}"#)).unwrap().sampling.len(), 1);
        assert!(matches!(RunInfo::from_wire(answer("[]")), Err(RunError::Unusable { .. })));
    }
}
