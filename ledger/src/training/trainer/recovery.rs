//! How a job recovers: a new generation begins from a checkpoint.
//!
//! *Invariant:* a recovery is identified by its round: all trainers that ask for the same round get the same
//! generation, and each gets the rank that its world says. Work that is not in the checkpoint is undone, and trainers
//! of the previous generation are refused from then on.

use super::TrainerDecl;
use crate::kernel::id::{LedgerMs, TrainingNo};
use crate::kernel::job_refusal::JobRefusal;
use crate::kernel::limits;
use crate::kernel::names::check_name;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::event::Emitter;
use crate::machine::ledger::Ledger;
use crate::training::dataset::Datasets;
use crate::training::dataset_epoch::DatasetEpoch;
use crate::training::job::{JobName, Jobs};
use crate::training::shard_ring::Ring;
use crate::training::state::{LossPolicy, Trainer};
use std::collections::BTreeSet;

/// A trainer's request when its job recovers.
pub(super) struct Recovery {
    /// The round of the rendezvous; 0 if the job has none.
    pub(super) round: u64,
    /// Names of all trainers, by rank.
    pub(super) world: Vec<String>,
    /// The checkpoint to begin from; 0: the base of the generation.
    pub(super) from: u32,
    /// The policy for a later loss.
    pub(super) on_loss: LossPolicy,
}

impl Recovery {
    fn check(&self, caller: &str) -> Result<(), Rejection> {
        if self.world.len() > limits::TRAINERS_MAX {
            let what = "trainers of a job".into();
            return Err(Rejection::Limit { what, max: limits::TRAINERS_MAX as u64 });
        }
        self.world.iter().try_for_each(|name| check_name("trainer's", name))?;
        let names: BTreeSet<&String> = self.world.iter().collect();
        if names.len() != self.world.len() || !self.world.iter().any(|name| name == caller) {
            return Err(Rejection::Invalid(
                "the world names each trainer once, and its caller".into(),
            ));
        }
        if self.round == 0 && self.world.len() != 1 {
            return Err(Rejection::Invalid("a world of several recovers by its round".into()));
        }
        Ok(())
    }
}

fn asked(world: &[String], from: u32, on_loss: LossPolicy) -> [u8; 32] {
    *blake3::hash(&crate::kernel::codec::encode(&(world, from, on_loss))).as_bytes()
}

impl Ledger {
    pub(super) fn recover(
        &mut self,
        ctx: &Context,
        job: JobName,
        asked_for: Recovery,
        trainer: TrainerDecl,
    ) -> Result<Reply, Rejection> {
        trainer.check()?;
        asked_for.check(&trainer.name)?;
        if asked_for.from != 0 {
            self.jobs.open_training(&job)?;
        }
        let new = self.jobs.training_no(&job).is_none();
        let no = self.training_for(&job)?;
        let out = &mut Emitter::new(ctx, &mut self.events);
        let caller = (trainer, self.meta.clock());
        self.jobs.recover(&self.datasets, out, (no, new), asked_for, caller)
    }
}

impl Jobs {
    fn recover(
        &mut self,
        datasets: &Datasets,
        out: &mut Emitter,
        (no, new): (TrainingNo, bool),
        asked_for: Recovery,
        (trainer, now): (TrainerDecl, LedgerMs),
    ) -> Result<Reply, Rejection> {
        let Some(training) = self.table.training(no) else { return Ok(Reply::Ok) };
        let Recovery { round, world, from, on_loss } = asked_for;
        let asked = asked(&world, from, on_loss);
        let present = training.head.round;
        if round == present && round != 0 {
            if asked != training.head.asked || !training.trainers.contains_key(&trainer.name) {
                return Err(JobRefusal::RoundConflict { round: present }.into());
            }
            if let Some(refused) = self.succeed(out, no, &trainer)? {
                return Ok(refused);
            }
            self.rejoin_round(no, &trainer.name, &world);
            return Ok(self.give_incarnation(no, trainer, out.ctx.session(), now));
        }
        if round != 0 && round < present {
            return Err(JobRefusal::RoundConflict { round: present }.into());
        }
        let base = match from {
            0 => training.head.base,
            _ if training.checkpoints.get(&from).is_some_and(|c| c.is_complete()) => from,
            _ => return Err(JobRefusal::CheckpointUnknown.into()),
        };
        if let Some(training) = self.table.training_mut(no).filter(|_| new) {
            training.head.generation = 0;
        }
        self.begin_generation(datasets, out, no, base);
        let Some(training) = self.table.training_mut(no) else { return Ok(Reply::Ok) };
        training.head.round = if round == 0 { present.saturating_add(1) } else { round };
        training.head.asked = asked;
        training.head.on_loss = on_loss;
        training.ring = Ring::of(&world);
        let expected = world.iter().map(|name| (name.clone(), Trainer::default()));
        training.trainers = expected.collect();
        training.head.world = world;
        training
            .dataset_epochs
            .values_mut()
            .for_each(|dataset_epoch| dataset_epoch.prefer(&training.ring));
        let trainers = training.trainers.keys().map(|name| (no, name.clone()));
        self.dirty_trainings.mark_trainers(trainers);
        Ok(self.give_incarnation(no, trainer, out.ctx.session(), now))
    }

    /// Begins the next generation: undoes all work that is not in the checkpoint, and voids every earlier incarnation.
    fn begin_generation(
        &mut self,
        datasets: &Datasets,
        out: &mut Emitter,
        no: TrainingNo,
        base: u32,
    ) {
        self.give_up_checkpoints(out, no, |c| c.is_open(), "the job has recovered");
        self.training_changes += 1;
        let Some(training) = self.table.training_mut(no) else { return };
        for (name, trainer) in std::mem::take(&mut training.trainers) {
            if trainer.incarnation.is_some() {
                self.ends.remove(&(trainer.ends, no, name.clone()));
            }
            self.dirty_trainings.mark_trainer(no, name);
        }
        training.head.needs_recovery = None;
        training.head.generation += 1;
        training.head.base = base;
        let checkpoint = training.checkpoints.get(&base);
        training.head.step = checkpoint.map_or(0, |c| c.step);
        let sealed = checkpoint.and_then(|c| c.sealed.clone()).unwrap_or_default();
        self.shards_open -= training.shards_open();
        for (dataset, epoch) in std::mem::take(&mut training.dataset_epochs).into_keys() {
            self.dirty_trainings.mark_removed_epochs([(no, dataset, epoch)]);
        }
        training.head.done = sealed.done;
        for (key, shards) in sealed.dataset_epochs {
            let Some(dataset) = datasets.get(key.0) else { continue };
            let dataset_epoch =
                DatasetEpoch::with(shards.reopen(dataset), dataset, key.1, &Ring::default());
            let records = (0..dataset_epoch.records()).map(|record| (no, key.0, key.1, record));
            self.dirty_trainings.mark_shards(records);
            self.shards_open += dataset_epoch.shards.len() as u64;
            training.dataset_epochs.insert(key, dataset_epoch);
        }
        self.dirty_trainings.mark_head(no);
        let (generation, step) = (training.head.generation, training.head.step);
        let from = match base {
            0 => "from the beginning".to_owned(),
            base => format!("from checkpoint {base} of step {step}"),
        };
        self.emit_training(out, no, "lineage_begun", format!("{generation}, {from}"));
    }
}
