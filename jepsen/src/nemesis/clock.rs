//! Makes wall clocks jump an hour, forward or backward, and back.
//!
//! *Invariant:* a jump counts only once each affected process has read the jumped clock.

use super::{Effect, Nemesis, Undo};
use anyhow::Result;
use rand::Rng;
use std::time::{Duration, Instant};

const HOUR_S: i64 = 3600;
/// Time to prove a jump: every member reads its clock many times a second.
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// Less than any jump, more than the age of a clock read.
const TOLERANCE_S: i64 = 60;

impl Nemesis {
    /// Makes the clock of each of these members jump, some forward, some backward.
    pub(super) async fn jump(&mut self, of: &[usize]) -> Result<Effect> {
        let mut jumps = Vec::new();
        for &at in of {
            let name = self.fleet.members[at].name.clone();
            let ahead_s = if self.rng.random() { HOUR_S } else { -HOUR_S };
            self.fleet.preload.set_clock(&name, ahead_s)?;
            jumps.push((name, ahead_s));
        }
        let begun = Instant::now();
        let mut proven = false;
        while !proven && begun.elapsed() < LOOK_LIMIT {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let mut seen = jumps.iter().map(|(name, ahead_s)| {
                let told_s = self.fleet.preload.clock_ahead_s(name)?;
                Ok(told_s.abs_diff(*ahead_s) < TOLERANCE_S.unsigned_abs())
            });
            proven = seen
                .try_fold(true, |all, this: Result<bool>| Ok::<_, anyhow::Error>(all && this?))?;
        }
        let on: Vec<String> = jumps.iter().map(|(name, s)| format!("{name}{s:+}s")).collect();
        let names = jumps.into_iter().map(|(name, _)| name).collect();
        Ok(Effect { on: on.join(","), proven, undo: Undo::SetClocks(names) })
    }

    pub(super) fn set_clocks(&self, of: &[String]) -> Result<()> {
        of.iter().try_for_each(|name| self.fleet.preload.set_clock(name, 0))
    }
}
