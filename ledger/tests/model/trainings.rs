//! Training jobs, sample by sample: for each the step after which it is in, and whether a complete checkpoint has it.
//! A checkpoint keeps a copy of all. No rings, no bitmaps, no marks, no indices.
//!
//! That every sample is in once is checked as it comes in: one that is in already comes in no more, along the lineage
//! that survives.

#[path = "trainings_checkpoints.rs"]
mod checkpoints;

use self::checkpoints::known;
use crate::naive::{Model, Outcome};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use rollout_ledger::id::{Attempt, SessionId};
use rollout_ledger::{
    CheckpointOp, CheckpointState, DatasetOp, DatasetSpec, Ledger, LossPolicy, RankReport,
    Rejection, Reply, ShardOp, ShardProgress, ShardRef, TrainerDecl, TrainerOp, TrainerRef,
    TrainingName, TrainingRefusal, limits,
};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const DATASETS: [&str; 2] = ["pile", "tiny"];

#[derive(Default, Debug)]
pub(crate) struct Trainings {
    pub(crate) datasets: BTreeMap<String, DatasetSpec>,
    /// When each was made: what is said of several is looked at in this order.
    made: Vec<String>,
    pub(crate) jobs: BTreeMap<TrainingName, Job>,
}

/// One sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    /// After which step it is in.
    step: Option<u64>,
    sealed: bool,
}

impl Cell {
    fn is_in(&self) -> bool {
        self.sealed || self.step.is_some()
    }

    fn is_in_at(&self, step: u64) -> bool {
        self.sealed || self.step.is_some_and(|s| s <= step)
    }
}

/// The samples of each shard, by dataset and epoch.
type Cells = BTreeMap<(String, u64), Vec<Vec<Cell>>>;

#[derive(Debug, Default)]
pub(crate) struct Job {
    pub(crate) lineage: u32,
    pub(crate) round: u64,
    pub(crate) asked: (Vec<String>, u32, LossPolicy),
    on_loss: LossPolicy,
    world: Vec<String>,
    pub(crate) trainers: BTreeMap<String, Trainer>,
    torn: Option<(String, String)>,
    base: usize,
    cells: Cells,
    pub(crate) claims: BTreeMap<(String, u64, u32), (String, Attempt)>,
    /// The claim under which a shard was finished.
    by_token: BTreeMap<(String, u64, u32), Attempt>,
    /// Tokens of claims that have ended.
    pub(crate) ended: Vec<Attempt>,
    pub(crate) checkpoints: Vec<Checkpoint>,
    keep_last: u32,
    deleting: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Trainer {
    pub(crate) ticket: Option<SessionId>,
    instance: u64,
    ends: u64,
    keep_ms: u64,
    /// The latest step it contributed to; the latest that somebody counts on.
    contributed: Option<u64>,
    after: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Checkpoint {
    lineage: u32,
    step: u64,
    label: String,
    world: Vec<String>,
    reports: BTreeMap<usize, RankReport>,
    progress: Vec<ShardProgress>,
    state: Option<CheckpointState>,
    /// Once complete.
    cells: Cells,
}

impl Checkpoint {
    pub(crate) fn is_open(&self) -> bool {
        self.state == Some(CheckpointState::Open)
    }

    fn is_complete(&self) -> bool {
        self.state == Some(CheckpointState::Complete)
    }

    fn goes(&mut self) {
        if self.state.is_some() {
            self.state = Some(CheckpointState::Going);
            self.progress.clear();
            self.cells.clear();
        }
    }
}

fn refuse<T>(why: TrainingRefusal) -> Result<T, Rejection> {
    Err(Rejection::Training(why))
}

fn first_u64(hasher: &blake3::Hasher) -> u64 {
    u64::from_le_bytes(hasher.finalize().as_bytes()[..8].try_into().unwrap())
}

fn point(what: &str, name: &str, number: u32) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(what.as_bytes());
    hasher.update(&(name.len() as u32).to_le_bytes());
    hasher.update(name.as_bytes()).update(&number.to_le_bytes());
    first_u64(&hasher)
}

/// The order of an epoch, by its definition.
fn order(dataset: &str, spec: &DatasetSpec, epoch: u64) -> Vec<u32> {
    let shards = spec.samples.div_ceil(u64::from(spec.shard_samples)) as u32;
    let mut order: Vec<u32> = (0..shards).collect();
    if spec.in_order {
        return order;
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"rollout epoch order 1").update(&(dataset.len() as u32).to_le_bytes());
    hasher.update(dataset.as_bytes()).update(&spec.seed.to_le_bytes());
    hasher.update(&epoch.to_le_bytes()).update(&shards.to_le_bytes());
    let mut bytes = hasher.finalize_xof();
    for place in (1..shards as usize).rev() {
        let mut number = [0; 8];
        bytes.fill(&mut number);
        // None of so few is refused.
        order.swap(place, (u64::from_le_bytes(number) % (place as u64 + 1)) as usize);
    }
    order
}

fn blank(spec: &DatasetSpec) -> Vec<Vec<Cell>> {
    let samples = vec![Cell::default(); spec.samples as usize];
    samples.chunks(spec.shard_samples as usize).map(<[Cell]>::to_vec).collect()
}

impl Job {
    /// The step of the last complete checkpoint.
    pub(crate) fn step(&self) -> u64 {
        self.base().map_or(0, |base| base.step)
    }

