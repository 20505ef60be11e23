//! The operations of trainers: join, keep alive, leave, be lost, and recover.
//!
//! *Invariant:* losing a trainer with a part in the job's state means that its generation needs recovery, unless the
//! job continues without it. Every trainer has such a part once the generation has a checkpoint; before that, only one
//! with work of its own. The last trainer that leaves or is lost also makes it need recovery if any work is in no
//! checkpoint, because no trainer has it in its state then. Absent: how a job recovers (`trainer/recovery.rs`).

use self::recovery::Recovery;
use crate::kernel::id::{LedgerMs, SessionId, TrainingNo};
use crate::kernel::job_refusal::JobRefusal;
use crate::kernel::limits;
use crate::kernel::names::check_name;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::event::Emitter;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::machine::version_gate::came_with;
use crate::training::dataset_epoch::{Mark, ShardState, record_of};
use crate::training::job::{JobName, Jobs};
use crate::training::shard_ring::Ring;
use crate::training::state::{LossPolicy, Trainer, TrainerRef, Training, needs_no_recovery};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

mod recovery;
#[cfg(test)]
mod tests;

/// The operations of trainers, and on jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrainerOp {
    /// Joins the present generation, or creates the job.
    Join {
        /// The job.
        job: JobName,
        /// The trainer.
        trainer: TrainerDecl,
        /// The policy of a job that this creates.
        on_loss: LossPolicy,
    },
    /// Keep-alives of trainers.
    Keep {
        /// The job.
        job: JobName,
        /// Names and incarnations, at most [`limits::TRAINERS_MAX`].
        trainers: Vec<(String, SessionId)>,
    },
    /// Leaves. Its contribution stays, because the others or a checkpoint have it; if it holds a shard, it counts as
    /// lost.
    Leave(TrainerRef),
    /// Begins the generation of a round, or joins it.
    Recover {
        /// The job, made if need be.
        job: JobName,
        /// Above that of the previous generation. 0, for a world of one: the next round.
        round: u64,
        /// All trainers by rank.
        world: Vec<String>,
        /// The trainer that asks.
        trainer: TrainerDecl,
        /// The checkpoint; 0: the last complete one.
        from: u32,
        /// Its policy for losing a trainer.
        on_loss: LossPolicy,
    },
    /// Removes a job without trainers, and with its objects its checkpoints.
    DeleteJob(JobName),
}

/// A trainer as it introduces itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainerDecl {
    /// Its name, unique in the job.
    pub name: String,
    /// Human-readable.
    pub host: String,
    /// Drawn when its process started.
    pub instance: u64,
    /// After this silence it is lost.
    pub keep_alive_ms: u64,
}

impl TrainerDecl {
    fn check(&self) -> Result<(), Rejection> {
        check_name("trainer's", &self.name)?;
        if self.host.len() > limits::NAME_BYTES_MAX {
            return Err(Rejection::Invalid("the trainer's host is too long".into()));
        }
        let (least, most) = (limits::KEEP_ALIVE_MIN_MS, limits::KEEP_ALIVE_MAX_MS);
        if !(least..=most).contains(&self.keep_alive_ms) {
            let why = format!("a trainer is lost after {least} to {most} ms of silence");
            return Err(Rejection::Invalid(why));
        }
        Ok(())
    }
}

came_with!(TrainerOp, TRAINERS, {
    1: TrainerOp::Join { .. } | TrainerOp::Keep { .. } | TrainerOp::Leave(_)
        | TrainerOp::Recover { .. } | TrainerOp::DeleteJob(_),
});

impl Operation for TrainerOp {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn since(&self) -> u32 {
        match self {
            Self::Join { on_loss, .. } | Self::Recover { on_loss, .. } => {
                self.came_with().max(on_loss.came_with())
            }
            Self::Keep { .. } | Self::Leave(_) | Self::DeleteJob(_) => self.came_with(),
        }
    }

    fn cost(&self) -> Cost {
        match self {
            // All shards of a job.
            Self::Join { .. } | Self::Leave(_) | Self::Recover { .. } | Self::DeleteJob(_) => {
                Cost::GrowsWithState
            }
            Self::Keep { .. } => Cost::Bounded,
        }
    }

