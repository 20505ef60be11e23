//! Running counts of the fleet's size: a client that looks for the leader asks for them, and thousands may ask at
//! once.
//!
//! *Invariant:* the counts are those of the registered workers. Every change of a worker's state or slots is counted
//! here as a removal of the old worker and an addition of the new one.

use crate::fleet::worker::{Worker, WorkerState};

/// Workers by state, and all their slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    /// Workers that take work.
    pub ready: u32,
    /// Workers that are silent.
    pub suspect: u32,
    /// Workers that take no more work.
    pub draining: u32,
    /// Slots of all workers.
    pub slots: usize,
}

impl Fleet {
    pub(super) fn of<'a>(workers: impl Iterator<Item = &'a Worker>) -> Self {
        let mut fleet = Self::default();
        workers.for_each(|worker| fleet.joined(worker));
        fleet
    }

    pub(super) fn joined(&mut self, worker: &Worker) {
        *self.in_state(&worker.state) += 1;
        self.slots += worker.slots.len();
    }

    pub(super) fn left(&mut self, worker: &Worker) {
        *self.in_state(&worker.state) -= 1;
        self.slots -= worker.slots.len();
    }

    /// A worker is in another state from now on.
    pub(super) fn moved(&mut self, worker: &mut Worker, state: WorkerState) {
        *self.in_state(&worker.state) -= 1;
        worker.state = state;
        *self.in_state(&worker.state) += 1;
    }

    fn in_state(&mut self, state: &WorkerState) -> &mut u32 {
        match state {
            WorkerState::Ready => &mut self.ready,
            WorkerState::Suspect { .. } => &mut self.suspect,
            WorkerState::Draining => &mut self.draining,
        }
    }
}
