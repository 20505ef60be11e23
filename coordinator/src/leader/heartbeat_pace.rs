//! How often each worker sends a heartbeat, by the number of workers.
//!
//! *Invariant:* the interval between heartbeats is at most half of `self_fence_ms`, so one lost heartbeat does not stop
//! a worker, and never less than configured. Up to [`WORKERS_CALM`] workers it is as configured. Beyond that it grows
//! with their number, up to [`SLOWER_MAX`] times as long, so that the total rate of heartbeats stays the same.
//!
//! Absent: the times of fencing and failure, which do not depend on it.

use rollout_config::coordinator::Workers;

/// Up to this many workers the configured interval applies.
const WORKERS_CALM: u64 = 1000;
/// The longest interval, as a multiple of the configured one.
const SLOWER_MAX: u64 = 4;
/// Granularity of the interval, so that it does not change with each new worker.
const STEP_MS: u64 = 50;

/// The interval of each worker in milliseconds, for this many workers.
pub(crate) fn interval_ms(config: &Workers, workers: usize) -> u32 {
    let base = config.heartbeat_ms;
    let grown = base.saturating_mul(workers as u64).div_ceil(WORKERS_CALM);
    let most = (base * SLOWER_MAX).min(config.self_fence_ms / 2).max(base);
    let stepped = if grown > base { grown.next_multiple_of(STEP_MS) } else { base };
    u32::try_from(stepped.min(most)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_as_configured_for_few_workers_and_grows_to_two_seconds_for_many() {
        let config = Workers::default();
        let of = |workers| interval_ms(&config, workers);
        assert_eq!([0, 1, 999, 1000].map(of), [500; 4]);
        assert_eq!([1001, 1100, 2000, 3999].map(of), [550, 550, 1000, 2000]);
        assert_eq!([4000, 10_000, 1_000_000].map(of), [2000; 3]);
    }

    #[test]
    fn one_heartbeat_may_be_lost_whatever_is_configured() {
        for (heartbeat_ms, self_fence_ms) in [(500, 4000), (500, 1000), (700, 2000), (10, 20)] {
            let config = Workers { heartbeat_ms, self_fence_ms, ..Workers::default() };
            for workers in [0, 1000, 2500, 100_000] {
                let interval = u64::from(interval_ms(&config, workers));
                assert!(interval * 2 <= self_fence_ms && interval >= heartbeat_ms, "{interval}");
            }
        }
    }
}
