//! Power that fails: the process dies, and what it had not made durable goes with it, whole or with
//! a torn tail.
//!
//! *Invariant:* a loss counts only if the library that tracks what was synced was in the process
//! and missed nothing; then nothing taken means that nothing was pending.

use super::{Effect, Nemesis, Undo};
use crate::events::What;
use crate::recorder::Recorder;
use anyhow::{Context, Result};
use rand::Rng;
use rollout_powerloss::Loss;

impl Nemesis {
    /// All of these members lose their power at once.
    pub(super) fn cut_power(&mut self, of: &[usize], recorder: &Recorder) -> Result<Effect> {
        let killed = of.iter().filter(|at| self.fleet.kill(**at)).count();
        let mut proven = killed == of.len();
        for &at in of {
            let torn = self.rng.random_ratio(2, 3);
            let loss = if torn { Loss::Torn { seed: self.rng.random() } } else { Loss::Strict };
            let member = self.fleet.places[at].name.clone();
            let lost = self.fleet.preload.lose_power(&member, loss);
            let Some(lost) = lost.with_context(|| format!("the power of {member}"))? else {
                proven = false;
                continue;
            };
            recorder.event(What::PowerLost {
                member,
                files: lost.cut_files as u64,
                bytes: lost.cut_bytes,
                names: lost.undone as u64,
            });
        }
        Ok(Effect { on: self.names(of), proven, undo: Undo::Start(of.to_vec()) })
    }
}