    fn base(&self) -> Option<&Checkpoint> {
        self.checkpoints.get(self.base.checked_sub(1)?)
    }

    /// For whom a shard is preferred.
    fn owner(&self, dataset: &str, shard: u32) -> Option<&String> {
        let place = point("rollout ring shard 1", dataset, shard);
        let points = self
            .world
            .iter()
            .flat_map(|name| (0..150).map(move |n| (point("rollout ring 1", name, n), name)));
        // The nearest point at or after the place, round the circle.
        points.min_by_key(|(at, name)| (at.wrapping_sub(place), *name)).map(|found| found.1)
    }

    fn shard(&self, at: &(String, u64, u32)) -> Option<&Vec<Cell>> {
        self.cells.get(&(at.0.clone(), at.1))?.get(at.2 as usize)
    }

    fn is_free(&self, at: &(String, u64, u32)) -> bool {
        !self.claims.contains_key(at)
            && self.shard(at).is_some_and(|s| s.iter().any(|c| !c.is_in()))
    }

    fn next(&self, trainer: &str, dataset: &str, spec: &DatasetSpec, epoch: u64) -> Option<u32> {
        let free: Vec<u32> = order(dataset, spec, epoch)
            .into_iter()
            .filter(|shard| self.is_free(&(dataset.to_owned(), epoch, *shard)))
            .collect();
        let owned = |name: &str| {
            let mine = free.iter().filter(|s| self.owner(dataset, **s).is_some_and(|o| o == name));
            mine.copied().collect::<Vec<u32>>()
        };
        if let Some(first) = owned(trainer).first() {
            return Some(*first);
        }
        let most = self.world.iter().map(|name| (owned(name).len(), name));
        let (_, name) = most.max_by_key(|(n, name)| (*n, std::cmp::Reverse(*name)))?;
        owned(name).last().copied()
    }

    /// What an open checkpoint was told of a shard.
    fn said(&self, at: &(String, u64, u32)) -> Option<(usize, u64)> {
        let open = self.checkpoints.iter().filter(|c| c.is_open());
        let said = open.flat_map(|c| c.progress.iter().map(move |p| (p, c.step)));
        said.filter(|(p, _)| p.dataset == at.0 && p.epoch == at.1 && p.shard == at.2)
            .map(|(p, step)| (p.samples as usize, step))
            .max()
    }

    fn is_done(&self, dataset: &str, epoch: u64) -> bool {
        let cells = self.cells.get(&(dataset.to_owned(), epoch));
        cells.is_some_and(|shards| shards.iter().flatten().all(|c| c.sealed))
    }

    fn check_step(&self, trainer: &str, step: u64, mark: u64) -> Result<(), Rejection> {
        let after = self.trainers.get(trainer).and_then(|t| t.after);
        if let Some(last) = self.base().map(|b| b.step).max(after).filter(|last| step <= *last) {
            return refuse(TrainingRefusal::StepStale { step, last });
        }
        if step < mark {
            return refuse(TrainingRefusal::StepStale { step, last: mark });
        }
        Ok(())
    }

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

