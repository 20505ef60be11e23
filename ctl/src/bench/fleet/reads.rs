//! How long an operator waits for `run list`, `worker list` and `status` while the fleet works.
//!
//! Invariant: a separate client, one read at a time; a failed read counts with the time until it failed, so an
//! unavailable leader shows. Absent: printing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rollout_proto::{CallOptions, Client, services, v1};
use tokio::task::JoinHandle;

use crate::bench::measurements::{CallTimes, Times};
use crate::rolloutctl::status;

const EVERY: Duration = Duration::from_millis(500);

/// The times of each kind of read.
#[derive(Debug)]
struct Kinds {
    run_list: Times,
    worker_list: Times,
    status: Times,
    failed: u64,
}

impl Kinds {
    fn new() -> Self {
        Self { run_list: Times::new(), worker_list: Times::new(), status: Times::new(), failed: 0 }
    }
}

/// Reads of one window.
#[derive(Debug)]
pub(super) struct ReadTimes {
    pub(super) run_list: CallTimes,
    pub(super) worker_list: CallTimes,
    pub(super) status: CallTimes,
    pub(super) failed: u64,
}

/// A running reader. Dropping it stops it.
pub(super) struct Reads {
    kinds: Arc<Mutex<Kinds>>,
    task: JoinHandle<()>,
}

impl Drop for Reads {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Reads {
    /// Reads in this namespace from now on.
    pub(super) fn start(client: Client, namespace: String) -> Self {
        let kinds = Arc::new(Mutex::new(Kinds::new()));
        let task = tokio::spawn(read(client, namespace, kinds.clone()));
        Self { kinds, task }
    }

    /// The times since the last call.
    pub(super) fn take(&self) -> ReadTimes {
        let kinds = std::mem::replace(&mut *self.kinds.lock(), Kinds::new());
        ReadTimes {
            run_list: kinds.run_list.summary(),
            worker_list: kinds.worker_list.summary(),
            status: kinds.status.summary(),
            failed: kinds.failed,
        }
    }
}

async fn read(client: Client, namespace: String, kinds: Arc<Mutex<Kinds>>) {
    let us = |start: Instant| start.elapsed().as_micros() as u64;
    let mut every = tokio::time::interval(EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        every.tick().await;
        let start = Instant::now();
        let runs = v1::ListRunsRequest { namespace: namespace.clone() };
        let listed = client
            .with_leader_opts("list runs", CallOptions::read(), |channel| {
                let request = runs.clone();
                async move { services::runs(channel).list_runs(request).await }
            })
            .await;
        note(&kinds, |kinds| kinds.run_list.record_us(us(start)), listed.is_err());
        let start = Instant::now();
        let workers = v1::ListWorkersRequest { namespace: namespace.clone() };
        let listed = client
            .with_leader_opts("list workers", CallOptions::read(), |channel| {
                let request = workers.clone();
                async move { services::cluster(channel).list_workers(request).await }
            })
            .await;
        note(&kinds, |kinds| kinds.worker_list.record_us(us(start)), listed.is_err());
        let start = Instant::now();
        let survey = status::survey(&client).await;
        note(&kinds, |kinds| kinds.status.record_us(us(start)), survey.leader.is_none());
    }
}

fn note(kinds: &Mutex<Kinds>, record: impl FnOnce(&mut Kinds), failed: bool) {
    let mut kinds = kinds.lock();
    record(&mut kinds);
    kinds.failed += u64::from(failed);
}