    fn grows(&self) -> bool {
        match self {
            Self::Join { .. } | Self::Recover { .. } => true,
            Self::Keep { .. } | Self::Leave(_) | Self::DeleteJob(_) => false,
        }
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        match self {
            Self::Leave(by) => Subject::Namespace(&by.job.namespace),
            Self::Join { job, .. }
            | Self::Keep { job, .. }
            | Self::Recover { job, .. }
            | Self::DeleteJob(job) => Subject::Namespace(&job.namespace),
        }
    }

    fn dry_run(&self, ledger: &Ledger) -> Option<Result<(), Rejection>> {
        match self {
            Self::DeleteJob(job) => Some(ledger.jobs.check_delete_training(job).map(drop)),
            Self::Join { .. } | Self::Keep { .. } | Self::Leave(_) | Self::Recover { .. } => None,
        }
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.trainer_op(ctx, self)
    }
}

impl Ledger {
    fn trainer_op(&mut self, ctx: &Context, op: TrainerOp) -> Result<Reply, Rejection> {
        let now = self.meta.clock();
        match op {
            TrainerOp::Join { job, trainer, on_loss } => {
                trainer.check()?;
                let new = self.jobs.training_no(&job).is_none();
                let no = self.training_for(&job)?;
                let out = &mut Emitter::new(ctx, &mut self.events);
                self.jobs.join_training(no, trainer, new.then_some(on_loss), now, out)
            }
            TrainerOp::Keep { job, trainers } => self.jobs.keep_trainers(&job, trainers, now),
            TrainerOp::Leave(by) => {
                self.jobs.leave_training(&by, &mut Emitter::new(ctx, &mut self.events))
            }
            TrainerOp::Recover { job, round, world, trainer, from, on_loss } => {
                self.recover(ctx, job, Recovery { round, world, from, on_loss }, trainer)
            }
            TrainerOp::DeleteJob(job) => {
                self.jobs.delete_training(&job, &mut Emitter::new(ctx, &mut self.events))
            }
        }
    }
}

impl Jobs {
    /// A trainer joins. `on_loss` is the policy of a job that this creates.
    fn join_training(
        &mut self,
        no: TrainingNo,
        trainer: TrainerDecl,
        on_loss: Option<LossPolicy>,
        now: LedgerMs,
        out: &mut Emitter,
    ) -> Result<Reply, Rejection> {
        if let Some(refused) = self.succeed(out, no, &trainer)? {
            return Ok(refused);
        }
        let Some(training) = self.table.training_mut(no) else { return Ok(Reply::Ok) };
        training.head.on_loss = on_loss.unwrap_or(training.head.on_loss);
        let known = training.trainers.contains_key(&trainer.name);
        if !known && training.head.world.len() >= limits::TRAINERS_MAX {
            let what = "trainers of a job".into();
            return Err(Rejection::Limit { what, max: limits::TRAINERS_MAX as u64 });
        }
        self.add_trainer(no, &trainer.name);
        Ok(self.give_incarnation(no, trainer, out.ctx.session(), now))
    }

    /// Adds the trainer to the world, at the end if it was not in it. It has no part in open checkpoints.
    fn add_trainer(&mut self, no: TrainingNo, name: &str) {
        let Some(training) = self.table.training_mut(no) else { return };
        if training.trainers.contains_key(name) {
            return;
        }
        let after = training.checkpoints.values().filter(|c| c.is_open()).map(|c| c.step).max();
        training.head.world.push(name.to_owned());
        let arcs = training.ring.arcs_of(name);
        training
            .dataset_epochs
            .values_mut()
            .for_each(|dataset_epoch| dataset_epoch.prefer_also(name, &arcs));
        training.ring.add(name);
        training.trainers.insert(name.to_owned(), Trainer { after, ..Trainer::default() });
        self.dirty_trainings.mark_head(no);
        self.dirty_trainings.mark_trainer(no, name.to_owned());
    }

