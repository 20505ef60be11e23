//! Trainers of a job: how they come and go, what the loss of one does to the generation, and how a new generation
//! begins.

use super::{Checkpoint, Job, Trainer, refuse};
use crate::naive::{Model, Outcome};
use rollout_ledger::id::SessionId;
use rollout_ledger::{
    JobName, JobRefusal, LossPolicy, Rejection, Reply, TrainerDecl, TrainerOp, limits,
};

impl Model {
    pub(crate) fn trainer(&mut self, op: TrainerOp) -> Outcome {
        match op {
            TrainerOp::Join { job, trainer, on_loss } => {
                check_decl(&trainer)?;
                let there = self.trainings.jobs.contains_key(&job);
                self.job_for(&job)?;
                if !there {
                    self.job_mut(&job)?.on_loss = on_loss;
                }
                if let Some(refused) = self.succeed(&job, &trainer)? {
                    return Ok(refused);
                }
                self.job_mut(&job)?.add(&trainer.name);
                self.incarnation(&job, trainer)
            }
            TrainerOp::Keep { job, trainers } => {
                let clock = self.clock;
                let job = self.job_mut(&job)?;
                let mut lost = Vec::new();
                for (name, incarnation) in trainers {
                    match job.trainers.get_mut(&name).filter(|t| t.incarnation == Some(incarnation))
                    {
                        Some(trainer) => trainer.ends = clock + trainer.keep_ms,
                        None => lost.push(name),
                    }
                }
                Ok(Reply::KeptAlive { lost })
            }
            TrainerOp::Leave(by) => {
                let job = self.job_mut(&by.job)?;
                let holds = job.claims.values().any(|claim| claim.0 == by.trainer);
                if job.trainers.get(&by.trainer).and_then(|t| t.incarnation) != Some(by.incarnation)
                {
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
                if job.trainers.values().any(|t| t.incarnation.is_some()) {
                    return refuse(JobRefusal::JobActive);
                }
                job.give_up(|c| c.state.is_some());
                let checkpoints = std::mem::take(&mut job.checkpoints);
                let (generation, round) = (job.generation, job.round);
                *job = Job { generation, round, checkpoints, deleting: true, ..Job::default() };
                self.forget_job(&name);
                Ok(Reply::Ok)
            }
        }
    }

    fn succeed(&mut self, name: &JobName, new: &TrainerDecl) -> Result<Option<Reply>, Rejection> {
        let job = self.job_mut(name)?;
        job.needs_no_recovery()?;
        let before = job.trainers.get(&new.name).filter(|t| t.incarnation.is_some());
        if before.is_some_and(|t| t.instance != new.instance) {
            self.lose(name, &new.name);
        }
        let needs_recovery = self.job_mut(name)?.needs_recovery.clone();
        Ok(needs_recovery.map(|(trainer, host)| Reply::NeedsRecovery { trainer, host }))
    }

    fn incarnation(&mut self, name: &JobName, new: TrainerDecl) -> Outcome {
        let (session, clock) = (SessionId::at(self.index, self.op), self.clock);
        let job = self.job_mut(name)?;
        let trainer = job.trainers.entry(new.name).or_default();
        let incarnation = *trainer.incarnation.get_or_insert(session);
        (trainer.instance, trainer.keep_ms) = (new.instance, new.keep_alive_ms);
        trainer.ends = clock + new.keep_alive_ms;
        Ok(Reply::Joined { incarnation, generation: job.generation })
    }

    fn lose(&mut self, name: &JobName, trainer: &str) {
        self.note("trainer lost");
        let Some(job) = self.trainings.jobs.get_mut(name) else { return };
        let contributed = job.trainers.get(trainer).and_then(|t| t.contributed);
        let open = contributed.is_some_and(|step| job.base().is_none_or(|b| b.step < step));
        let held: Vec<_> =
            job.claims.iter().filter(|c| c.1.0 == trainer).map(|c| c.0.clone()).collect();
        // No other trainer may have the part that a checkpoint has of it.
        let matters = open || !held.is_empty() || job.base().is_some();
        if matters && !open && held.is_empty() {
            self.note("trainer lost with nothing but its part of a checkpoint");
        }
        let Some(job) = self.trainings.jobs.get_mut(name) else { return };
        let tears = matters && job.on_loss == LossPolicy::Recover;
        if tears && job.needs_recovery.is_none() {
            job.needs_recovery = Some((trainer.to_owned(), "h".to_owned()));
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
                    .for_each(|c| (c.step, c.in_then) = (Some(step), samples as u32));
            }
        }
        self.remove_trainer(name, trainer);
        if tears {
            self.note("lineage torn");
        } else if matters {
            self.note("trainer lost and gone on without");
        }
    }

