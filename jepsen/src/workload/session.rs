//! Requests that are sent again under their ids, and sessions that ended.
//!
//! *Invariant:* what a request writes is unique, so that a repeat that is executed shows: a run is
//! paused for a reason that nobody gives again, and whoever reads the reason later sees which
//! pause was the last. Of several who create one run exactly one is told that it made it.

use super::item::{CALL_TIMEOUT, recovered};
use super::requester::Requester;
use super::sessions::Visitor;
use crate::events::What;
use crate::fleet::Fleet;
use crate::recorder::Recorder;
use anyhow::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Who sends requests.
pub(super) const CLIENTS: &[&str] = &["s1", "s2", "s3"];
/// Whose sessions end.
pub(super) const WORKERS: &[&str] = &["v1", "v2"];
/// Runs that are paused and resumed by all.
pub(super) const REGISTERS: u64 = 5;

/// What all clients share.
pub(super) struct Shared {
    pub(super) recorder: Arc<Recorder>,
    stop: AtomicBool,
    duels: AtomicU64,
}

impl Shared {
    pub(super) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The next run that somebody creates; about three of them meet at each.
    pub(super) fn duel(&self) -> u64 {
        self.duels.fetch_add(1, Ordering::Relaxed) / 3
    }
}

/// A running workload.
pub struct Running {
    shared: Arc<Shared>,
    tasks: JoinSet<Result<()>>,
    last: Requester,
}

/// Lets every client loose.
///
/// # Errors
/// When a client cannot be made.
pub(super) fn start(fleet: &Fleet, recorder: &Arc<Recorder>, seed: u64) -> Result<Running> {
    let shared = Arc::new(Shared {
        recorder: recorder.clone(),
        stop: AtomicBool::new(false),
        duels: AtomicU64::new(0),
    });
    let requester = |name: &'static str, seed: u64| -> Result<Requester> {
        let client = fleet.client("client", name, CALL_TIMEOUT)?;
        let raw = fleet.channels("client", name)?;
        Ok(Requester::new(name, client, raw, shared.clone(), seed))
    };
    let mut tasks = JoinSet::new();
    for (number, name) in (0..).zip(CLIENTS) {
        tasks.spawn(requester(name, seed.wrapping_mul(31).wrapping_add(number))?.run());
    }
    for (number, name) in (7..).zip(WORKERS) {
        let client = fleet.client("worker", name, CALL_TIMEOUT)?;
        let visitor = Visitor::new(name, client, shared.clone(), seed ^ (number << 32));
        tasks.spawn(visitor.run());
    }
    let last = requester(CLIENTS[0], seed)?;
    Ok(Running { shared, tasks, last })
}

impl Running {
    /// See [`super::Running::finish`].
    pub(super) async fn finish(mut self, recovery: Duration) -> Result<()> {
        let recorder = self.shared.recorder.clone();
        recovered(&recorder, recovery).await;
        self.shared.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        let mut answered = 0;
        for register in 0..REGISTERS {
            let begun = Instant::now();
            let mut read = false;
            while !read && begun.elapsed() < recovery {
                read = self.last.get(register).await;
            }
            answered += u64::from(read);
        }
        recorder.event(What::FinalReads { wanted: REGISTERS, answered });
        Ok(())
    }
}
