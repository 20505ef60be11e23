//! What an operation has changed for the turns of runs.
//!
//! *Invariant:* empty after each operation: `settle_turns` (`schedule/levels.rs`) acts on it.

use crate::kernel::id::RunNo;
use std::collections::BTreeSet;

/// Changes since the present operation began.
#[derive(Clone, Debug, Default)]
pub(crate) struct TurnChanges {
    /// Runs that have rows to give, and had none before.
    joining: BTreeSet<RunNo>,
    /// Runs that have no rows to give, and had some before.
    resting: BTreeSet<RunNo>,
    /// Namespaces in which slots have gone, or runs came, ended, were paused or resumed, or got another weight.
    reshaped: BTreeSet<String>,
}

impl TurnChanges {
    /// A run had rows to give or not, and has some now or not.
    pub(super) fn set_gives(&mut self, no: RunNo, before: bool, now: bool) {
        match (before, now) {
            (false, true) if !self.resting.remove(&no) => {
                self.joining.insert(no);
            }
            (true, false) if !self.joining.remove(&no) => {
                self.resting.insert(no);
            }
            _ => {}
        }
    }

    /// The fair shares in a namespace may have changed.
    pub(crate) fn reshape(&mut self, namespace: &str) {
        self.reshaped.insert(namespace.to_owned());
    }

    /// Takes the runs that joined, and the namespaces whose fair shares may have changed.
    pub(super) fn take(&mut self) -> (BTreeSet<RunNo>, BTreeSet<String>) {
        self.resting.clear();
        (std::mem::take(&mut self.joining), std::mem::take(&mut self.reshaped))
    }

    /// Forgets the changes of a state that was loaded: its runs had rows to give before.
    pub(crate) fn forget_loaded(&mut self) {
        self.joining.clear();
        self.reshaped.clear();
    }

    /// Checks that nothing is left to settle.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { joining, resting, reshaped } = self;
        match joining.is_empty() && resting.is_empty() && reshaped.is_empty() {
            true => Ok(()),
            false => Err(format!("turns are not settled: {self:?}")),
        }
    }
}
