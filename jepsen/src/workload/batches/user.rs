//! A user that submits one batch after another, and cancels, retries or deletes some of them.
//!
//! *Invariant:* the user waits for every batch that was not cancelled until it has ended, and exports its results.

use super::super::trainers::Trainer;
use super::batch::{Batch, lines};
use super::{LOOK, PATIENCE, Shared};
use crate::events::EventKind;
use crate::process::Process;
use crate::recorder::By;
use anyhow::Result;
use rand::Rng;
use serde_json::{Value, json};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a cancelled batch is observed.
const KEPT: Duration = Duration::from_secs(2);

/// Difference between the number of a batch and that of the next batch with its name.
const NEXT: u64 = 1_000_000;

pub(super) struct User {
    pub(super) client: Trainer,
    pub(super) program: PathBuf,
    pub(super) context: PathBuf,
    pub(super) dir: PathBuf,
    pub(super) shared: Arc<Shared>,
}

/// The exit status of a Rust program whose main thread panics.
const PANICKED: i32 = 101;

/// The exit status of a client that finished, with rows that failed for good.
const ROWS_FAILED: i32 = 10;

/// Whether a client that the suite did not kill ended by a signal or a panic, which no refusal explains. SIGKILL does
/// not count: the machine sends it to free memory.
fn crashed(ended: ExitStatus) -> bool {
    ended.code().is_none_or(|code| code == PANICKED) && ended.signal() != Some(9)
}

/// Why the client is not called again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StopReason {
    /// The batch has ended.
    Whole,
    /// The wanted number of rows has ended.
    Enough,
    /// The user no longer waits for it.
    Over,
}

impl User {
    pub(super) async fn run(mut self) -> Result<()> {
        while !self.shared.stopping() {
            let number = self.shared.batches.fetch_add(1, Ordering::Relaxed);
            let rows = self.client.rng.random_range(50..250);
            let batch = Batch::new(&self.dir, number, rows);
            match number % 4 {
                1 => self.cancelled(&batch).await?,
                2 => self.retried(&batch).await?,
                3 => self.deleted(&batch).await?,
                _ => {
                    self.whole(&batch, 0).await?;
                }
            }
        }
        Ok(())
    }

    /// Runs the batch to its end, and exports it. True if that succeeded.
    async fn whole(&mut self, batch: &Batch, nth: u32) -> Result<bool> {
        if self.submit(batch, nth, None).await? != StopReason::Whole {
            return Ok(false);
        }
        let recorder = self.shared.recorder.clone();
        let export = recorder.invoke("export", batch.key.clone(), Value::Null, None);
        let lines = lines(&batch.output(nth))?;
        self.shared.exported.fetch_add(lines.len() as u64, Ordering::Relaxed);
        recorder.ok(&export, Value::Array(lines), By::default());
        Ok(true)
    }

    /// Cancels the batch when some of it has ended; from then on nothing in it may change.
    async fn cancelled(&mut self, batch: &Batch) -> Result<()> {
        let enough = self.client.rng.random_range(1..batch.rows / 2);
        let ended = self.submit(batch, 0, Some(enough)).await?;
        if ended == StopReason::Over {
            return Ok(());
        }
        if ended == StopReason::Whole || !self.cancel(batch).await {
            // It had ended before, or that is unknown.
            self.whole(batch, 1).await?;
            return Ok(());
        }
        let begun = Instant::now();
        while begun.elapsed() < KEPT {
            self.look(batch, "kept").await;
            tokio::time::sleep(LOOK).await;
        }
        self.contradict(batch).await;
        while !self.shared.is_over() {
            if self.export_partly(batch).await? {
                break;
            }
        }
        self.look(batch, "kept").await;
        Ok(())
    }

    /// Retries its failed rows, which fail again; done rows stay done.
    async fn retried(&mut self, batch: &Batch) -> Result<()> {
        if self.whole(batch, 0).await? && self.retry(batch).await {
            self.whole(batch, 1).await?;
        }
        Ok(())
    }

    /// Deletes the batch when it has ended, and reuses its name.
    async fn deleted(&mut self, batch: &Batch) -> Result<()> {
        if self.whole(batch, 0).await? && self.delete(batch).await {
            self.whole(&batch.next(batch.number + NEXT), 0).await?;
        }
        Ok(())
    }

