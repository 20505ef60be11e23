//! What must hold of batches after every command, and what other domains ask of them.
//!
//! *Invariant:* the first violation is described in words.

use crate::batch::run::RunState;
use crate::kernel::id::RunNo;
use crate::kernel::limits;
use crate::kernel::openai_refusal::OpenAiRefusal;
use crate::kernel::reply::Rejection;
use crate::machine::invariants::ensure;
use crate::machine::ledger::Ledger;
use crate::openai::batch::{Batch, BatchEnd, BatchStatus, Stage, Started};
use crate::openai::batches::Index;
use std::collections::BTreeMap;

impl Ledger {
    /// Refuses the removal of rows from which a batch makes its output.
    pub(crate) fn check_unused_by_batch(&self, run: RunNo) -> Result<(), Rejection> {
        match self.batches.of_run(run).filter(|batch| !batch.has_ended()) {
            Some(batch) => Err(OpenAiRefusal::RunOfOpenBatch { batch: batch.id.clone() }.into()),
            None => Ok(()),
        }
    }

    /// Refuses that a run that has ended gives rows again: its batch has ended, or is about to.
    pub(crate) fn check_has_no_batch(&self, run: RunNo) -> Result<(), Rejection> {
        match self.batches.of_run(run) {
            Some(batch) => Err(OpenAiRefusal::RunOfBatch { batch: batch.id.clone() }.into()),
            None => Ok(()),
        }
    }

    /// Whether a batch in validation will have a run of that name.
    pub(crate) fn awaits_run(&self, namespace: &str, name: &str) -> bool {
        let batch = self.batches.get(name).filter(|batch| batch.namespace == namespace);
        batch.is_some_and(|batch| matches!(batch.stage, Stage::Validating(_)))
    }

    /// Checks the invariants of batches.
    pub(crate) fn check_batches(&self) -> Result<(), String> {
        let mut index = Index::default();
        let mut users: BTreeMap<&str, u32> = BTreeMap::new();
        for (no, batch) in &self.batches.by_no {
            index.add(*no, batch);
            self.check_batch(batch).map_err(|why| format!("batch {}: {why}", batch.id))?;
            if !batch.has_ended() {
                *users.entry(&batch.spec.input_file).or_default() += 1;
            }
        }
        ensure!(index == self.batches.index, "indexes of batches are not {index:?}");
        for (id, file) in &self.api_files.files {
            let used = users.remove(id.as_str()).unwrap_or_default();
            ensure!(file.users == used, "file {id} has {used} users, says {}", file.users);
        }
        ensure!(users.is_empty(), "batches use files that do not exist: {users:?}");
        self.batches.check_loaded().map_err(|why| why.to_string())
    }

    fn check_batch(&self, batch: &Batch) -> Result<(), String> {
        match &batch.stage {
            Stage::Validating(_) => Ok(()),
            Stage::Started(started) => self.check_started(batch, started),
            Stage::Ended(end) => check_end(batch, end),
        }
    }

    fn check_started(&self, batch: &Batch, started: &Started) -> Result<(), String> {
        let name = self.run_name(started.run);
        let own = name == Some((batch.namespace.clone(), batch.id.clone()));
        ensure!(own, "run {} is {name:?}", started.run);
        let state = self.run_progress(started.run).map(|run| run.state);
        ensure!(state != Some(RunState::Deleting), "its run is being deleted");
        let runs = matches!(state, Some(RunState::Running | RunState::Paused));
        ensure!(!runs || started.cancelling_ms.is_none(), "it is cancelled and its run goes on");
        ensure!(!runs || batch.owner.is_none(), "its rows run and a member has work");
        Ok(())
    }
}

fn check_end(batch: &Batch, end: &BatchEnd) -> Result<(), String> {
    let (status, errors) = (end.status, end.errors.len());
    ensure!(batch.owner.is_none(), "it has ended and a member has work");
    ensure!(end.completed <= end.total, "{} of {} rows are done", end.completed, end.total);
    let unfinished = status == BatchStatus::Completed && end.run.is_none();
    ensure!(!unfinished, "it is completed without a run");
    let failed = status == BatchStatus::Failed;
    ensure!(failed == (errors > 0), "it is {status} with {errors} errors");
    ensure!(!failed || end.run.is_none(), "it failed and had a run");
    ensure!(errors <= limits::BATCH_ERRORS_MAX, "it has {errors} errors");
    Ok(())
}
