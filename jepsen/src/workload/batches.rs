//! Whole batches, submitted by the real client and executed by real workers. Some are cancelled halfway, some have
//! their failed rows retried, and some are deleted so that their names are used again.
//!
//! *Invariant:* the client is called again until it says that a batch has ended, whatever failed meanwhile:
//! submitting the same batch again is harmless. Its output is recorded line by line.

mod batch;
mod operator;
mod user;

use super::item::recovered;
use super::trainers::{self, Trainer};
use super::worker_processes::Workers;
use crate::events::EventKind;
use crate::fleet::Fleet;
use crate::nemesis::Family;
use crate::recorder::Recorder;
use anyhow::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use user::User;

/// The clients that submit.
pub(super) const CLIENTS: &[&str] = &["u1", "u2"];
pub(super) const WORKERS: &[&str] = &["w1", "w2", "w3"];
/// Time limit for batches after everything is healed.
const PATIENCE: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(300);

struct Shared {
    recorder: Arc<Recorder>,
    stop: AtomicBool,
    /// Set when users stop waiting for batches.
    over: AtomicBool,
    batches: AtomicU64,
    rows: AtomicU64,
    exported: AtomicU64,
}

impl Shared {
    fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

pub struct Running {
    shared: Arc<Shared>,
    /// Shared by the users' requests besides submitting.
    requests: Arc<trainers::Shared>,
    users: JoinSet<Result<()>>,
    workers: tokio::task::JoinHandle<Result<Workers>>,
}

/// Starts every client.
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
    let requests = trainers::Shared::new(recorder);
    let mut users = JoinSet::new();
    for (number, name) in (0..).zip(CLIENTS) {
        let seed = seed.wrapping_mul(31).wrapping_add(number);
        let user = User {
            client: Trainer::new(fleet, name, name, &requests, seed)?,
            program: fleet.program("rollout").get_program().into(),
            context: fleet.context(name)?,
            dir: fleet.dir().to_owned(),
            shared: shared.clone(),
        };
        users.spawn(user.run());
    }
    let mut workers = Workers::start(fleet, recorder, nemesis, WORKERS, !seed)?;
    let working = shared.clone();
    let workers = tokio::spawn(async move {
        while !working.stopping() {
            workers.strike().await?;
        }
        Ok(workers)
    });
    Ok(Running { shared, requests, users, workers })
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
            if begun.elapsed() > PATIENCE {
                self.shared.over.store(true, Ordering::Relaxed);
                self.requests.stop();
            }
            if let Ok(Some(ended)) = tokio::time::timeout(LOOK, self.users.join_next()).await {
                ended??;
            }
        }
        let wanted = self.shared.rows.load(Ordering::Relaxed);
        let answered = self.shared.exported.load(Ordering::Relaxed);
        recorder.event(EventKind::FinalReads { wanted, answered });
        Ok(())
    }
}
