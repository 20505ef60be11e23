//! How checkpoints begin, become complete, and are removed.
//!
//! *Invariant:* a checkpoint becomes complete only with the last report of all ranks, in the same command that seals
//! what was done up to its step. Older open checkpoints are given up then: recovery would never use them.

use crate::kernel::id::{DatasetNo, TrainingNo};
use crate::kernel::job_refusal::JobRefusal;
use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::kernel::rows::Rows;
use crate::machine::apply::Context;
use crate::machine::event::Emitter;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::training::checkpoint::{
    Checkpoint, CheckpointOp, CheckpointState, RankReport, Sealed, ShardProgress,
};
use crate::training::dataset::Datasets;
use crate::training::job::{JobName, Jobs};
use crate::training::state::{TrainerRef, Training};
use std::collections::BTreeMap;

/// An epoch of a dataset, one of its shards, and how many of the shard's samples are in.
type Named = ((DatasetNo, u64), u32, u32);

impl Operation for CheckpointOp {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn since(&self) -> u32 {
        self.came_with()
    }

    fn cost(&self) -> Cost {
        // All shards of a job.
        Cost::GrowsWithState
    }

    fn grows(&self) -> bool {
        match self {
            Self::Begin { .. } => true,
            Self::Report { .. }
            | Self::Abort { .. }
            | Self::Retain { .. }
            | Self::Label { .. }
            | Self::Forget { .. } => false,
        }
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        match self {
            Self::Begin { by, .. } | Self::Report { by, .. } => {
                Subject::Namespace(&by.job.namespace)
            }
            Self::Abort { job, .. }
            | Self::Retain { job, .. }
            | Self::Label { job, .. }
            | Self::Forget { job, .. } => Subject::Namespace(&job.namespace),
        }
    }

    fn dry_run(&self, ledger: &Ledger) -> Option<Result<(), Rejection>> {
        let jobs = &ledger.jobs;
        match self {
            Self::Abort { job, number } => Some(jobs.check_abort(job, *number).map(drop)),
            Self::Retain { job, .. } => Some(jobs.open_training(job).map(drop)),
            Self::Label { job, number, label } => {
                Some(jobs.check_label(job, *number, label).map(drop))
            }
            Self::Begin { .. } | Self::Report { .. } | Self::Forget { .. } => None,
        }
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.checkpoint_op(ctx, self)
    }
}

impl Ledger {
    fn checkpoint_op(&mut self, ctx: &Context, op: CheckpointOp) -> Result<Reply, Rejection> {
        let (jobs, datasets) = (&mut self.jobs, &self.datasets);
        let out = &mut Emitter::new(ctx, &mut self.events);
        match op {
            CheckpointOp::Begin { by, step, label } => jobs.begin_checkpoint(ctx, by, step, label),
            CheckpointOp::Report { by, number, report, progress } => {
                jobs.report_checkpoint(datasets, out, by, (number, *report), progress)
            }
            CheckpointOp::Abort { job, number } => jobs.abort_checkpoint(out, &job, number),
            CheckpointOp::Retain { job, keep_last, now } => {
                jobs.retain_checkpoints(out, &job, keep_last, now)
            }
            CheckpointOp::Label { job, number, label } => {
                jobs.label_checkpoint(out, &job, number, label)
            }
            CheckpointOp::Forget { job, number } => jobs.forget_checkpoint(&job, number),
        }
    }
}

