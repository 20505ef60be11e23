//! Owns: whether this process drains, how long its rows may run, and when it must be gone, combining every request
//! from signals, the leader and the cloud.
//!
//! Invariant: both deadlines only move earlier. The first requester is kept: a later request with a longer deadline
//! changes nothing.
//! Absent: the drain itself. The agent instructs the slots and exits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// How long uploads and answers may take after the last row, if no deadline is set.
const SETTLE: Duration = Duration::from_secs(15);
/// With a deadline, this fraction of the time is for uploads and answers; at most [`SETTLE`].
const SETTLE_PART: u32 = 4;

/// A request that this process drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainOrder {
    /// Rows that still run at this time are stopped and go back.
    pub rows_until: Instant,
    /// The process ends at this time, whatever is left.
    pub gone_by: Instant,
    /// Human-readable.
    pub reason: String,
}

impl DrainOrder {
    /// Rows may run for this long; then their results are stored and answered for.
    pub fn rows_for(time: Duration, reason: impl Into<String>) -> Self {
        let rows_until = Instant::now() + time;
        Self { rows_until, gone_by: rows_until + SETTLE, reason: reason.into() }
    }

    /// The process is gone after this long, whatever is left.
    pub fn gone_within(time: Duration, reason: impl Into<String>) -> Self {
        let gone_by = Instant::now() + time;
        let rows_until = gone_by - SETTLE.min(time / SETTLE_PART);
        Self { rows_until, gone_by, reason: reason.into() }
    }

    /// The remaining time.
    pub(crate) fn left(&self) -> Duration {
        self.gone_by.saturating_duration_since(Instant::now())
    }
}

/// Combines all drain requests.
#[derive(Debug, Clone)]
pub struct Drains {
    order: Arc<watch::Sender<Option<DrainOrder>>>,
}

impl Default for Drains {
    fn default() -> Self {
        Self { order: Arc::new(watch::Sender::new(None)) }
    }
}

impl Drains {
    /// Requests a drain. Returns true if that changes something: the first request, or an earlier deadline.
    pub fn request(&self, wish: DrainOrder) -> bool {
        let reason = wish.reason.clone();
        let news = self.order.send_if_modified(|order| match order {
            None => {
                *order = Some(wish);
                true
            }
            Some(order) if wish.rows_until < order.rows_until || wish.gone_by < order.gone_by => {
                order.rows_until = order.rows_until.min(wish.rows_until);
                order.gone_by = order.gone_by.min(wish.gone_by);
                order.reason = wish.reason;
                true
            }
            Some(_) => false,
        });
        if news {
            let left_ms = self.current().map_or(0, |order| order.left().as_millis() as u64);
            tracing::info!(reason, left_ms, "drain requested");
        }
        news
    }

    /// The combined request as it is now.
    pub fn current(&self) -> Option<DrainOrder> {
        self.order.borrow().clone()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Option<DrainOrder>> {
        self.order.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_only_moves_earlier_and_is_reported_once() {
        let drains = Drains::default();
        assert_eq!(drains.current(), None);
        assert!(drains.request(DrainOrder::gone_within(Duration::from_secs(60), "first")));
        let first = drains.current().unwrap();
        assert_eq!(first.gone_by - first.rows_until, SETTLE);
        assert!(!drains.request(DrainOrder::gone_within(Duration::from_secs(120), "later")));
        assert_eq!(drains.current().unwrap(), first);
        assert!(drains.request(DrainOrder::gone_within(Duration::from_secs(8), "harder")));
        let harder = drains.current().unwrap();
        assert!(harder.gone_by < first.gone_by && harder.reason == "harder");
        assert_eq!(harder.gone_by - harder.rows_until, Duration::from_secs(2));
    }

    #[test]
    fn the_systemd_unit_waits_for_a_drain_of_the_default_length() {
        let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/systemd/rollout-worker.service");
        let unit = std::fs::read_to_string(unit).unwrap();
        let stop = unit.lines().find_map(|line| line.strip_prefix("TimeoutStopSec=")).unwrap();
        let drain = Duration::from_millis(crate::config::TimingConfig::default().drain_ms);
        assert!(Duration::from_secs(stop.parse().unwrap()) > drain + SETTLE);
    }

    #[test]
    fn rows_may_end_sooner_and_the_process_as_it_was() {
        let drains = Drains::default();
        drains.request(DrainOrder::gone_within(Duration::from_secs(10), "cloud"));
        let first = drains.current().unwrap();
        assert!(drains.request(DrainOrder::rows_for(Duration::from_secs(1), "signal")));
        let both = drains.current().unwrap();
        assert!(both.rows_until < first.rows_until && both.gone_by == first.gone_by);
    }
}
