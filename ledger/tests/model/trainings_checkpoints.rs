//! Checkpoints of training jobs, sample by sample: begun, reported by every rank, and sealed with a copy of
//! everything.

use super::{Cell, Cells, Checkpoint, Job, refuse};
use crate::naive::{Model, Outcome};
use rollout_ledger::{
    CheckpointOp, CheckpointState, JobRefusal, RankReport, Rejection, Reply, ShardProgress,
    TrainerRef, limits,
};
use std::collections::{BTreeMap, BTreeSet};

impl Job {
    fn prune(&mut self, keep_last: u32) -> Vec<u32> {
        if keep_last == 0 {
            return Vec::new();
        }
        let complete: Vec<usize> =
            (0..self.checkpoints.len()).filter(|at| self.checkpoints[*at].is_complete()).collect();
        let old = complete.len().saturating_sub(keep_last as usize);
        let mut gone = Vec::new();
        for &at in &complete[..old] {
            if at + 1 != self.base && self.checkpoints[at].label.is_empty() {
                self.checkpoints[at].goes();
                gone.push(at as u32 + 1);
            }
        }
        gone
    }

    pub(super) fn give_up(&mut self, goes: impl Fn(&Checkpoint) -> bool) {
        self.checkpoints.iter_mut().filter(|c| goes(c)).for_each(Checkpoint::goes);
    }
}

impl Model {
    pub(crate) fn checkpoint(&mut self, op: CheckpointOp) -> Outcome {
        match op {
            CheckpointOp::Begin { by, step, label } => self.begin(&by, step, label),
            CheckpointOp::Report { by, number, report, progress } => {
                self.report(&by, number, *report, progress)
            }
            CheckpointOp::Abort { job, number } => {
                let job = self.job_mut(&job)?;
                let found = known(job, number)?;
                if found.is_complete() {
                    return refuse(JobRefusal::CheckpointClosed);
                }
                found.goes();
                Ok(Reply::Ok)
            }
            CheckpointOp::Retain { job, keep_last, now } => {
                let job = self.job_mut(&job)?;
                if !now {
                    job.keep_last = keep_last;
                }
                Ok(Reply::Pruned { numbers: job.prune(keep_last) })
            }
            CheckpointOp::Label { job, number, label } => {
                let job = self.job_mut(&job)?;
                let keep_last = job.keep_last;
                let found = known(job, number)?;
                if !found.is_open() && !found.is_complete() {
                    return refuse(JobRefusal::CheckpointClosed);
                }
                found.label = label;
                job.prune(keep_last);
                Ok(Reply::Ok)
            }
            CheckpointOp::Forget { job: name, number } => {
                let Some(job) = self.trainings.jobs.get_mut(&name) else {
                    return refuse(JobRefusal::JobUnknown);
                };
                let Ok(found) = known(job, number) else { return Ok(Reply::Ok) };
                if found.is_open() || found.is_complete() {
                    return refuse(JobRefusal::CheckpointClosed);
                }
                found.state = None;
                self.forget_job(&name);
                Ok(Reply::Ok)
            }
        }
    }

    fn begin(&mut self, by: &TrainerRef, step: u64, label: String) -> Outcome {
        let job = self.heard(by)?;
        let generation = job.generation;
        for (at, found) in job.checkpoints.iter_mut().enumerate() {
            let stays = found.is_open() || found.is_complete();
            let rank = found.world.iter().position(|name| *name == by.trainer);
            if stays
                && (found.generation, found.step) == (generation, step)
                && let Some(rank) = rank
            {
                if found.label.is_empty() {
                    found.label = label;
                }
                return Ok(Reply::Checkpoint { number: at as u32 + 1, rank: rank as u32 });
            }
        }
        job.check_step(&by.trainer, step, 0)?;
        if let Some(name) = job.world.iter().find(|name| job.trainers[*name].incarnation.is_none())
        {
            return refuse(JobRefusal::TrainerMissing(name.clone()));
        }
        if job.checkpoints.iter().filter(|c| c.is_open()).count() == limits::CHECKPOINTS_OPEN_MAX {
            let max = limits::CHECKPOINTS_OPEN_MAX as u64;
            return Err(Rejection::Limit { what: "open checkpoints of a job".into(), max });
        }
        let world = job.world.clone();
        let rank = world.iter().position(|name| *name == by.trainer).expect("of the world") as u32;
        job.checkpoints.push(Checkpoint {
            generation,
            step,
            label,
            world,
            reports: BTreeMap::new(),
            progress: Vec::new(),
            state: Some(CheckpointState::Open),
            cells: Cells::new(),
        });
        Ok(Reply::Checkpoint { number: job.checkpoints.len() as u32, rank })
    }