    /// Puts the trainer back into the world of its round. If it has left since, it gets its former rank, because the
    /// others know theirs. Trainers that joined later come after those of the round.
    fn rejoin_round(&mut self, no: TrainingNo, name: &str, world: &[String]) {
        if self.table.training(no).is_some_and(|t| t.trainers.contains_key(name)) {
            return;
        }
        self.add_trainer(no, name);
        let Some(training) = self.table.training_mut(no) else { return };
        let ranks: BTreeMap<&String, usize> = world.iter().zip(0..).collect();
        training.head.world.sort_by_key(|name| ranks.get(name).copied().unwrap_or(world.len()));
    }

    /// A trainer of that name in another process is lost. Returns the refusal that follows, which is no rejection,
    /// because something changed.
    fn succeed(
        &mut self,
        out: &mut Emitter,
        no: TrainingNo,
        trainer: &TrainerDecl,
    ) -> Result<Option<Reply>, Rejection> {
        self.training_changes += 1;
        let Some(training) = self.table.training(no) else { return Ok(None) };
        needs_no_recovery(&training.head)?;
        let before = training.trainers.get(&trainer.name).filter(|t| t.incarnation.is_some());
        if before.is_none_or(|before| before.instance == trainer.instance) {
            return Ok(None);
        }
        self.lose_trainer(out, no, &trainer.name, "another process took its name");
        let needs_recovery =
            self.table.training(no).and_then(|training| training.head.needs_recovery.clone());
        Ok(needs_recovery.map(|(trainer, host)| Reply::NeedsRecovery { trainer, host }))
    }

    /// Gives the trainer, which is in the world, its incarnation: the one that it had, or this one.
    fn give_incarnation(
        &mut self,
        no: TrainingNo,
        decl: TrainerDecl,
        incarnation: SessionId,
        now: LedgerMs,
    ) -> Reply {
        let Some(training) = self.table.training_mut(no) else { return Reply::Ok };
        let trainer = training.trainers.entry(decl.name.clone()).or_default();
        if trainer.incarnation.is_some() {
            self.ends.remove(&(trainer.ends, no, decl.name.clone()));
        }
        let incarnation = *trainer.incarnation.get_or_insert(incarnation);
        trainer.host = decl.host;
        trainer.instance = decl.instance;
        trainer.keep_alive_ms = decl.keep_alive_ms;
        trainer.ends = LedgerMs(now.0.saturating_add(decl.keep_alive_ms));
        self.ends.insert((trainer.ends, no, decl.name.clone()));
        self.dirty_trainings.mark_trainer(no, decl.name);
        Reply::Joined { incarnation, generation: training.head.generation }
    }

    fn keep_trainers(
        &mut self,
        job: &JobName,
        trainers: Vec<(String, SessionId)>,
        now: LedgerMs,
    ) -> Result<Reply, Rejection> {
        if trainers.len() > limits::TRAINERS_MAX {
            let what = "trainers kept at once".into();
            return Err(Rejection::Limit { what, max: limits::TRAINERS_MAX as u64 });
        }
        let no = self.open_training(job)?;
        let Some(training) = self.table.training_mut(no) else { return Ok(Reply::Ok) };
        let mut lost = Vec::new();
        for (name, incarnation) in trainers {
            match training.trainers.get_mut(&name).filter(|t| t.incarnation == Some(incarnation)) {
                Some(trainer) => {
                    self.ends.remove(&(trainer.ends, no, name.clone()));
                    trainer.ends = LedgerMs(now.0.saturating_add(trainer.keep_alive_ms));
                    self.ends.insert((trainer.ends, no, name.clone()));
                    self.dirty_trainings.mark_trainer(no, name);
                }
                None => lost.push(name),
            }
        }
        Ok(Reply::KeptAlive { lost })
    }

