//! Random commands of trainers: correct ones and wrong ones.

use crate::naive::Model;
use crate::trainings::{DATASETS, Job};
use proptest::prelude::*;
use rollout_ledger::id::{Attempt, SessionId};
use rollout_ledger::{
    BlobRef, CheckpointOp, DatasetOp, DatasetSpec, JobName, LossPolicy, OpKind, RankReport,
    ShardOp, ShardProgress, ShardRef, TrainerDecl, TrainerOp, TrainerRef, op,
};

/// One act of a trainer of one of two jobs.
#[derive(Clone, Debug)]
pub(crate) struct Train {
    job: u8,
    trainer: u8,
    act: TrainingAct,
    /// A small number that the act needs.
    number: u8,
    /// Something is not as it should be.
    wrong: bool,
}

#[derive(Clone, Copy, Debug)]
enum TrainingAct {
    Create,
    DeleteDataset,
    Join,
    Keep,
    Leave,
    Recover,
    DeleteJob,
    Claim,
    Finish,
    Release,
    Begin,
    Report,
    Abort,
    Retain,
    Label,
    Forget,
}

pub(crate) fn train() -> impl Strategy<Value = Train> {
    let act = prop_oneof![
        1 => Just(TrainingAct::Create),
        1 => Just(TrainingAct::DeleteDataset),
        4 => Just(TrainingAct::Join),
        6 => Just(TrainingAct::Keep),
        2 => Just(TrainingAct::Leave),
        8 => Just(TrainingAct::Recover),
        1 => Just(TrainingAct::DeleteJob),
        26 => Just(TrainingAct::Claim),
        22 => Just(TrainingAct::Finish),
        10 => Just(TrainingAct::Release),
        10 => Just(TrainingAct::Begin),
        26 => Just(TrainingAct::Report),
        1 => Just(TrainingAct::Abort),
        2 => Just(TrainingAct::Retain),
        1 => Just(TrainingAct::Label),
        6 => Just(TrainingAct::Forget),
    ];
    let job = prop_oneof![5 => Just(0u8), 1 => Just(1u8)];
    (job, 0..3u8, act, any::<u8>(), prop::bool::weighted(0.08))
        .prop_map(|(job, trainer, act, number, wrong)| Train { job, trainer, act, number, wrong })
}

/// So small that an epoch ends within a story; one of them has a single sample.
pub(crate) fn spec(dataset: u8, other: bool) -> DatasetSpec {
    DatasetSpec {
        uri: "u".into(),
        samples: [7, 1][usize::from(dataset)],
        shard_samples: 3,
        in_order: dataset == 1,
        seed: 4 + u64::from(other),
        ..DatasetSpec::default()
    }
}

impl Train {
    /// Two datasets, two trainers, and a shard for each.
    pub(crate) fn beginning() -> Vec<Train> {
        let train = |act, trainer, number| Train { job: 0, trainer, act, number, wrong: false };
        vec![
            train(TrainingAct::Create, 0, 0),
            train(TrainingAct::Create, 0, 3),
            train(TrainingAct::Recover, 0, 1),
            train(TrainingAct::Recover, 1, 5),
            train(TrainingAct::Claim, 0, 0),
            train(TrainingAct::Claim, 1, 0),
        ]
    }

    fn name(&self) -> JobName {
        // The first is also a job of participants.
        let job = ["job", "trained"][usize::from(self.job % 2)];
        JobName { namespace: "default".into(), job: job.into() }
    }

    pub(crate) fn kind(&self, model: &Model) -> OpKind {
        let job = model.trainings.jobs.get(&self.name());
        let trainer = format!("t{}", self.trainer);
        let incarnation = job.and_then(|job| job.trainers.get(&trainer)?.incarnation);
        let incarnation = incarnation.filter(|_| !self.wrong).unwrap_or(SessionId(9));
        let by = TrainerRef { job: self.name(), trainer: trainer.clone(), incarnation };
        let dataset = self.number % 7 == 3;
        let (namespace, name) = ("default".to_owned(), DATASETS[usize::from(dataset)].to_owned());
        let number = u32::from(self.number);
        let last = job.map_or(0, |job| job.checkpoints.len() as u32);
        match self.act {
            TrainingAct::Create => {
                let spec = Box::new(spec(dataset.into(), self.wrong));
                OpKind::Dataset(DatasetOp::Create { namespace, name, spec })
            }
            TrainingAct::DeleteDataset => OpKind::Dataset(DatasetOp::Delete { namespace, name }),
            TrainingAct::Join => OpKind::Trainer(TrainerOp::Join {
                job: self.name(),
                trainer: self.decl(trainer),
                on_loss: self.on_loss(),
            }),
            TrainingAct::Keep => {
                let all = job.into_iter().flat_map(|job| &job.trainers);
                let all = all.map(|(name, t)| (name.clone(), t.incarnation.unwrap_or_default()));
                let mut trainers: Vec<_> = all.skip(usize::from(self.wrong)).collect();
                // Now and then the leader reports one as silent, where the version lets it.
                if model.version >= 4 && self.number.is_multiple_of(3) {
                    trainers.truncate(1);
                    let job = self.name();
                    return OpKind::LoseTrainers(op::LoseTrainers { job, trainers });
                }
                OpKind::Trainer(TrainerOp::Keep { job: self.name(), trainers })
            }
            TrainingAct::Leave => OpKind::Trainer(TrainerOp::Leave(by)),
            TrainingAct::Recover => self.recover(job, trainer),
            TrainingAct::DeleteJob => OpKind::Trainer(TrainerOp::DeleteJob(self.name())),
            TrainingAct::Claim => {
                let epoch = u64::from(self.number % 11 == 5);
                OpKind::Shard(ShardOp::Claim { by, dataset: name, epoch })
            }
            TrainingAct::Finish | TrainingAct::Release => self.end(job, by),
            TrainingAct::Begin => {
                let step = job.map_or(0, |job| job.step()) + u64::from(self.number % 4);
                let label = if self.number > 200 { "best" } else { "" };
                OpKind::Checkpoint(CheckpointOp::Begin { by, step, label: label.into() })
            }
            TrainingAct::Report => self.report(job, by),
            TrainingAct::Abort => {
                let number = last.saturating_sub(number % 3);
                OpKind::Checkpoint(CheckpointOp::Abort { job: self.name(), number })
            }
            TrainingAct::Retain => OpKind::Checkpoint(CheckpointOp::Retain {
                job: self.name(),
                keep_last: number % 3,
                now: number % 2 == 1,
            }),
            TrainingAct::Label => OpKind::Checkpoint(CheckpointOp::Label {
                job: self.name(),
                number: last.saturating_sub(number % 3),
                label: if number > 128 { "best" } else { "" }.into(),
            }),
            TrainingAct::Forget => OpKind::Checkpoint(CheckpointOp::Forget {
                job: self.name(),
                number: last.saturating_sub(number % 6),
            }),
        }
    }

