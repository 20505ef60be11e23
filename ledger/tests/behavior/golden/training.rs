//! Golden commands for datasets and training jobs.

use super::commands::{blob, command, op};
use rollout_ledger::id::{Attempt, SessionId};
use rollout_ledger::{
    Body, CheckpointOp, Command, DatasetOp, DatasetSpec, JobName, LossPolicy, OpKind, RankReport,
    ShardOp, ShardProgress, ShardRef, TrainerDecl, TrainerOp, TrainerRef,
};

pub(crate) fn job() -> JobName {
    JobName { namespace: "default".into(), job: "sft".into() }
}

pub(crate) fn by(trainer: &str, index: u64) -> TrainerRef {
    TrainerRef { job: job(), trainer: trainer.into(), incarnation: SessionId::at(index, 0) }
}

pub(crate) fn decl(name: &str) -> TrainerDecl {
    TrainerDecl { name: name.into(), host: "h1".into(), instance: 300, keep_alive_ms: 15_000 }
}

fn dataset(name: &str, samples: u64) -> OpKind {
    let spec = DatasetSpec {
        uri: "s3://b/{shard:5}".into(),
        format: "parquet".into(),
        samples,
        shard_samples: 2,
        in_order: true,
        seed: 42,
        metadata: [("k".to_owned(), "v".to_owned())].into(),
    };
    let (namespace, name) = ("default".into(), name.into());
    OpKind::Dataset(DatasetOp::Create { namespace, name, spec: Box::new(spec) })
}

/// Alone at first: every shard is preferred for it.
fn recover() -> OpKind {
    OpKind::Trainer(TrainerOp::Recover {
        job: job(),
        round: 1,
        world: vec!["t0".into()],
        trainer: decl("t0"),
        from: 0,
        on_loss: LossPolicy::Recover,
    })
}

fn join(trainer: &str) -> OpKind {
    let on_loss = LossPolicy::Continue;
    OpKind::Trainer(TrainerOp::Join { job: job(), trainer: decl(trainer), on_loss })
}

fn claim(trainer: &str, index: u64, dataset: &str) -> OpKind {
    let by = by(trainer, index);
    OpKind::Shard(ShardOp::Claim { by, dataset: dataset.into(), epoch: 0 })
}

fn shard(dataset: &str, number: u32, token: Attempt) -> ShardRef {
    ShardRef { dataset: dataset.into(), epoch: 0, number, token }
}

fn report(trainer: &str, index: u64, progress: Vec<ShardProgress>) -> OpKind {
    let report = Box::new(RankReport { manifest: blob(220), bytes: 1 << 40, objects: 300 });
    let by = by(trainer, index);
    OpKind::Checkpoint(CheckpointOp::Report { by, number: 1, report, progress })
}

/// Tickets and claims are named after the index of the first of these commands.
pub(crate) fn all(first: u64) -> Vec<(&'static str, Command)> {
    let (t0, t1) = (first + 2, first + 4);
    let ops = |ops: Vec<OpKind>| command(Body::Ops(ops.into_iter().map(Into::into).collect()));
    vec![
        ("dataset", ops(vec![dataset("pile", 2050), dataset("tiny", 2), dataset("other", 9)])),
        (
            "delete_dataset",
            op(OpKind::Dataset(DatasetOp::Delete {
                namespace: "default".into(),
                name: "other".into(),
            })),
        ),
        ("recover", op(recover())),
        ("claim_shard", ops(vec![claim("t0", t0, "pile"), claim("t0", t0, "pile")])),
        ("join", op(join("t1"))),
        ("claim_another", op(claim("t1", t1, "tiny"))),
        (
            "finish_shard",
            ops(vec![
                OpKind::Shard(ShardOp::Finish {
                    by: by("t0", t0),
                    shard: shard("pile", 0, Attempt::at(first + 3, 0)),
                    step: 300,
                }),
                OpKind::Shard(ShardOp::Release {
                    by: by("t1", t1),
                    shard: shard("tiny", 0, Attempt::at(first + 5, 0)),
                    samples: 1,
                    step: 301,
                }),
            ]),
        ),
        (
            "begin_checkpoint",
            op(OpKind::Checkpoint(CheckpointOp::Begin {
                by: by("t0", t0),
                step: 300,
                label: "best".into(),
            })),
        ),
        (
            "report_checkpoint",
            ops(vec![
                report(
                    "t0",
                    t0,
                    vec![ShardProgress { dataset: "pile".into(), epoch: 0, shard: 1, samples: 1 }],
                ),
                report("t1", t1, Vec::new()),
            ]),
        ),
        (
            "more_of_checkpoints",
            ops(vec![
                OpKind::Checkpoint(CheckpointOp::Begin {
                    by: by("t0", t0),
                    step: 302,
                    label: String::new(),
                }),
                OpKind::Checkpoint(CheckpointOp::Abort { job: job(), number: 2 }),
                OpKind::Checkpoint(CheckpointOp::Forget { job: job(), number: 2 }),
                OpKind::Checkpoint(CheckpointOp::Label {
                    job: job(),
                    number: 1,
                    label: "first".into(),
                }),
                OpKind::Checkpoint(CheckpointOp::Retain { job: job(), keep_last: 3, now: false }),
            ]),
        ),
        (
            "more_of_trainers",
            ops(vec![
                join("t2"),
                OpKind::Trainer(TrainerOp::Keep {
                    job: job(),
                    trainers: vec![("t0".into(), SessionId::at(t0, 0))],
                }),
                OpKind::Trainer(TrainerOp::Leave(by("t1", t1))),
                OpKind::Trainer(TrainerOp::DeleteJob(JobName {
                    namespace: "default".into(),
                    job: "none".into(),
                })),
            ]),
        ),
    ]
}
