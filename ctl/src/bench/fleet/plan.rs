//! The layout of the simulated fleet: each worker's namespace, and the model that each slot offers.
//!
//! Invariant: worker, slot and run numbers alone decide it, so the processes of the generator agree without
//! communicating. Idle slots are spread evenly over the fleet. Absent: time.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::row_time::RowTime;

/// The whole fleet.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Shape {
    pub(super) workers: u32,
    pub(super) slots: u32,
    pub(super) models: u32,
    pub(super) namespaces: u32,
    pub(super) runs: u32,
    /// How many of a thousand slots offer a model that no run uses.
    pub(super) idle_per_mille: u32,
    /// Separates the load from other workers of a running cluster.
    pub(super) label: Option<String>,
}

impl Shape {
    fn namespace(&self, number: u32) -> String {
        match self.namespaces {
            1 => crate::bench::load::NAMESPACE.to_owned(),
            _ => format!("bench-{}", number % self.namespaces),
        }
    }

    /// Every namespace.
    pub(super) fn all_namespaces(&self) -> impl Iterator<Item = String> + '_ {
        (0..self.namespaces).map(|number| self.namespace(number))
    }

    /// The namespace of a worker.
    pub(super) fn worker_namespace(&self, worker: u32) -> String {
        self.namespace(worker)
    }

    /// The slot's number within its namespace, and how many earlier ones are idle.
    fn place(&self, worker: u32, slot: u32) -> (u64, u64) {
        let number = u64::from(worker / self.namespaces) * u64::from(self.slots) + u64::from(slot);
        (number, self.idle_before(number))
    }

    fn idle_before(&self, number: u64) -> u64 {
        number * u64::from(self.idle_per_mille) / 1000
    }

    /// Whether a slot offers a model that no run uses.
    pub(super) fn is_idle(&self, worker: u32, slot: u32) -> bool {
        let (number, idle_before) = self.place(worker, slot);
        self.idle_before(number + 1) > idle_before
    }

    /// The model of a slot.
    pub(super) fn slot_model(&self, worker: u32, slot: u32) -> String {
        let (number, idle_before) = self.place(worker, slot);
        let (kind, at) = match self.is_idle(worker, slot) {
            true => ("idle", idle_before),
            false => ("model", number - idle_before),
        };
        format!("{kind}-{}", at % u64::from(self.models))
    }

    /// Namespace and model of a run.
    pub(super) fn run_of(&self, run: u32) -> (String, String) {
        let namespace = self.namespace(run % self.namespaces);
        (namespace, format!("model-{}", run / self.namespaces % self.models))
    }

    /// Slots that have runs.
    pub(super) fn busy_slots(&self) -> u64 {
        let all = (0..self.workers).flat_map(|w| (0..self.slots).map(move |s| (w, s)));
        all.filter(|&(worker, slot)| !self.is_idle(worker, slot)).count() as u64
    }

    /// The number of slots of each namespace and model that runs use, by the run's number.
    pub(super) fn slots_of_run(&self) -> Vec<u64> {
        let mut slots = std::collections::BTreeMap::<(String, String), u64>::new();
        for worker in 0..self.workers {
            for slot in (0..self.slots).filter(|&slot| !self.is_idle(worker, slot)) {
                let key = (self.worker_namespace(worker), self.slot_model(worker, slot));
                *slots.entry(key).or_default() += 1;
            }
        }
        (0..self.runs).map(|run| slots.get(&self.run_of(run)).copied().unwrap_or(0)).collect()
    }
}

/// What one process of the generator gets at its start.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) shape: Shape,
    pub(super) endpoints: Vec<String>,
    /// Certificates of the workers.
    pub(super) tls: PathBuf,
    /// Its workers: the one with this number, and every `step`th after it.
    pub(super) first: u32,
    pub(super) step: u32,
    /// Rows that a slot runs at once, and rows that it holds beyond those.
    pub(super) concurrency: u32,
    pub(super) ahead: u32,
    pub(super) row_time: RowTime,
    pub(super) linger_ms: u64,
    /// Workers that register at a time.
    pub(super) connecting: u32,
}

impl Plan {
    /// The numbers of its workers.
    pub(super) fn workers(&self) -> impl Iterator<Item = u32> {
        (self.first..self.shape.workers).step_by(self.step as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(workers: u32, slots: u32, idle_per_mille: u32) -> Shape {
        let (models, namespaces, runs, label) = (3, 2, 12, None);
        Shape { workers, slots, models, namespaces, runs, idle_per_mille, label }
    }

    #[test]
    fn idle_slots_are_the_configured_share() {
        for (workers, slots, idle, busy) in
            [(100, 1, 500, 50), (10, 8, 500, 40), (100, 1, 0, 100), (100, 1, 1000, 0)]
        {
            assert_eq!(shape(workers, slots, idle).busy_slots(), busy);
        }
    }

    #[test]
    fn every_busy_slot_has_runs_and_every_run_has_slots() {
        for shape in [shape(120, 1, 500), shape(12, 8, 500), shape(12, 8, 0)] {
            let slots = shape.slots_of_run();
            assert!(slots.iter().all(|slots| *slots > 0), "{slots:?}");
            let runs: std::collections::BTreeSet<_> =
                (0..shape.runs).map(|run| shape.run_of(run)).collect();
            for worker in 0..shape.workers {
                for slot in (0..shape.slots).filter(|slot| !shape.is_idle(worker, *slot)) {
                    let own = (shape.worker_namespace(worker), shape.slot_model(worker, slot));
                    assert!(runs.contains(&own), "{own:?}");
                }
            }
        }
    }
}
