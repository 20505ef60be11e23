//! Datasets that training jobs read: a number of samples in shards of equal size.
//!
//! *Invariant:* a dataset never changes: the same name with another spec is refused. A dataset is not removed while a
//! job reads it or a checkpoint counts its epochs. Its number is never used again.
//!
//! Deliberately absent: the samples, and how they are read. `format` and `metadata` are for the reader.

use crate::batch::spec::check_name;
use crate::kernel::id::DatasetNo;
use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation};
use crate::machine::version_gate::came_with;
use crate::training::shard_order::{EpochOf, ORDER_VERSION};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The operations on datasets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DatasetOp {
    /// Creates a dataset, or finds the same one.
    Create {
        /// Its namespace, which must exist.
        namespace: String,
        /// Its name.
        name: String,
        /// The spec.
        spec: Box<DatasetSpec>,
    },
    /// Removes a dataset that no job reads. Has no effect if there is none.
    Delete {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

/// A dataset as its user described it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetSpec {
    /// The location for its reader; `{shard}` or `{shard:5}` in it stands for a shard's number.
    pub uri: String,
    /// Its reader's business.
    pub format: String,
    /// How many samples it has, 1 or more.
    pub samples: u64,
    /// Samples of a shard; the last shard may have fewer.
    pub shard_samples: u32,
    /// Whether every epoch goes through the shards by number.
    pub in_order: bool,
    /// The seed of its epochs' orders.
    pub seed: u64,
    /// Its reader's business.
    pub metadata: BTreeMap<String, String>,
}

impl DatasetSpec {
    /// How many shards it has.
    pub fn shards(&self) -> u32 {
        self.samples.div_ceil(u64::from(self.shard_samples.max(1))) as u32
    }

    /// The first sample of a shard, and the one after its last.
    pub fn range(&self, shard: u32) -> (u64, u64) {
        let first = u64::from(shard) * u64::from(self.shard_samples);
        (first, (first + u64::from(self.shard_samples)).min(self.samples))
    }

    /// Samples of a shard.
    pub(crate) fn shard_len(&self, shard: u32) -> u32 {
        let (first, end) = self.range(shard);
        end.saturating_sub(first) as u32
    }

    /// The location of a shard: the URI with the shard's number in it, with the requested number of digits.
    pub fn shard_uri(&self, shard: u32) -> String {
        let Some((before, rest)) = self.uri.split_once("{shard") else { return self.uri.clone() };
        let Some((digits, after)) = rest.split_once('}') else { return self.uri.clone() };
        let width = match digits.strip_prefix(':') {
            Some(digits) => digits.parse().unwrap_or(0).min(20),
            None if digits.is_empty() => 0,
            None => return self.uri.clone(),
        };
        format!("{before}{shard:0width$}{after}")
    }

    fn check(&self) -> Result<(), Rejection> {
        if self.uri.len().max(self.format.len()) > limits::TEXT_BYTES_MAX {
            return Err(Rejection::Invalid("the dataset's uri or format is too long".into()));
        }
        if self.samples == 0 || self.shard_samples == 0 {
            return Err(Rejection::Invalid("a dataset and its shards have samples".into()));
        }
        let shards = self.samples.div_ceil(u64::from(self.shard_samples));
        if shards > u64::from(limits::SHARDS_MAX) {
            let what = "shards of a dataset".into();
            return Err(Rejection::Limit { what, max: u64::from(limits::SHARDS_MAX) });
        }
        let long = |(key, value): (&String, &String)| {
            key.len() > limits::NAME_BYTES_MAX || value.len() > limits::TEXT_BYTES_MAX
        };
        if self.metadata.len() > limits::LABELS_MAX || self.metadata.iter().any(long) {
            return Err(Rejection::Invalid("the dataset's metadata is too long".into()));
        }
        Ok(())
    }
}

/// One dataset: one record of the image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dataset {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) spec: DatasetSpec,
    /// The version of its epochs' order. Only version 1 exists.
    pub(crate) order_version: u32,
}

impl Dataset {
    pub(crate) fn epoch(&self, epoch: u64) -> EpochOf<'_> {
        EpochOf { dataset: &self.name, spec: &self.spec, epoch }
    }
}

/// A dataset as its readers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetView<'a> {
    /// Its number.
    pub no: DatasetNo,
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// The spec.
    pub spec: &'a DatasetSpec,
    /// By which its epochs are ordered.
    pub order_version: u32,
}

fn view(no: DatasetNo, dataset: &Dataset) -> DatasetView<'_> {
    let Dataset { namespace, name, spec, order_version } = dataset;
    DatasetView { no, namespace, name, spec, order_version: *order_version }
}

