//! Cuts the power of members: the process dies and loses what it had not made durable, all of it or a random suffix
//! of it.
//!
//! *Invariant:* a power loss counts only if the library that tracks syncs was loaded in the process and missed
//! nothing. If such a loss took nothing, nothing was pending.

use super::{Effect, Nemesis, Undo};
use crate::events::EventKind;
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
            let member = self.fleet.members[at].name.clone();
            let lost = self.fleet.preload.lose_power(&member, loss);
            let Some(lost) = lost.with_context(|| format!("the power of {member}"))? else {
                proven = false;
                continue;
            };
            recorder.event(EventKind::PowerLost {
                member,
                files: lost.cut_files as u64,
                bytes: lost.cut_bytes,
                names: lost.undone as u64,
            });
        }
        Ok(Effect { on: self.names(of), proven, undo: Undo::Start(of.to_vec()) })
    }
}