    fn leave_training(&mut self, by: &TrainerRef, out: &mut Emitter) -> Result<Reply, Rejection> {
        let no = self.open_training(&by.job)?;
        let Some(training) = self.table.training(no) else { return Ok(Reply::Ok) };
        let theirs = training.trainers.get(&by.trainer).and_then(|trainer| trainer.incarnation);
        if theirs != Some(by.incarnation) {
            return Ok(Reply::Ok); // It is gone already.
        }
        let holds = training.held_by(&by.trainer).next().is_some();
        match holds {
            true => self.lose_trainer(out, no, &by.trainer, "it left with a shard"),
            false => self.remove_trainer(out, no, &by.trainer),
        }
        Ok(Reply::Ok)
    }

    /// Loses every trainer.
    pub(crate) fn lose_all(&mut self, why: &str, out: &mut Emitter) {
        let all = self.ends.iter().map(|(_, no, name)| (*no, name.clone())).collect();
        self.lose(all, why, out);
    }

    /// Loses trainers in this order. From the first on, no shard is preferred for any of them: otherwise the last
    /// trainer of a job that ends would be offered the shards of all others.
    pub(super) fn lose(&mut self, lost: Vec<(TrainingNo, String)>, why: &str, out: &mut Emitter) {
        let mut of_jobs: BTreeMap<TrainingNo, BTreeSet<String>> = BTreeMap::new();
        for (no, name) in lost.iter().cloned() {
            of_jobs.entry(no).or_default().insert(name);
        }
        for (no, names) in &of_jobs {
            self.prefer_no_more(*no, names);
        }
        for (no, name) in lost {
            self.lose_trainer(out, no, &name, why);
        }
    }

    /// Gives every trainer its full time again, because no leader listened for a while. It writes every trainer's record,
    /// so only where the ledger loses silent trainers.
    pub(crate) fn listen_anew(&mut self, now: LedgerMs) {
        self.ends.clear();
        for (no, training) in self.table.trainings_mut() {
            for (name, trainer) in
                training.trainers.iter_mut().filter(|t| t.1.incarnation.is_some())
            {
                trainer.ends = LedgerMs(now.0.saturating_add(trainer.keep_alive_ms));
                self.ends.insert((trainer.ends, no, name.clone()));
                self.dirty_trainings.mark_trainer(no, name.clone());
            }
        }
    }

    fn lose_trainer(&mut self, out: &mut Emitter, no: TrainingNo, name: &str, why: &str) {
        let Some(training) = self.table.training_mut(no) else { return };
        let Some(trainer) = training.trainers.get(name) else { return };
        let host = trainer.host.clone();
        let needs_recovery = training.head.on_loss == LossPolicy::Recover && training.needs(name);
        let with = match training.has_unsealed(name) {
            true => "work that no checkpoint holds".to_owned(),
            false => format!("its part of checkpoint {}", training.head.base),
        };
        if needs_recovery && training.head.needs_recovery.is_none() {
            training.head.needs_recovery = Some((name.to_owned(), host.clone()));
            self.dirty_trainings.mark_head(no);
        }
        self.emit_training(out, no, "trainer_lost", format!("{name} on {host}: {why}"));
        if needs_recovery {
            let why = format!("{name} on {host} was lost with {with}");
            self.emit_training(out, no, "torn", why);
        }
        self.free_shards_of(no, name);
        self.remove_trainer(out, no, name);
    }

    /// Frees the shards that a trainer had claimed, from the progress that is known.
    fn free_shards_of(&mut self, no: TrainingNo, name: &str) {
        let Some(training) = self.table.training_mut(no) else { return };
        let held: Vec<_> = training.held_by(name).collect();
        for (dataset, epoch, number) in held {
            let known = training.progress_of((dataset, epoch), number);
            let Some(dataset_epoch) = training.dataset_epochs.get_mut(&(dataset, epoch)) else {
                continue;
            };
            if let Some(shard) = dataset_epoch.shards.get_mut(number as usize)
                && let Some((step, samples)) = known.filter(|known| known.1 > shard.done())
            {
                shard.marks.push(Mark { step, samples });
            }
            dataset_epoch.set_state(number, ShardState::Free, &training.ring);
            self.dirty_trainings.mark_shards([(no, dataset, epoch, record_of(number))]);
        }
    }

