//! Bounds of datasets, their epochs in training jobs, and checkpoints.

use crate::bench::Bench;
use rollout_ledger::id::SessionId;
use rollout_ledger::{
    BlobRef, Body, CheckpointOp, DatasetOp, DatasetSpec, JobName, LossPolicy, OpKind, RankReport,
    Reply, SILENT_TRAINERS_VERSION, ShardOp, TrainerDecl, TrainerOp, TrainerRef, limits, op,
};

fn name(job: &str) -> JobName {
    JobName { namespace: "default".into(), job: job.into() }
}

fn dataset(name: &str, shards: u64) -> OpKind {
    let spec = DatasetSpec {
        uri: "u".into(),
        samples: shards,
        shard_samples: 1,
        ..DatasetSpec::default()
    };
    let namespace = "default".to_owned();
    OpKind::Dataset(DatasetOp::Create { namespace, name: name.into(), spec: Box::new(spec) })
}

fn decl(name: &str) -> TrainerDecl {
    TrainerDecl { name: name.into(), keep_alive_ms: 10_000, ..TrainerDecl::default() }
}

fn join(job: &str, trainer: TrainerDecl) -> OpKind {
    let on_loss = LossPolicy::default();
    OpKind::Trainer(TrainerOp::Join { job: name(job), trainer, on_loss })
}

fn joined(bench: &mut Bench, job: &str, trainer: &str) -> TrainerRef {
    match bench.granted(join(job, decl(trainer))) {
        Reply::Joined { incarnation, .. } => by(job, trainer, incarnation),
        reply => panic!("{reply:?}"),
    }
}

fn by(job: &str, trainer: &str, incarnation: SessionId) -> TrainerRef {
    TrainerRef { job: name(job), trainer: trainer.into(), incarnation }
}

fn claim(by: &TrainerRef, dataset: &str, epoch: u64) -> OpKind {
    OpKind::Shard(ShardOp::Claim { by: by.clone(), dataset: dataset.into(), epoch })
}

pub(crate) fn datasets() {
    let mut bench = Bench::new();
    bench.all_granted((0..limits::DATASETS_MAX).map(|n| dataset(&format!("d{n}"), 1)));
    bench.over(limits::DATASETS_MAX as u64, dataset("more", 1));
    bench.granted(dataset("d0", 1));
}

pub(crate) fn shards() {
    let mut bench = Bench::new();
    let most = u64::from(limits::SHARDS_MAX);
    bench.over(most, dataset("d", most + 1));
    bench.granted(dataset("d", most));
}

pub(crate) fn epochs() {
    let mut bench = Bench::new();
    bench.granted(dataset("d", 1));
    let by = joined(&mut bench, "j", "t");
    bench.over(limits::EPOCHS_MAX, claim(&by, "d", limits::EPOCHS_MAX));
    bench.granted(claim(&by, "d", limits::EPOCHS_MAX - 1));
}

pub(crate) fn trainings() {
    let mut bench = Bench::new();
    bench.all_granted((0..limits::TRAININGS_MAX).map(|n| join(&format!("j{n}"), decl("t"))));
    bench.over(limits::TRAININGS_MAX as u64, join("more", decl("t")));
    bench.granted(join("j0", decl("u")));
}

pub(crate) fn trainers() {
    let mut bench = Bench::new();
    bench.all_granted((0..limits::TRAINERS_MAX).map(|n| join("j", decl(&format!("t{n}")))));
    bench.over(limits::TRAINERS_MAX as u64, join("j", decl("more")));
    bench.granted(join("j", decl("t0")));
    let keep = |count: usize| {
        let trainers = vec![("t".to_owned(), SessionId(1)); count];
        OpKind::Trainer(TrainerOp::Keep { job: name("j"), trainers })
    };
    bench.over(limits::TRAINERS_MAX as u64, keep(limits::TRAINERS_MAX + 1));
    bench.granted(keep(limits::TRAINERS_MAX));
    bench.command(Body::SetVersion(SILENT_TRAINERS_VERSION));
    let lose = |count: usize| {
        let trainers = vec![("t".to_owned(), SessionId(1)); count];
        OpKind::LoseTrainers(op::LoseTrainers { job: name("j"), trainers })
    };
    bench.over(limits::TRAINERS_MAX as u64, lose(limits::TRAINERS_MAX + 1));
    bench.granted(lose(limits::TRAINERS_MAX));
}

