//! Datasets that training jobs read: a number of samples in shards of equal size.
//!
//! *Invariant:* a dataset never changes: the same name with another spec is refused. A dataset is not removed while a
//! job reads it or a checkpoint counts its epochs. Its number is never used again.
//!
//! Absent: the samples, and how they are read. `format` and `metadata` are for the reader.

use crate::kernel::codec;
use crate::kernel::id::DatasetNo;
use crate::kernel::job_refusal::JobRefusal;
use crate::kernel::limits;
use crate::kernel::names::check_name;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::image::{ImageDelta, key};
use crate::machine::image_load::{LoadError, number, read};
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::machine::version_gate::came_with;
use crate::training::shard_order::{EpochOf, ORDER_VERSION};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

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

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        match self {
            Self::Create { namespace, .. } | Self::Delete { namespace, .. } => {
                Subject::Namespace(namespace)
            }
        }
    }

    fn dry_run(&self, ledger: &Ledger) -> Option<Result<(), Rejection>> {
        Some(match self {
            Self::Create { namespace, name, spec } => {
                ledger.check_create_dataset(namespace, name, spec).map(drop)
            }
            Self::Delete { namespace, name } => {
                ledger.check_delete_dataset(namespace, name).map(drop)
            }
        })
    }

    fn apply(self, ledger: &mut Ledger, _: &mut Context) -> Result<Reply, Rejection> {
        ledger.dataset_op(self)
    }
}

/// All datasets, their index, and which of their records differ from the image.
#[derive(Clone, Debug, Default)]
pub(crate) struct Datasets {
    by_no: BTreeMap<DatasetNo, Dataset>,
    // Derived.
    names: BTreeMap<(String, String), DatasetNo>,
    dirty: BTreeSet<DatasetNo>,
}

impl Datasets {
    /// The number of the dataset of that name.
    pub(crate) fn no(&self, namespace: &str, name: &str) -> Option<DatasetNo> {
        self.names.get(&(namespace.to_owned(), name.to_owned())).copied()
    }

    /// The dataset with that number.
    pub(crate) fn get(&self, no: DatasetNo) -> Option<&Dataset> {
        self.by_no.get(&no)
    }

    pub(super) fn view(&self, namespace: &str, name: &str) -> Option<DatasetView<'_>> {
        let no = self.no(namespace, name)?;
        self.get(no).map(|dataset| view(no, dataset))
    }

    fn views_of<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = DatasetView<'a>> + use<'a> {
        let from = (namespace.to_owned(), String::new());
        let theirs = self.names.range(from..).take_while(move |(key, _)| key.0 == namespace);
        theirs.filter_map(move |(_, no)| Some(view(*no, self.by_no.get(no)?)))
    }

    /// Whether the dataset is new; false if it exists with the same spec.
    fn check_create(
        &self,
        namespace: &str,
        name: &str,
        spec: &DatasetSpec,
    ) -> Result<bool, Rejection> {
        if let Some(no) = self.no(namespace, name) {
            return match self.by_no.get(&no).is_some_and(|dataset| dataset.spec == *spec) {
                true => Ok(false),
                false => Err(JobRefusal::DatasetConflict.into()),
            };
        }
        if self.views_of(namespace).count() >= limits::DATASETS_MAX {
            let what = "datasets of one namespace".into();
            return Err(Rejection::Limit { what, max: limits::DATASETS_MAX as u64 });
        }
        Ok(true)
    }

    /// Creates a dataset whose name is free. `made` counts all that were ever made.
    fn create(&mut self, key: (String, String), spec: DatasetSpec, made: &mut u32) {
        *made += 1;
        let no = DatasetNo(*made);
        let (namespace, name) = key.clone();
        self.by_no.insert(no, Dataset { namespace, name, spec, order_version: ORDER_VERSION });
        self.names.insert(key, no);
        self.dirty.insert(no);
    }

    fn remove(&mut self, no: DatasetNo) {
        if let Some(Dataset { namespace, name, .. }) = self.by_no.remove(&no) {
            self.names.remove(&(namespace, name));
        }
        self.dirty.insert(no);
    }

    /// Takes the records that changed since the last call.
    pub(crate) fn drain(&mut self, delta: &mut ImageDelta) {
        for no in std::mem::take(&mut self.dirty) {
            delta.set(dataset_key(no), self.by_no.get(&no).map(codec::encode));
        }
    }

    /// Forgets which records differ from the image, because there is no image yet.
    pub(crate) fn forget_dirty(&mut self) {
        self.dirty.clear();
    }

    pub(crate) fn each_dataset(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, dataset) in &self.by_no {
            each(&dataset_key(*no), &codec::encode(dataset));
        }
    }

    /// Reads a dataset's record.
    pub(crate) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        let no = DatasetNo(u32::from_be_bytes(number(key, 1)?));
        self.by_no.insert(no, read(key, value)?);
        Ok(())
    }

    /// Rebuilds what is derived.
    pub(crate) fn derive(&mut self) {
        for (no, dataset) in &self.by_no {
            let name = (dataset.namespace.clone(), dataset.name.clone());
            self.names.insert(name, *no);
        }
    }
}