    fn give_up(&mut self, goes: impl Fn(&Checkpoint) -> bool) {
        self.checkpoints.iter_mut().filter(|c| goes(c)).for_each(Checkpoint::goes);
    }

    fn not_torn(&self) -> Result<(), Rejection> {
        match self.torn.clone() {
            Some((trainer, host)) => refuse(TrainingRefusal::Torn { trainer, host }),
            None => Ok(()),
        }
    }

    /// A trainer is gone from the world.
    fn remove(&mut self, name: &str) {
        self.trainers.remove(name);
        self.world.retain(|other| other != name);
        for checkpoint in self.checkpoints.iter_mut().filter(|c| c.is_open()) {
            let rank = checkpoint.world.iter().position(|other| other == name);
            if rank.is_some_and(|rank| !checkpoint.reports.contains_key(&rank)) {
                checkpoint.goes();
            }
        }
    }

    fn add(&mut self, name: &str) {
        if !self.trainers.contains_key(name) {
            let after = self.checkpoints.iter().filter(|c| c.is_open()).map(|c| c.step).max();
            self.world.push(name.to_owned());
            self.trainers.insert(name.to_owned(), Trainer { after, ..Trainer::default() });
        }
    }
}

impl Model {
    pub(crate) fn dataset(&mut self, op: DatasetOp) -> Outcome {
        match op {
            DatasetOp::Create { name, spec, .. } => match self.trainings.datasets.get(&name) {
                Some(there) if *there != *spec => {
                    self.note("dataset refused");
                    Err(Rejection::DatasetConflict)
                }
                Some(_) => Ok(Reply::Ok),
                None => {
                    self.trainings.made.retain(|other| *other != name);
                    self.trainings.made.push(name.clone());
                    self.trainings.datasets.insert(name, *spec);
                    Ok(Reply::Ok)
                }
            },
            DatasetOp::Delete { name, .. } => {
                let reads = |cells: &Cells| cells.keys().any(|key| key.0 == name);
                let job_reads = |job: &Job| {
                    reads(&job.cells) || job.checkpoints.iter().any(|c| reads(&c.cells))
                };
                let there = self.trainings.datasets.contains_key(&name);
                if there && self.trainings.jobs.values().any(job_reads) {
                    self.note("dataset refused");
                    return Err(Rejection::DatasetInUse);
                }
                self.trainings.datasets.remove(&name);
                Ok(Reply::Ok)
            }
        }
    }

    pub(crate) fn trainer(&mut self, op: TrainerOp) -> Outcome {
        match op {
            TrainerOp::Join { job, trainer, on_loss } => {
                check_decl(&trainer)?;
                let there = self.trainings.jobs.contains_key(&job);
                self.job_for(&job)?;
                if !there {
                    self.job_mut(&job)?.on_loss = on_loss;
                }
                if let Some(torn) = self.succeed(&job, &trainer)? {
                    return Ok(torn);
                }
                self.job_mut(&job)?.add(&trainer.name);
                self.ticket(&job, trainer)
            }
            TrainerOp::Keep { job, trainers } => {
                let clock = self.clock;
                let job = self.job_mut(&job)?;
                let mut lost = Vec::new();
                for (name, ticket) in trainers {
                    match job.trainers.get_mut(&name).filter(|t| t.ticket == Some(ticket)) {
                        Some(trainer) => trainer.ends = clock + trainer.keep_ms,
                        None => lost.push(name),
                    }
                }
                Ok(Reply::Kept { lost })
            }
            TrainerOp::Leave(by) => {
                let job = self.job_mut(&by.job)?;
                let holds = job.claims.values().any(|claim| claim.0 == by.trainer);
                if job.trainers.get(&by.trainer).and_then(|t| t.ticket) != Some(by.ticket) {
                    return Ok(Reply::Ok);
                }
                match holds {
                    true => self.lose(&by.job, &by.trainer),
                    false => self.remove_trainer(&by.job, &by.trainer),
                }
                Ok(Reply::Ok)
            }
            TrainerOp::Recover { job, round, world, trainer, from, on_loss } => {
                self.recover(job, (round, world, from, on_loss), trainer)
            }
            TrainerOp::DeleteJob(name) => {
                let Some(job) = self.trainings.jobs.get_mut(&name) else { return Ok(Reply::Ok) };
                if job.trainers.values().any(|t| t.ticket.is_some()) {
                    return refuse(TrainingRefusal::JobActive);
                }
                job.give_up(|c| c.state.is_some());
                let checkpoints = std::mem::take(&mut job.checkpoints);
                let (lineage, round) = (job.lineage, job.round);
                *job = Job { lineage, round, checkpoints, deleting: true, ..Job::default() };
                self.forget_job(&name);
                Ok(Reply::Ok)
            }
        }
    }

