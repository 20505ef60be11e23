//! Restarts all members one by one, as for an upgrade: SIGTERM, wait for the exit, start, wait until the member is
//! back, then the next.
//!
//! *Invariant:* the restart counts only if every member exited by itself with status 0, and was back before the next
//! one.

use super::{Effect, Nemesis, Undo};
use crate::fleet::MEMBERS;
use crate::observe::Observers;
use crate::recorder::Recorder;
use anyhow::Result;
use rand::seq::SliceRandom;
use std::time::{Duration, Instant};

/// Time limits for a member to exit, and to be back.
const END_LIMIT: Duration = Duration::from_secs(10);
const BACK_LIMIT: Duration = Duration::from_secs(10);
/// How long a member promises not to elect another leader. A build of cluster version 2 does not keep what a newer
/// process of the same member promised.
const PROMISE: Duration = Duration::from_millis(250);

impl Nemesis {
    /// Restarts the members one after another, in an order that the seed decides.
    pub(super) async fn roll(&mut self, watch: &Observers, recorder: &Recorder) -> Result<Effect> {
        self.revive(recorder)?;
        let mut order: Vec<usize> = (0..MEMBERS).collect();
        order.shuffle(&mut self.rng);
        let mut proven = true;
        for &at in &order {
            proven &= self.restart(at, watch, recorder).await?;
        }
        Ok(Effect { on: self.names(&order), proven, undo: Undo::Start(order) })
    }

    /// Restarts a member. True if it exited by itself with status 0, and is back.
    pub(super) async fn restart(
        &mut self,
        at: usize,
        watch: &Observers,
        recorder: &Recorder,
    ) -> Result<bool> {
        if !self.fleet.runs(at) {
            return Ok(false); // The other fault of the pair holds it.
        }
        let stopped = self.stop(at, recorder).await?;
        if self.fleet.has_earlier_build(at) {
            // The promise ends with time alone: the process that gave it has exited, so no condition shows its end.
            tokio::time::sleep(PROMISE).await;
        }
        self.fleet.start_member(at)?;
        Ok(self.back(at, watch).await && stopped)
    }

    /// Stops a running member. True if it exited by itself with status 0.
    pub(super) async fn stop(&mut self, at: usize, recorder: &Recorder) -> Result<bool> {
        let ended = self.fleet.process(at)?.terminate(END_LIMIT).await?;
        if let Some(death) = self.fleet.died(at).filter(|death| !death.status.success()) {
            self.record_death(&death, recorder);
        }
        self.fleet.kill(at);
        Ok(ended.is_some_and(|status| status.success()))
    }

    /// Waits until a started member answers, and a leader is known.
    pub(super) async fn back(&self, at: usize, watch: &Observers) -> bool {
        let life = self.fleet.members[at].lives.load(std::sync::atomic::Ordering::Relaxed);
        let begun = Instant::now();
        while begun.elapsed() < BACK_LIMIT {
            if watch.life(at) == Some(life) && watch.leader().is_some() {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        false
    }
}
