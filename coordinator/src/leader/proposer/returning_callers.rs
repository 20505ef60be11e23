//! Decides whether the next small command waits for callers that were answered a moment ago.
//!
//! Busy callers send their next request as soon as they are answered. Without a wait they split into two groups that
//! take turns, each with a log entry of its own, and an entry costs all members far more than one more bundle in an
//! entry.
//!
//! *Invariant:* a wait ends after [`WAIT_MAX`]. While waits are in vain, there is at most one for each [`VAIN_MAX`]
//! commands.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The longest wait. Callers on the same network are back in less.
pub(super) const WAIT_MAX: Duration = Duration::from_millis(1);
/// After waits in vain, at most this many commands go out without a wait.
const VAIN_MAX: u32 = 64;

/// Counts queued bundles, and those that are expected.
#[derive(Debug, Default)]
pub(super) struct ReturningCallers {
    queued: AtomicU64,
    /// The count of queued bundles once most answered callers are back.
    goal: AtomicU64,
}

impl ReturningCallers {
    /// Counts a bundle that is about to be queued.
    pub(super) fn queued(&self) {
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the goal after a command has returned and before its callers are answered. Waiting for three of four is
    /// enough, because some may have no more requests.
    pub(super) fn answered(&self, bundles: usize) {
        let most = bundles as u64 - bundles as u64 / 4;
        let goal = self.queued.load(Ordering::Relaxed) + most;
        self.goal.fetch_max(goal, Ordering::Relaxed);
    }

    /// Whether the expected callers have queued bundles again.
    pub(super) fn are_back(&self) -> bool {
        self.queued.load(Ordering::Relaxed) >= self.goal.load(Ordering::Relaxed)
    }
}

/// Learns whether waits are in vain.
#[derive(Debug, Default)]
pub(super) struct WaitPolicy {
    /// Commands that go out without a wait.
    skip: u32,
    /// The last value of `skip`, which doubles after each wait in vain.
    step: u32,
}

impl WaitPolicy {
    /// Whether the next command that has a reason to wait does so.
    pub(super) fn should_wait(&mut self) -> bool {
        let waits = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        waits
    }

    /// Records how a wait ended.
    pub(super) fn record_wait(&mut self, in_vain: bool) {
        self.step = if in_vain { (self.step * 2).clamp(1, VAIN_MAX) } else { 0 };
        self.skip = self.step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_waits_for_most_of_the_answered_callers() {
        let returning = ReturningCallers::default();
        assert!(returning.are_back(), "no caller was answered yet");
        (0..8).for_each(|_| returning.queued());
        returning.answered(8);
        (0..5).for_each(|_| returning.queued());
        assert!(!returning.are_back());
        returning.queued();
        assert!(returning.are_back(), "six of eight");
        returning.answered(1);
        assert!(!returning.are_back(), "one that is alone is back with its next bundle");
        returning.queued();
        assert!(returning.are_back());
    }

    #[test]
    fn if_no_caller_comes_back_hardly_any_command_waits() {
        let mut policy = WaitPolicy::default();
        let waits = (0..1000).filter(|_| {
            let waits = policy.should_wait();
            if waits {
                policy.record_wait(true);
            }
            waits
        });
        assert!((10..=30).contains(&waits.count()));
        while !policy.should_wait() {}
        policy.record_wait(false);
        assert!(policy.should_wait() && policy.should_wait(), "it was worth it");
    }
}
