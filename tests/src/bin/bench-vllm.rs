//! Compares a batch through rollout with vLLM's own `LLM.generate`: the same rows, model and engine arguments, one
//! after the other, three times, the second time in reverse order. Only one engine is loaded at a time. `make
//! bench-vllm` runs this in a release build.
//!
//! Environment: `ROLLOUT_VLLM_PYTHON`, `ROLLOUT_PYTHON_PACKAGE`; `ENGINE_DEVICE` (`cpu` or `cuda`), `MODEL` (a
//! directory or a name; without it, a model with random weights is made), `ENGINE_ARGS` (JSON), `ROWS`, `SEATS`,
//! `HIDDEN`, `LAYERS`, `ROUNDS`.
//! For rollout, the time from the creation of the run to its end counts; for vLLM, the time of `generate`. Neither
//! includes loading. Processor seconds are those of the members and the agent together, without the engine. `steady`
//! says that both took at least two minutes. Figures are JSON lines.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, Usage, WorkerOptions};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

const RUNNING: Duration = Duration::from_secs(3600);
/// How long a worker may take to leave.
const LEAVING: Duration = Duration::from_secs(120);
/// A shorter arm is not meaningful.
const STEADY_S: f64 = 120.0;

struct Bench {
    python: PathBuf,
    package: PathBuf,
    cuda: bool,
    model: String,
    engine_args: Value,
    rows: usize,
    seats: u32,
}

/// One arm's figures.
struct Arm {
    seconds: f64,
    completion_tokens: u64,
    texts: Vec<Value>,
}

fn var<T: std::str::FromStr>(name: &str, default: T) -> Result<T> {
    match std::env::var(name) {
        Ok(text) => text.parse().ok().with_context(|| format!("{name} is {text:?}")),
        Err(_) => Ok(default),
    }
}

