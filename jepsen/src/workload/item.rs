//! Rows of small runs, contended by a few workers that complete, fail, forget and come back late.
//!
//! *Invariant:* no two parts have the same digest, so that a read identifies the exchange that it saw. Each row is a
//! key of its own, with a few dozen operations at most.

use super::submitter::Submitter;
use super::trainers::{self, Trainer};
use super::worker::Worker;
use crate::events::EventKind;
use crate::fleet::Fleet;
use crate::recorder::Recorder;
use anyhow::Result;
use rollout_proto::v1;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The clients that submit and read.
pub const CLIENTS: &[&str] = &["s1", "s2"];
pub const WORKERS: &[&str] = &["w1", "w2", "w3", "w4"];
/// How long one call keeps trying: longer than an election, shorter than the longest fault.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(4);

/// Prefix of a run's name in the keys of the requests that created it.
pub(crate) const RUN_PREFIX: &str = "run:";

/// Time limit for the remaining rows after everything is healed: long enough to prove that the longest-waiting row is
/// stuck.
const DRAIN_MAX: Duration = Duration::from_secs(140);
/// Rows without progress for this long are stuck: no lease lasts that long without a sign of life.
const STUCK: Duration = Duration::from_secs(20);
/// The same for rows that wait for their next try, which takes a minute at most.
const WAITING_STUCK: Duration = Duration::from_secs(70);

/// The style of workers and runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Small grants; failures of each kind.
    Item,
    /// Greedy workers with queues from which others steal; half of the runs allow duplicates.
    Steal,
}

/// A run that was made, or is being made.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) name: String,
    /// The folder of its objects.
    pub(super) folder: String,
    pub(super) rows: u32,
    /// Its rows may run twice at a time.
    pub(super) duplicates: bool,
    /// All of its rows were declared, and its input was closed; each of these was answered.
    pub(super) whole: bool,
    /// A deviation from its answers was recorded.
    pub(super) gone: bool,
}

/// What all clients share.
pub(super) struct Shared {
    pub(super) recorder: Arc<Recorder>,
    pub(super) style: Style,
    /// Shared by the clients that make runs.
    requests: Arc<trainers::Shared>,
    stop: AtomicBool,
    dutiful: AtomicBool,
    runs: Mutex<BTreeMap<u32, Run>>,
    /// Held by each client that is making a run.
    making: Arc<()>,
}

impl Shared {
    pub(super) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Whether workers start nothing new and finish what exists.
    pub(super) fn dutiful(&self) -> bool {
        self.dutiful.load(Ordering::Relaxed)
    }

    pub(super) fn add_run(&self, number: u32, run: Run) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.insert(number, run);
    }

    /// Everything that makes a run was answered.
    pub(super) fn is_whole(&self, run: u32) {
        self.change(run, |run| run.whole = true);
    }

    /// Marks a run that deviates from its answers. True the first time.
    pub(super) fn is_gone(&self, run: u32) -> bool {
        self.change(run, |run| !std::mem::replace(&mut run.gone, true)).unwrap_or(false)
    }

    fn change<R>(&self, run: u32, how: impl FnOnce(&mut Run) -> R) -> Option<R> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&run).map(how)
    }

    pub(super) fn run(&self, run: u32) -> Option<Run> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).get(&run).cloned()
    }

    /// A guard to hold while a run is made.
    pub(super) fn making(&self) -> Arc<()> {
        self.making.clone()
    }

    /// Whether rows may still be declared.
    fn is_making(&self) -> bool {
        Arc::strong_count(&self.making) > 1
    }

    fn all_runs(&self) -> Vec<u32> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }
}

pub struct Running {
    shared: Arc<Shared>,
    tasks: JoinSet<Result<()>>,
    last: Submitter,
}

/// Starts every client.
///
/// # Errors
/// When a client cannot be made.
pub fn start(fleet: &Fleet, recorder: &Arc<Recorder>, seed: u64, style: Style) -> Result<Running> {
    let shared = Arc::new(Shared {
        recorder: recorder.clone(),
        style,
        requests: trainers::Shared::new(recorder),
        stop: AtomicBool::new(false),
        dutiful: AtomicBool::new(false),
        runs: Mutex::default(),
        making: Arc::default(),
    });
    let submitter = |certificate: &'static str, name: &str, seed: u64| -> Result<Submitter> {
        let trainer = Trainer::new(fleet, certificate, name, &shared.requests, seed ^ 0x5eed)?;
        Ok(Submitter::new(trainer, shared.clone()))
    };
    let mut tasks = JoinSet::new();
    for (number, name) in (0..).zip(WORKERS) {
        let client = fleet.client("worker", name, CALL_TIMEOUT)?;
        tasks.spawn(Worker::new(name, number, client, shared.clone(), seed).run());
    }
    for (number, name) in (0..).zip(CLIENTS) {
        tasks.spawn(submitter(name, name, seed + number)?.run());
    }
    let last = submitter(CLIENTS[0], "final", seed)?;
    Ok(Running { shared, tasks, last })
}