    /// Removes a trainer without shards from the world. Checkpoints that wait for it are given up.
    fn remove_trainer(&mut self, out: &mut Emitter, no: TrainingNo, name: &str) {
        let Some(training) = self.table.training_mut(no) else { return };
        let Some(trainer) = training.trainers.remove(name) else { return };
        if trainer.incarnation.is_some() {
            self.ends.remove(&(trainer.ends, no, name.to_owned()));
        }
        training.head.world.retain(|other| other != name);
        self.training_changes += 1;
        self.dirty_trainings.mark_trainer(no, name.to_owned());
        self.dirty_trainings.mark_head(no);
        self.prefer_no_more(no, &BTreeSet::from([name.to_owned()]));
        self.give_up_checkpoints(out, no, |c| c.waits_for(name), "a trainer of its world is gone");
        self.tear_if_deserted(out, no, (name, &trainer.host));
    }

    /// Marks the generation as in need of recovery if no trainer is left that has the work that no checkpoint holds. A
    /// later trainer must not seal that work.
    fn tear_if_deserted(&mut self, out: &mut Emitter, no: TrainingNo, (name, host): (&str, &str)) {
        let Some(training) = self.table.training_mut(no) else { return };
        let head = &training.head;
        if head.on_loss != LossPolicy::Recover
            || head.needs_recovery.is_some()
            || !training.is_deserted()
        {
            return;
        }
        training.head.needs_recovery = Some((name.to_owned(), host.to_owned()));
        let why =
            format!("{name} on {host} was the last to go, with work that no checkpoint holds");
        self.emit_training(out, no, "torn", why);
    }

    /// Removes these from the job's ring.
    fn prefer_no_more(&mut self, no: TrainingNo, names: &BTreeSet<String>) {
        let Some(training) = self.table.training_mut(no) else { return };
        names.iter().for_each(|name| training.ring.remove(name));
        training
            .dataset_epochs
            .values_mut()
            .for_each(|dataset_epoch| dataset_epoch.prefer_no_more(names, &training.ring));
    }

    /// The number of the job to delete; `None` if there is none.
    fn check_delete_training(&self, job: &JobName) -> Result<Option<TrainingNo>, Rejection> {
        let no = self.training_no(job);
        let training = no.and_then(|no| self.table.training(no));
        let present = |trainer: &Trainer| trainer.incarnation.is_some();
        match training.is_some_and(|training| training.trainers.values().any(present)) {
            true => Err(JobRefusal::JobActive.into()),
            false => Ok(no),
        }
    }

    fn delete_training(&mut self, job: &JobName, out: &mut Emitter) -> Result<Reply, Rejection> {
        let Some(no) = self.check_delete_training(job)? else { return Ok(Reply::Ok) };
        let Some(training) = self.table.training_mut(no) else { return Ok(Reply::Ok) };
        training.head.deleting = true;
        training.head.base = 0;
        training.head.step = 0;
        training.head.needs_recovery = None;
        training.head.done.clear();
        training.head.world.clear();
        training.ring = Ring::default();
        let names = std::mem::take(&mut training.trainers).into_keys().map(|name| (no, name));
        self.dirty_trainings.mark_trainers(names);
        self.shards_open -= training.shards_open();
        let dataset_epochs = std::mem::take(&mut training.dataset_epochs).into_keys();
        self.dirty_trainings
            .mark_removed_epochs(dataset_epochs.map(|(dataset, epoch)| (no, dataset, epoch)));
        self.dirty_trainings.mark_head(no);
        self.training_changes += 1;
        self.emit_training(out, no, "deleted", String::new());
        self.give_up_checkpoints(out, no, |_| true, "the job is deleted");
        self.forget_if_empty(no);
        Ok(Reply::Ok)
    }

    /// A training that is being deleted is removed with the last of its checkpoints.
    pub(super) fn forget_if_empty(&mut self, no: TrainingNo) {
        let empty = |t: &Training| t.head.deleting && t.checkpoints.is_empty();
        if self.table.training(no).is_some_and(empty) {
            self.remove_training(no);
        }
    }
}
