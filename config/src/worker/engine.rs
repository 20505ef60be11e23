//! Owns: one `[[engine]]` block.
//!
//! Invariant: a checked block has what its kind needs, and every value is within bounds. The attribute `x-engines`
//! names the kinds that have a key; without it all have.
//! Absent: starting the engine.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;

use super::ConfigError;
use super::slots::{self, Device, SLOTS_AUTO};

/// Rows that one engine may run at a time.
const CONCURRENCY_MAX: u32 = 4096;
/// Bounds of the time to wait for an engine's process.
const TIMEOUT_MS_MIN: u64 = 100;
const TIMEOUT_MS_MAX: u64 = 86_400_000;

/// The tasks that runs may ask of an engine.
pub const TASKS: [&str; 4] = ["generate", "embed", "score", "openai"];

/// The kind of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// Deterministic answers, for tests and demonstrations.
    Mock,
    /// Any server with the OpenAI HTTP API.
    Openai,
    /// vLLM, in a Python process that the agent starts for each slot.
    Vllm,
}

impl EngineKind {
    /// The name on the wire and in labels.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mock => "mock",
            Self::Openai => "openai",
            Self::Vllm => "vllm",
        }
    }
}

/// The distribution of the mock's latencies between their bounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Tail {
    /// Evenly.
    #[default]
    Uniform,
    /// Mostly near the lower bound, some near the upper (a bounded Pareto distribution).
    Pareto,
}

