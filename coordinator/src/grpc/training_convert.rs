//! Converts training jobs between the wire and the ledger.
//!
//! *Invariant:* before a request reads from the ledger, the caller's certificate was found to name the job's namespace.

use super::{check_namespace, namespace_or_default};
use crate::grpc::convert;
use crate::observe::audit;
use rollout_ledger::id::SessionId;
use rollout_ledger::{
    CheckpointState, CheckpointView, DatasetEpochCounts, DatasetView, JobName, JobRefusal,
    LossPolicy, Reply, TrainerDecl, TrainerRef, TrainingGenerationView, TrainingView, limits,
};
use rollout_proto::{Identity, RpcError, v1};

/// The default silence after which a trainer is lost: three keep-alives of 5 s.
const KEEP_ALIVE_MS: u64 = 15_000;

/// The job, in a namespace that the caller may use.
pub(super) fn job_in(identity: &Identity, job: Option<v1::JobName>) -> Result<JobName, RpcError> {
    let v1::JobName { namespace, job } =
        job.ok_or_else(|| convert::invalid("the job's name is missing"))?;
    let namespace = namespace_or_default(&namespace);
    audit::about("job", &job);
    check_namespace(identity, &namespace)?;
    Ok(JobName { namespace, job })
}

pub(super) fn job_out(name: &JobName) -> v1::JobName {
    v1::JobName { namespace: name.namespace.clone(), job: name.job.clone() }
}

pub(super) fn by_in(
    identity: &Identity,
    by: Option<v1::TrainerRef>,
) -> Result<TrainerRef, RpcError> {
    let by = by.ok_or_else(|| convert::invalid("the trainer's reference is missing"))?;
    let job = job_in(identity, by.job)?;
    Ok(TrainerRef { job, trainer: by.trainer, incarnation: SessionId(by.ticket) })
}

pub(super) fn decl_in(decl: Option<v1::TrainerDecl>) -> Result<TrainerDecl, RpcError> {
    let decl = decl.ok_or_else(|| convert::invalid("the trainer is missing"))?;
    let keep_alive_ms = match decl.keep_alive_ms {
        0 => KEEP_ALIVE_MS,
        ms => ms,
    };
    let v1::TrainerDecl { name, host, instance, .. } = decl;
    Ok(TrainerDecl { name, host, instance, keep_alive_ms })
}

pub(super) fn on_loss_in(on_loss: i32) -> Result<LossPolicy, RpcError> {
    match v1::LossPolicy::try_from(on_loss) {
        Ok(v1::LossPolicy::Recover) => Ok(LossPolicy::Recover),
        Ok(v1::LossPolicy::Continue) => Ok(LossPolicy::Continue),
        Err(_) => Err(convert::invalid("on_loss is neither recover nor continue")),
    }
}

/// Converts the reply that the job needs recovery to the trainer's error.
pub(super) fn check_recovered(reply: Reply) -> Result<Reply, RpcError> {
    match reply {
        Reply::NeedsRecovery { trainer, host } => Err(crate::leader::reject::rejected(
            &JobRefusal::NeedsRecovery { trainer, host }.into(),
        )),
        other => Ok(other),
    }
}

pub(super) fn generation_out(generation: &TrainingGenerationView<'_>) -> v1::Lineage {
    let needs_recovery = generation.needs_recovery.map(|(trainer, host)| {
        format!("trainer {trainer} on {host} is gone, with state that the others may not have")
    });
    v1::Lineage {
        number: generation.number,
        round: generation.round,
        checkpoint: generation.checkpoint,
        step: generation.step,
        trainers: generation.world.to_vec(),
        torn: needs_recovery.unwrap_or_default(),
    }
}

pub(super) fn dataset_out(dataset: &DatasetView<'_>) -> v1::Dataset {
    let spec = dataset.spec;
    v1::Dataset {
        namespace: dataset.namespace.into(),
        name: dataset.name.into(),
        shards: spec.shards(),
        order_version: dataset.order_version,
        spec: Some(v1::DatasetSpec {
            uri: spec.uri.clone(),
            format: spec.format.clone(),
            samples: spec.samples,
            shard_samples: spec.shard_samples,
            in_order: spec.in_order,
            seed: spec.seed,
            metadata: spec.metadata.clone().into_iter().collect(),
        }),
    }
}

