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
use rollout_proto::ErrorCode;
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
    /// Which registers somebody was told to be there, and which of these have not been told to be missing.
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
            duels: AtomicU64::new(0),
            made: Default::default(),
        }
    }

    /// Somebody was told that a register is there.
    pub(super) fn is_made(&self, register: u64) {
        self.made[register as usize].store(true, Ordering::Relaxed);
    }

    /// Whether a register has to be there for whoever asks from now on.
    pub(super) fn made(&self, register: u64) -> bool {
        self.made[register as usize].load(Ordering::Relaxed)
    }

    /// A request was refused with this code. `made`: before it was sent, the register had to be there; it is told once
    /// that it is not.
    pub(super) fn refused(&self, register: u64, made: bool, code: Option<ErrorCode>) {
        let gone = made && code == Some(ErrorCode::RunNotFound);
        if gone && self.made[register as usize].swap(false, Ordering::Relaxed) {
            let what = format!("a look at register {register}");
            self.recorder.event(What::Refused { what, why: "it is not there any more".into() });
        }
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
        recorder.event(What::FinalReads { wanted: REGISTERS, answered });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_register_that_was_made_and_is_gone_is_told_once() {
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