/// One engine block: several slots, each with its own engine.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EngineConfig {
    /// The kind of engine.
    ///
    /// `"openai"`: any server with that API, at `base_url`; [`"vllm"`](../vllm.md); or `"mock"`.
    #[schemars(extend("x-flag" = "--engine"))]
    pub kind: EngineKind,
    /// Slots with such an engine; `"auto"` for as many as the devices allow.
    ///
    /// A worker has at most 64 slots.
    #[serde(
        default = "one",
        deserialize_with = "slots::deserialize",
        serialize_with = "slots::serialize"
    )]
    #[schemars(schema_with = "slots::schema", extend("x-flag" = "--slots"))]
    pub slots: u32,
    /// Model URIs that runs may name; `"*"` matches any.
    ///
    /// If a run names a revision: the mock serves any, vLLM serves the one that it has loaded and those that are listed
    /// here as `"name@revision"`, openai serves none.
    #[serde(default = "any_model")]
    pub models: Vec<String>,
    /// Tasks that runs may ask of it; empty: all that its kind supports.
    ///
    /// Tasks are `"generate"`, `"embed"`, `"score"` and `"openai"`.
    #[serde(default)]
    pub tasks: Vec<String>,
    /// Rows that each slot runs concurrently.
    #[serde(default = "concurrency")]
    #[schemars(range(min = 1, max = CONCURRENCY_MAX), extend("x-flag" = "--concurrency"))]
    pub concurrency: u32,
    /// Labels of its slots, which override the worker's.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Adapters that rows may name, and their paths.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["mock", "vllm"]))]
    pub loras: BTreeMap<String, PathBuf>,

    /// The shortest latency of a row, milliseconds.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["mock"]))]
    pub latency_ms_min: u64,
    /// The longest latency of a row, milliseconds.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["mock"]))]
    pub latency_ms_max: u64,
    /// The seed that, with the item's ID, decides the latencies.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["mock"]))]
    pub seed: u64,
    /// The distribution of latencies.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["mock"]))]
    pub tail: Tail,
    /// The exponent of the Pareto tail; the smaller, the heavier.
    #[serde(default = "tail_alpha")]
    #[schemars(extend("x-engines" = ["mock"]))]
    pub tail_alpha: f64,
    /// File to which a line is appended when each execution starts and finishes.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["mock"]))]
    pub side_file: Option<PathBuf>,
    /// Directory with a file for each row that failed once.
    ///
    /// Engines that share it fail no row of `MOCK_FAIL_TRANSIENT_ONCE` twice. Without it, each engine remembers only
    /// the rows that it failed itself.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["mock"]))]
    pub once_dir: Option<PathBuf>,
    /// Row numbers that fail as invalid.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["mock"]))]
    pub fail_rows: Vec<u64>,
    /// Runs in a separate process, which prompts can kill.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["mock"]))]
    pub process: bool,
    /// The program of that process, a rollout-worker; the agent's own by default.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["mock"]))]
    pub program: Option<PathBuf>,
    /// Its process ends with this status whenever it starts.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["mock"]))]
    pub exit_at_start: Option<u8>,
    /// Its process ends with this status at the first row that has waited for its latency.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["mock"]))]
    pub exit_at_row: Option<u8>,

    /// The server, without `/v1`.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["openai"], "x-unset" = true, "x-flag" = "--base-url"))]
    pub base_url: String,
    /// The environment variable that holds the key.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["openai"]))]
    pub api_key_env: Option<String>,
    /// How long one request may take, milliseconds.
    #[serde(default = "timeout_ms")]
    #[schemars(range(min = 1), extend("x-engines" = ["openai"]))]
    pub timeout_ms: u64,
    /// The model's name at the server, if it differs from the run's.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["openai"]))]
    pub served_model: Option<String>,

    /// The interpreter of an environment that has vLLM and this project's Python package.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["vllm"]))]
    pub python: Option<PathBuf>,
    /// The model, a directory or a name that vLLM finds.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["vllm"], "x-unset" = true))]
    pub model: String,
    /// The model's revision, if the model is not a directory.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["vllm"]))]
    pub revision: String,
    /// Engine arguments, by vLLM's own names.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["vllm"]))]
    pub engine_args: BTreeMap<String, serde_json::Value>,
    /// Variables of its process's environment.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["vllm"]))]
    pub env: BTreeMap<String, String>,
    /// Variables of the worker that the process gets too, `"NAME"` or `"PREFIX*"`.
    ///
    /// They are added to [those that every engine gets](../vllm.md#the-engines-environment). An engine that loads a
    /// gated model needs `["HF_TOKEN"]`.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["mock", "vllm"]))]
    pub pass_env: Vec<String>,
    /// Devices per slot, taken in order from those that no other slot has; 0: vLLM chooses.
    ///
    /// If `devices` or `slots = "auto"` is set, 0 means as many devices as one engine spans.
    #[serde(default)]
    #[schemars(extend("x-engines" = ["vllm"]))]
    pub gpus_per_slot: u32,
    /// The devices of these slots, in order, by number, UUID or MIG instance.
    #[serde(default)]
    #[schemars(schema_with = "slots::devices", extend("x-engines" = ["vllm"]))]
    pub devices: Vec<Device>,
    /// Devices that one engine spans.
    #[serde(default = "one")]
    #[schemars(range(min = 1), extend("x-engines" = ["vllm"]))]
    pub tensor_parallel_size: u32,
    /// If rows run without progress for this long, the process is killed; milliseconds.
    #[serde(default = "stall_timeout_ms")]
    #[schemars(range(min = TIMEOUT_MS_MIN, max = TIMEOUT_MS_MAX), extend("x-engines" = ["mock", "vllm"]))]
    pub stall_timeout_ms: u64,
    /// How long its process may take to become ready, milliseconds.
    #[serde(default = "start_timeout_ms")]
    #[schemars(range(min = TIMEOUT_MS_MIN, max = TIMEOUT_MS_MAX), extend("x-engines" = ["mock", "vllm"]))]
    pub start_timeout_ms: u64,
    /// The devices of each slot, as `CUDA_VISIBLE_DEVICES` names them; none if vLLM chooses. The agent assigns them.
    #[serde(skip)]
    pub assigned: Vec<Vec<String>>,
}

fn one() -> u32 {
    1
}

fn any_model() -> Vec<String> {
    vec!["*".to_owned()]
}

fn concurrency() -> u32 {
    64
}

fn tail_alpha() -> f64 {
    1.2
}

fn stall_timeout_ms() -> u64 {
    300_000
}

fn start_timeout_ms() -> u64 {
    600_000
}

fn timeout_ms() -> u64 {
    600_000
}

impl EngineConfig {
    /// A block with the defaults of a kind.
    pub fn new(kind: EngineKind) -> Self {
        Self {
            kind,
            slots: one(),
            models: any_model(),
            tasks: Vec::new(),
            loras: BTreeMap::new(),
            concurrency: concurrency(),
            labels: BTreeMap::new(),
            latency_ms_min: 0,
            latency_ms_max: 0,
            seed: 0,
            tail: Tail::default(),
            tail_alpha: tail_alpha(),
            side_file: None,
            once_dir: None,
            fail_rows: Vec::new(),
            process: false,
            program: None,
            exit_at_start: None,
            exit_at_row: None,
            stall_timeout_ms: stall_timeout_ms(),
            start_timeout_ms: start_timeout_ms(),
            base_url: String::new(),
            api_key_env: None,
            timeout_ms: timeout_ms(),
            served_model: None,
            python: None,
            model: String::new(),
            revision: String::new(),
            engine_args: BTreeMap::new(),
            env: BTreeMap::new(),
            pass_env: Vec::new(),
            gpus_per_slot: 0,
            devices: Vec::new(),
            tensor_parallel_size: one(),
            assigned: Vec::new(),
        }
    }

