//! Requests that are sent again under their ids, and sessions that have ended.
//!
//! *Invariant:* every request writes a unique value, so that a repeat that is executed shows: a run is paused for a
//! reason that no other pause has, and a later read of the reason identifies the last pause. Of several clients that
//! create one run, exactly one is answered that it created it.

use super::item::{CALL_TIMEOUT, recovered};
use super::requester::Requester;
use super::sessions::Visitor;
use crate::events::EventKind;
use crate::fleet::Fleet;
use crate::recorder::Recorder;
use anyhow::Result;
use rollout_proto::ErrorCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The clients that send requests.
pub(super) const CLIENTS: &[&str] = &["s1", "s2", "s3"];
/// The workers whose sessions end.
pub(super) const WORKERS: &[&str] = &["v1", "v2"];
/// Runs that all clients pause and resume.
pub(super) const REGISTERS: u64 = 5;

/// What all clients share.
pub(super) struct Shared {
    pub(super) recorder: Arc<Recorder>,
    stop: AtomicBool,
    create_races: AtomicU64,
    /// The registers reported to exist, and those of them not yet reported as missing.
    made: [AtomicBool; REGISTERS as usize],
}

impl Shared {
    pub(super) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn new(recorder: &Arc<Recorder>) -> Self {
        Self {
            recorder: recorder.clone(),
            stop: AtomicBool::new(false),
            create_races: AtomicU64::new(0),
            made: Default::default(),
        }
    }

    /// Marks a register whose existence was confirmed to a client.
    pub(super) fn is_made(&self, register: u64) {
        self.made[register as usize].store(true, Ordering::Relaxed);
    }

    /// Whether a register must exist for every request from now on.
    pub(super) fn made(&self, register: u64) -> bool {
        self.made[register as usize].load(Ordering::Relaxed)
    }

    /// A request was refused with this code. `made`: the register had to exist before it was sent; that it does not
    /// is recorded once.
    pub(super) fn refused(&self, register: u64, made: bool, code: Option<ErrorCode>) {
        let gone = made && code == Some(ErrorCode::RunNotFound);
        if gone && self.made[register as usize].swap(false, Ordering::Relaxed) {
            let what = format!("a look at register {register}");
            let why = "it is not there any more".into();
            self.recorder.event(EventKind::Refused { what, why });
        }
    }

    /// The next run to create; about three clients compete for each.
    pub(super) fn create_race(&self) -> u64 {
        self.create_races.fetch_add(1, Ordering::Relaxed) / 3
    }
}

pub struct Running {
    shared: Arc<Shared>,
    tasks: JoinSet<Result<()>>,
    last: Requester,
}

/// Starts every client.
///
/// # Errors
/// When a client cannot be made.
pub(super) fn start(fleet: &Fleet, recorder: &Arc<Recorder>, seed: u64) -> Result<Running> {
    let shared = Arc::new(Shared::new(recorder));
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
        recorder.event(EventKind::FinalReads { wanted: REGISTERS, answered });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_register_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = Arc::new(Recorder::create(dir.path()).unwrap());
        let shared = Shared::new(&recorder);
        let gone = Some(ErrorCode::RunNotFound);
        assert!(!shared.made(2));
        shared.refused(2, false, gone);
        shared.is_made(2);
        shared.refused(2, false, gone);
        for code in [None, Some(ErrorCode::NoLeader)] {
            shared.refused(2, shared.made(2), code);
        }
        let told = |recorder: &Recorder| {
            recorder.finish().unwrap();
            std::fs::read_to_string(dir.path().join(crate::recorder::EVENTS)).unwrap()
        };
        assert_eq!(told(&recorder), "");
        shared.refused(2, true, gone);
        shared.refused(2, true, gone);
        assert_eq!(told(&recorder).matches("a look at register 2").count(), 1);
    }
}
