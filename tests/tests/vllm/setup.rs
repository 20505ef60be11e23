//! Finds vLLM, makes a tiny model and workers with it, and runs vLLM directly for comparison.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use rollout_tests::{Batch, Fleet, WorkerOptions, engines};
use serde_json::Value;

/// Loading vLLM takes minutes on a busy machine.
pub(crate) const LOADING: Duration = Duration::from_secs(900);
/// The environment of every process with vLLM.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("HF_HUB_OFFLINE", "1"),
    ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
    ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ("OMP_NUM_THREADS", "1"),
];
/// Longer than any step takes on a busy machine.
const STALL_MS: u32 = 60_000;
/// Tokens of a prompt and its completion.
pub(crate) const MODEL_LEN: u32 = 640;

/// The interpreter with vLLM, and the directory with rollout's package.
pub(crate) fn python() -> (PathBuf, PathBuf) {
    let of = |name| std::env::var_os(name).map(PathBuf::from);
    let (python, package) = (of("ROLLOUT_VLLM_PYTHON"), of("ROLLOUT_PYTHON_PACKAGE"));
    let missing = "run `make test-vllm`: it says where vLLM is";
    (python.expect(missing), package.expect(missing))
}

pub(crate) fn script_of(python: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(python);
    command.args(args).envs(ENVIRONMENT);
    command
}

pub(crate) fn script(name: &str) -> Command {
    let mut command = Command::new(python().0);
    command.arg(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("vllm").join(name));
    command.envs(ENVIRONMENT);
    command
}

pub(crate) fn tiny_model(fleet: &Fleet) -> Result<String> {
    let dir = fleet.path("tiny").to_string_lossy().into_owned();
    let made = script("tiny_model.py").arg(&dir).output()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Ok(dir)
}

/// vLLM's own results for a file's rows: one object per row, in order.
pub(crate) fn reference(
    task: &str,
    model: &str,
    input: &Path,
    options: &Value,
) -> Result<Vec<Value>> {
    let made = script("reference.py")
        .args([task, model, &input.to_string_lossy(), &options.to_string()])
        .output()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let text = String::from_utf8(made.stdout)?;
    let rows = text.lines().filter_map(|line| line.strip_prefix("ROW "));
    rows.map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// A worker with one engine of vLLM.
pub(crate) struct Engine<'a> {
    /// The model's directory; runs call it `tiny`.
    pub(crate) model: &'a str,
    /// Rows at a time.
    pub(crate) concurrency: u32,
    /// Further lines of the engine's block.
    pub(crate) lines: String,
    /// Further lines of the worker's file, before it.
    pub(crate) head: String,
    /// Files in this directory inject faults inside the engine.
    pub(crate) inject: Option<&'a Path>,
    /// Whether vLLM's core is a separate process, as with several devices.
    pub(crate) core_apart: bool,
}

impl<'a> Engine<'a> {
    pub(crate) fn new(model: &'a str, concurrency: u32) -> Self {
        Self {
            model,
            concurrency,
            lines: String::new(),
            head: String::new(),
            inject: None,
            core_apart: false,
        }
    }

    /// The options of a worker with this engine; `args` are further engine arguments, as TOML.
    pub(crate) fn worker(&self, args: &str) -> WorkerOptions {
        let (python, package) = python();
        let Self { model, concurrency, lines, .. } = self;
        let mut engine = format!(
            "kind = \"vllm\"\npython = {python:?}\nmodel = {model:?}\nmodels = [\"tiny\"]\n\
             concurrency = {concurrency}\nstall_timeout_ms = {STALL_MS}\n{lines}\n\
             engine_args = {{ dtype = \"float32\", enforce_eager = true, max_model_len = {MODEL_LEN}{args} }}\n\
             [engine.env]\n"
        );
        let plugin = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("vllm/inject");
        let path = format!("{}:{}", package.display(), plugin.display());
        let inject = self.inject.map(|dir| dir.to_string_lossy().into_owned()).unwrap_or_default();
        let ours = [
            ("PYTHONPATH", path.as_str()),
            ("ROLLOUT_INJECT_DIR", inject.as_str()),
            ("VLLM_ENABLE_V1_MULTIPROCESSING", if self.core_apart { "1" } else { "0" }),
        ];
        for (name, value) in ENVIRONMENT.into_iter().chain(ours) {
            let _ = writeln!(engine, "{name} = {value:?}");
        }
        WorkerOptions { engine, head: self.head.clone() }
    }
}

/// The engine's process: a child of a worker.
pub(crate) fn engine_of(fleet: &mut Fleet, worker: &str) -> Option<i32> {
    engines(fleet.worker_process(worker).pid()).first().map(|pid| *pid as i32)
}

/// The process of vLLM's core, if it is a child of the engine.
pub(crate) fn core_of(engine: i32) -> Option<i32> {
    children(engine).into_iter().find(|pid| is_named(*pid, "EngineCore"))
}

/// Whether a vLLM process has this name.
pub(crate) fn is_named(pid: i32, name: &str) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).contains(name)
}

/// The descendants of a process.
pub(crate) fn descendants(parent: i32) -> Vec<i32> {
    let own = children(parent);
    own.iter().flat_map(|child| descendants(*child)).chain(own.iter().copied()).collect()
}

fn children(parent: impl std::fmt::Display) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| {
            list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

pub(crate) fn rows(count: u64) -> String {
    // Prompts of different lengths, so that rows of a batch end at different times.
    let prompt = |n: u64| format!("row {n} says {}", "ab c".repeat((n % 17) as usize));
    (0..count).fold(String::new(), |mut text, n| {
        let _ = writeln!(text, "{{\"id\":\"r{n}\",\"prompt\":\"{}\"}}", prompt(n));
        text
    })
}

pub(crate) fn completions(batch: &Batch) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(batch.output.join("completions.jsonl"))?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// The rows of a run's error file.
pub(crate) fn errors(batch: &Batch) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(batch.output.join("errors.jsonl"))?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// Whether two values are equal except for the last digits of numbers: another batch sums in another order.
pub(crate) fn near(got: &Value, expected: &Value) -> bool {
    match (got, expected) {
        (Value::Array(got), Value::Array(expected)) => {
            got.len() == expected.len() && got.iter().zip(expected).all(|(g, e)| near(g, e))
        }
        (Value::Object(got), Value::Object(expected)) => {
            let same = |(name, e): (&String, &Value)| got.get(name).is_some_and(|g| near(g, e));
            got.len() == expected.len() && expected.iter().all(same)
        }
        (Value::Number(got), Value::Number(expected)) => {
            let (got, expected) = (got.as_f64(), expected.as_f64());
            got.zip(expected).is_some_and(|(g, e)| (g - e).abs() <= 1e-4 * e.abs().max(1.0))
        }
        (got, expected) => got == expected,
    }
}
