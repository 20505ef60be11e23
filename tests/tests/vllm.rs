//! vLLM itself, on a CPU, behind three members and two workers. `make test-vllm` runs this: it makes the
//! environment, and fails where it cannot be had.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Loading vLLM takes minutes on a busy machine.
const LOADING: Duration = Duration::from_secs(420);
const ENGINE_ARGS: &str = r#"{"dtype":"float32","enforce_eager":true,"max_model_len":512}"#;
/// Of every process with vLLM in it.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("HF_HUB_OFFLINE", "1"),
    ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
    ("VLLM_CPU_KVCACHE_SPACE", "1"),
    ("OMP_NUM_THREADS", "1"),
];
const MAX_TOKENS: u32 = 24;
/// Longer than any step takes on a busy machine.
const STALL_MS: u32 = 20_000;

/// The interpreter that has vLLM, and the directory that has our package.
fn python() -> (PathBuf, PathBuf) {
    let of = |name| std::env::var_os(name).map(PathBuf::from);
    let (python, package) = (of("ROLLOUT_VLLM_PYTHON"), of("ROLLOUT_PYTHON_PACKAGE"));
    let missing = "run `make test-vllm`: it says where vLLM is";
    (python.expect(missing), package.expect(missing))
}

fn script(name: &str) -> Command {
    let mut command = Command::new(python().0);
    command.arg(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("vllm").join(name));
    command.envs(ENVIRONMENT);
    command
}

fn tiny_model(fleet: &Fleet) -> Result<String> {
    let dir = fleet.path("tiny").to_string_lossy().into_owned();
    let made = script("tiny_model.py").arg(&dir).output()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Ok(dir)
}

fn worker(model: &str, concurrency: u32) -> WorkerOptions {
    harmed_worker(model, concurrency, None)
}

/// A worker whose engines come to harm as files in `inject` ask for.
fn harmed_worker(model: &str, concurrency: u32, inject: Option<&Path>) -> WorkerOptions {
    let (python, package) = python();
    let mut engine = format!(
        "kind = \"vllm\"\npython = {python:?}\nmodel = {model:?}\nmodels = [\"tiny\"]\n\
         concurrency = {concurrency}\nstall_timeout_ms = {STALL_MS}\n\
         engine_args = {{ dtype = \"float32\", enforce_eager = true, max_model_len = 512 }}\n[engine.env]\n"
    );
    let plugin = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("vllm/inject");
    let path = format!("{}:{}", package.display(), plugin.display());
    let inject = inject.map(|dir| dir.to_string_lossy().into_owned()).unwrap_or_default();
    let ours = [("PYTHONPATH", path.as_str()), ("ROLLOUT_INJECT_DIR", inject.as_str())];
    for (name, value) in ENVIRONMENT.into_iter().chain(ours) {
        let _ = writeln!(engine, "{name} = {value:?}");
    }
    WorkerOptions { engine, head: String::new() }
}