fn main() -> Result<()> {
    let missing = "run `make bench-vllm`: it says where vLLM is";
    let path = |name| std::env::var_os(name).map(PathBuf::from).context(missing);
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let cuda = var("ENGINE_DEVICE", "cpu".to_owned())? == "cuda";
    let seats = var("SEATS", 32)?;
    let mut bench = Bench {
        python: path("ROLLOUT_VLLM_PYTHON")?,
        package: path("ROLLOUT_PYTHON_PACKAGE")?,
        cuda,
        model: var("MODEL", String::new())?,
        engine_args: json!({"max_num_seqs": seats, "max_model_len": 1024}),
        rows: var("ROWS", 900)?,
        seats,
    };
    if !cuda {
        let more =
            json!({"dtype": "float32", "enforce_eager": true, "enable_prefix_caching": false});
        merge(&mut bench.engine_args, more);
    }
    merge(&mut bench.engine_args, serde_json::from_str(&var("ENGINE_ARGS", "{}".to_owned())?)?);
    if bench.model.is_empty() {
        bench.model = fleet.path("model").to_string_lossy().into_owned();
        let size = [var("HIDDEN", "512".to_owned())?, var("LAYERS", "9".to_owned())?];
        let made = bench.script("bench_model.py").arg(&bench.model).args(size).output()?;
        ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    bench.run(&mut fleet)?;
    fleet.passed()
}

fn merge(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}

impl Bench {
    fn run(&self, fleet: &mut Fleet) -> Result<()> {
        let input = fleet.path("bench.jsonl");
        std::fs::write(&input, self.input())?;
        let mut shares = Vec::new();
        for round in 0..var::<u32>("ROUNDS", 3)? {
            // Every second round begins with the other arm, so that a machine that gets slower favors neither.
            let (own, (ours, spent)) = if round.is_multiple_of(2) {
                let own = self.by_itself(&input)?;
                (own, self.through_rollout(fleet, round, &input)?)
            } else {
                let ours = self.through_rollout(fleet, round, &input)?;
                (self.by_itself(&input)?, ours)
            };
            shares.push(self.print(round, &own, &ours, &spent)?);
        }
        shares.sort_by(f64::total_cmp);
        println!("{}", json!({"bench": "vllm", "overhead_median": shares[shares.len() / 2]}));
        let log = std::fs::read_to_string(fleet.path("worker-w1.log"))?;
        for line in log.lines().filter(|line| line.contains("starved engine steps")) {
            println!("{line}");
        }
        Ok(())
    }

    /// Prints a round's figures; returns the overhead.
    fn print(&self, round: u32, own: &Arm, ours: &Arm, spent: &Cpu) -> Result<f64> {
        ensure!(
            own.completion_tokens == ours.completion_tokens,
            "{} and {} tokens",
            own.completion_tokens,
            ours.completion_tokens
        );
        let equal = own.texts.iter().zip(&ours.texts).filter(|(a, b)| a == b).count();
        let overhead = ours.seconds / own.seconds - 1.0;
        let figures = json!({
            "bench": "vllm", "round": round, "first": if round.is_multiple_of(2) { "llm" } else { "rollout" },
            "device": if self.cuda { "cuda" } else { "cpu" },
            "rows": self.rows, "completion_tokens": own.completion_tokens,
            "llm_generate_s": own.seconds, "rollout_s": ours.seconds, "overhead": overhead,
            "steady": own.seconds.min(ours.seconds) >= STEADY_S,
            "cpu_s": {"members": spent.members, "agent": spent.agent},
            "cpu_share": (spent.members + spent.agent) / ours.seconds,
            "equal_rows": equal as f64 / self.rows as f64,
        });
        println!("{figures}");
        Ok(overhead)
    }

    /// Rollout's arm: a worker started for this round, so that only one arm's engine is loaded at a time.
    fn through_rollout(&self, fleet: &mut Fleet, round: u32, input: &Path) -> Result<(Arm, Cpu)> {
        fleet.start_worker("w1", &self.worker()?)?;
        self.submitted(fleet, &format!("warm-{round}"), &self.warm(fleet)?)?;
        let cpu = Cpu::now(fleet)?;
        let ours = self.submitted(fleet, &format!("bench-{round}"), input)?;
        let spent = cpu.until_now(fleet)?;
        let ended = fleet.worker_process("w1").terminate(LEAVING)?;
        ensure!(ended.success(), "the worker: {ended}{}", fleet.logs());
        Ok((ours, spent))
    }

    /// Prompts of some thirty tokens; completions of 64 to 192.
    fn input(&self) -> String {
        (0..self.rows).fold(String::new(), |mut text, row| {
            let length = 64 + row * 7919 % 129;
            let _ = writeln!(
                text,
                "{{\"prompt\":\"{row:05} the quick brown fox jumps\",\"sampling_params\":{{\"max_tokens\":{length}}}}}"
            );
            text
        })
    }

    fn warm(&self, fleet: &Fleet) -> Result<PathBuf> {
        let input = fleet.path("warm.jsonl");
        let row = "{\"prompt\":\"warm\",\"sampling_params\":{\"max_tokens\":8}}\n";
        std::fs::write(&input, row.repeat(64))?;
        Ok(input)
    }

    fn worker(&self) -> Result<WorkerOptions> {
        let Self { python, package, model, seats, .. } = self;
        let mut engine = format!(
            "kind = \"vllm\"\npython = {python:?}\nmodel = {model:?}\nmodels = [\"bench\"]\nconcurrency = {seats}\n"
        );
        let args = self.engine_args.as_object().context("ENGINE_ARGS is no object")?;
        let args = args.iter().map(|(name, value)| format!("{name} = {value}"));
        let _ = writeln!(engine, "engine_args = {{ {} }}", args.collect::<Vec<_>>().join(", "));
        engine.push_str("[engine.env]\n");
        let package = package.display().to_string();
        let all = environment(self.cuda).into_iter().chain([("PYTHONPATH", package)]);
        for (name, value) in all {
            let _ = writeln!(engine, "{name} = {value:?}");
        }
        Ok(WorkerOptions { engine, head: String::new() })
    }

    fn script(&self, name: &str) -> Command {
        let mut command = Command::new(&self.python);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("vllm").join(name));
        command.envs(environment(self.cuda));
        command
    }

    /// vLLM's arm.
    fn by_itself(&self, input: &Path) -> Result<Arm> {
        let sampling = json!({"temperature": 0.0, "ignore_eos": true});
        let mut command = self.script("bench_llm.py");
        command.arg(&self.model).arg(input);
        let ran = command.args([self.engine_args.to_string(), sampling.to_string()]).output()?;
        ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let text = String::from_utf8(ran.stdout)?;
        let result = text.lines().find_map(|line| line.strip_prefix("RESULT "));
        let result: Value = serde_json::from_str(result.context("no result")?)?;
        Ok(Arm {
            seconds: result["seconds"].as_f64().context("seconds")?,
            completion_tokens: result["completion_tokens"].as_u64().context("tokens")?,
            texts: result["texts"].as_array().context("texts")?.clone(),
        })
    }

    /// A run from its creation to its end.
    fn submitted(&self, fleet: &Fleet, name: &str, input: &Path) -> Result<Arm> {
        let lines = "[model]\nuri = \"bench\"\n[sampling]\ntemperature = 0.0\nignore_eos = true\n";
        let rows = std::fs::read_to_string(input)?.lines().count() as u64;
        let mut batch = Batch::submit_file(fleet, name, input.to_owned(), rows, lines)?;
        // Do not poll meanwhile: polling takes processor time from the measurement.
        let status = batch.process().wait(RUNNING)?;
        ensure!(status.success(), "{status}{}", fleet.logs());
        let run = fleet.ctl_json(&["run", "describe", name])?["run"].take();
        let at = |key: &str| {
            let text = run[key].as_str().with_context(|| format!("no {key}: {run}"))?;
            OffsetDateTime::parse(text, &Rfc3339).with_context(|| text.to_owned())
        };
        let seconds = (at("finishedAt")? - at("createdAt")?).as_seconds_f64();
        let text = std::fs::read_to_string(batch.output.join("completions.jsonl"))?;
        let mut texts = Vec::new();
        let mut completion_tokens = 0;
        for line in text.lines() {
            let mut row: Value = serde_json::from_str(line)?;
            completion_tokens += row["completion_tokens"].as_u64().unwrap_or(0);
            texts.push(row["completion"].take());
        }
        Ok(Arm { seconds, completion_tokens, texts })
    }
}

