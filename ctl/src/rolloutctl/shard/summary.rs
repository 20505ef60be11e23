//! Jobs, generations and epochs as they are printed.
//!
//! Invariant: 64-bit numbers are strings in JSON.

use rollout_proto::v1;
use serde::Serialize;

use crate::output::u64_string;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::rolloutctl) struct Generation {
    pub(in crate::rolloutctl) number: u32,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) round: u64,
    pub(in crate::rolloutctl) checkpoint: u32,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) step: u64,
    /// Why it is torn; empty if it is whole.
    pub(in crate::rolloutctl) torn: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::rolloutctl) struct DatasetEpoch {
    pub(in crate::rolloutctl) dataset: String,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) epoch: u64,
    pub(in crate::rolloutctl) shards: u32,
    pub(in crate::rolloutctl) free: u32,
    pub(in crate::rolloutctl) claimed: u32,
    pub(in crate::rolloutctl) finished: u32,
    pub(in crate::rolloutctl) sealed: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::rolloutctl) struct Trainer {
    pub(in crate::rolloutctl) name: String,
    pub(in crate::rolloutctl) host: String,
    pub(in crate::rolloutctl) present: bool,
    pub(in crate::rolloutctl) shards: u32,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::rolloutctl) struct Job {
    pub(in crate::rolloutctl) namespace: String,
    pub(in crate::rolloutctl) job: String,
    pub(in crate::rolloutctl) lineage: Generation,
    pub(in crate::rolloutctl) trainers: Vec<Trainer>,
    pub(in crate::rolloutctl) passes: Vec<DatasetEpoch>,
    pub(in crate::rolloutctl) checkpoints: u32,
    pub(in crate::rolloutctl) keep_last: u32,
}

impl From<v1::Pass> for DatasetEpoch {
    fn from(p: v1::Pass) -> Self {
        let v1::Pass { dataset, epoch, shards, free, claimed, finished, sealed } = p;
        Self { dataset, epoch, shards, free, claimed, finished, sealed }
    }
}

impl From<v1::Job> for Job {
    fn from(job: v1::Job) -> Self {
        let lineage = job.lineage.unwrap_or_default();
        let v1::Lineage { number, round, checkpoint, step, torn, .. } = lineage;
        let trainer = |t: v1::TrainerInfo| {
            let v1::TrainerInfo { name, host, present, shards } = t;
            Trainer { name, host, present, shards }
        };
        Self {
            namespace: job.namespace,
            job: job.job,
            lineage: Generation { number, round, checkpoint, step, torn },
            trainers: job.trainers.into_iter().map(trainer).collect(),
            passes: job.passes.into_iter().map(DatasetEpoch::from).collect(),
            checkpoints: job.checkpoints,
            keep_last: job.keep_last,
        }
    }
}

#[cfg(test)]
pub(in crate::rolloutctl) fn sample() -> Job {
    let trainer = |name: &str, present: bool, shards: u32| Trainer {
        name: name.into(),
        host: "h0".into(),
        present,
        shards,
    };
    Job {
        namespace: "default".into(),
        job: "llama-sft".into(),
        lineage: Generation {
            number: 2,
            round: 3,
            checkpoint: 4,
            step: 12_000,
            torn: String::new(),
        },
        trainers: vec![trainer("t0", true, 3), trainer("t1", false, 0)],
        passes: vec![pass()],
        checkpoints: 5,
        keep_last: 3,
    }
}

#[cfg(test)]
pub(in crate::rolloutctl) fn pass() -> DatasetEpoch {
    DatasetEpoch {
        dataset: "fineweb".into(),
        epoch: 1,
        shards: 100,
        free: 90,
        claimed: 3,
        finished: 5,
        sealed: 2,
    }
}