impl Jobs {
    fn begin_checkpoint(
        &mut self,
        ctx: &Context,
        by: TrainerRef,
        step: u64,
        label: String,
    ) -> Result<Reply, Rejection> {
        check_label(&label)?;
        let no = self.heard(&by)?;
        let Some(training) = self.table.training_mut(no) else { return Ok(Reply::Ok) };
        let generation = training.head.generation;
        let same = |c: &Checkpoint| {
            c.generation == generation && c.step == step && c.state != CheckpointState::Going
        };
        if let Some((&number, found)) = training.checkpoints.iter_mut().find(|(_, c)| same(c))
            && let Some(rank) = found.rank_of(&by.trainer)
        {
            if found.label.is_empty() && !label.is_empty() {
                found.label = label;
                self.dirty_trainings.mark_checkpoint(no, number);
            }
            return Ok(Reply::Checkpoint { number, rank });
        }
        training.check_step(&by.trainer, step, 0)?;
        let missing = training.head.world.iter().find(|name| {
            training.trainers.get(*name).is_none_or(|trainer| trainer.incarnation.is_none())
        });
        if let Some(missing) = missing {
            return Err(JobRefusal::TrainerMissing(missing.clone()).into());
        }
        if training.checkpoints.values().filter(|c| c.is_open()).count()
            >= limits::CHECKPOINTS_OPEN_MAX
        {
            let what = "open checkpoints of a job".into();
            return Err(Rejection::Limit { what, max: limits::CHECKPOINTS_OPEN_MAX as u64 });
        }
        if training.checkpoints.len() >= limits::CHECKPOINTS_MAX {
            let what = "checkpoints of a job".into();
            return Err(Rejection::Limit { what, max: limits::CHECKPOINTS_MAX as u64 });
        }
        training.head.checkpoints_made += 1;
        let number = training.head.checkpoints_made;
        let world = training.head.world.clone();
        let begun_wall_ms = ctx.wall_ms;
        let new =
            Checkpoint { generation, step, label, world, begun_wall_ms, ..Checkpoint::default() };
        let rank = new.rank_of(&by.trainer).unwrap_or_default();
        training.checkpoints.insert(number, new);
        self.dirty_trainings.mark_head(no);
        self.dirty_trainings.mark_checkpoint(no, number);
        Ok(Reply::Checkpoint { number, rank })
    }

    fn report_checkpoint(
        &mut self,
        datasets: &Datasets,
        out: &mut Emitter,
        by: TrainerRef,
        (number, report): (u32, RankReport),
        progress: Vec<ShardProgress>,
    ) -> Result<Reply, Rejection> {
        let no = self.heard(&by)?;
        let progress = named(datasets, &by, progress)?;
        let Some(training) = self.table.training_mut(no) else { return Ok(Reply::Ok) };
        let checkpoint = training.checkpoints.get(&number).ok_or(JobRefusal::CheckpointUnknown)?;
        let rank = checkpoint.rank_of(&by.trainer).ok_or(JobRefusal::NotOfWorld)?;
        if let Some(before) = checkpoint.reports.get(&rank) {
            return match *before == report {
                false => Err(JobRefusal::ReportConflict.into()),
                true if checkpoint.state == CheckpointState::Going => {
                    Err(JobRefusal::CheckpointClosed.into())
                }
                true => Ok(Reply::Reported { complete: checkpoint.is_complete() }),
            };
        }
        if !checkpoint.is_open() {
            return Err(JobRefusal::CheckpointClosed.into());
        }
        let step = checkpoint.step;
        for &(dataset_epoch, shard, samples) in &progress {
            if checkpoint.progress.get(&dataset_epoch).is_some_and(|said| said.contains_key(&shard))
            {
                return Err(JobRefusal::ProgressTwice { shard }.into());
            }
            let len = datasets.get(dataset_epoch.0).map_or(0, |d| d.spec.shard_len(shard));
            training.check_progress(dataset_epoch, shard, samples, step, len)?;
        }
        if let Some(trainer) = training.trainers.get_mut(&by.trainer) {
            trainer.after = trainer.after.max(Some(step));
            self.dirty_trainings.mark_trainer(no, by.trainer);
        }
        let Some(checkpoint) = training.checkpoints.get_mut(&number) else { return Ok(Reply::Ok) };
        checkpoint.reports.insert(rank, report);
        for (dataset_epoch, shard, samples) in progress {
            checkpoint.progress.entry(dataset_epoch).or_default().insert(shard, samples);
        }
        self.dirty_trainings.mark_checkpoint(no, number);
        let complete = checkpoint.reports.len() == checkpoint.world.len();
        if complete {
            self.complete_checkpoint(datasets, out, no, number);
        }
        Ok(Reply::Reported { complete })
    }