pub(super) fn dataset_epoch_out(dataset: &str, epoch: u64, counts: DatasetEpochCounts) -> v1::Pass {
    let DatasetEpochCounts { shards, free, claimed, finished, sealed } = counts;
    v1::Pass { dataset: dataset.into(), epoch, shards, free, claimed, finished, sealed }
}

/// A training with its trainers.
pub(super) fn training_out(training: &TrainingView<'_>) -> v1::Job {
    let trainers = training.trainers().map(|trainer| v1::TrainerInfo {
        name: trainer.name.into(),
        host: trainer.host.into(),
        present: trainer.present,
        shards: trainer.shards,
    });
    v1::Job {
        trainers: trainers.collect(),
        lineage: Some(generation_out(&training.generation())),
        ..training_summary_out(training)
    }
}

/// A training without its trainers, of which there may be many.
pub(super) fn training_summary_out(training: &TrainingView<'_>) -> v1::Job {
    let passes = training
        .dataset_epochs()
        .map(|pass| dataset_epoch_out(pass.dataset, pass.epoch, pass.counts));
    let complete = training.checkpoints().filter(|c| c.state() == CheckpointState::Complete);
    let v1::JobName { namespace, job } = job_out(training.name());
    v1::Job {
        namespace,
        job,
        lineage: Some(generation_out(&TrainingGenerationView {
            world: &[],
            ..training.generation()
        })),
        trainers: Vec::new(),
        passes: passes.collect(),
        checkpoints: complete.count() as u32,
        keep_last: training.keep_last(),
        on_loss: match training.on_loss() {
            LossPolicy::Recover => v1::LossPolicy::Recover.into(),
            LossPolicy::Continue => v1::LossPolicy::Continue.into(),
        },
    }
}

pub(super) fn state_out(state: CheckpointState) -> v1::CheckpointState {
    match state {
        CheckpointState::Open => v1::CheckpointState::Open,
        CheckpointState::Complete => v1::CheckpointState::Complete,
        CheckpointState::Going => v1::CheckpointState::Going,
    }
}

/// A checkpoint, with its ranks if requested.
pub(super) fn checkpoint_out(
    view: &CheckpointView<'_>,
    store_url: &str,
    with_ranks: bool,
) -> v1::Checkpoint {
    let reports = || view.ranks().filter_map(|(_, report)| report);
    let ranks = view.ranks().map(|(trainer, report)| v1::CheckpointRank {
        trainer: trainer.into(),
        reported: report.is_some(),
        manifest: report.map(|report| v1::BlobName {
            digest: report.manifest.digest.to_vec().into(),
            bytes: report.manifest.bytes,
        }),
        bytes: report.map_or(0, |report| report.bytes),
        objects: report.map_or(0, |report| report.objects),
    });
    let (begun_wall_ms, completed_wall_ms) = view.wall_ms();
    let JobName { namespace, job } = view.job;
    v1::Checkpoint {
        job: Some(job_out(view.job)),
        number: view.number,
        lineage: view.generation(),
        parent: view.parent(),
        step: view.step(),
        state: state_out(view.state()).into(),
        label: view.label().into(),
        ranks: if with_ranks { ranks.collect() } else { Vec::new() },
        bytes: reports().map(|report| report.bytes).fold(0, u64::saturating_add),
        store_url: store_url.into(),
        prefix: rollout_storage::checkpoint_prefix(namespace, job, view.number),
        begun_wall_ms,
        completed_wall_ms,
    }
}

/// The requested spec, with the default shard size if it names none.
pub(super) fn spec_in(
    spec: Option<v1::DatasetSpec>,
) -> Result<rollout_ledger::DatasetSpec, RpcError> {
    let spec = spec.ok_or_else(|| convert::invalid("the dataset's spec is missing"))?;
    let shard_samples = match spec.shard_samples {
        0 => limits::SHARD_SAMPLES_DEFAULT,
        samples => samples,
    };
    Ok(rollout_ledger::DatasetSpec {
        uri: spec.uri,
        format: spec.format,
        samples: spec.samples,
        shard_samples,
        in_order: spec.in_order,
        seed: spec.seed,
        metadata: spec.metadata.into_iter().collect(),
    })
}