    fn job_for(&mut self, name: &TrainingName) -> Result<(), Rejection> {
        let new = || Job { lineage: 1, keep_last: limits::KEEP_LAST_DEFAULT, ..Job::default() };
        self.trainings.jobs.entry(name.clone()).or_insert_with(new);
        self.job_mut(name).map(drop)
    }

    fn job_mut(&mut self, name: &TrainingName) -> Result<&mut Job, Rejection> {
        match self.trainings.jobs.get_mut(name) {
            None => refuse(TrainingRefusal::JobUnknown),
            Some(job) if job.deleting => refuse(TrainingRefusal::JobDeleting),
            Some(job) => Ok(job),
        }
    }

    fn heard(&mut self, by: &TrainerRef) -> Result<&mut Job, Rejection> {
        let job = self.job_mut(&by.job)?;
        if job.trainers.get(&by.trainer).and_then(|t| t.ticket) != Some(by.ticket) {
            return refuse(TrainingRefusal::TicketVoid);
        }
        job.not_torn()?;
        Ok(job)
    }

    fn succeed(
        &mut self,
        name: &TrainingName,
        new: &TrainerDecl,
    ) -> Result<Option<Reply>, Rejection> {
        let job = self.job_mut(name)?;
        job.not_torn()?;
        let before = job.trainers.get(&new.name).filter(|t| t.ticket.is_some());
        if before.is_some_and(|t| t.instance != new.instance) {
            self.lose(name, &new.name);
        }
        let torn = self.job_mut(name)?.torn.clone();
        Ok(torn.map(|(trainer, host)| Reply::Torn { trainer, host }))
    }

    fn ticket(&mut self, name: &TrainingName, new: TrainerDecl) -> Outcome {
        let (session, clock) = (SessionId::at(self.index, self.op), self.clock);
        let job = self.job_mut(name)?;
        let trainer = job.trainers.entry(new.name).or_default();
        let ticket = *trainer.ticket.get_or_insert(session);
        (trainer.instance, trainer.keep_ms) = (new.instance, new.keep_alive_ms);
        trainer.ends = clock + new.keep_alive_ms;
        Ok(Reply::Joined { ticket, lineage: job.lineage })
    }

    fn lose(&mut self, name: &TrainingName, trainer: &str) {
        self.note("trainer lost");
        let Some(job) = self.trainings.jobs.get_mut(name) else { return };
        let contributed = job.trainers.get(trainer).and_then(|t| t.contributed);
        let open = contributed.is_some_and(|step| job.base().is_none_or(|b| b.step < step));
        let held: Vec<_> =
            job.claims.iter().filter(|c| c.1.0 == trainer).map(|c| c.0.clone()).collect();
        let matters = open || !held.is_empty();
        let tears = matters && job.on_loss == LossPolicy::Recover;
        if tears && job.torn.is_none() {
            job.torn = Some((trainer.to_owned(), "h".to_owned()));
        }
        for at in held {
            job.claims.remove(&at);
            let said = job.said(&at);
            let cells = job.cells.get_mut(&(at.0.clone(), at.1)).expect("claimed");
            if let Some((samples, step)) = said {
                let shard = &mut cells[at.2 as usize];
                shard[..samples]
                    .iter_mut()
                    .filter(|c| !c.is_in())
                    .for_each(|c| c.step = Some(step));
            }
        }
        self.remove_trainer(name, trainer);
        if tears {
            self.note("lineage torn");
        } else if matters {
            self.note("trainer lost and gone on without");
        }
    }