    /// Unsealed samples are in no state once no trainer is left.
    fn remove_trainer(&mut self, name: &JobName, trainer: &str) {
        let Some(job) = self.trainings.jobs.get_mut(name) else { return };
        job.remove(trainer);
        let open = job.cells.values().flatten().flatten().any(|c| c.is_in() && !c.sealed);
        let nobody = job.trainers.values().all(|t| t.incarnation.is_none());
        let recovers = job.on_loss == LossPolicy::Recover;
        if open && nobody && recovers && job.needs_recovery.is_none() {
            job.needs_recovery = Some((trainer.to_owned(), "h".to_owned()));
            self.note("lineage deserted");
        }
    }

    /// The leader reports trainers as silent.
    pub(crate) fn lose_reported(
        &mut self,
        name: &JobName,
        trainers: Vec<(String, SessionId)>,
    ) -> Outcome {
        if self.version < 4 {
            return Err(Rejection::VersionLow { needs: 4, version: self.version });
        }
        for (trainer, incarnation) in trainers {
            let job = self.trainings.jobs.get(name);
            let present = job.and_then(|job| job.trainers.get(&trainer)?.incarnation);
            if present == Some(incarnation) {
                self.lose(name, &trainer);
            }
        }
        Ok(Reply::Ok)
    }

    /// From version 4 on, the leader reports silent trainers.
    pub(crate) fn end_silent_trainers(&mut self) {
        while self.version < 4 {
            let jobs = self.trainings.jobs.iter();
            let all = jobs.flat_map(|(job, j)| j.trainers.iter().map(move |t| (job, t)));
            let due = all.filter(|(_, (_, t))| t.incarnation.is_some() && t.ends <= self.clock);
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
        name: JobName,
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
                return refuse(JobRefusal::RoundConflict { round: present });
            }
            if let Some(refused) = self.succeed(&name, &trainer)? {
                return Ok(refused);
            }
            let job = self.job_mut(&name)?;
            if !job.trainers.contains_key(&trainer.name) {
                job.add(&trainer.name);
                let (of_round, joined): (Vec<_>, Vec<_>) =
                    job.world.drain(..).partition(|name| world.contains(name));
                job.world = world.into_iter().filter(|name| of_round.contains(name)).collect();
                job.world.extend(joined);
                self.note("trainer again in its round");
            }
            return self.incarnation(&name, trainer);
        }
        if round != 0 && round < present {
            return refuse(JobRefusal::RoundConflict { round: present });
        }
        if from != 0 {
            match job.checkpoints.get(from as usize - 1) {
                Some(checkpoint) if checkpoint.is_complete() => job.base = from as usize,
                _ => return refuse(JobRefusal::CheckpointUnknown),
            }
        }
        job.give_up(Checkpoint::is_open);
        let cells = job.base().map(|base| base.cells.clone()).unwrap_or_default();
        let undone = job.cells.values().flatten().flatten().any(|c| c.is_in() && !c.sealed);
        let from_one = job.base > 0;
        job.cells = cells;
        job.claims.clear();
        job.by_token.clear();
        job.needs_recovery = None;
        job.generation += u32::from(!new);
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
        self.incarnation(&name, trainer)
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
