//! Rows of small runs, fought over by a few workers that complete, fail, forget and come back late.
//!
//! *Invariant:* a part's digest is never the same twice, so that a read names the exchange that it
//! saw. Each row is a key of its own, with a few dozen operations at most.

use super::submitter::Submitter;
use super::trainers::{self, Trainer};
use super::worker::Worker;
use crate::events::What;
use crate::fleet::Fleet;
use crate::recorder::Recorder;
use anyhow::Result;
use rollout_proto::v1;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Who submits and reads.
pub const CLIENTS: &[&str] = &["s1", "s2"];
/// Who works.
pub const WORKERS: &[&str] = &["w1", "w2", "w3", "w4"];
/// How long one call keeps trying: longer than an election, shorter than the longest fault.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(4);

/// Before the name of a run, in the keys of what was done to make it.
pub(crate) const RUN_PREFIX: &str = "run:";

/// How long workers may take for what is left when everything is healed.
const DRAIN_MAX: Duration = Duration::from_secs(75);
/// How many runs are made for workers that wait, and how long these wait before.
const FRESH_MAX: u32 = 3;
const UNANSWERED: Duration = Duration::from_secs(2);
/// Rows of which so long nothing became are stuck: no lease lasts so long without a sign of life.
const STUCK: Duration = Duration::from_secs(20);

/// What workers and runs are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Small grants; failures of each kind.
    Item,
    /// Greedy workers with queues, of which others steal; half of the runs allow duplicates.
    Steal,
}

/// A run that was made, or is being made.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) name: String,
    /// Where its objects would be.
    pub(super) folder: String,
    pub(super) rows: u32,
    /// Its rows may run twice at a time.
    pub(super) duplicates: bool,
    /// All of its rows were declared, and its input was closed; each of these was answered.
    pub(super) whole: bool,
    /// It was told that it is not as it was answered.
    pub(super) gone: bool,
}

/// What all clients share.
pub(super) struct Shared {
    pub(super) recorder: Arc<Recorder>,
    pub(super) style: Style,
    /// Of those who make runs.
    requests: Arc<trainers::Shared>,
    stop: AtomicBool,
    dutiful: AtomicBool,
    runs: Mutex<BTreeMap<u32, Run>>,
}

impl Shared {
    pub(super) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Nothing new is begun, and what there is is finished.
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

    /// A run is not as it was answered. True the first time.
    pub(super) fn is_gone(&self, run: u32) -> bool {
        self.change(run, |run| !std::mem::replace(&mut run.gone, true)).unwrap_or(false)
    }

    fn change<R>(&self, run: u32, how: impl FnOnce(&mut Run) -> R) -> Option<R> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).get_mut(&run).map(how)
    }

    pub(super) fn run(&self, run: u32) -> Option<Run> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).get(&run).cloned()
    }

    fn all_runs(&self) -> Vec<u32> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }
}

/// A running workload.
pub struct Running {
    shared: Arc<Shared>,
    tasks: JoinSet<Result<()>>,
    last: Submitter,
}

/// Lets every client loose.
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
    /// After everything was healed: waits for a write that succeeds, lets workers finish what there
    /// is, stops all clients, reads every row once more.
    ///
    /// # Errors
    /// What a client failed with, beyond what faults explain.
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
            // Where nobody answers any more, not each run needs its own proof of it.
            while begun.elapsed() < recovery * 2 {
                if self.last.read(run).await.is_some() {
                    answered += rows;
                    break;
                }
            }
        }
        recorder.event(What::FinalReads { wanted, answered });
        Ok(())
    }

    /// Waits until every row has ended, and tells of runs to whose rows nothing happens any more. One that is not there
    /// any more was told when it was asked for.
    async fn drained(&mut self, recorder: &Recorder) {
        let (mut left, mut fresh) = (self.shared.all_runs(), 0);
        let (begun, mut moved, mut before) = (Instant::now(), Instant::now(), Vec::new());
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
                return;
            }
            if states != before {
                (moved, before) = (Instant::now(), states);
            } else if moved.elapsed() > STUCK {
                break;
            } else if moved.elapsed() > UNANSWERED && fresh < FRESH_MAX {
                // A worker that keeps rows may have asked for more before it became dutiful, and
                // waits: it is answered when there are new ones.
                fresh += 1;
                left.extend(self.last.make(&format!("fresh-{fresh}")).await);
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let secs = moved.elapsed().as_secs();
        if moved.elapsed() < STUCK {
            return;
        }
        for (run, counts) in before {
            let Some(v1::RunCounts { rows, waiting, running, done, failed, .. }) = counts else {
                continue;
            };
            // A row that waits for its next try may do so for a minute.
            let left = rows.saturating_sub(done + failed + waiting);
            let name = self.shared.run(run).map_or_else(String::new, |run| run.name);
            if left > 0 {
                recorder.event(What::Stuck { run: name, left, running, secs });
            }
        }
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
    recorder.event(What::Recovered { after_ms });
}
