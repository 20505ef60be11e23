//! Under what conditions processes run: the links between them, their wall clocks, and what they preload.

use super::Fleet;
use crate::cut::{Cut, Link};
use crate::preload;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;

impl Fleet {
    /// The link from one process to another's port, through a proxy where the fleet is cuttable.
    pub(super) fn link(&mut self, from: &str, to: &str, addr: String) -> Result<String> {
        if !self.options.cuttable {
            return Ok(addr);
        }
        let key = (from.to_owned(), to.to_owned());
        if !self.cuts.contains_key(&key) {
            let cut = Cut::default();
            let link = Link::start(addr, cut.clone())?;
            self.cuts.insert(key.clone(), (cut, link));
        }
        Ok(self.cuts[&key].1.addr.clone())
    }

    /// Cuts, or heals, everything between two names, both ways.
    pub fn set_cut(&self, a: &str, b: &str, cut: bool) {
        for key in [(a.to_owned(), b.to_owned()), (b.to_owned(), a.to_owned())] {
            if let Some((link, _)) = self.cuts.get(&key) {
                if cut { link.cut() } else { link.heal() }
            }
        }
    }

    /// Gives the command of a process, by its name, what it preloads.
    pub(super) fn preload_into(&self, command: &mut Command, name: &str) -> Result<()> {
        for (variable, value) in self.preloads.get(name).into_iter().flatten() {
            preload::give(command, variable, value)?;
        }
        self.clocks.as_ref().map_or(Ok(()), |clocks| clocks.give(command, name))
    }

    /// From its next start a member or a worker loads the library `rollout-preload` with this variable.
    pub fn preload(&mut self, name: &str, variable: &'static str, value: PathBuf) {
        self.preloads.entry(name.into()).or_default().insert(variable, value);
    }

    /// Sets the wall clock of a member or a worker, running or not, so many seconds ahead of the real one;
    /// negative: behind.
    ///
    /// # Errors
    /// When the fleet has no clocks of its own, or one cannot be set.
    pub fn set_clock(&self, name: &str, ahead_s: i64) -> Result<()> {
        self.clocks.as_ref().context("the fleet was started without clocks")?.set(name, ahead_s)
    }
}
