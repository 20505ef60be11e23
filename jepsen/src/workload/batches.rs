//! Whole batches, submitted by the real client and executed by real workers.
//!
//! *Invariant:* the client is called until it says that a batch has ended, whatever was broken
//! meanwhile: to submit the same again is harmless. What it wrote is recorded line by line.

use super::item::{CALL_TIMEOUT, recovered};
use super::worker_processes::Workers;
use crate::events::What;
use crate::fate::Fate;
use crate::fleet::Fleet;
use crate::nemesis::Family;
use crate::process::Process;
use crate::recorder::{By, Recorder};
use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rollout_proto::{CallOptions, Client, services, v1};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Who submits.
pub(super) const CLIENTS: &[&str] = &["u1", "u2"];
/// Who works.
pub(super) const WORKERS: &[&str] = &["w1", "w2", "w3"];
/// How long batches may still take when everything is healed.
const PATIENCE: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(300);

struct Shared {
    recorder: Arc<Recorder>,
    stop: AtomicBool,
    /// No batch is waited for any longer.
    over: AtomicBool,
    batches: AtomicU64,
    rows: AtomicU64,
    exported: AtomicU64,
}

/// Submits one batch after another.
struct User {
    name: &'static str,
    client: Client,
    program: PathBuf,
    context: PathBuf,
    dir: PathBuf,
    shared: Arc<Shared>,
    rng: StdRng,
}

/// A running workload.
pub struct Running {
    shared: Arc<Shared>,
    users: JoinSet<Result<()>>,
    workers: tokio::task::JoinHandle<Result<Workers>>,
}

/// Lets every client loose.
///
/// # Errors
/// When a process cannot be started.
pub(super) fn start(
    fleet: &Fleet,
    recorder: &Arc<Recorder>,
    nemesis: &[Family],
    seed: u64,
) -> Result<Running> {
    let shared = Arc::new(Shared {
        recorder: recorder.clone(),
        stop: AtomicBool::new(false),
        over: AtomicBool::new(false),
        batches: AtomicU64::new(0),
        rows: AtomicU64::new(0),
        exported: AtomicU64::new(0),
    });
    let mut users = JoinSet::new();
    for (number, name) in (0..).zip(CLIENTS) {
        let user = User {
            name,
            client: fleet.client("client", name, CALL_TIMEOUT)?,
            program: fleet.program("rollout").get_program().into(),
            context: fleet.context(name)?,
            dir: fleet.dir().to_owned(),
            shared: shared.clone(),
            rng: StdRng::seed_from_u64(seed.wrapping_mul(31).wrapping_add(number)),
        };
        users.spawn(user.run());
    }
    let mut workers = Workers::start(fleet, recorder, nemesis, WORKERS, !seed)?;
    let working = shared.clone();
    let workers = tokio::spawn(async move {
        while !working.stop.load(Ordering::Relaxed) {
            workers.strike().await?;
        }
        Ok(workers)
    });
    Ok(Running { shared, users, workers })
}

impl Running {
    /// See [`super::Running::finish`].
    pub(super) async fn finish(mut self, recovery: Duration) -> Result<()> {
        let recorder = self.shared.recorder.clone();
        recovered(&recorder, recovery).await;
        self.shared.stop.store(true, Ordering::Relaxed);
        let mut workers = self.workers.await??;
        let begun = Instant::now();
        while !self.users.is_empty() {
            workers.revive()?;
            self.shared.over.store(begun.elapsed() > PATIENCE, Ordering::Relaxed);
            if let Ok(Some(ended)) = tokio::time::timeout(LOOK, self.users.join_next()).await {
                ended??;
            }
        }
        let wanted = self.shared.rows.load(Ordering::Relaxed);
        let answered = self.shared.exported.load(Ordering::Relaxed);
        recorder.event(What::FinalReads { wanted, answered });
        Ok(())
    }
}

impl User {
    async fn run(mut self) -> Result<()> {
        while !self.shared.stop.load(Ordering::Relaxed) {
            let number = self.shared.batches.fetch_add(1, Ordering::Relaxed);
            let rows = self.rng.random_range(50..250);
            self.batch(number, rows).await?;
        }
        Ok(())
    }

