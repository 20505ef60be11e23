//! Operations on datasets, trainers, shards and checkpoints in stories, and how their replies are shown.

use super::args::{self, Args, Parsed};
use super::ops::blob;
use super::world::World;
use rollout_ledger::id::{Attempt, SessionId};
use rollout_ledger::{
    CheckpointOp, CheckpointState, DatasetOp, DatasetSpec, JobName, Ledger, LossPolicy, OpKind,
    RankReport, ShardOp, ShardProgress, ShardRef, TrainerDecl, TrainerOp, TrainerRef, op,
};
use std::fmt::Write;

fn job(args: &mut Args) -> JobName {
    JobName { namespace: args.text_or("namespace", "default"), job: args.text_or("job", "sft") }
}

/// `ticket=` is that of the trainer's last join, where none is given.
fn by(world: &World, args: &mut Args) -> Parsed<TrainerRef> {
    let (job, trainer) = (job(args), args.text("trainer")?);
    let incarnation = match args.get("ticket") {
        Some(incarnation) => SessionId(args::stamp(&incarnation)?),
        None => world.incarnation(&trainer)?,
    };
    Ok(TrainerRef { job, trainer, incarnation })
}

fn decl(args: &mut Args) -> Parsed<TrainerDecl> {
    let name = args.text("trainer")?;
    Ok(TrainerDecl {
        host: args.text_or("host", &format!("{name}-host")),
        name,
        instance: args.number("instance", 1)?,
        keep_alive_ms: args.number("keep", 15_000)?,
    })
}

fn on_loss(args: &mut Args) -> LossPolicy {
    match args.flag("continue") {
        true => LossPolicy::Continue,
        false => LossPolicy::Recover,
    }
}

fn shard(args: &mut Args) -> Parsed<ShardRef> {
    Ok(ShardRef {
        dataset: args.text_or("dataset", "pile"),
        epoch: args.number("epoch", 0)?,
        number: args.number("shard", 0)?,
        token: Attempt(args::stamp(&args.text("token")?)?),
    })
}

/// Of one shard: `0:3` is three samples of shard 0 in epoch 0 of `pile`.
fn progress(args: &mut Args) -> Parsed<Vec<ShardProgress>> {
    let (dataset, epoch) = (args.text_or("dataset", "pile"), args.number("epoch", 0)?);
    let one = |text: &String| {
        let bad = || format!("{text} is no shard:samples");
        let (shard, samples) = text.split_once(':').ok_or_else(bad)?;
        let (shard, samples) =
            (shard.parse().map_err(|_| bad())?, samples.parse().map_err(|_| bad())?);
        Ok(ShardProgress { dataset: dataset.clone(), epoch, shard, samples })
    };
    args.list("progress").iter().map(one).collect()
}

