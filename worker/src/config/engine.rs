//! Owns: one `[[engine]]` block.
//!
//! Invariant: a checked block has what its kind needs, and every value is within bounds.
//! Absent: starting the engine.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::ConfigError;
use super::devices::{self, Device, SLOTS_AUTO};
use crate::engine::openai;
use crate::engine::request::Task;

/// Rows that one engine may run at a time.
const CONCURRENCY_MAX: u32 = 4096;
/// Bounds of the time to wait for an engine's process.
const TIMEOUT_MS_MIN: u64 = 100;
const TIMEOUT_MS_MAX: u64 = 86_400_000;

/// The kind of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tail {
    /// Evenly.
    #[default]
    Uniform,
    /// Mostly near the lower bound, some near the upper (a bounded Pareto distribution).
    Pareto,
}

/// One engine block: several slots, each with its own engine.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct EngineConfig {
    /// The kind of engine.
    pub kind: EngineKind,
    /// Slots with such an engine; `"auto"` for as many as the devices allow.
    #[serde(default = "one", deserialize_with = "devices::slots")]
    pub slots: u32,
    /// Model URIs that it serves; `"*"` for any.
    #[serde(default = "any_model")]
    pub models: Vec<String>,
    /// Tasks: `generate`, `embed`, `score`, `openai`; empty for all that its kind supports.
    #[serde(default)]
    pub tasks: Vec<String>,
    /// Adapters that rows may name, and their paths.
    #[serde(default)]
    pub loras: BTreeMap<String, PathBuf>,
    /// Rows that run in it at a time.
    #[serde(default = "concurrency")]
    pub concurrency: u32,
    /// Labels of its slots, which override the agent's.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,

    /// mock: the shortest latency of a row, milliseconds.
    #[serde(default)]
    pub latency_ms_min: u64,
    /// mock: the longest latency of a row, milliseconds.
    #[serde(default)]
    pub latency_ms_max: u64,
    /// mock: the seed that, with the item's ID, decides the latencies.
    #[serde(default)]
    pub seed: u64,
    /// mock: the distribution of latencies.
    #[serde(default)]
    pub tail: Tail,
    /// mock: the exponent of the Pareto tail; the smaller, the heavier.
    #[serde(default = "tail_alpha")]
    pub tail_alpha: f64,
    /// mock: the file to which a line is appended when each execution starts and finishes.
    #[serde(default)]
    pub side_file: Option<PathBuf>,
    /// mock: the directory with a file for each row that failed once; engines that share it fail no row of
    /// `MOCK_FAIL_TRANSIENT_ONCE` twice. Without it each engine remembers its own.
    #[serde(default)]
    pub once_dir: Option<PathBuf>,
    /// mock: row numbers that fail as invalid.
    #[serde(default)]
    pub fail_rows: Vec<u64>,
    /// mock: runs in a separate process, which prompts can kill.
    #[serde(default)]
    pub process: bool,
    /// mock: the program of that process, a rollout-worker; the agent's own by default.
    #[serde(default)]
    pub program: Option<PathBuf>,
    /// mock: its process ends with this status whenever it starts.
    #[serde(default)]
    pub exit_at_start: Option<u8>,
    /// mock: its process ends with this status at the first row that has waited for its latency.
    #[serde(default)]
    pub exit_at_row: Option<u8>,
    /// mock, vllm: if rows run without progress for this long, the process is killed; milliseconds.
    #[serde(default = "stall_timeout_ms")]
    pub stall_timeout_ms: u64,
    /// mock, vllm: how long its process may take to become ready, milliseconds.
    #[serde(default = "start_timeout_ms")]
    pub start_timeout_ms: u64,

    /// openai: the server, without `/v1`.
    #[serde(default)]
    pub base_url: String,
    /// openai: the environment variable that holds the key.
    #[serde(default)]
    pub api_key_env: Option<String>,
    /// openai: how long one request may take, milliseconds.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
    /// openai: the model's name at the server, if it differs from the run's.
    #[serde(default)]
    pub served_model: Option<String>,

    /// vllm: the interpreter of an environment that has vLLM and this project's Python package.
    #[serde(default)]
    pub python: Option<PathBuf>,
    /// vllm: the model, a directory or a name that vLLM finds.
    #[serde(default)]
    pub model: String,
    /// vllm: the model's revision, if the model is not a directory.
    #[serde(default)]
    pub revision: String,
    /// vllm: engine arguments, by vLLM's own names.
    #[serde(default)]
    pub engine_args: BTreeMap<String, serde_json::Value>,
    /// vllm: variables of its process's environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// vllm, mock: variables of the agent's environment that the process gets besides those that every engine gets. A
    /// name that ends with `*` is a prefix.
    #[serde(default)]
    pub pass_env: Vec<String>,
    /// vllm: devices of a slot, the next ones that no other slot has. 0 leaves the choice to vLLM, unless `devices` or
    /// `slots = "auto"` is set.
    #[serde(default)]
    pub gpus_per_slot: u32,
    /// vllm: the devices of these slots, in order.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// vllm: devices that one engine spans.
    #[serde(default = "one")]
    pub tensor_parallel_size: u32,
    /// The devices of each slot, as `CUDA_VISIBLE_DEVICES` names them; none if vLLM chooses.
    #[serde(skip)]
    pub(crate) assigned: Vec<Vec<String>>,
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
    pub(crate) fn tells_revisions(&self) -> bool {
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

    /// Its tasks. vLLM generates or, as a pooling engine, embeds and scores.
    pub fn tasks(&self) -> Vec<String> {
        let pools = self.engine_args.get("runner").is_some_and(|runner| runner == "pooling");
        let tasks: &[Task] = match self.kind {
            EngineKind::Mock => &[Task::Generate, Task::Embed, Task::Score, Task::Openai],
            EngineKind::Openai => &[Task::Generate, Task::Embed, Task::Openai],
            EngineKind::Vllm if pools => &[Task::Embed, Task::Score, Task::Openai],
            EngineKind::Vllm => &[Task::Generate, Task::Openai],
        };
        match self.tasks.is_empty() {
            true => tasks.iter().map(|task| task.name().to_owned()).collect(),
            false => self.tasks.clone(),
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let invalid = |key, reason: String| Err(ConfigError::Invalid { key, reason });
        if self.slots == 0 {
            return invalid("engine.slots", "an engine has at least one slot".into());
        }
        if self.slots == SLOTS_AUTO && self.kind != EngineKind::Vllm {
            let reason = "\"auto\" counts devices, which only the engine vllm has";
            return invalid("engine.slots", reason.into());
        }
        let said = self.engine_args.get("tensor_parallel_size");
        let size = self.tensor_parallel_size;
        if size == 0 || (size != 1 && said.is_some_and(|said| *said != size)) {
            let reason = "must be at least 1, and the same as in engine_args if set there".into();
            return invalid("engine.tensor_parallel_size", reason);
        }
        if self.concurrency == 0 || self.concurrency > CONCURRENCY_MAX {
            let reason = format!("{} is not in 1 to {CONCURRENCY_MAX}", self.concurrency);
            return invalid("engine.concurrency", reason);
        }
        if self.models.is_empty() {
            return invalid("engine.models", "name a model, or \"*\" for any".into());
        }
        if let Some(reason) = self.tasks.iter().find_map(|task| task.parse::<Task>().err()) {
            return invalid("engine.tasks", reason);
        }
        for (key, value) in [
            ("engine.stall_timeout_ms", self.stall_timeout_ms),
            ("engine.start_timeout_ms", self.start_timeout_ms),
        ] {
            if !(TIMEOUT_MS_MIN..=TIMEOUT_MS_MAX).contains(&value) {
                let reason = format!("{value} is not in {TIMEOUT_MS_MIN} to {TIMEOUT_MS_MAX}");
                return invalid(key, reason);
            }
        }
        match self.kind {
            EngineKind::Mock if !self.process && self.program.is_some() => {
                invalid("engine.program", "it needs process = true".into())
            }
            EngineKind::Mock if !self.process && self.exit_at_start.is_some() => {
                invalid("engine.exit_at_start", "it needs process = true".into())
            }
            EngineKind::Mock if !self.process && self.exit_at_row.is_some() => {
                invalid("engine.exit_at_row", "it needs process = true".into())
            }
            EngineKind::Mock if self.latency_ms_min > self.latency_ms_max => {
                let reason = format!("{} is above latency_ms_max", self.latency_ms_min);
                invalid("engine.latency_ms_min", reason)
            }
            EngineKind::Mock if !(self.tail_alpha > 0.0 && self.tail_alpha <= 100.0) => {
                invalid("engine.tail_alpha", format!("{} is not in 0 to 100", self.tail_alpha))
            }
            EngineKind::Vllm if self.python.is_none() => {
                let reason = "the engine vllm needs the interpreter of its environment, like /opt/vllm/bin/python";
                invalid("engine.python", reason.into())
            }
            EngineKind::Vllm if self.model.is_empty() => invalid(
                "engine.model",
                "the engine vllm needs a model, a directory or a name".into(),
            ),
            EngineKind::Openai if self.base_url.is_empty() => {
                let reason = "the engine openai needs a server, like http://127.0.0.1:8000";
                invalid("engine.base_url", reason.into())
            }
            EngineKind::Openai if openai::base_url(&self.base_url).is_err() => {
                let reason = openai::base_url(&self.base_url).err();
                invalid("engine.base_url", reason.map(|why| format!("{why:#}")).unwrap_or_default())
            }
            EngineKind::Openai if self.timeout_ms == 0 => {
                invalid("engine.timeout_ms", "0 would fail every request".into())
            }
            _ => Ok(()),
        }
    }
}
