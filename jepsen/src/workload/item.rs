//! Rows of small runs, fought over by a few workers that complete, fail, forget and come back late.
//!
//! *Invariant:* a part's digest is never the same twice, so that a read names the exchange that it
//! saw. Each row is a key of its own, with a few dozen operations at most.

use super::submitter::Submitter;
use super::worker::Worker;
use crate::events::What;
use crate::fleet::Fleet;
use crate::recorder::Recorder;
use anyhow::Result;
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

/// What workers and runs are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Small grants; failures of each kind.
    Item,
    /// Greedy workers with queues, of which others steal; half of the runs allow duplicates.
    Steal,
}

/// A run whose rows were declared.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) name: String,
    pub(super) rows: u32,
    /// Its rows may run twice at a time.
    pub(super) duplicates: bool,
}

/// What all clients share.
pub(super) struct Shared {
    pub(super) recorder: Arc<Recorder>,
    pub(super) style: Style,
    stop: AtomicBool,
    runs: Mutex<BTreeMap<u32, Run>>,
}

impl Shared {
    pub(super) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn add_run(&self, number: u32, run: Run) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.insert(number, run);
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
        stop: AtomicBool::new(false),
        runs: Mutex::default(),
    });
    let mut tasks = JoinSet::new();
    for (number, name) in (0..).zip(WORKERS) {
        let client = fleet.client("worker", name, CALL_TIMEOUT)?;
        tasks.spawn(Worker::new(name, number, client, shared.clone(), seed).run());
    }
    for (number, name) in (0..).zip(CLIENTS) {
        let client = fleet.client("client", name, CALL_TIMEOUT)?;
        tasks.spawn(Submitter::new(name, client, shared.clone(), seed + number).run());
    }
    let client = fleet.client("client", CLIENTS[0], CALL_TIMEOUT)?;
    let last = Submitter::new("final", client, shared.clone(), seed);
    Ok(Running { shared, tasks, last })
}

impl Running {
    /// After everything was healed: waits for a write that succeeds, stops all clients, reads every
    /// row once more.
    ///
    /// # Errors
    /// What a client failed with, beyond what faults explain.
    pub async fn finish(mut self, recovery: Duration) -> Result<()> {
        let recorder = self.shared.recorder.clone();
        recovered(&recorder, recovery).await;
        self.shared.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        let (mut wanted, mut answered) = (0, 0);
        for run in self.shared.all_runs() {
            let rows = u64::from(self.shared.run(run).map_or(0, |r| r.rows));
            wanted += rows;
            let begun = Instant::now();
            while begun.elapsed() < recovery {
                if self.last.read(run).await.is_some() {
                    answered += rows;
                    break;
                }
            }
        }
        recorder.event(What::FinalReads { wanted, answered });
        Ok(())
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