    async fn batch(&mut self, number: u64, rows: u64) -> Result<()> {
        let recorder = self.shared.recorder.clone();
        let name = format!("batch-{number}");
        let output = self.dir.join(format!("{name}-out"));
        let config = self.write(&name, number, rows, &output)?;
        self.shared.rows.fetch_add(rows, Ordering::Relaxed);
        let submit = recorder.invoke("submit", name.clone(), json!([number, rows]), None);
        let log = self.dir.join(format!("{name}.log"));
        let mut told = 0;
        loop {
            let mut command = Command::new(&self.program);
            command.env("ROLLOUT_CONTEXT", &self.context).args(["infer", "batch", "--config"]);
            command.arg(&config).args(["--name", &name, "--timeout", "60s"]);
            let mut process = Process::start(command, &log)?;
            // Some clients die themselves; the batch goes on, and the next one joins it.
            let dies = self.rng.random_ratio(1, 4);
            let life = dies.then(|| Duration::from_millis(self.rng.random_range(200..6000)));
            let begun = Instant::now();
            let ended = loop {
                if let Some(ended) = process.ended() {
                    break ended.code();
                }
                if self.shared.over.load(Ordering::Relaxed) {
                    recorder.info(&submit, "it did not end in time".to_owned());
                    self.stuck(name).await;
                    return Ok(());
                }
                if life.is_some_and(|life| begun.elapsed() > life) {
                    break None;
                }
                self.progress(&name, &mut told).await;
                tokio::time::sleep(LOOK).await;
            };
            process.kill();
            // Well, or well but for rows that failed for good.
            if let Some(0 | 1) = ended
                && output.join("completions.jsonl").exists()
            {
                break;
            }
        }
        recorder.ok(&submit, Value::Null, By::default());
        let export = recorder.invoke("export", name, Value::Null, None);
        let lines = lines(&output)?;
        self.shared.exported.fetch_add(lines.len() as u64, Ordering::Relaxed);
        recorder.ok(&export, Value::Array(lines), By::default());
        Ok(())
    }

    fn write(&self, name: &str, number: u64, rows: u64, output: &Path) -> Result<PathBuf> {
        let mut text = String::new();
        for row in 0..rows {
            let prompt = Fate::of(number, row).prompt(number, row);
            writeln!(text, r#"{{"id":"{name}-{row}","prompt":"{prompt}"}}"#)?;
        }
        let input = self.dir.join(format!("{name}.jsonl"));
        std::fs::write(&input, text)?;
        let config = self.dir.join(format!("{name}.toml"));
        let text = format!(
            "[model]\nuri = \"mock/tiny\"\n[sampling]\nmax_tokens = 16\n[input]\nglob = {input:?}\n\
             [output]\ndir = {output:?}\n[run]\nfailures_max = 1000000\n"
        );
        std::fs::write(&config, text)?;
        Ok(config)
    }

    /// Tells of rows that have not ended although all workers could run them.
    async fn stuck(&self, run: String) {
        let Some((counts, _)) = self.counts(&run).await else { return };
        let left = counts.rows.saturating_sub(counts.done + counts.failed);
        if left > 0 {
            let (running, secs) = (counts.running, PATIENCE.as_secs());
            self.shared.recorder.event(What::Stuck { run, left, running, secs });
        }
    }

    /// Where the rows of a run are, and in which epoch that was told.
    async fn counts(&self, name: &str) -> Option<(v1::RunCounts, Option<u64>)> {
        let request = v1::DescribeRunRequest {
            namespace: super::submitter::NAMESPACE.into(),
            name: name.into(),
            ..Default::default()
        };
        let options = CallOptions::read().timeout(LOOK);
        let read = self.client.with_leader_opts("describe run", options, |channel| {
            let request = request.clone();
            async move { services::runs(channel).describe_run(request).await }
        });
        let answer = read.await.ok()?;
        let counts = answer.run.unwrap_or_default().counts.unwrap_or_default();
        Some((counts, answer.header.map(|header| header.coord_epoch)))
    }

    /// Records where the rows are, if more of them have ended than were `told`.
    async fn progress(&self, name: &str, told: &mut u64) {
        let recorder = &self.shared.recorder;
        let called = recorder.now_ns();
        let Some((counts, epoch)) = self.counts(name).await else { return };
        let v1::RunCounts { rows, pending, waiting, running, done, failed, .. } = counts;
        if done + failed <= *told {
            return;
        }
        *told = done + failed;
        let op = recorder.invoke_at(called, "progress", name.to_owned(), Value::Null, None);
        let counts = json!([rows, pending, waiting, running, done, failed]);
        recorder.ok(&op, counts, By { member: Some(self.name.into()), epoch, ..By::default() });
    }
}

/// Every line of an output: its row, what became of it, and its text.
fn lines(output: &Path) -> Result<Vec<Value>> {
    let mut found = Vec::new();
    for (file, state) in [("completions.jsonl", "done"), ("errors.jsonl", "failed")] {
        let path = output.join(file);
        // Without failed rows there is no file of them.
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).context("a line of the output")?;
            let id = line["id"].as_str().unwrap_or_default();
            let row: i64 = id.rsplit('-').next().and_then(|row| row.parse().ok()).unwrap_or(-1);
            let text = match state {
                "done" => &line["completion"],
                _ => &line["error"]["class"],
            };
            found.push(json!([row, state, text.as_str().unwrap_or_default()]));
        }
    }
    Ok(found)
}
