//! Owns: when a worker starts rows.
//!
//! Invariant: a start is seen within a few milliseconds. The mock engine writes a line into its side file at each.
//! Absent: which row it was.

use anyhow::Result;
use rollout_tests::{Fleet, WorkerOptions, longest_gap};
use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often the side file is read.
const POLL: Duration = Duration::from_millis(1);

/// The starts of one worker's rows, watched until it is dropped.
pub(crate) struct Starts {
    seen: Arc<Mutex<Vec<Instant>>>,
    over: Arc<AtomicBool>,
}

impl Starts {
    /// Starts a worker of one slot, with further lines of its engine, and lines before it.
    pub(crate) fn of_worker(
        fleet: &mut Fleet,
        name: &str,
        engine: &str,
        head: &str,
    ) -> Result<Self> {
        let side = fleet.path(&format!("{name}.side"));
        File::create(&side)?;
        let mut file = File::open(&side)?;
        let engine = format!("kind = \"mock\"\nslots = 1\n{engine}side_file = {side:?}\n");
        fleet.start_worker(name, &WorkerOptions { engine, head: head.to_owned() })?;
        let starts = Self { seen: Arc::default(), over: Arc::default() };
        let (seen, over) = (starts.seen.clone(), starts.over.clone());
        std::thread::spawn(move || {
            let mut text = String::new();
            while !over.load(Ordering::Relaxed) {
                text.clear();
                // What was appended since the last time.
                let _ = file.read_to_string(&mut text);
                let lines = text.matches("started").count();
                let mut seen = seen.lock().expect("no panic holds it");
                seen.extend(std::iter::repeat_n(Instant::now(), lines));
                drop(seen);
                std::thread::sleep(POLL);
            }
        });
        Ok(starts)
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().expect("no panic holds it").len()
    }

    /// The time of the n-th start, counted from 1.
    pub(crate) fn nth(&self, n: usize) -> Option<Instant> {
        self.seen.lock().expect("no panic holds it").get(n - 1).copied()
    }

    /// The longest time within a period in which no row started.
    pub(crate) fn longest_gap(&self, from: Instant, to: Instant) -> Duration {
        longest_gap(&self.seen.lock().expect("no panic holds it"), from, to)
    }
}

impl Drop for Starts {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
