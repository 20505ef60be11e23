//! Replays the seeds, the kept inputs and some mutations of every target.

use std::time::{Duration, Instant};

use rollout_fuzz::TARGETS;

/// Time for one target, so that all of them together take less than a minute.
const WITHIN: Duration = Duration::from_secs(2);
const MUTATIONS: u64 = 20_000;

#[test]
fn every_target_accepts_its_seeds_earlier_findings_and_their_mutations() {
    for target in TARGETS {
        assert!(!target.seeds().is_empty(), "{} has no seeds", target.name);
        for input in target.kept() {
            assert!(target.takes(&input), "{} failed with {input:02x?}", target.name);
        }
        let begun = Instant::now();
        let more = |executions| executions < MUTATIONS && begun.elapsed() < WITHIN;
        let found = target.mutate(1, more);
        assert!(found.failed.is_none(), "{} failed with {:02x?}", target.name, found.failed);
    }
}