    /// What is in and not sealed is in nobody's state once nobody is there.
    fn remove_trainer(&mut self, name: &TrainingName, trainer: &str) {
        let Some(job) = self.trainings.jobs.get_mut(name) else { return };
        job.remove(trainer);
        let open = job.cells.values().flatten().flatten().any(|c| c.is_in() && !c.sealed);
        let nobody = job.trainers.values().all(|t| t.ticket.is_none());
        let recovers = job.on_loss == LossPolicy::Recover;
        if open && nobody && recovers && job.torn.is_none() {
            job.torn = Some((trainer.to_owned(), "h".to_owned()));
            self.note("lineage deserted");
        }
    }

    pub(crate) fn end_silent_trainers(&mut self) {
        loop {
            let jobs = self.trainings.jobs.iter();
            let all = jobs.flat_map(|(job, j)| j.trainers.iter().map(move |t| (job, t)));
            let due = all.filter(|(_, (_, t))| t.ticket.is_some() && t.ends <= self.clock);
            let first = due.min_by_key(|(_, (_, t))| t.ends);
            let Some((job, (name, _))) = first.map(|(j, t)| (j.clone(), (t.0.clone(), ()))) else {
                return;
            };
            self.lose(&job, &name);
        }
    }

    pub(crate) fn hear_trainers_anew(&mut self) {
        let clock = self.clock;
        for job in self.trainings.jobs.values_mut() {
            job.trainers.values_mut().for_each(|t| t.ends = clock + t.keep_ms);
        }
    }

    fn recover(
        &mut self,
        name: TrainingName,
        (round, world, from, on_loss): (u64, Vec<String>, u32, LossPolicy),
        trainer: TrainerDecl,
    ) -> Outcome {
        check_decl(&trainer)?;
        if !world.contains(&trainer.name) {
            let why = "the world names each trainer once, and its caller";
            return Err(Rejection::Invalid(why.into()));
        }
        if round == 0 && world.len() != 1 {
            return Err(Rejection::Invalid("a world of several recovers by its round".into()));
        }
        if from != 0 {
            self.job_mut(&name)?;
        }
        let new = !self.trainings.jobs.contains_key(&name);
        self.job_for(&name)?;
        let job = self.job_mut(&name)?;
        let present = job.round;
        let asked = (world.clone(), from, on_loss);
        if round == present && round != 0 {
            if asked != job.asked || !job.trainers.contains_key(&trainer.name) {
                return refuse(TrainingRefusal::RoundConflict { round: present });
            }
            if let Some(torn) = self.succeed(&name, &trainer)? {
                return Ok(torn);
            }
            self.job_mut(&name)?.add(&trainer.name);
            return self.ticket(&name, trainer);
        }
        if round != 0 && round < present {
            return refuse(TrainingRefusal::RoundConflict { round: present });
        }
        if from != 0 {
            match job.checkpoints.get(from as usize - 1) {
                Some(checkpoint) if checkpoint.is_complete() => job.base = from as usize,
                _ => return refuse(TrainingRefusal::CheckpointUnknown),
            }
        }
        job.give_up(Checkpoint::is_open);
        let cells = job.base().map(|base| base.cells.clone()).unwrap_or_default();
        let undone = job.cells.values().flatten().flatten().any(|c| c.is_in() && !c.sealed);
        let from_one = job.base > 0;
        job.cells = cells;
        job.claims.clear();
        job.by_token.clear();
        job.torn = None;
        job.lineage += u32::from(!new);
        job.round = if round == 0 { present + 1 } else { round };
        job.on_loss = on_loss;
        job.asked = asked;
        job.trainers = world.iter().map(|name| (name.clone(), Trainer::default())).collect();
        job.world = world;
        if from_one {
            self.note("recovered from a checkpoint");
        }
        if undone {
            self.note("recovered with work undone");
        }
        self.ticket(&name, trainer)
    }

