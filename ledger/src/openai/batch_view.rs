//! Batches as services and members read them: small copies, never references.
//!
//! *Invariant:* a batch that has a run and no end has the status that follows from the run: nothing else can end the
//! run without the batch knowing it, whether its client, its deadline or an operator does. Reading changes nothing.
//! Absent: the shape of OpenAI's JSON.

use crate::batch::run::RunState;
use crate::kernel::id::{BatchFence, BatchNo, RunNo};
use crate::machine::command::SegmentDecl;
use crate::machine::ledger::Ledger;
use crate::openai::assign_batch::has_work;
use crate::openai::batch::{
    Batch, BatchCursor, BatchError, BatchSpec, BatchStatus, BatchUsage, Stage,
};

/// A batch at a glance. Times are wall times in milliseconds since 1970; `None` if that has not happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchView {
    /// Its id.
    pub id: String,
    /// Its namespace.
    pub namespace: String,
    /// The id of the API key that created it; empty for none.
    pub key: String,
    /// What was asked for.
    pub spec: BatchSpec,
    /// The model of its rows; empty while it is unknown.
    pub model: String,
    /// Its status.
    pub status: BatchStatus,
    /// What is wrong with its file; empty unless it has failed.
    pub errors: Vec<BatchError>,
    /// The id of the file with its results.
    pub output_file: Option<String>,
    /// The id of the file with the lines that failed or never ran.
    pub error_file: Option<String>,
    /// Its rows; 0 until its file is valid.
    pub total: u64,
    /// Rows with a result.
    pub completed: u64,
    /// Rows that failed. After the end of the batch, also those that never ran.
    pub failed: u64,
    /// Tokens; `None` before its end, and if it had no run.
    pub usage: Option<BatchUsage>,
    /// Its run, which may be gone.
    pub run: Option<RunNo>,
    /// When it was created.
    pub created_ms: u64,
    /// When its file was found to be valid.
    pub in_progress_ms: Option<u64>,
    /// When its completion window ends; `None` if an operator has lifted the deadline of its run.
    pub expires_ms: Option<u64>,
    /// When its last row ended, unless it was cancelled before.
    pub finalizing_ms: Option<u64>,
    /// When it was cancelled.
    pub cancelling_ms: Option<u64>,
    /// When it reached its final status.
    pub ended_ms: Option<u64>,
    /// The log index of its end; 0 before.
    pub ended_index: u64,
}

/// What a member has to do for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchWork {
    /// Read its file on, from this position.
    Validate(BatchCursor),
    /// Write its output files for this end, and end it.
    Finish(BatchStatus),
}

/// Work for a batch, and who has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchTask {
    /// The batch.
    pub batch: String,
    /// Its namespace.
    pub namespace: String,
    /// The id of the member that has the work, if one has.
    pub owner: Option<u64>,
    /// The fence of that member.
    pub fence: BatchFence,
    /// The work.
    pub work: BatchWork,
}

impl Ledger {
    pub(super) fn status_of(&self, batch: &Batch) -> BatchStatus {
        let started = match &batch.stage {
            Stage::Validating(_) => return BatchStatus::Validating,
            Stage::Ended(end) => return end.status,
            Stage::Started(started) => started,
        };
        if started.cancelling_ms.is_some() {
            return BatchStatus::Cancelling;
        }
        match self.run_progress(started.run).map(|run| run.state) {
            Some(RunState::Running | RunState::Paused) => BatchStatus::InProgress,
            Some(RunState::Finished | RunState::DeadlineExceeded) => BatchStatus::Finalizing,
            Some(RunState::Cancelled | RunState::Deleting) | None => BatchStatus::Cancelling,
        }
    }

    /// The end of a batch once its output is written; `None` while its run or its validation lasts.
    pub(super) fn end_of(&self, batch: &Batch) -> Option<BatchStatus> {
        let Stage::Started(started) = &batch.stage else { return None };
        match self.status_of(batch) {
            BatchStatus::Cancelling => Some(BatchStatus::Cancelled),
            BatchStatus::Finalizing => match self.run_progress(started.run)?.state {
                RunState::DeadlineExceeded => Some(BatchStatus::Expired),
                _ => Some(BatchStatus::Completed),
            },
            _ => None,
        }
    }

    /// When a run ended, unless it was cancelled.
    pub(super) fn finalizing_ms(&self, run: RunNo) -> Option<u64> {
        let run = self.run_progress(run)?;
        let ended = matches!(run.state, RunState::Finished | RunState::DeadlineExceeded);
        ended.then_some(run.finished_wall_ms)
    }

    /// One batch.
    pub fn batch_view(&self, id: &str) -> Option<BatchView> {
        self.batches.get(id).map(|batch| self.view_batch(batch))
    }