came_with!(DatasetOp, DATASETS, {
    1: DatasetOp::Create { .. } | DatasetOp::Delete { .. },
});

impl Operation for DatasetOp {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn since(&self) -> u32 {
        self.came_with()
    }

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        match self {
            Self::Create { .. } => true,
            Self::Delete { .. } => false,
        }
    }

    fn rows(&self) -> u64 {
        0
    }

    fn apply(self, ledger: &mut Ledger, _: &mut Context) -> Result<Reply, Rejection> {
        ledger.dataset_op(self)
    }
}

impl Ledger {
    /// The dataset of that name.
    pub fn dataset(&self, namespace: &str, name: &str) -> Option<DatasetView<'_>> {
        let no = self.dataset_names.get(&(namespace.to_owned(), name.to_owned()))?;
        self.datasets.get(no).map(|dataset| view(*no, dataset))
    }

    /// The datasets of a namespace, by name.
    pub fn datasets_of<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = DatasetView<'a>> + use<'a> {
        let from = (namespace.to_owned(), String::new());
        let theirs =
            self.dataset_names.range(from..).take_while(move |(key, _)| key.0 == namespace);
        theirs.filter_map(move |(_, no)| Some(view(*no, self.datasets.get(no)?)))
    }

    /// The datasets of every namespace, by namespace and name.
    pub fn all_datasets(&self) -> impl Iterator<Item = DatasetView<'_>> {
        let all = self.dataset_names.values();
        all.filter_map(move |no| Some(view(*no, self.datasets.get(no)?)))
    }

    pub(crate) fn dataset_op(&mut self, op: DatasetOp) -> Result<Reply, Rejection> {
        match op {
            DatasetOp::Create { namespace, name, spec } => {
                self.create_dataset(namespace, name, *spec)
            }
            DatasetOp::Delete { namespace, name } => self.delete_dataset(namespace, name),
        }
    }

    fn create_dataset(
        &mut self,
        namespace: String,
        name: String,
        spec: DatasetSpec,
    ) -> Result<Reply, Rejection> {
        check_name("dataset's", &name)?;
        spec.check()?;
        if !self.namespaces.contains_key(&namespace) {
            return Err(Rejection::NamespaceUnknown(namespace));
        }
        let key = (namespace, name);
        if let Some(no) = self.dataset_names.get(&key) {
            return match self.datasets.get(no).is_some_and(|dataset| dataset.spec == spec) {
                true => Ok(Reply::Ok),
                false => Err(Rejection::DatasetConflict),
            };
        }
        if self.datasets_of(&key.0).count() >= limits::DATASETS_MAX {
            let what = "datasets of one namespace".into();
            return Err(Rejection::Limit { what, max: limits::DATASETS_MAX as u64 });
        }
        self.meta.datasets_made += 1;
        let no = DatasetNo(self.meta.datasets_made);
        let (namespace, name) = key.clone();
        self.datasets.insert(no, Dataset { namespace, name, spec, order_version: ORDER_VERSION });
        self.dataset_names.insert(key, no);
        self.dirty.datasets.insert(no);
        Ok(Reply::Ok)
    }

    fn delete_dataset(&mut self, namespace: String, name: String) -> Result<Reply, Rejection> {
        let key = (namespace, name);
        let Some(&no) = self.dataset_names.get(&key) else { return Ok(Reply::Ok) };
        if self.trainings.values().any(|training| training.reads(no)) {
            return Err(Rejection::DatasetInUse);
        }
        self.dataset_names.remove(&key);
        self.datasets.remove(&no);
        self.dirty.datasets.insert(no);
        Ok(Reply::Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shards_number_stands_in_its_uri() {
        let uri =
            |uri: &str| DatasetSpec { uri: uri.into(), ..DatasetSpec::default() }.shard_uri(7);
        assert_eq!(uri("s3://b/t-{shard:5}.tar"), "s3://b/t-00007.tar");
        assert_eq!(uri("{shard}/x"), "7/x");
        assert_eq!(uri("s3://b/all.parquet"), "s3://b/all.parquet");
        assert_eq!(uri("a{shards}b{shard"), "a{shards}b{shard");
    }

    #[test]
    fn the_last_shard_has_what_is_left() {
        let spec = DatasetSpec { samples: 25, shard_samples: 10, ..DatasetSpec::default() };
        assert_eq!(spec.shards(), 3);
        assert_eq!([spec.range(0), spec.range(2)], [(0, 10), (20, 25)]);
        assert_eq!(spec.shard_len(2), 5);
    }
}