    pub(crate) fn shard(&mut self, op: ShardOp) -> Outcome {
        match op {
            ShardOp::Claim { by, dataset, epoch } => self.claim_shard(&by, dataset, epoch),
            ShardOp::Finish { by, shard, step } => self.end_claim(&by, shard, None, step),
            ShardOp::Release { by, shard, samples, step } => {
                self.end_claim(&by, shard, Some(samples as usize), step)
            }
        }
    }

    fn claim_shard(&mut self, by: &TrainerRef, dataset: String, epoch: u64) -> Outcome {
        self.heard(by)?;
        let Some(spec) = self.trainings.datasets.get(&dataset).cloned() else {
            return refuse(TrainingRefusal::DatasetUnknown);
        };
        let token = Attempt::at(self.index, self.granted);
        let job = self.heard(by)?;
        job.cells.entry((dataset.clone(), epoch)).or_insert_with(|| blank(&spec));
        let Some(number) = job.next(&by.trainer, &dataset, &spec, epoch) else {
            let cells = job.cells[&(dataset, epoch)].iter().flatten();
            return Ok(Reply::NoShard { finished: { cells }.all(Cell::is_in) });
        };
        let at = (dataset, epoch, number);
        let from = job.shard(&at).map_or(0, |s| s.iter().filter(|c| c.is_in()).count()) as u32;
        job.claims.insert(at, (by.trainer.clone(), token));
        self.granted += 1;
        Ok(Reply::Shard { number, token, from })
    }

    fn end_claim(
        &mut self,
        by: &TrainerRef,
        shard: ShardRef,
        samples: Option<usize>,
        step: u64,
    ) -> Outcome {
        self.heard(by)?;
        if !self.trainings.datasets.contains_key(&shard.dataset) {
            return refuse(TrainingRefusal::DatasetUnknown);
        }
        let job = self.heard(by)?;
        let at = (shard.dataset.clone(), shard.epoch, shard.number);
        let epoch = (shard.dataset, shard.epoch);
        if job.is_done(&epoch.0, epoch.1) {
            return match samples {
                None => Ok(Reply::ShardEnded { epoch_finished: true }),
                Some(_) => refuse(TrainingRefusal::ClaimStale),
            };
        }
        let finished = |job: &Job| job.cells[&epoch].iter().flatten().all(Cell::is_in);
        match job.claims.get(&at) {
            Some(claim) if *claim == (by.trainer.clone(), shard.token) => {}
            None if samples.is_none() && job.by_token.get(&at) == Some(&shard.token) => {
                return Ok(Reply::ShardEnded { epoch_finished: finished(job) });
            }
            _ => return refuse(TrainingRefusal::ClaimStale),
        }
        let cells = job.shard(&at).expect("claimed");
        let (len, done) = (cells.len(), cells.iter().filter(|c| c.is_in()).count());
        let samples = samples.unwrap_or(len);
        let least = done.max(job.said(&at).map_or(0, |said| said.0));
        if samples < least || samples > len {
            let (shard, samples) = (shard.number, samples as u64);
            let (least, most) = (least as u32, len as u32);
            return refuse(TrainingRefusal::Progress { shard, samples, least, most });
        }
        let mark = cells.iter().filter(|c| !c.sealed).filter_map(|c| c.step).max();
        if samples > done {
            job.check_step(&by.trainer, step, mark.unwrap_or(0))?;
            let trainer = job.trainers.get_mut(&by.trainer).expect("heard");
            trainer.contributed = trainer.contributed.max(Some(step));
        }
        let cells = &mut job.cells.get_mut(&epoch).expect("claimed")[at.2 as usize];
        for cell in &mut cells[done..samples] {
            assert!(!cell.is_in(), "a sample of {at:?} is in twice");
            cell.step = Some(step);
        }
        job.claims.remove(&at);
        job.ended.push(shard.token);
        if samples == len {
            job.by_token.insert(at, shard.token);
        }
        Ok(Reply::ShardEnded { epoch_finished: finished(job) })
    }

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
                    return refuse(TrainingRefusal::CheckpointClosed);
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
                    return refuse(TrainingRefusal::CheckpointClosed);
                }
                found.label = label;
                job.prune(keep_last);
                Ok(Reply::Ok)
            }
            CheckpointOp::Forget { job: name, number } => {
                let Some(job) = self.trainings.jobs.get_mut(&name) else {
                    return refuse(TrainingRefusal::JobUnknown);
                };
                let Ok(found) = known(job, number) else { return Ok(Reply::Ok) };
                if found.is_open() || found.is_complete() {
                    return refuse(TrainingRefusal::CheckpointClosed);
                }
                found.state = None;
                self.forget_job(&name);
                Ok(Reply::Ok)
            }
        }
    }

    fn forget_job(&mut self, name: &TrainingName) {
        let gone = |job: &Job| job.deleting && job.checkpoints.iter().all(|c| c.state.is_none());
        if self.trainings.jobs.get(name).is_some_and(gone) {
            self.trainings.jobs.remove(name);
        }
    }
}

