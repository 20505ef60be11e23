//! Fuzz targets for the decoders that read bytes from peers, clients, workers, stores and files.
//!
//! Invariant: a target accepts any bytes, and a panic is a finding. `cargo test` replays the seeds, the kept inputs
//! and a fixed number of mutations; the binary `rollout-fuzz`, which `make fuzz` builds, runs a target under
//! libFuzzer for a given time.
//! Absent: coverage feedback in `cargo test`.

mod mutate;
mod targets;

use std::fs::{DirEntry, File};
use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use flate2::read::GzDecoder;
pub use mutate::Mutator;
use targets::{
    commands, consensus, credentials, engine, files, images, inputs, objects, records, requests,
    snapshots, store,
};

/// A decoder under test.
#[derive(Clone, Copy)]
pub struct Target {
    pub name: &'static str,
    run: fn(&[u8]),
    seeds: fn() -> Vec<Vec<u8>>,
}

pub const TARGETS: [Target; 12] = [
    Target { name: "commands", run: commands::run, seeds: commands::seeds },
    Target { name: "images", run: images::run, seeds: images::seeds },
    Target { name: "consensus", run: consensus::run, seeds: consensus::seeds },
    Target { name: "records", run: records::run, seeds: records::seeds },
    Target { name: "snapshots", run: snapshots::run, seeds: snapshots::seeds },
    Target { name: "objects", run: objects::run, seeds: objects::seeds },
    Target { name: "store_requests", run: store::run, seeds: store::seeds },
    Target { name: "engine_messages", run: engine::run, seeds: engine::seeds },
    Target { name: "requests", run: requests::run, seeds: requests::seeds },
    Target { name: "credentials", run: credentials::run, seeds: credentials::seeds },
    Target { name: "inputs", run: inputs::run, seeds: inputs::seeds },
    Target { name: "files", run: files::run, seeds: files::seeds },
];

/// How many inputs a target ran, and the input that it failed with.
pub struct Outcome {
    /// Inputs.
    pub executions: u64,
    /// The input that made it panic or take longer than [`SLOW`].
    pub failed: Option<Vec<u8>>,
}

/// An input that takes longer is a finding.
pub const SLOW: Duration = Duration::from_secs(5);

/// Splits inputs, each preceded by its four-byte length.
fn unpacked(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let (input, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
        inputs.push(input.to_vec());
        bytes = rest;
    }
    inputs
}

impl Target {
    /// The target of that name.
    pub fn by_name(name: &str) -> Option<Self> {
        TARGETS.into_iter().find(|target| target.name == name)
    }

    pub fn seeds(&self) -> Vec<Vec<u8>> {
        (self.seeds)()
    }

    /// Inputs that the target once failed with, and those that `keep.py` packed because they cover much of its code.
    ///
    /// # Panics
    /// If the corpus cannot be read.
    pub fn kept(&self) -> Vec<Vec<u8>> {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        let failed = std::fs::read_dir(corpus.join(self.name)).into_iter().flatten();
        let read =
            |file: std::io::Result<DirEntry>| file.and_then(|file| std::fs::read(file.path()));
        let mut kept: Vec<_> = failed.map(|file| read(file).expect("a readable file")).collect();
        let packed = corpus.join(format!("{}.gz", self.name));
        if packed.is_file() {
            let file = File::open(packed).expect("a readable file");
            let mut bytes = Vec::new();
            GzDecoder::new(file).read_to_end(&mut bytes).expect("a packed corpus");
            kept.extend(unpacked(&bytes));
        }
        kept
    }

    /// Runs the target with an input.
    ///
    /// # Panics
    /// If the input is a finding.
    pub fn run(&self, bytes: &[u8]) {
        (self.run)(bytes);
    }

    /// Whether the target accepts these bytes.
    pub fn takes(&self, bytes: &[u8]) -> bool {
        let begun = Instant::now();
        catch_unwind(AssertUnwindSafe(|| self.run(bytes))).is_ok() && begun.elapsed() < SLOW
    }

    /// Runs the seeds, then mutations of them until `more` returns false.
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
