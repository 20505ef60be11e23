//! Owns: the batch file, TOML.
//!
//! Invariant: an unknown key is refused with its line and the nearest known key. Every bound of a run is checked
//! before the command contacts anything, and paths are relative to the file.
//! Absent: merging with flags and contexts, which the caller does.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rollout_config::nearest;
use serde::Deserialize;

use crate::export::format::OutputFormat;
use crate::export::layout::Layout;
use crate::export::local_dir;
use crate::input::mapping::{Mapping, MappingSpec};
use crate::input::task::Task;
use crate::one_or_many::OneOrMany;
use crate::sampling::{Sampling, Wrong};

/// The most bytes of a run's sampling parameters, as canonical JSON.
const SAMPLING_BYTES_MAX: usize = 64 << 10;

/// A batch file, read and checked.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchConfig {
    pub model: Model,
    /// Sampling parameters; a missing one has the engine's own default.
    #[serde(default)]
    pub sampling: Sampling,
    pub input: Input,
    /// Where results go.
    pub output: Output,
    /// Requirements on workers.
    #[serde(default)]
    pub workers: Workers,
    /// The run's name and bounds.
    #[serde(default)]
    pub run: Run,
    /// Notification of its end.
    #[serde(default)]
    pub notify: Notify,
    /// Where the cluster is.
    #[serde(default)]
    pub cluster: Cluster,
    /// Where the run's objects are.
    #[serde(default)]
    pub store: Store,
    /// Certificates.
    #[serde(default)]
    pub tls: Tls,
    /// The file's directory.
    #[serde(skip)]
    pub dir: PathBuf,
    #[serde(skip)]
    path: PathBuf,
}

/// `[model]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// A name that workers advertise, such as `Qwen/Qwen2.5-0.5B-Instruct`.
    pub uri: String,
    /// A revision of it.
    #[serde(default)]
    pub revision: String,
    /// The task; detected from the input if missing.
    pub task: Option<String>,
    /// Engine settings that change results.
    #[serde(default)]
    pub options: toml::Table,
}

impl Model {
    /// The task, as far as it is known.
    pub fn task(&self) -> &str {
        self.task.as_deref().unwrap_or("generate")
    }
}

/// The format of an input's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InputFormat {
    /// Rows of the native format.
    Rows,
    /// Lines of the OpenAI Batch format.
    OpenaiBatch,
}

/// `[input]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Input {
    /// One or several paths or globs of input files.
    pub glob: OneOrMany,
    /// The format of its rows; detected if missing.
    pub format: Option<InputFormat>,
    /// The column of each field that has another name.
    #[serde(default)]
    columns: BTreeMap<String, String>,
    /// A template that builds the prompt.
    #[serde(default)]
    prompt_template: Option<String>,
    /// Both of these.
    #[serde(skip)]
    pub mapping: MappingSpec,
}

/// `[output]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// The directory of the files.
    pub dir: PathBuf,
    /// Their format; the task's default if missing.
    pub format: Option<OutputFormat>,
    /// Maximum rows of a file; one file if missing.
    pub shard_rows: Option<u64>,
}

/// `[workers]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workers {
    /// How many workers must be ready before a new run is submitted. The command starts none.
    pub count: Option<u32>,
    /// Labels that a worker must have.
    pub labels: BTreeMap<String, String>,
    /// Conditions on a worker's versions and devices, such as `vllm = ">=0.32"`.
    pub require: BTreeMap<String, String>,
}

/// `[run]`
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Run {
    /// Its name within the namespace.
    pub name: Option<String>,
    /// 0 to 9; 9 goes first.
    pub priority: u32,
    /// Share within its priority, 1 to 100.
    pub weight: u32,
    /// Rows that may fail permanently before the run is paused.
    pub failures_max: u32,
    /// Tries of a retryable failure, 1 to 8.
    pub attempts_max: u32,
    /// How long one attempt may hold a row; 0 for no limit.
    pub attempt_timeout_ms: u64,
    /// Rows that workers may hold at a time; 0 for no limit.
    pub running_rows_max: u32,
    /// Whether, at the tail, an idle slot may also run a row that another slot is running.
    pub tail_duplicates: bool,
    /// Rows to run before all others; 0 for none.
    pub canary: u64,
    /// How many of these may fail before the run is paused.
    pub canary_failures_max: u64,
    /// From the run's end to its sealing; 0 for the cluster's default.
    pub run_ttl_ms: u64,
    /// From its sealing to its deletion; 0 for the cluster's default.
    pub retention_ms: u64,
    /// How long after its submission the run is ended, finished or not; 0 for never.
    pub deadline_s: u64,
}

impl Default for Run {
    fn default() -> Self {
        Self {
            name: None,
            priority: 5,
            weight: 1,
            failures_max: 1000,
            attempts_max: 3,
            attempt_timeout_ms: 0,
            running_rows_max: 0,
            tail_duplicates: false,
            canary: 0,
            canary_failures_max: 0,
            run_ttl_ms: 0,
            retention_ms: 0,
            deadline_s: 0,
        }
    }
}

/// `[notify]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Notify {
    /// The URL that the cluster calls when the run has ended; empty for none.
    pub url: String,
}

/// `[cluster]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cluster {
    /// Client addresses of members, host:port.
    pub endpoints: Vec<String>,
    /// The namespace of the run.
    pub namespace: Option<String>,
    /// Addresses by member name, NAME=HOST:PORT.
    pub dial_map: Vec<String>,
}

/// `[store]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Store {
    /// The object store; the cluster's own if missing.
    pub url: String,
}

/// `[tls]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// The certificate authority of the members.
    pub ca_file: Option<PathBuf>,
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    /// Whether TLS is disabled.
    pub insecure_plaintext: bool,
}