impl Running {
    /// Waits, after everything was healed, for a write that succeeds; then lets workers finish, stops all clients,
    /// and reads every row once more.
    ///
    /// # Errors
    /// Errors of clients that faults do not explain.
    pub async fn finish(mut self, recovery: Duration) -> Result<()> {
        let recorder = self.shared.recorder.clone();
        recovered(&recorder, recovery).await;
        self.shared.dutiful.store(true, Ordering::Relaxed);
        self.drained(&recorder).await;
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.requests.stop();
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        let (mut wanted, mut answered) = (0, 0);
        let begun = Instant::now();
        for run in self.shared.all_runs() {
            let rows = u64::from(self.shared.run(run).map_or(0, |r| r.rows));
            wanted += rows;
            // If no member answers any more, one proof is enough for all runs.
            while begun.elapsed() < recovery * 2 {
                if self.last.read(run).await.is_some() {
                    answered += rows;
                    break;
                }
            }
        }
        recorder.event(EventKind::FinalReads { wanted, answered });
        Ok(())
    }

    /// Waits until every row has ended, and records runs whose rows make no progress. A run that no longer exists was
    /// recorded when it was queried; rows that end too slowly are read as undecided at the end, which is no pass.
    async fn drained(&mut self, recorder: &Recorder) {
        let (mut left, mut seen) = (self.shared.all_runs(), 0);
        let (begun, mut moved) = (Instant::now(), Instant::now());
        let mut before: Vec<(u32, Option<v1::RunCounts>)> = Vec::new();
        while begun.elapsed() < DRAIN_MAX {
            let mut states = Vec::new();
            for run in std::mem::take(&mut left) {
                let counts = self.last.counts(run).await;
                let ended = counts.as_ref().is_some_and(|c| c.done + c.failed == c.rows);
                if !ended {
                    left.push(run);
                    states.push((run, counts));
                }
            }
            if left.is_empty() {
                // A client that was making a run at the end may have declared it, or its second piece, since.
                let making = self.shared.is_making();
                left = self.shared.all_runs();
                let earlier = std::mem::replace(&mut seen, left.len());
                if !making && earlier == seen {
                    return;
                }
            }
            if states != before {
                (moved, before) = (Instant::now(), states);
            } else if before.iter().flat_map(|(_, c)| c).any(|c| stuck(c, moved.elapsed()) > 0) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let unmoved = moved.elapsed();
        for (run, counts) in before {
            let Some(counts) = counts else { continue };
            let (left, running, secs) =
                (stuck(&counts, unmoved), counts.running, unmoved.as_secs());
            let name = self.shared.run(run).map_or_else(String::new, |run| run.name);
            if left > 0 {
                recorder.event(EventKind::Stuck { run: name, left, running, secs });
            }
        }
    }
}

/// How many rows of a run are stuck if its counts have not changed for `unmoved`.
fn stuck(counts: &v1::RunCounts, unmoved: Duration) -> u64 {
    let v1::RunCounts { rows, waiting, done, failed, .. } = counts;
    let left = rows.saturating_sub(done + failed);
    match unmoved {
        unmoved if unmoved > WAITING_STUCK => left,
        unmoved if unmoved > STUCK => left.saturating_sub(*waiting),
        _ => 0,
    }
}

/// Waits for a write that succeeds after everything was healed, and records how long that took.
pub(super) async fn recovered(recorder: &Recorder, limit: Duration) {
    let (healed, before) = (Instant::now(), recorder.succeeded());
    while recorder.succeeded() == before && healed.elapsed() < limit {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let recovered = recorder.succeeded() > before;
    let after_ms = recovered.then(|| u64::try_from(healed.elapsed().as_millis()).unwrap_or(0));
    recorder.event(EventKind::Recovered { after_ms });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_stuck_after_twenty_seconds_and_those_that_wait_after_their_longest_wait() {
        let counts = v1::RunCounts {
            rows: 6,
            pending: 1,
            waiting: 2,
            done: 2,
            failed: 1,
            ..v1::RunCounts::default()
        };
        let after = |secs| stuck(&counts, Duration::from_secs(secs));
        assert_eq!([19, 21, 61, 71].map(after), [0, 1, 1, 3]);
        let ended = v1::RunCounts { rows: 6, done: 5, failed: 1, ..v1::RunCounts::default() };
        assert_eq!(stuck(&ended, Duration::from_secs(600)), 0);
        let retried = v1::RunCounts { rows: 6, waiting: 1, done: 5, ..v1::RunCounts::default() };
        let after = |secs| stuck(&retried, Duration::from_secs(secs));
        assert_eq!([21, 59, 71].map(after), [0, 0, 1], "a timer that was lost");
    }
}
