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
const CALL_TIMEOUT: Duration = Duration::from_secs(4);

/// What all clients share.
pub(super) struct Shared {
    pub(super) recorder: Arc<Recorder>,
    stop: AtomicBool,
    /// Runs whose rows were declared: name and number of rows.
    runs: Mutex<BTreeMap<u32, (String, u32)>>,
}

impl Shared {
    pub(super) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn add_run(&self, run: u32, name: &str, rows: u32) {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        runs.insert(run, (name.to_owned(), rows));
    }

    pub(super) fn run(&self, run: u32) -> Option<(String, u32)> {
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
pub fn start(fleet: &Fleet, recorder: &Arc<Recorder>, seed: u64) -> Result<Running> {
    let shared = Arc::new(Shared {
        recorder: recorder.clone(),
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
        let (healed, before) = (Instant::now(), recorder.succeeded());
        while recorder.succeeded() == before && healed.elapsed() < recovery {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let recovered = recorder.succeeded() > before;
        let after_ms = recovered.then(|| u64::try_from(healed.elapsed().as_millis()).unwrap_or(0));
        recorder.event(What::Recovered { after_ms });
        self.shared.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        let (mut wanted, mut answered) = (0, 0);
        for run in self.shared.all_runs() {
            wanted += u64::from(self.shared.run(run).map_or(0, |r| r.1));
            let begun = Instant::now();
            while begun.elapsed() < recovery {
                let read = self.last.read(run).await;
                answered += read;
                if read > 0 {
                    break;
                }
            }
        }
        recorder.event(What::FinalReads { wanted, answered });
        Ok(())
    }
}