/// The key of a dataset's record in the image.
fn dataset_key(no: DatasetNo) -> Vec<u8> {
    key(b'D', &[&no.0.to_be_bytes()])
}

impl Ledger {
    /// The dataset of that name.
    pub fn dataset(&self, namespace: &str, name: &str) -> Option<DatasetView<'_>> {
        self.datasets.view(namespace, name)
    }

    /// The datasets of a namespace, by name.
    pub fn datasets_of<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = DatasetView<'a>> + use<'a> {
        self.datasets.views_of(namespace)
    }

    /// The datasets of every namespace, by namespace and name.
    pub fn all_datasets(&self) -> impl Iterator<Item = DatasetView<'_>> {
        let all = self.datasets.names.values();
        all.filter_map(move |no| Some(view(*no, self.datasets.get(*no)?)))
    }

    fn dataset_op(&mut self, op: DatasetOp) -> Result<Reply, Rejection> {
        match op {
            DatasetOp::Create { namespace, name, spec } => {
                self.create_dataset(namespace, name, *spec)
            }
            DatasetOp::Delete { namespace, name } => self.delete_dataset(&namespace, &name),
        }
    }

    /// Whether the dataset is new; false if it exists with the same spec.
    fn check_create_dataset(
        &self,
        namespace: &str,
        name: &str,
        spec: &DatasetSpec,
    ) -> Result<bool, Rejection> {
        check_name("dataset's", name)?;
        spec.check()?;
        if !self.namespaces.contains_key(namespace) {
            return Err(Rejection::NamespaceUnknown(namespace.to_owned()));
        }
        self.datasets.check_create(namespace, name, spec)
    }

    fn create_dataset(
        &mut self,
        namespace: String,
        name: String,
        spec: DatasetSpec,
    ) -> Result<Reply, Rejection> {
        if self.check_create_dataset(&namespace, &name, &spec)? {
            self.datasets.create((namespace, name), spec, &mut self.meta.datasets_made);
        }
        Ok(Reply::Ok)
    }

    /// The number of the dataset to delete; `None` if there is none.
    fn check_delete_dataset(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<DatasetNo>, Rejection> {
        let found = self.datasets.no(namespace, name);
        match found.is_some_and(|no| self.jobs.any_reads(no)) {
            true => Err(JobRefusal::DatasetInUse.into()),
            false => Ok(found),
        }
    }

    fn delete_dataset(&mut self, namespace: &str, name: &str) -> Result<Reply, Rejection> {
        if let Some(no) = self.check_delete_dataset(namespace, name)? {
            self.datasets.remove(no);
        }
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
    fn the_last_shard_has_the_remaining_samples() {
        let spec = DatasetSpec { samples: 25, shard_samples: 10, ..DatasetSpec::default() };
        assert_eq!(spec.shards(), 3);
        assert_eq!([spec.range(0), spec.range(2)], [(0, 10), (20, 25)]);
        assert_eq!(spec.shard_len(2), 5);
    }
}