    /// Every rank is durable: work up to the step is in for good.
    fn complete_checkpoint(
        &mut self,
        datasets: &Datasets,
        out: &mut Emitter,
        no: TrainingNo,
        number: u32,
    ) {
        let Some(training) = self.table.training_mut(no) else { return };
        let Some(checkpoint) = training.checkpoints.get_mut(&number) else { return };
        let step = checkpoint.step;
        let progress = std::mem::take(&mut checkpoint.progress);
        let mut sealed = Sealed { done: training.head.done.clone(), ..Sealed::default() };
        for (&key, dataset_epoch) in &mut training.dataset_epochs {
            let Some(dataset) = datasets.get(key.0) else { continue };
            let nothing = BTreeMap::new();
            let said = progress.get(&key).unwrap_or(&nothing);
            let (changed, whole) = dataset_epoch.seal(step, said, dataset);
            let records = changed.into_iter().map(|record| (no, key.0, key.1, record));
            self.dirty_trainings.mark_shards(records);
            match whole {
                true => sealed.done.entry(key.0).or_default().unite(&Rows::range(key.1, 1)),
                false => drop(sealed.dataset_epochs.insert(key, dataset_epoch.sealed(dataset))),
            }
        }
        let dataset_epochs = &sealed.dataset_epochs;
        training.dataset_epochs.retain(|key, dataset_epoch| {
            let stays = dataset_epochs.contains_key(key);
            if !stays {
                self.shards_open -= dataset_epoch.shards.len() as u64;
                self.dirty_trainings.mark_removed_epochs([(no, key.0, key.1)]);
            }
            stays
        });
        checkpoint.parent = training.head.base;
        checkpoint.state = CheckpointState::Complete;
        checkpoint.completed_wall_ms = out.ctx.wall_ms;
        training.head.done = sealed.done.clone();
        checkpoint.sealed = Some(sealed);
        training.head.base = number;
        training.head.step = step;
        self.dirty_trainings.mark_head(no);
        self.training_changes += 1;
        self.emit_training(out, no, "checkpoint_complete", format!("{number} of step {step}"));
        let older = |c: &Checkpoint| c.is_open() && c.step <= step;
        self.give_up_checkpoints(out, no, older, "a later one is complete");
        let keep_last = self.table.training(no).map_or(0, |training| training.head.keep_last);
        self.prune_checkpoints(out, no, keep_last);
    }

    /// Deletes the checkpoints for which this is true.
    pub(super) fn give_up_checkpoints(
        &mut self,
        out: &mut Emitter,
        no: TrainingNo,
        goes: impl Fn(&Checkpoint) -> bool,
        why: &str,
    ) {
        let Some(training) = self.table.training_mut(no) else { return };
        let mut gone = Vec::new();
        for (number, checkpoint) in &mut training.checkpoints {
            if checkpoint.state != CheckpointState::Going && goes(checkpoint) {
                checkpoint.state = CheckpointState::Going;
                checkpoint.sealed = None;
                checkpoint.progress.clear();
                gone.push((*number, checkpoint.step));
                self.dirty_trainings.mark_checkpoint(no, *number);
                self.training_changes += 1;
            }
        }
        for (number, step) in gone {
            let what = format!("{number} of step {step}: {why}");
            self.emit_training(out, no, "checkpoint_goes", what);
        }
    }

    fn prune_checkpoints(&mut self, out: &mut Emitter, no: TrainingNo, keep_last: u32) -> Vec<u32> {
        let Some(training) = self.table.training_mut(no) else { return Vec::new() };
        let numbers = training.prunable(keep_last);
        let mut gone = Vec::new();
        for number in &numbers {
            if let Some(checkpoint) = training.checkpoints.get_mut(number) {
                checkpoint.state = CheckpointState::Going;
                checkpoint.sealed = None;
                gone.push(format!("{number} of step {}: newer ones are kept", checkpoint.step));
                self.dirty_trainings.mark_checkpoint(no, *number);
            }
        }
        gone.into_iter().for_each(|what| self.emit_training(out, no, "checkpoint_goes", what));
        numbers
    }

    /// The number of a job that is not being deleted, and its checkpoint of this number.
    fn checkpoint_of(
        &self,
        job: &JobName,
        number: u32,
    ) -> Result<(TrainingNo, &Checkpoint), Rejection> {
        let no = self.open_training(job)?;
        let training = self.table.training(no).ok_or(JobRefusal::JobUnknown)?;
        let found = training.checkpoints.get(&number).ok_or(JobRefusal::CheckpointUnknown)?;
        Ok((no, found))
    }

    /// The job, and its checkpoint, which is not complete.
    fn check_abort(
        &self,
        job: &JobName,
        number: u32,
    ) -> Result<(TrainingNo, &Checkpoint), Rejection> {
        let (no, found) = self.checkpoint_of(job, number)?;
        match found.is_complete() {
            true => Err(JobRefusal::CheckpointClosed.into()),
            false => Ok((no, found)),
        }
    }

    /// The job, whose checkpoint may get this label.
    fn check_label(
        &self,
        job: &JobName,
        number: u32,
        label: &str,
    ) -> Result<TrainingNo, Rejection> {
        check_label(label)?;
        let (no, found) = self.checkpoint_of(job, number)?;
        match found.state {
            CheckpointState::Going => Err(JobRefusal::CheckpointClosed.into()),
            CheckpointState::Open | CheckpointState::Complete => Ok(no),
        }
    }