/// Why a batch file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It cannot be read.
    #[error("config {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// It is not TOML, or has an unknown key or a value of the wrong type.
    #[error("config {}:{line}: {message}", path.display())]
    Syntax {
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        message: String,
    },
    /// A value is out of bounds.
    #[error("config {}: {key}: {message}", path.display())]
    Value {
        path: PathBuf,
        /// The key, with its block.
        key: &'static str,
        message: String,
    },
}

impl BatchConfig {
    /// Reads and checks a batch file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Io { path: path.to_owned(), source })?;
        let dir = path.parent().unwrap_or(Path::new(""));
        Self::parse(&text, path, dir)
    }

    /// Checks a batch file's text.
    pub fn parse(text: &str, path: &Path, dir: &Path) -> Result<Self, ConfigError> {
        let mut config: Self = toml::from_str(text).map_err(|error| ConfigError::Syntax {
            path: path.to_owned(),
            line: nearest::line_of(text, error.span()),
            message: nearest::explain_at(text, error.span(), error.message()),
        })?;
        config.dir = dir.to_owned();
        path.clone_into(&mut config.path);
        local_dir(&config.output.dir.to_string_lossy())
            .map_err(|message| config.value("output.dir", message))?;
        // Without "." in the middle.
        config.output.dir = dir.join(&config.output.dir).components().collect();
        config.input.mapping = MappingSpec {
            columns: std::mem::take(&mut config.input.columns),
            prompt_template: config.input.prompt_template.take(),
        };
        let require = std::mem::take(&mut config.workers.require);
        config.workers.require = super::require::plain(require)
            .map_err(|message| config.value("workers.require", message))?;
        let openai = config.input.format.map(|format| format == InputFormat::OpenaiBatch);
        match openai {
            Some(openai) if config.model.task.is_none() => config.decide(openai)?,
            _ => config.checked()?,
        }
        Ok(config)
    }

    /// Whether the input decides the task.
    pub fn is_undecided(&self) -> bool {
        self.model.task.is_none()
    }

    /// Sets the task if the file does not: `openai` tells whether rows are lines of the OpenAI Batch format.
    pub fn decide(&mut self, openai: bool) -> Result<(), ConfigError> {
        let task = if openai { "openai" } else { "generate" };
        self.model.task = Some(task.to_owned());
        self.checked()
    }

    /// The layout of the output.
    pub fn layout(&self) -> Layout {
        let of_task = || OutputFormat::of_task(Task::of(self.model.task()));
        let format = self.output.format.unwrap_or_else(of_task);
        Layout { format, shard_rows: self.output.shard_rows.unwrap_or(0) }
    }

    fn checked(&self) -> Result<(), ConfigError> {
        self.check().map_err(|(key, message)| self.value(key, message))
    }

    fn value(&self, key: &'static str, message: String) -> ConfigError {
        ConfigError::Value { path: self.path.clone(), key, message }
    }

    fn check(&self) -> Result<(), Wrong> {
        let within = |key: &'static str, value: u64, min: u64, max: u64| match value {
            value if (min..=max).contains(&value) => Ok(()),
            value => Err((key, format!("{value} is not {min} to {max}"))),
        };
        let filled = |key: &'static str, text: &str| match text.len() {
            0 => Err((key, "is empty".to_owned())),
            1..=1024 => Ok(()),
            _ => Err((key, "is longer than 1024 bytes".to_owned())),
        };
        filled("model.uri", &self.model.uri)?;
        filled("model.task", self.model.task())?;
        within("model.revision", self.model.revision.len() as u64, 0, 1024)?;
        within("run.priority", self.run.priority.into(), 0, 9)?;
        within("run.weight", self.run.weight.into(), 1, 100)?;
        within("run.attempts_max", self.run.attempts_max.into(), 1, 8)?;
        within("workers.labels", self.workers.labels.len() as u64, 0, 64)?;
        within("workers.require", self.workers.require.len() as u64, 0, 64)?;
        let globs = self.input.glob.list();
        if globs.is_empty() {
            return Err(("input.glob", "names no file".to_owned()));
        }
        globs.iter().try_for_each(|glob| filled("input.glob", glob))?;
        if let Some(name) = &self.run.name {
            super::name::check(name).map_err(|message| ("run.name", message))?;
        }
        if self.tls.insecure_plaintext && self.tls.ca_file.is_some() {
            let message = "contradicts the TLS files; give one or the other".to_owned();
            return Err(("tls.insecure_plaintext", message));
        }
        let task = Task::of(self.model.task());
        let openai = task == Task::Openai;
        if self.input.format.is_some_and(|f| openai != (f == InputFormat::OpenaiBatch)) {
            let message = format!("does not go with the task {:?}", self.model.task());
            return Err(("input.format", message));
        }
        if let Some(format) = self.output.format {
            format.check(task).map_err(|message| ("output.format", message))?;
        }
        if self.output.shard_rows == Some(0) {
            return Err(("output.shard_rows", "has to be 1 or more".to_owned()));
        }
        Mapping::new(&self.input.mapping, task)?;
        if !task.samples() && !self.sampling.is_empty() {
            let message = format!("means nothing for the task {:?}", self.model.task());
            return Err(("sampling", message));
        }
        self.sampling.check()?;
        // A bound of the ledger's.
        match self.sampling.canonical_json() {
            Ok(json) if json.len() <= SAMPLING_BYTES_MAX => Ok(()),
            Ok(_) => Err(("sampling", format!("is longer than {SAMPLING_BYTES_MAX} bytes"))),
            Err(error) => Err(("sampling", error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests;