fn environment(cuda: bool) -> Vec<(&'static str, String)> {
    let mut all = vec![("VLLM_LOGGING_LEVEL", "ERROR".to_owned())];
    if !cuda {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).to_string();
        all.extend([
            ("HF_HUB_OFFLINE", "1".to_owned()),
            ("VLLM_CPU_OMP_THREADS_BIND", "nobind".to_owned()),
            ("VLLM_CPU_KVCACHE_SPACE", "2".to_owned()),
            ("OMP_NUM_THREADS", threads),
        ]);
    }
    all
}

/// Seconds of processor time, of the members together and of the agent, without its engine.
struct Cpu {
    members: f64,
    agent: f64,
}

impl Cpu {
    fn now(fleet: &mut Fleet) -> Result<Self> {
        let mut members = 0.0;
        for name in fleet.member_names() {
            members += Usage::of(&[fleet.member_process(&name).pid()])?.cpu_s;
        }
        let agent = Usage::of(&[fleet.worker_process("w1").pid()])?.cpu_s;
        Ok(Self { members, agent })
    }

    fn until_now(&self, fleet: &mut Fleet) -> Result<Self> {
        let now = Self::now(fleet)?;
        Ok(Self { members: now.members - self.members, agent: now.agent - self.agent })
    }
}