fn check_decl(trainer: &TrainerDecl) -> Result<(), Rejection> {
    let (least, most) = (limits::KEEP_ALIVE_MIN_MS, limits::KEEP_ALIVE_MAX_MS);
    match (least..=most).contains(&trainer.keep_alive_ms) {
        true => Ok(()),
        false => {
            let why = format!("a trainer is lost after {least} to {most} ms of silence");
            Err(Rejection::Invalid(why))
        }
    }
}

impl Trainings {
    pub(crate) fn same(&self, ledger: &Ledger) -> TestCaseResult {
        let names: Vec<&str> = ledger.datasets_of("default").map(|d| d.name).collect();
        prop_assert_eq!(names, self.datasets.keys().collect::<Vec<_>>());
        let jobs: Vec<_> = ledger.trainings().map(|t| t.name()).collect();
        prop_assert_eq!(jobs, self.jobs.keys().collect::<Vec<_>>());
        for (name, job) in &self.jobs {
            let view = ledger.training(name).expect("there");
            let lineage = view.lineage();
            let base = (lineage.checkpoint as usize, lineage.step);
            prop_assert_eq!(base, (if job.deleting { 0 } else { job.base }, job.step()));
            prop_assert_eq!((lineage.number, lineage.round), (job.lineage, job.round));
            prop_assert_eq!(lineage.world, &job.world[..]);
            prop_assert_eq!(lineage.torn.is_some(), job.torn.is_some());
            for ((dataset, epoch), shards) in &job.cells {
                job.same_epoch(&view, dataset, *epoch, shards)?;
            }
            let there = (1u32..).zip(&job.checkpoints);
            let there: Vec<_> =
                there.filter_map(|(n, c)| Some((n, c.state?, c.step, c.reports.len()))).collect();
            let seen: Vec<_> = view
                .checkpoints()
                .map(|c| {
                    (c.number, c.state(), c.step(), c.ranks().filter(|r| r.1.is_some()).count())
                })
                .collect();
            prop_assert_eq!(seen, there);
        }
        Ok(())
    }
}

impl Job {
    fn same_epoch(
        &self,
        view: &rollout_ledger::TrainingView<'_>,
        dataset: &str,
        epoch: u64,
        shards: &[Vec<Cell>],
    ) -> TestCaseResult {
        let seen = view.shards(dataset, epoch, 0, usize::MAX);
        if self.is_done(dataset, epoch) {
            prop_assert!(seen.is_empty());
            let counts = view.counts(dataset, epoch).expect("done");
            prop_assert_eq!(counts.sealed as usize, shards.len());
            return Ok(());
        }
        for (number, (cells, seen)) in (0u32..).zip(shards.iter().zip(&seen)) {
            let at = (dataset.to_owned(), epoch, number);
            let done = cells.iter().take_while(|c| c.is_in()).count();
            prop_assert_eq!(done, cells.iter().filter(|c| c.is_in()).count());
            let sealed = cells.iter().filter(|c| c.sealed).count();
            prop_assert_eq!((seen.done, seen.sealed), (done as u32, sealed as u32), "{:?}", at);
            let holder = self.claims.get(&at).map_or("", |claim| claim.0.as_str());
            prop_assert_eq!(seen.holder, holder, "{:?}", at);
            let preferred = self.owner(dataset, number).map_or("", String::as_str);
            prop_assert_eq!(seen.preferred, preferred, "{:?}", at);
        }
        prop_assert_eq!(seen.len(), shards.len());
        Ok(())
    }
}
