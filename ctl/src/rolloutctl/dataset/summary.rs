//! A dataset as it is printed.
//!
//! Invariant: 64-bit numbers are strings in JSON.

use std::collections::BTreeMap;

use rollout_proto::v1;
use serde::Serialize;

use crate::output::u64_string;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Dataset {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uri: String,
    pub(super) format: String,
    #[serde(serialize_with = "u64_string")]
    pub(super) samples: u64,
    pub(super) shard_samples: u32,
    pub(super) shards: u32,
    pub(super) in_order: bool,
    #[serde(serialize_with = "u64_string")]
    pub(super) seed: u64,
    pub(super) order_version: u32,
    pub(super) metadata: BTreeMap<String, String>,
}

impl From<v1::Dataset> for Dataset {
    fn from(dataset: v1::Dataset) -> Self {
        let spec = dataset.spec.unwrap_or_default();
        Self {
            namespace: dataset.namespace,
            name: dataset.name,
            uri: spec.uri,
            format: spec.format,
            samples: spec.samples,
            shard_samples: spec.shard_samples,
            shards: dataset.shards,
            in_order: spec.in_order,
            seed: spec.seed,
            order_version: dataset.order_version,
            metadata: spec.metadata.into_iter().collect(),
        }
    }
}

#[cfg(test)]
pub(super) fn sample() -> Dataset {
    Dataset {
        namespace: "default".into(),
        name: "fineweb".into(),
        uri: "s3://data/fineweb".into(),
        format: "parquet".into(),
        samples: 1_000_000,
        shard_samples: 10_000,
        shards: 100,
        in_order: false,
        seed: 42,
        order_version: 1,
        metadata: [("license".to_owned(), "odc-by".to_owned())].into(),
    }
}