    /// Up to `max` batches of a namespace, the newest first, from the first one that is older than `after` on; and
    /// whether there are more. `None` if `after` is no batch of the namespace.
    pub fn batch_views(
        &self,
        namespace: &str,
        after: Option<&str>,
        max: usize,
    ) -> Option<(Vec<BatchView>, bool)> {
        let before = match after {
            None => BatchNo(u64::MAX),
            Some(id) => {
                self.batches.get(id).filter(|batch| batch.namespace == namespace)?;
                self.batches.no(id)?
            }
        };
        let mut older = self.batches.in_namespace(namespace, before).rev();
        let page = older.by_ref().take(max).filter_map(|no| self.batches.by_no.get(&no));
        let page: Vec<BatchView> = page.map(|batch| self.view_batch(batch)).collect();
        Some((page, older.next().is_some()))
    }

    /// The batch that an earlier request made in the namespace: one with the same idempotency key, given by its hash as in
    /// [`BatchDecl::idempotency`](crate::BatchDecl::idempotency), or with the same value of
    /// [`ROLLOUT_KEY`](crate::ROLLOUT_KEY). Whether that request asked for the same is for its creation to decide.
    pub fn batch_of_request(
        &self,
        namespace: &str,
        idempotency: Option<&[u8; 32]>,
        own: Option<&str>,
    ) -> Option<&str> {
        let made = self.batches.made_before(namespace, idempotency, own, self.meta.clock());
        made.map(|batch| batch.id.as_str())
    }

    /// The work for batches that members have or should get, the oldest batch first. Takes time in proportion to the
    /// batches that have not ended.
    pub fn batch_tasks(&self) -> Vec<BatchTask> {
        self.batches.open().filter_map(|(_, batch)| self.task_of(batch)).collect()
    }

    /// The work that one member has.
    pub fn batch_tasks_of(&self, member: u64) -> Vec<BatchTask> {
        let own = self.batches.open().filter(|(_, batch)| batch.owner == Some(member));
        own.filter_map(|(_, batch)| self.task_of(batch)).collect()
    }

    /// The segments of a batch in validation, in order.
    pub fn batch_segments(&self, id: &str) -> Vec<SegmentDecl> {
        self.batches.segments_of(id).to_vec()
    }

    /// The folder of the objects of a batch's run, within its namespace.
    pub fn batch_folder(&self, id: &str) -> Option<&str> {
        self.batches.get(id).map(|batch| batch.folder.as_str())
    }

    /// Batches that have not ended. Takes the same time for any number.
    pub fn open_batches(&self) -> usize {
        self.batches.open_count()
    }

    fn task_of(&self, batch: &Batch) -> Option<BatchTask> {
        let work = match &batch.stage {
            Stage::Validating(cursor) => BatchWork::Validate(*cursor),
            _ => BatchWork::Finish(self.end_of(batch)?),
        };
        debug_assert!(has_work(self.status_of(batch)));
        Some(BatchTask {
            batch: batch.id.clone(),
            namespace: batch.namespace.clone(),
            owner: batch.owner,
            fence: batch.fence,
            work,
        })
    }

    fn view_batch(&self, batch: &Batch) -> BatchView {
        let mut view = BatchView {
            id: batch.id.clone(),
            namespace: batch.namespace.clone(),
            key: batch.key.clone(),
            spec: batch.spec.clone(),
            model: batch.model.clone(),
            status: self.status_of(batch),
            errors: Vec::new(),
            output_file: None,
            error_file: None,
            total: 0,
            completed: 0,
            failed: 0,
            usage: None,
            run: batch.run(),
            created_ms: batch.created_ms,
            in_progress_ms: None,
            expires_ms: batch.expires_ms(batch.spec.window_ms),
            finalizing_ms: None,
            cancelling_ms: None,
            ended_ms: None,
            ended_index: 0,
        };
        match &batch.stage {
            Stage::Validating(_) => {}
            Stage::Started(started) => {
                view.in_progress_ms = Some(started.in_progress_ms);
                view.finalizing_ms = self.finalizing_ms(started.run);
                view.cancelling_ms = started.cancelling_ms;
                let Some(run) = self.run_progress(started.run) else { return view };
                if view.status == BatchStatus::Cancelling {
                    view.cancelling_ms = view.cancelling_ms.or(Some(run.finished_wall_ms));
                }
                view.expires_ms = batch.expires_ms(run.deadline_ms);
                (view.total, view.completed, view.failed) = (run.rows, run.done, run.failed);
            }
            Stage::Ended(end) => {
                view.errors.clone_from(&end.errors);
                view.output_file.clone_from(&end.output_file);
                view.error_file.clone_from(&end.error_file);
                (view.total, view.completed) = (end.total, end.completed);
                view.failed = end.total - end.completed;
                view.usage = end.usage;
                view.in_progress_ms = end.in_progress_ms;
                view.expires_ms = end.expires_ms;
                view.finalizing_ms = end.finalizing_ms;
                view.cancelling_ms = end.cancelling_ms;
                view.ended_ms = Some(end.ended_ms);
                view.ended_index = end.index;
            }
        }
        view
    }
}