    fn abort_checkpoint(
        &mut self,
        out: &mut Emitter,
        job: &JobName,
        number: u32,
    ) -> Result<Reply, Rejection> {
        let (no, found) = self.check_abort(job, number)?;
        if !found.is_open() {
            return Ok(Reply::Ok); // It goes already, and another of its step may be open.
        }
        // A generation has at most one live checkpoint per step.
        let (generation, step) = (found.generation, found.step);
        let goes = |c: &Checkpoint| c.is_open() && c.generation == generation && c.step == step;
        self.give_up_checkpoints(out, no, goes, "it was aborted");
        Ok(Reply::Ok)
    }

    fn retain_checkpoints(
        &mut self,
        out: &mut Emitter,
        job: &JobName,
        keep_last: u32,
        now: bool,
    ) -> Result<Reply, Rejection> {
        let no = self.open_training(job)?;
        if let Some(training) = self.table.training_mut(no).filter(|_| !now) {
            training.head.keep_last = keep_last;
            self.dirty_trainings.mark_head(no);
        }
        Ok(Reply::Pruned { numbers: self.prune_checkpoints(out, no, keep_last) })
    }

    fn label_checkpoint(
        &mut self,
        out: &mut Emitter,
        job: &JobName,
        number: u32,
        label: String,
    ) -> Result<Reply, Rejection> {
        let no = self.check_label(job, number, &label)?;
        let training = self.table.training_mut(no).ok_or(JobRefusal::JobUnknown)?;
        let found = training.checkpoints.get_mut(&number).ok_or(JobRefusal::CheckpointUnknown)?;
        found.label = label;
        let keep_last = training.head.keep_last;
        self.dirty_trainings.mark_checkpoint(no, number);
        self.prune_checkpoints(out, no, keep_last);
        Ok(Reply::Ok)
    }

    fn forget_checkpoint(&mut self, job: &JobName, number: u32) -> Result<Reply, Rejection> {
        let no = self.training_no(job).ok_or(JobRefusal::JobUnknown)?;
        let training = self.table.training_mut(no).ok_or(JobRefusal::JobUnknown)?;
        let Some(found) = training.checkpoints.get(&number) else { return Ok(Reply::Ok) };
        if found.state != CheckpointState::Going {
            return Err(JobRefusal::CheckpointClosed.into());
        }
        training.checkpoints.remove(&number);
        self.dirty_trainings.mark_checkpoint(no, number);
        self.forget_if_empty(no);
        Ok(Reply::Ok)
    }
}

/// The epochs and shards that progress is about, each once.
fn named(
    datasets: &Datasets,
    by: &TrainerRef,
    progress: Vec<ShardProgress>,
) -> Result<Vec<Named>, Rejection> {
    if progress.len() > limits::TRAINER_SHARDS_MAX {
        let what = "shards held by a trainer".into();
        return Err(Rejection::Limit { what, max: limits::TRAINER_SHARDS_MAX as u64 });
    }
    let mut named = BTreeMap::new();
    for ShardProgress { dataset, epoch, shard, samples } in progress {
        let no = datasets.no(&by.job.namespace, &dataset);
        let no = no.ok_or(JobRefusal::DatasetUnknown)?;
        if named.insert((no, epoch, shard), samples).is_some() {
            return Err(JobRefusal::ProgressTwice { shard }.into());
        }
    }
    Ok(named.into_iter().map(|((no, epoch, shard), n)| ((no, epoch), shard, n)).collect())
}

fn check_label(label: &str) -> Result<(), Rejection> {
    match label.len() <= limits::NAME_BYTES_MAX {
        true => Ok(()),
        false => Err(Rejection::Invalid("the checkpoint's label is too long".into())),
    }
}

impl Training {
    /// Refuses a report of more samples of a shard than the rank can have read by that step.
    fn check_progress(
        &self,
        dataset_epoch: (DatasetNo, u64),
        number: u32,
        samples: u32,
        step: u64,
        len: u32,
    ) -> Result<(), Rejection> {
        let dataset_epoch =
            self.dataset_epochs.get(&dataset_epoch).ok_or(JobRefusal::ClaimStale)?;
        let shard = dataset_epoch.shards.get(number as usize).ok_or(JobRefusal::ClaimStale)?;
        let (least, most) = (shard.done_at(step), shard.most_at(step, len));
        match (least..=most).contains(&samples) {
            true => Ok(()),
            false => {
                let (shard, samples) = (number, u64::from(samples));
                Err(JobRefusal::Progress { shard, samples, least, most }.into())
            }
        }
    }
}