/// The engines' processes: children of a worker.
fn engine_of(fleet: &mut Fleet, worker: &str) -> Option<i32> {
    let parent = fleet.worker_process(worker).pid();
    let path = format!("/proc/{parent}/task");
    let tasks = std::fs::read_dir(path).ok()?;
    tasks.flatten().find_map(|task| {
        let children = std::fs::read_to_string(task.path().join("children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    })
}

fn rows(count: u64) -> String {
    // Of every length, so that rows of a batch end at different times.
    let prompt = |n: u64| format!("row {n} says {}", "ab c".repeat((n % 17) as usize));
    (0..count).fold(String::new(), |mut text, n| {
        let _ = writeln!(text, "{{\"id\":\"r{n}\",\"prompt\":\"{}\"}}", prompt(n));
        text
    })
}

fn completions(batch: &Batch) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(batch.output.join("completions.jsonl"))?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

#[test]
fn greedy_completions_are_vllms_own_through_the_death_of_an_engine_and_of_the_leader() -> Result<()>
{
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let model = tiny_model(&fleet)?;
    let input = fleet.path("greedy.jsonl");
    std::fs::write(&input, rows(500))?;
    let reference = script("reference.py")
        .args([&model, &input.to_string_lossy().into_owned(), &MAX_TOKENS.to_string(), ENGINE_ARGS])
        .output()?;
    ensure!(reference.status.success(), "{}", String::from_utf8_lossy(&reference.stderr));
    let reference: Vec<Value> = String::from_utf8(reference.stdout)?
        .lines()
        .filter_map(|line| serde_json::from_str(line.strip_prefix("ROW ")?).ok())
        .collect();
    ensure!(reference.len() == 500, "the reference has {} rows", reference.len());
    for name in ["w1", "w2"] {
        fleet.start_worker(name, &worker(&model, 16))?;
    }
    let lines = format!(
        "[model]\nuri = \"tiny\"\n[sampling]\ntemperature = 0.0\nmax_tokens = {MAX_TOKENS}\n"
    );
    let mut batch = Batch::submit_file(&fleet, "greedy", input, 500, &lines)?;
    eventually("some rows are done", LOADING, || batch.counts(&fleet).filter(|c| c.done >= 50));
    let engine = eventually("w1 has an engine", LOADING, || engine_of(&mut fleet, "w1"));
    let at_death = batch.counts(&fleet).context("nobody can say")?;
    ensure!(at_death.done < 400, "the run is nearly over: {at_death:?}");
    // SAFETY: a signal to a process that this test's worker started.
    unsafe { libc::kill(engine, libc::SIGKILL) };
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    let status = batch.process().wait(LOADING).with_context(|| fleet.logs())?;
    ensure!(status.success(), "{status}{}", fleet.logs());
    let log = std::fs::read_to_string(fleet.path("worker-w1.log"))?;
    ensure!(log.contains("was ended by signal 9"), "no engine died: {log}");
    let got = completions(&batch)?;
    ensure!(got.len() == 500, "{} rows", got.len());
    for (number, (got, expected)) in got.iter().zip(&reference).enumerate() {
        ensure!(got["completion"] == expected["text"], "row {number}: {got} for {expected}");
        ensure!(got["completion_tokens"] == expected["tokens"], "row {number}: {got}");
        ensure!(got["finish_reason"] == expected["reason"], "row {number}: {got}");
    }
    fleet.start_member(&leader)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn rows_that_vllm_refuses_are_error_rows_and_the_others_finish() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let model = tiny_model(&fleet)?;
    let mut text = rows(40);
    let long = "x".repeat(600);
    let _ = writeln!(text, "{{\"id\":\"long\",\"prompt\":\"{long}\"}}");
    let _ = writeln!(text, "{{\"id\":\"empty\",\"prompt\":\"\"}}");
    let chat = r#"{"id":"chat","messages":[{"role":"user","content":"hello"}]}"#;
    let _ = writeln!(text, "{chat}");
    let input = fleet.path("refused.jsonl");
    std::fs::write(&input, text)?;
    fleet.start_worker("w1", &worker(&model, 16))?;
    // No bound of tokens: what is left of the model's room, 512 with the prompt.
    let lines = "[model]\nuri = \"tiny\"\n[sampling]\ntemperature = 0.0\nignore_eos = true\n";
    let mut batch = Batch::submit_file(&fleet, "refused", input, 43, lines)?;
    let status = batch.process().wait(LOADING).with_context(|| fleet.logs())?;
    ensure!(status.code() == Some(1), "{status}{}", fleet.logs());
    for row in completions(&batch)? {
        let tokens = |key: &str| row[key].as_u64().unwrap_or_default();
        let all = tokens("prompt_tokens") + tokens("completion_tokens");
        ensure!(all == 512 && row["finish_reason"] == "length", "{all} tokens: {row}");
    }
    let errors = std::fs::read_to_string(batch.output.join("errors.jsonl"))?;
    let errors: Vec<Value> = errors.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let told: Vec<_> = errors.iter().map(|e| (&e["id"], &e["error"]["code"])).collect();
    ensure!(errors.len() == 2, "{told:?}");
    for error in &errors {
        ensure!(error["error"]["class"] == "invalid_row", "{error}");
        ensure!(error["error"]["code"] == "VLLMValidationError", "{error}");
    }
    ensure!(completions(&batch)?.iter().any(|row| row["id"] == "chat"), "no answer to messages");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn an_engine_that_runs_out_of_memory_aborts_or_hangs_inside_costs_no_row() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let model = tiny_model(&fleet)?;
    let input = fleet.path("harm.jsonl");
    std::fs::write(&input, rows(2000))?;
    let inject = fleet.path("inject");
    std::fs::create_dir(&inject)?;
    fleet.start_worker("w1", &harmed_worker(&model, 8, Some(&inject)))?;
    let lines = "[model]\nuri = \"tiny\"\n[sampling]\nignore_eos = true\nmax_tokens = 24\n";
    let mut batch = Batch::submit_file(&fleet, "harm", input, 2000, lines)?;
    let log = fleet.path("worker-w1.log");
    for (harm, said) in [
        ("oom", "memory ran out, fewer rows at once"),
        ("abort", "was ended by signal 6"),
        ("hang", "made no progress for 20000 ms"),
    ] {
        let before = batch.counts(&fleet).map_or(0, |c| c.done);
        // Rows end again, so an engine is at work.
        eventually(&format!("rows end before {harm}"), LOADING, || {
            batch.counts(&fleet).filter(|c| c.done > before)
        });
        std::fs::write(inject.join(harm), "")?;
        eventually(&format!("the worker says: {said}"), LOADING, || {
            std::fs::read_to_string(&log).ok().filter(|text| text.contains(said))
        });
        let after = batch.counts(&fleet).context("nobody can say")?;
        ensure!(after.done < 2000, "the run was over before {harm}: {after:?}");
    }
    let status = batch.process().wait(LOADING).with_context(|| fleet.logs())?;
    ensure!(status.success(), "{status}{}", fleet.logs());
    ensure!(completions(&batch)?.len() == 2000, "rows are missing");
    fleet.verify()?;
    fleet.passed()
}
