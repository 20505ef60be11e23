//! A checkpoint as it is printed.
//!
//! Invariant: 64-bit numbers are strings in JSON.

use rollout_proto::v1;
use serde::Serialize;

use crate::output::{hex, u64_string};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::rolloutctl) struct Rank {
    pub(in crate::rolloutctl) trainer: String,
    pub(in crate::rolloutctl) reported: bool,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) bytes: u64,
    pub(in crate::rolloutctl) objects: u32,
    /// blake3 in hex; empty if the rank has not reported.
    pub(in crate::rolloutctl) manifest: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::rolloutctl) struct Checkpoint {
    pub(in crate::rolloutctl) namespace: String,
    pub(in crate::rolloutctl) job: String,
    pub(in crate::rolloutctl) number: u32,
    pub(in crate::rolloutctl) lineage: u32,
    pub(in crate::rolloutctl) parent: u32,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) step: u64,
    pub(in crate::rolloutctl) state: &'static str,
    pub(in crate::rolloutctl) label: String,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) bytes: u64,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) begun_wall_ms: u64,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) completed_wall_ms: u64,
    pub(in crate::rolloutctl) prefix: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(in crate::rolloutctl) ranks: Vec<Rank>,
}

impl From<v1::Checkpoint> for Checkpoint {
    fn from(checkpoint: v1::Checkpoint) -> Self {
        let state = match checkpoint.state() {
            v1::CheckpointState::Unspecified => "-",
            v1::CheckpointState::Open => "open",
            v1::CheckpointState::Complete => "complete",
            v1::CheckpointState::Going => "going",
        };
        let rank = |rank: v1::CheckpointRank| Rank {
            trainer: rank.trainer,
            reported: rank.reported,
            bytes: rank.bytes,
            objects: rank.objects,
            manifest: rank.manifest.map(|manifest| hex(&manifest.digest)).unwrap_or_default(),
        };
        let v1::JobName { namespace, job } = checkpoint.job.unwrap_or_default();
        Self {
            namespace,
            job,
            number: checkpoint.number,
            lineage: checkpoint.lineage,
            parent: checkpoint.parent,
            step: checkpoint.step,
            state,
            label: checkpoint.label,
            bytes: checkpoint.bytes,
            begun_wall_ms: checkpoint.begun_wall_ms,
            completed_wall_ms: checkpoint.completed_wall_ms,
            prefix: checkpoint.prefix,
            ranks: checkpoint.ranks.into_iter().map(rank).collect(),
        }
    }
}

#[cfg(test)]
pub(in crate::rolloutctl) fn sample() -> Checkpoint {
    let rank = |trainer: &str, reported: bool| Rank {
        trainer: trainer.into(),
        reported,
        bytes: if reported { 3 << 29 } else { 0 },
        objects: if reported { 4 } else { 0 },
        manifest: if reported { "00ff".into() } else { String::new() },
    };
    Checkpoint {
        namespace: "default".into(),
        job: "llama-sft".into(),
        number: 4,
        lineage: 2,
        parent: 3,
        step: 12_000,
        state: "open",
        label: "best".into(),
        bytes: 3 << 29,
        begun_wall_ms: 1_795_000_000_123,
        completed_wall_ms: 0,
        prefix: "checkpoints/default/llama-sft/4".into(),
        ranks: vec![rank("t0", true), rank("t1", false)],
    }
}
