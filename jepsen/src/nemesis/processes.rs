//! Kills or stops processes, and starts or resumes them later.

use super::{Effect, Nemesis, Undo};
use anyhow::Result;

impl Nemesis {
    /// kill -9.
    pub(super) fn kill(&mut self, of: &[usize]) -> Effect {
        // A member that the other fault of the pair already holds is killed too.
        let killed = of.iter().filter(|at| self.fleet.kill(**at)).count();
        Effect { on: self.names(of), proven: killed == of.len(), undo: Undo::Start(of.to_vec()) }
    }

    /// SIGSTOP.
    pub(super) fn pause(&mut self, of: usize) -> Result<Effect> {
        let proven = self.fleet.runs(of) && self.fleet.process(of)?.pause().unwrap_or(false);
        Ok(Effect { on: self.names(&[of]), proven, undo: Undo::Resume(vec![of]) })
    }

    pub(super) fn resume(&mut self, of: &[usize]) -> Result<()> {
        for &at in of {
            if self.fleet.runs(at) {
                self.fleet.process(at)?.resume()?;
            }
        }
        Ok(())
    }

    pub(super) fn start(&mut self, of: &[usize]) -> Result<()> {
        for &at in of {
            if !self.fleet.runs(at) {
                self.fleet.start_member(at)?;
            }
        }
        Ok(())
    }
}