pub(crate) fn keep_alive() {
    let mut bench = Bench::new();
    let of = |keep_alive_ms| join("j", TrainerDecl { keep_alive_ms, ..decl("t") });
    bench.invalid(of(limits::KEEP_ALIVE_MIN_MS - 1));
    bench.invalid(of(limits::KEEP_ALIVE_MAX_MS + 1));
    bench.granted(of(limits::KEEP_ALIVE_MIN_MS));
    bench.granted(of(limits::KEEP_ALIVE_MAX_MS));
}

pub(crate) fn trainer_shards() {
    let mut bench = Bench::new();
    let most = limits::TRAINER_SHARDS_MAX as u64;
    bench.granted(dataset("d", most + 1));
    let by = joined(&mut bench, "j", "t");
    for _ in 0..most {
        let reply = bench.granted(claim(&by, "d", 0));
        assert!(matches!(reply, Reply::Shard { .. }), "{reply:?}");
    }
    bench.over(most, claim(&by, "d", 0));
}

pub(crate) fn dataset_epochs() {
    let mut bench = Bench::new();
    bench.granted(dataset("d", 1));
    let by = joined(&mut bench, "j", "t");
    let most = limits::DATASET_EPOCHS_MAX as u64;
    bench.all_granted((0..most).map(|epoch| claim(&by, "d", epoch)));
    bench.over(most, claim(&by, "d", most));
}

/// Two jobs share the room for shards.
pub(crate) fn shards_open() {
    let mut bench = Bench::new();
    bench.granted(dataset("large", u64::from(limits::SHARDS_MAX)));
    bench.granted(dataset("small", 1));
    let (first, second) = (joined(&mut bench, "j", "t"), joined(&mut bench, "k", "t"));
    let dataset_epochs = limits::SHARDS_OPEN_MAX / u64::from(limits::SHARDS_MAX);
    for epoch in 0..dataset_epochs {
        bench.granted(claim(&first, "large", epoch));
    }
    bench.over(limits::SHARDS_OPEN_MAX, claim(&second, "small", 0));
}

fn begin(by: &TrainerRef, step: u64) -> OpKind {
    OpKind::Checkpoint(CheckpointOp::Begin { by: by.clone(), step, label: String::new() })
}

fn report(by: &TrainerRef, number: u32) -> OpKind {
    let manifest = BlobRef { digest: [3; 32], bytes: 9 };
    let report = Box::new(RankReport { manifest, bytes: 0, objects: 0 });
    let progress = Vec::new();
    OpKind::Checkpoint(CheckpointOp::Report { by: by.clone(), number, report, progress })
}

pub(crate) fn checkpoints_open() {
    let mut bench = Bench::new();
    let by = joined(&mut bench, "j", "t");
    let most = limits::CHECKPOINTS_OPEN_MAX as u64;
    bench.all_granted((1..=most).map(|step| begin(&by, step)));
    bench.over(most, begin(&by, most + 1));
    // A checkpoint that is given up is no longer open.
    bench.granted(OpKind::Checkpoint(CheckpointOp::Abort { job: name("j"), number: 1 }));
    bench.granted(begin(&by, most + 1));
}

fn retain(keep_last: u32) -> OpKind {
    OpKind::Checkpoint(CheckpointOp::Retain { job: name("j"), keep_last, now: false })
}

pub(crate) fn checkpoints() {
    let mut bench = Bench::new();
    let by = joined(&mut bench, "j", "t");
    bench.granted(retain(0));
    let most = limits::CHECKPOINTS_MAX as u64;
    for step in 1..=most {
        bench.granted(begin(&by, step));
        bench.granted(report(&by, step as u32));
    }
    bench.over(most, begin(&by, most + 1));
}

/// Of a job that says nothing else.
pub(crate) fn keep_last() {
    let mut bench = Bench::new();
    let by = joined(&mut bench, "j", "t");
    let most = limits::KEEP_LAST_DEFAULT;
    assert_eq!(bench.ledger.training(&name("j")).expect("a job").keep_last(), most);
    for step in 1..=most + 1 {
        bench.granted(begin(&by, step.into()));
        bench.granted(report(&by, step));
        let view = bench.ledger.training(&name("j")).expect("a job");
        let complete = |c: &rollout_ledger::CheckpointView<'_>| {
            c.state() == rollout_ledger::CheckpointState::Complete
        };
        let kept = view.checkpoints().filter(complete).count() as u32;
        assert_eq!(kept, step.min(most), "after {step}");
    }
}
