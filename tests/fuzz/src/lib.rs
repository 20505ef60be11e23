//! Fuzz targets of the decoders that read bytes from peers, clients, workers, stores and files.
//!
//! Invariant: a target takes any bytes and panics only where that is a finding. `cargo test` replays the seeds, the
//! kept inputs and a fixed number of mutations; the binary `rollout-fuzz` mutates for a given time.
//! Absent: coverage feedback.

mod mutate;
mod seeds;
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

pub use mutate::Mutator;

/// A decoder under test.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    run: fn(&[u8]),
    seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: [Target; 12] = [
    Target { name: "commands", run: targets::commands, seeds: seeds::commands },
    Target { name: "images", run: targets::images, seeds: seeds::images },
    Target { name: "records", run: targets::records, seeds: seeds::records },
    Target { name: "segments", run: targets::segments, seeds: seeds::segments },
    Target { name: "parts", run: targets::parts, seeds: seeds::parts },
    Target { name: "spools", run: targets::spools, seeds: seeds::spools },
    Target { name: "snapshots", run: targets::snapshots, seeds: seeds::snapshots },
    Target { name: "consensus", run: targets::consensus, seeds: seeds::consensus },
    Target { name: "store_requests", run: targets::store_requests, seeds: seeds::store_requests },
    Target {
        name: "engine_messages",
        run: targets::engine_messages,
        seeds: seeds::engine_messages,
    },
    Target { name: "requests", run: targets::requests, seeds: seeds::requests },
    Target { name: "credentials", run: targets::credentials, seeds: seeds::credentials },
];

/// How many inputs a target took, and the input that it failed with.
pub struct Outcome {
    /// Inputs.
    pub executions: u64,
    /// The input that made it panic or take longer than [`SLOW`].
    pub failed: Option<Vec<u8>>,
}

/// An input that takes longer is a finding.
pub const SLOW: Duration = Duration::from_secs(5);

impl Target {
    /// The seeds.
    pub fn seeds(&self) -> Vec<Vec<u8>> {
        (self.seeds)()
    }

    /// Whether the target takes these bytes.
    pub fn takes(&self, bytes: &[u8]) -> bool {
        let begun = Instant::now();
        catch_unwind(AssertUnwindSafe(|| (self.run)(bytes))).is_ok() && begun.elapsed() < SLOW
    }

    /// Runs the seeds, then mutations of them until `more` says no.
    pub fn mutate(&self, number: u64, mut more: impl FnMut(u64) -> bool) -> Outcome {
        let seeds = self.seeds();
        let mut mutator = Mutator::new(number, seeds.clone());
        let mut executions = 0;
        for seed in seeds {
            executions += 1;
            if !self.takes(&seed) {
                return Outcome { executions, failed: Some(seed) };
            }
        }
        while more(executions) {
            let input = mutator.next_input();
            executions += 1;
            if !self.takes(&input) {
                return Outcome { executions, failed: Some(input) };
            }
        }
        Outcome { executions, failed: None }
    }
}
