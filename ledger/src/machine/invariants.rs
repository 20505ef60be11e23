//! What must hold after every command. Tests check it each time; a member may check it now and then.
//!
//! The first violation is described in words, so that a failing test says which invariant broke.

use crate::batch::run::Run;
use crate::fleet::worker::WorkerState;
use crate::machine::ledger::Ledger;

macro_rules! ensure {
    ($cond:expr, $($what:tt)+) => {
        if !$cond {
            return Err(format!($($what)+));
        }
    };
}
pub(crate) use ensure;

impl Ledger {
    /// Checks every invariant, in time linear in the state.
    ///
    /// # Errors
    /// The first violated invariant, in words.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.check_runs()?;
        self.check_index()?;
        self.check_indexes()?;
        self.runs.check()?;
        self.clients.check()?;
        self.check_slots()?;
        self.check_unreported_starts()?;
        self.stores.check()?;
        self.jobs.check()?;
        self.jobs.check_trainings(self.meta.version, &self.datasets)?;
        self.tokens.check()?;
        self.api_keys.check()?;
        self.revocations.check()?;
        self.api_files.check()?;
        self.check_batches()?;
        self.members.check(self.meta.version)?;
        self.settings.check(self.meta.version)?;
        self.check_namespaces()
    }

    fn check_unreported_starts(&self) -> Result<(), String> {
        for (session, unreported_starts) in self.unreported_starts.iter() {
            let state = self.worker_state(*session);
            let silent = matches!(state, Some(WorkerState::Suspect { .. }));
            ensure!(
                silent && !unreported_starts.is_empty(),
                "worker {session} was heard: {unreported_starts:?}"
            );
        }
        Ok(())
    }

    fn check_namespaces(&self) -> Result<(), String> {
        for (name, namespace) in self.namespaces.iter() {
            let runs = self.runs.values().filter(|run| run.namespace() == name);
            let running: u64 = runs.map(Run::running).sum();
            ensure!(running == namespace.running(), "namespace {name} has {running} rows running");
        }
        Ok(())
    }
}
