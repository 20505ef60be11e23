//! Owns: the log's counters, for metrics and for the watchdog of a stalled disk.
//!
//! Invariant: reading the counters never waits for a running fsync.
//! Absent: names of metrics and alarms.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Fsyncs that the percentiles cover.
const RECENT: usize = 1024;
/// Fsyncs that describe the present state of the disk; their median ignores a single slow one.
const LATEST: usize = 5;

/// Durations of fsyncs, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FsyncTimes {
    /// Completed fsyncs.
    pub count: u64,
    /// The sum of their durations.
    pub sum: u64,
    /// The longest.
    pub max: u64,
    /// The median of the last 1024.
    pub p50: u64,
    /// The 99th percentile of the last 1024.
    pub p99: u64,
    /// The median of the last 5, for the present state of the disk. 0 before there were so many.
    pub latest: u64,
}

/// A log's counters since it was opened.
#[derive(Debug, Clone, Default)]
pub struct LogStats {
    /// Completed fsyncs.
    pub fsyncs: u64,
    /// Their durations.
    pub fsync_us: FsyncTimes,
    /// Payload bytes appended.
    pub appended_bytes: u64,
    /// Entries appended.
    pub appended_entries: u64,
    /// Calls waiting for the fsync thread.
    pub queued: usize,
    /// When the running fsync began; `None` if none is running.
    pub in_flight_since: Option<Instant>,
}

#[derive(Default)]
pub(super) struct Counters {
    appended_entries: AtomicU64,
    appended_bytes: AtomicU64,
    syncs: Mutex<Syncs>,
}

#[derive(Default)]
struct Syncs {
    in_flight_since: Option<Instant>,
    count: u64,
    sum: u64,
    max: u64,
    recent: Vec<u64>,
}

impl Counters {
    pub(super) fn appended(&self, entries: u64, bytes: u64) {
        self.appended_entries.fetch_add(entries, Ordering::Relaxed);
        self.appended_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn sync_began(&self) -> Instant {
        let now = Instant::now();
        self.syncs.lock().in_flight_since = Some(now);
        now
    }

    pub(super) fn sync_ended(&self, took: Duration) {
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let mut syncs = self.syncs.lock();
        syncs.in_flight_since = None;
        let slot = (syncs.count % RECENT as u64) as usize;
        if slot < syncs.recent.len() {
            syncs.recent[slot] = took_us;
        } else {
            syncs.recent.push(took_us);
        }
        syncs.count += 1;
        syncs.sum = syncs.sum.saturating_add(took_us);
        syncs.max = syncs.max.max(took_us);
    }

    pub(super) fn snapshot(&self, queued: usize) -> LogStats {
        let (in_flight_since, count, sum, max, mut recent) = {
            let syncs = self.syncs.lock();
            (syncs.in_flight_since, syncs.count, syncs.sum, syncs.max, syncs.recent.clone())
        };
        let latest = latest(&recent, count);
        recent.sort_unstable();
        let percentile = |percent: usize| {
            let rank = (recent.len() * percent).div_ceil(100).saturating_sub(1);
            recent.get(rank).copied().unwrap_or(0)
        };
        LogStats {
            fsyncs: count,
            fsync_us: FsyncTimes {
                count,
                sum,
                max,
                p50: percentile(50),
                p99: percentile(99),
                latest,
            },
            appended_bytes: self.appended_bytes.load(Ordering::Relaxed),
            appended_entries: self.appended_entries.load(Ordering::Relaxed),
            queued,
            in_flight_since,
        }
    }
}

/// The median of the latest durations in a ring into which `count` were written; 0 if there are too few.
fn latest(ring: &[u64], count: u64) -> u64 {
    if ring.len() < LATEST {
        return 0;
    }
    let at = |back: usize| (count as usize + ring.len() - 1 - back) % ring.len();
    let mut last: [u64; LATEST] = std::array::from_fn(|back| ring[at(back)]);
    last.sort_unstable();
    last[LATEST / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_times_are_those_of_the_last_five_however_many_came_before() {
        let counters = Counters::default();
        let latest = |times: &[u64]| {
            times.iter().for_each(|ms| counters.sync_ended(Duration::from_millis(*ms)));
            counters.snapshot(0).fsync_us.latest
        };
        assert_eq!(latest(&[9, 9, 9, 9]), 0, "too few");
        assert_eq!(latest(&[1]), 9_000);
        assert_eq!(latest(&[700, 700]), 9_000, "two slow ones decide nothing");
        assert_eq!(latest(&[700]), 700_000);
        let many = vec![1; RECENT - 1];
        assert_eq!(latest(&many), 1_000);
        // Past the end of the ring, and on.
        assert_eq!(latest(&[800, 800, 800]), 800_000);
        assert_eq!(latest(&[2; 3]), 2_000);
    }
}