    /// The models that runs may name. vLLM serves the one that it has loaded.
    pub fn served(&self) -> Vec<String> {
        match self.kind {
            EngineKind::Vllm if self.models == any_model() => vec![self.model.clone()],
            _ => self.models.clone(),
        }
    }

    /// Whether the model names come from the operator, who may have appended a revision.
    pub fn has_model_names(&self) -> bool {
        self.models != any_model()
    }

    /// Sequences that vLLM runs at once, so that further rows wait in it; 0 for other engines, and if `concurrency`
    /// and vLLM's own `max_num_seqs` already imply that.
    pub fn seats(&self) -> u32 {
        let own = self.engine_args.get("max_num_seqs").and_then(serde_json::Value::as_u64);
        match own {
            _ if self.kind != EngineKind::Vllm => 0,
            Some(own) if own != u64::from(self.concurrency) => 0,
            _ => self.concurrency,
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let invalid = |key, reason: String| Err(ConfigError::invalid(key, reason));
        if self.slots == SLOTS_AUTO && self.kind != EngineKind::Vllm {
            let reason = "\"auto\" counts devices, which only the engine vllm has";
            return invalid("engine.slots", reason.into());
        }
        let configured = self.engine_args.get("tensor_parallel_size");
        let size = self.tensor_parallel_size;
        if size != 1 && configured.is_some_and(|configured| *configured != size) {
            let reason = "must be the same as in engine_args if set there".into();
            return invalid("engine.tensor_parallel_size", reason);
        }
        if self.models.is_empty() {
            return invalid("engine.models", "name a model, or \"*\" for any".into());
        }
        let is_supported = |task: &&String| task.is_empty() || TASKS.contains(&task.as_str());
        if let Some(task) = self.tasks.iter().find(|task| !is_supported(task)) {
            return invalid("engine.tasks", format!("the task {task:?} is not known"));
        }
        match self.kind {
            EngineKind::Mock => self.check_mock(),
            EngineKind::Vllm if self.python.is_none() => {
                let reason = "the engine vllm needs the interpreter of its environment, like /opt/vllm/bin/python";
                invalid("engine.python", reason.into())
            }
            EngineKind::Vllm if self.model.is_empty() => invalid(
                "engine.model",
                "the engine vllm needs a model, a directory or a name".into(),
            ),
            EngineKind::Vllm => Ok(()),
            EngineKind::Openai if self.base_url.is_empty() => {
                let reason = "the engine openai needs a server, like http://127.0.0.1:8000";
                invalid("engine.base_url", reason.into())
            }
            EngineKind::Openai => match server_url(&self.base_url) {
                Ok(_) => Ok(()),
                Err(reason) => invalid("engine.base_url", reason),
            },
        }
    }

    fn check_mock(&self) -> Result<(), ConfigError> {
        let invalid = |key, reason: String| Err(ConfigError::invalid(key, reason));
        if !self.process {
            for (key, is_set) in [
                ("engine.program", self.program.is_some()),
                ("engine.exit_at_start", self.exit_at_start.is_some()),
                ("engine.exit_at_row", self.exit_at_row.is_some()),
            ] {
                if is_set {
                    return invalid(key, "it needs process = true".into());
                }
            }
        }
        if self.latency_ms_min > self.latency_ms_max {
            let reason = format!("{} is above latency_ms_max", self.latency_ms_min);
            return invalid("engine.latency_ms_min", reason);
        }
        if !(self.tail_alpha > 0.0 && self.tail_alpha <= 100.0) {
            return invalid("engine.tail_alpha", format!("{} is not in 0 to 100", self.tail_alpha));
        }
        Ok(())
    }
}

/// Reads the configured address of a server with the OpenAI API.
///
/// # Errors
/// What is wrong with it.
pub fn server_url(text: &str) -> Result<Url, String> {
    let text = text.trim_end_matches('/').trim_end_matches("/v1");
    let url = Url::parse(text).map_err(|error| format!("{text:?} is not a URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("{text:?} is neither http:// nor https://"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(format!("{text:?} has a query or fragment"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        let text = "the URL has a user name: give a key with engine.api_key_env instead";
        return Err(text.to_owned());
    }
    Ok(url)
}