    /// Calls the client until the batch has ended, or until `enough` of its rows have.
    async fn submit(&mut self, batch: &Batch, nth: u32, enough: Option<u64>) -> Result<StopReason> {
        let recorder = self.shared.recorder.clone();
        let (config, output) = (batch.write(nth)?, batch.output(nth));
        if enough.is_none() {
            self.shared.rows.fetch_add(batch.rows, Ordering::Relaxed);
        }
        let given = json!([batch.number, batch.rows]);
        let submit = recorder.invoke("submit", batch.key.clone(), given, None);
        let mut decided = 0;
        loop {
            let mut command = Command::new(&self.program);
            command.env("ROLLOUT_CONTEXT", &self.context).args(["infer", "batch", "--config"]);
            command.arg(&config).args(["--name", &batch.name, "--timeout", "60s"]);
            let mut process = Process::start(command, &batch.log())?;
            // Some clients are killed; the batch continues, and the next client joins it.
            let dies = self.client.rng.random_ratio(1, 4);
            let life = dies.then(|| Duration::from_millis(self.client.rng.random_range(200..6000)));
            let begun = Instant::now();
            let ended = loop {
                if let Some(ended) = process.ended() {
                    break self.code(batch, ended);
                }
                if self.shared.is_over() {
                    recorder.info(&submit, "it did not end in time".to_owned());
                    self.stuck(batch).await;
                    return Ok(StopReason::Over);
                }
                if life.is_some_and(|life| begun.elapsed() > life) {
                    break None;
                }
                self.progress(batch, &mut decided).await;
                if enough.is_some_and(|enough| decided >= enough && decided < batch.rows) {
                    process.kill();
                    recorder.ok(&submit, json!("enough"), By::default());
                    return Ok(StopReason::Enough);
                }
                tokio::time::sleep(LOOK).await;
            };
            process.kill();
            // Success, or success except for rows that failed for good.
            if let Some(0 | ROWS_FAILED) = ended
                && output.join("completions.jsonl").exists()
            {
                break;
            }
        }
        recorder.ok(&submit, Value::Null, By::default());
        Ok(StopReason::Whole)
    }

    /// Records the results of a cancelled batch. True if that succeeded.
    async fn export_partly(&self, batch: &Batch) -> Result<bool> {
        let output = batch.output(9);
        let recorder = self.shared.recorder.clone();
        let op = recorder.invoke("partial", batch.key.clone(), Value::Null, None);
        let mut command = Command::new(&self.program);
        command.env("ROLLOUT_CONTEXT", &self.context).args(["export", &batch.name, "--partial"]);
        command.arg("--output").arg(&output).args(["--quiet", "--timeout", "60s"]);
        let mut process = Process::start(command, &batch.log())?;
        let ended = loop {
            match process.ended() {
                Some(ended) => break self.code(batch, ended),
                None if self.shared.is_over() => break None,
                None => tokio::time::sleep(LOOK).await,
            }
        };
        process.kill();
        if let Some(0 | ROWS_FAILED) = ended
            && output.join("completions.jsonl").exists()
        {
            recorder.ok(&op, Value::Array(lines(&output)?), By::default());
            return Ok(true);
        }
        recorder.fail(&op, format!("the client ended with {ended:?}"));
        tokio::time::sleep(LOOK).await;
        Ok(false)
    }

    /// The exit status of a client that ended by itself. After an error the client is called again; a crash is
    /// recorded.
    fn code(&self, batch: &Batch, ended: ExitStatus) -> Option<i32> {
        if crashed(ended) {
            let what = format!("the client of {}", batch.key);
            self.shared.recorder.event(EventKind::Crashed { what, status: ended.to_string() });
        }
        ended.code()
    }

    /// Records rows that have not ended although all workers could run them.
    async fn stuck(&self, batch: &Batch) {
        let Ok((counts, _)) = self.counts(batch).await else { return };
        let left = counts.rows.saturating_sub(counts.done + counts.failed);
        if left > 0 {
            let (run, running, secs) = (batch.name.clone(), counts.running, PATIENCE.as_secs());
            self.shared.recorder.event(EventKind::Stuck { run, left, running, secs });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_crashes_by_a_panic_or_a_signal_and_not_by_a_refusal() {
        let ended = |code: i32| crashed(ExitStatus::from_raw(code << 8));
        assert_eq!([0, 1, 64, 69, 101].map(ended), [false, false, false, false, true]);
        assert!(crashed(ExitStatus::from_raw(libc::SIGSEGV)));
        assert!(!crashed(ExitStatus::from_raw(libc::SIGKILL)));
    }
}
