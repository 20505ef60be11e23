//! Keeps members away until the log no longer has the entries that they lack, so that they need a snapshot.
//!
//! *Invariant:* the fault counts only once the leader has purged entries that the member lacks. Members themselves
//! report how many snapshots they installed; see `observe`.
//!
//! Absent: making snapshots frequent; the fleet's configuration does that.

use super::{Effect, Nemesis, Undo};
use crate::observe::Observers;
use crate::recorder::Recorder;
use anyhow::Result;
use rand::Rng;
use std::time::{Duration, Instant};

/// How long a member is kept away at most, beyond the usual.
const PURGE_LIMIT: Duration = Duration::from_secs(15);

impl Nemesis {
    /// The effect of a fault that lasts until the member needs a snapshot.
    pub(super) fn until_purged(&self, member: usize, effect: Effect, interrupted: bool) -> Effect {
        let undo = Undo::Outdated { member, interrupted, undo: Box::new(effect.undo) };
        // The absence of the member alone does not prove that it lacks anything.
        Effect { undo, proven: false, ..effect }
    }

    /// Cuts the power of a member that has just come back, while it receives or installs a snapshot.
    pub(super) async fn interrupt(&mut self, member: usize, recorder: &Recorder) -> Result<()> {
        let soon = Duration::from_millis(self.rng.random_range(0..400));
        tokio::time::sleep(soon).await; // Long enough or not: the moment is what the seed decides.
        let effect = self.cut_power(&[member], recorder)?;
        println!("{:>6.1} s  and its power fails: {}", recorder.now_ns() as f64 / 1e9, effect.on);
        self.start(&[member])
    }

    /// Waits until the leader's log no longer has the entries that this member lacks.
    pub(super) async fn outdated(&self, member: usize, watch: &Observers) -> bool {
        let begun = Instant::now();
        loop {
            // Use the committed index: entries that a deposed leader appended may be in no other log.
            let has = watch.last(member).map_or(0, |status| status.committed_index);
            let leader = watch.leader().filter(|at| *at != member);
            let purged = leader.and_then(|at| watch.last(at)).map_or(0, |s| s.purged_index);
            if purged > has {
                return true;
            }
            if begun.elapsed() > PURGE_LIMIT {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