    fn report(
        &mut self,
        by: &TrainerRef,
        number: u32,
        report: RankReport,
        mut progress: Vec<ShardProgress>,
    ) -> Outcome {
        self.heard(by)?;
        let datasets: BTreeSet<String> = self.trainings.datasets.keys().cloned().collect();
        let numbers = self.trainings.made.clone();
        if progress.iter().any(|p| !datasets.contains(&p.dataset)) {
            return refuse(JobRefusal::DatasetUnknown);
        }
        progress.sort_by_key(|p| (numbers.iter().position(|n| *n == p.dataset), p.epoch, p.shard));
        let job = self.heard(by)?;
        let found = known(job, number)?;
        let Some(rank) = found.world.iter().position(|name| *name == by.trainer) else {
            return refuse(JobRefusal::NotOfWorld);
        };
        if let Some(before) = found.reports.get(&rank) {
            let stays = found.is_open() || found.is_complete();
            return match (*before == report, stays) {
                (true, true) => Ok(Reply::Reported { complete: found.is_complete() }),
                (true, false) => refuse(JobRefusal::CheckpointClosed),
                (false, _) => refuse(JobRefusal::ReportConflict),
            };
        }
        if !found.is_open() {
            return refuse(JobRefusal::CheckpointClosed);
        }
        let step = found.step;
        let said: Vec<_> =
            found.progress.iter().map(|p| (p.dataset.clone(), p.epoch, p.shard)).collect();
        for p in &progress {
            let at = (p.dataset.clone(), p.epoch, p.shard);
            if said.contains(&at) {
                return refuse(JobRefusal::ProgressTwice { shard: p.shard });
            }
            if job.is_done(&p.dataset, p.epoch) {
                return refuse(JobRefusal::ClaimStale);
            }
            let Some(cells) = job.shard(&at) else { return refuse(JobRefusal::ClaimStale) };
            let least = cells.iter().filter(|c| c.is_in_at(step)).count() as u32;
            // As many as were in at the first report of a later step, or as a holder may have read.
            let most = match cells.iter().find(|c| c.step.is_some_and(|s| s > step)) {
                Some(later) => later.in_then,
                None if job.claims.contains_key(&at) => cells.len() as u32 - 1,
                None => cells.iter().filter(|c| c.is_in()).count() as u32,
            };
            if !(least..=most).contains(&p.samples) {
                let (shard, samples) = (p.shard, u64::from(p.samples));
                return refuse(JobRefusal::Progress { shard, samples, least, most });
            }
        }
        let trainer = job.trainers.get_mut(&by.trainer).expect("heard");
        trainer.after = trainer.after.max(Some(step));
        let found = known(job, number)?;
        found.reports.insert(rank, report);
        found.progress.extend(progress);
        let complete = found.reports.len() == found.world.len();
        if complete {
            let with_parts = complete_checkpoint(job, number as usize);
            let sealed = job.cells.keys().any(|(dataset, epoch)| job.is_done(dataset, *epoch));
            self.note("checkpoint complete");
            if with_parts {
                self.note("checkpoint complete with parts of shards");
            }
            if sealed {
                self.note("epoch sealed");
            }
        }
        Ok(Reply::Reported { complete })
    }
}

/// Everything up to its step is sealed, and a copy kept.
fn complete_checkpoint(job: &mut Job, number: usize) -> bool {
    let found = &mut job.checkpoints[number - 1];
    let (step, progress) = (found.step, std::mem::take(&mut found.progress));
    for said in &progress {
        let epoch = job.cells.get_mut(&(said.dataset.clone(), said.epoch)).expect("said of it");
        for cell in &mut epoch[said.shard as usize][..said.samples as usize] {
            cell.sealed = true;
        }
    }
    for cell in job.cells.values_mut().flatten().flatten() {
        cell.sealed |= cell.step.is_some_and(|s| s <= step);
        if cell.sealed {
            cell.step = None;
        }
    }
    let mut kept = job.cells.clone();
    kept.values_mut().flatten().flatten().for_each(|cell| cell.step = None);
    let found = &mut job.checkpoints[number - 1];
    (found.state, found.cells) = (Some(CheckpointState::Complete), kept);
    job.base = number;
    job.give_up(|c| c.is_open() && c.step <= step);
    job.prune(job.keep_last);
    let parts =
        |shard: &Vec<Cell>| shard.iter().any(|c| c.sealed) && !shard.iter().all(|c| c.sealed);
    job.cells.values().flatten().any(parts)
}

fn known(job: &mut Job, number: u32) -> Result<&mut Checkpoint, Rejection> {
    let at = (number as usize).checked_sub(1);
    let found = at.and_then(|at| job.checkpoints.get_mut(at)).filter(|c| c.state.is_some());
    found.ok_or(Rejection::Job(JobRefusal::CheckpointUnknown))
}