pub(crate) fn kind(world: &World, name: &str, args: &mut Args) -> Parsed<Option<OpKind>> {
    Ok(Some(match name {
        // Example: dataset name=pile samples=25 shard=10 seed=7 in-order
        "dataset" => {
            let spec = DatasetSpec {
                uri: args.text_or("uri", "s3://b/{shard:3}.tar"),
                format: args.text_or("format", "webdataset"),
                samples: args.number("samples", 25)?,
                shard_samples: args.number("shard", 10)?,
                in_order: args.flag("in-order"),
                seed: args.number("seed", 7)?,
                metadata: args.labels("metadata")?,
            };
            let namespace = args.text_or("namespace", "default");
            let (name, spec) = (args.text_or("name", "pile"), Box::new(spec));
            OpKind::Dataset(DatasetOp::Create { namespace, name, spec })
        }
        "delete-dataset" => OpKind::Dataset(DatasetOp::Delete {
            namespace: args.text_or("namespace", "default"),
            name: args.text_or("name", "pile"),
        }),
        // Example: join-job trainer=t0 instance=2 keep=5000 continue
        "join-job" => OpKind::Trainer(TrainerOp::Join {
            job: job(args),
            trainer: decl(args)?,
            on_loss: on_loss(args),
        }),
        // Example: keep trainers=t0,t1
        "keep" => {
            let names = args.list("trainers").into_iter();
            let trainers = names.map(|name| Ok((name.clone(), world.incarnation(&name)?)));
            let trainers = trainers.collect::<Parsed<Vec<_>>>()?;
            OpKind::Trainer(TrainerOp::Keep { job: job(args), trainers })
        }
        // Example: lose-trainers trainers=t0,t1, as the leader reports those that are silent
        "lose-trainers" => {
            let names = args.list("trainers").into_iter();
            let trainers = names.map(|name| Ok((name.clone(), world.incarnation(&name)?)));
            let trainers = trainers.collect::<Parsed<Vec<_>>>()?;
            OpKind::LoseTrainers(op::LoseTrainers { job: job(args), trainers })
        }
        "leave-job" => OpKind::Trainer(TrainerOp::Leave(by(world, args)?)),
        // Example: recover trainer=t0 round=1 world=t0,t1 from=2
        "recover" => OpKind::Trainer(TrainerOp::Recover {
            job: job(args),
            round: args.number("round", 1)?,
            world: args.list("world"),
            trainer: decl(args)?,
            from: args.number("from", 0)?,
            on_loss: on_loss(args),
        }),
        "delete-job" => OpKind::Trainer(TrainerOp::DeleteJob(job(args))),
        // Example: shard trainer=t0 dataset=pile epoch=1
        "shard" => OpKind::Shard(ShardOp::Claim {
            by: by(world, args)?,
            dataset: args.text_or("dataset", "pile"),
            epoch: args.number("epoch", 0)?,
        }),
        // Example: finish trainer=t0 shard=2 token=6.0 step=10
        "finish" => {
            let (by, step) = (by(world, args)?, args.number("step", 1)?);
            OpKind::Shard(ShardOp::Finish { by, shard: shard(args)?, step })
        }
        // Example: release trainer=t0 shard=2 token=6.0 samples=4 step=10
        "release" => {
            let (by, step) = (by(world, args)?, args.number("step", 1)?);
            let samples = args.number("samples", 0)?;
            OpKind::Shard(ShardOp::Release { by, shard: shard(args)?, samples, step })
        }
        // Example: begin trainer=t0 step=10 label=best
        "begin" => OpKind::Checkpoint(CheckpointOp::Begin {
            by: by(world, args)?,
            step: args.number("step", 1)?,
            label: args.text_or("label", ""),
        }),
        // Example: report trainer=t0 number=1 progress=2:4 blob=other
        "report" => {
            let by = by(world, args)?;
            let label = args.text_or("blob", &by.trainer);
            let report = RankReport { manifest: blob(&label), bytes: 100, objects: 2 };
            let (number, progress) = (args.number("number", 1)?, progress(args)?);
            let report = Box::new(report);
            OpKind::Checkpoint(CheckpointOp::Report { by, number, report, progress })
        }
        "abort-checkpoint" => OpKind::Checkpoint(CheckpointOp::Abort {
            job: job(args),
            number: args.number("number", 1)?,
        }),
        // Example: retain last=2 now
        "retain" => OpKind::Checkpoint(CheckpointOp::Retain {
            job: job(args),
            keep_last: args.number("last", 0)?,
            now: args.flag("now"),
        }),
        "label" => OpKind::Checkpoint(CheckpointOp::Label {
            job: job(args),
            number: args.number("number", 1)?,
            label: args.text_or("label", ""),
        }),
        "forget-checkpoint" => OpKind::Checkpoint(CheckpointOp::Forget {
            job: job(args),
            number: args.number("number", 1)?,
        }),
        _ => return Ok(None),
    }))
}

/// What jobs are up to.
pub(crate) fn show(out: &mut String, ledger: &Ledger) {
    for training in ledger.trainings() {
        let (name, generation) = (training.name(), training.generation());
        let _ = write!(out, "job {}/{} lineage {}", name.namespace, name.job, generation.number);
        let _ = write!(out, " round {}", generation.round);
        if generation.checkpoint > 0 {
            let _ = write!(
                out,
                " from checkpoint {} of step {}",
                generation.checkpoint, generation.step
            );
        }
        if let Some((trainer, host)) = generation.needs_recovery {
            let _ = write!(out, ", torn: lost {trainer} on {host}");
        }
        if training.is_deleting() {
            out.push_str(", going");
        }
        out.push('\n');
        for (rank, trainer) in training.trainers().enumerate() {
            let there = if trainer.present { "" } else { " expected" };
            let _ = writeln!(out, "  {rank} {}{there}: holds {}", trainer.name, trainer.shards);
        }
        for dataset_epoch in training.dataset_epochs() {
            let c = dataset_epoch.counts;
            let _ = write!(
                out,
                "  {} epoch {}: {} free",
                dataset_epoch.dataset, dataset_epoch.epoch, c.free
            );
            let _ = write!(out, " {} claimed {} finished", c.claimed, c.finished);
            let _ = writeln!(out, " {} sealed", c.sealed);
            let shards = training.shards(dataset_epoch.dataset, dataset_epoch.epoch, 0, usize::MAX);
            for shard in shards.iter().filter(|s| s.done > 0 || !s.holder.is_empty()) {
                let _ =
                    write!(out, "    {}: {} in, {} sealed", shard.number, shard.done, shard.sealed);
                if !shard.holder.is_empty() {
                    let _ = write!(out, ", {} has it", shard.holder);
                }
                out.push('\n');
            }
        }
        for checkpoint in training.checkpoints() {
            let state = match checkpoint.state() {
                CheckpointState::Open => "open",
                CheckpointState::Complete => "complete",
                CheckpointState::Going => "going",
            };
            let (number, step) = (checkpoint.number, checkpoint.step());
            let _ = write!(out, "  checkpoint {number} of step {step} {state}");
            if checkpoint.parent() > 0 {
                let _ = write!(out, " after {}", checkpoint.parent());
            }
            if !checkpoint.label().is_empty() {
                let _ = write!(out, " \"{}\"", checkpoint.label());
            }
            let reported = checkpoint.ranks().filter(|(_, report)| report.is_some());
            let reported: String = reported.map(|(trainer, _)| format!(" {trainer}")).collect();
            let _ = writeln!(out, ":{reported}");
        }
    }
}