    fn decl(&self, name: String) -> TrainerDecl {
        TrainerDecl {
            name,
            host: "h".into(),
            instance: u64::from(self.number.is_multiple_of(9)),
            keep_alive_ms: if self.wrong { 5 } else { 4000 },
        }
    }

    fn on_loss(&self) -> LossPolicy {
        match self.number % 4 {
            0 => LossPolicy::Continue,
            _ => LossPolicy::Recover,
        }
    }

    fn recover(&self, job: Option<&Job>, trainer: String) -> OpKind {
        let present = job.map_or(0, |job| job.round);
        // Most join the round that another trainer has begun.
        let (round, sizes) = match self.number % 8 {
            0 => (present + 1, 1),
            1 | 2 => (present + 1, 2),
            3 => (present.saturating_sub(1), 2),
            4 => (0, 1),
            _ => (present, job.map_or(2, |job| job.asked.0.len())),
        };
        let mut world: Vec<String> = (0..sizes).map(|n| format!("t{n}")).collect();
        if sizes == 1 {
            world = vec![trainer.clone()];
        }
        let on_loss = job.filter(|_| round == present).map_or(self.on_loss(), |job| job.asked.2);
        let from = match (round == present, job) {
            (true, Some(job)) => job.asked.1,
            (false, Some(job)) if self.number > 150 => job.checkpoints.len() as u32 / 2,
            _ => 0,
        };
        let trainer = self.decl(trainer);
        OpKind::Trainer(TrainerOp::Recover {
            job: self.name(),
            round,
            world,
            trainer,
            from,
            on_loss,
        })
    }

    /// Ends a claim of the trainer, or of any trainer.
    fn end(&self, job: Option<&Job>, by: TrainerRef) -> OpKind {
        let mut claims = job.into_iter().flat_map(|job| &job.claims);
        let mine = |claim: &(&(String, u64, u32), &(String, Attempt))| {
            self.wrong || claim.1.0 == by.trainer
        };
        let claim = claims.rfind(mine);
        let shard = match claim {
            Some(((dataset, epoch, number), (_, token))) => {
                ShardRef { dataset: dataset.clone(), epoch: *epoch, number: *number, token: *token }
            }
            None => ShardRef {
                dataset: DATASETS[0].into(),
                epoch: 0,
                number: u32::from(self.number % 4),
                token: job.and_then(|job| job.ended.last().copied()).unwrap_or_default(),
            },
        };
        let step = job.map_or(0, |job| job.step()) + u64::from(self.number % 4);
        OpKind::Shard(match self.act {
            TrainingAct::Release => {
                let samples = u32::from(self.number / 4 % 4);
                ShardOp::Release { by, shard, samples, step }
            }
            _ => ShardOp::Finish { by, shard, step },
        })
    }

    fn report(&self, job: Option<&Job>, by: TrainerRef) -> OpKind {
        let open = job.and_then(|job| job.checkpoints.iter().rposition(|c| c.is_open()));
        let number = open.map_or(u32::from(self.number % 3), |at| at as u32 + 1);
        let held = job.into_iter().flat_map(|job| &job.claims);
        let held = held.filter(|claim| claim.1.0 == by.trainer || self.wrong);
        let progress =
            held.filter(|_| !self.number.is_multiple_of(3)).map(|((dataset, epoch, shard), _)| {
                let samples = u32::from(self.number % 3);
                ShardProgress { dataset: dataset.clone(), epoch: *epoch, shard: *shard, samples }
            });
        let manifest = BlobRef { digest: [self.trainer; 32], bytes: u32::from(self.wrong) };
        let report = Box::new(RankReport { manifest, bytes: 1, objects: 1 });
        let progress = progress.collect();
        OpKind::Checkpoint(CheckpointOp::Report { by, number, report, progress })
    }
}
