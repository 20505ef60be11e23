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

impl Nemesis {
    /// Restarts the members one after another, in an order that the seed decides.
    pub(super) async fn roll(&mut self, watch: &Observers, recorder: &Recorder) -> Result<Effect> {
        self.revive(recorder)?;
        let mut order: Vec<usize> = (0..MEMBERS).collect();
        order.shuffle(&mut self.rng);
        let mut proven = true;
        for &at in &order {
            if !self.fleet.runs(at) {
                proven = false; // The other fault of the pair holds it.
                continue;
            }
            let ended = self.fleet.process(at)?.terminate(END_LIMIT).await?;
            if let Some(death) = self.fleet.died(at).filter(|death| !death.status.success()) {
                self.record_death(&death, recorder);
            }
            proven &= ended.is_some_and(|status| status.success());
            self.fleet.kill(at);
            self.fleet.start_member(at)?;
            proven &= self.back(at, watch).await;
        }
        Ok(Effect { on: self.names(&order), proven, undo: Undo::Start(order) })
    }

    /// Waits until a started member answers, and a leader is known.
    async fn back(&self, at: usize, watch: &Observers) -> bool {
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
