//! Owns: the log's counters, for metrics and for the watchdog of a stalled disk.
//!
//! Invariant: reading the counters never waits for a running fsync.
//! Absent: names of metrics and alarms.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Fsyncs that the percentiles cover.
const RECENT: usize = 1024;

/// Durations of fsyncs, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FsyncTimes {
    /// Completed fsyncs.
    pub count: u64,
    /// The sum of their durations.
    pub sum: u64,
    /// The longest duration of all.
    pub max: u64,
    /// The median of the last 1024.
    pub p50: u64,
    /// The 99th percentile of the last 1024.
    pub p99: u64,
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
        recent.sort_unstable();
        let percentile = |percent: usize| {
            let rank = (recent.len() * percent).div_ceil(100).saturating_sub(1);
            recent.get(rank).copied().unwrap_or(0)
        };
        LogStats {
            fsyncs: count,
            fsync_us: FsyncTimes { count, sum, max, p50: percentile(50), p99: percentile(99) },
            appended_bytes: self.appended_bytes.load(Ordering::Relaxed),
            appended_entries: self.appended_entries.load(Ordering::Relaxed),
            queued,
            in_flight_since,
        }
    }
}
