//! Image records of datasets and training jobs.
//!
//! *Invariant:* as in [`crate::machine::image`]. Keys: `D` dataset; `L` a job's head; `I` a trainer, by job and name; `H` some
//! shards, by job, dataset, epoch and chunk; `U` a checkpoint, by job and number.

use crate::kernel::codec;
use crate::kernel::id::{DatasetNo, TrainingNo};
use crate::machine::image::{Dirty, ImageDelta, key};
use crate::machine::image_load::{LoadError, bad, number, read};
use crate::machine::ledger::Ledger;
use crate::training::state::Training;

fn job_key(tag: u8, no: TrainingNo, rest: &[u8]) -> Vec<u8> {
    key(tag, &[&no.0.to_be_bytes(), rest])
}

fn dataset_epoch_key(no: TrainingNo, dataset: DatasetNo, epoch: u64, rest: &[u8]) -> Vec<u8> {
    key(b'H', &[&no.0.to_be_bytes(), &dataset.0.to_be_bytes(), &epoch.to_be_bytes(), rest])
}

fn dataset_key(no: DatasetNo) -> Vec<u8> {
    key(b'D', &[&no.0.to_be_bytes()])
}

impl Ledger {
    /// Drains the changes of datasets and jobs.
    pub(crate) fn drain_trainings(&self, dirty: &mut Dirty, delta: &mut ImageDelta) {
        for no in std::mem::take(&mut dirty.datasets) {
            delta.set(dataset_key(no), self.datasets.get(&no).map(codec::encode));
        }
        for no in std::mem::take(&mut dirty.trainings) {
            let head = self.trainings.get(&no).map(|training| codec::encode(&training.head));
            delta.set(job_key(b'L', no, &[]), head);
        }
        for (no, name) in std::mem::take(&mut dirty.trainers) {
            let trainer = self.trainings.get(&no).and_then(|t| t.trainers.get(&name));
            delta.set(job_key(b'I', no, name.as_bytes()), trainer.map(codec::encode));
        }
        for (no, dataset, epoch) in std::mem::take(&mut dirty.emptied_dataset_epochs) {
            delta.delete_prefixes.push(dataset_epoch_key(no, dataset, epoch, &[]));
        }
        for (no, dataset, epoch, record) in std::mem::take(&mut dirty.dataset_epochs) {
            let dataset_epoch =
                self.trainings.get(&no).and_then(|t| t.dataset_epochs.get(&(dataset, epoch)));
            let shards = dataset_epoch.and_then(|dataset_epoch| dataset_epoch.record(record));
            let key = dataset_epoch_key(no, dataset, epoch, &record.to_be_bytes());
            delta.set(key, shards.map(|shards| codec::encode(&shards)));
        }
        for (no, checkpoint) in std::mem::take(&mut dirty.checkpoints) {
            let found = self.trainings.get(&no).and_then(|t| t.checkpoints.get(&checkpoint));
            delta.set(job_key(b'U', no, &checkpoint.to_be_bytes()), found.map(codec::encode));
        }
    }

    pub(crate) fn each_dataset(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, dataset) in &self.datasets {
            each(&dataset_key(*no), &codec::encode(dataset));
        }
    }

    pub(crate) fn each_dataset_epoch(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, training) in &self.trainings {
            for (&(dataset, epoch), dataset_epoch) in &training.dataset_epochs {
                for record in 0..dataset_epoch.records() {
                    let shards = dataset_epoch.record(record).unwrap_or_default();
                    let key = dataset_epoch_key(*no, dataset, epoch, &record.to_be_bytes());
                    each(&key, &codec::encode(&shards));
                }
            }
        }
    }

    pub(crate) fn each_trainer(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, training) in &self.trainings {
            for (name, trainer) in &training.trainers {
                each(&job_key(b'I', *no, name.as_bytes()), &codec::encode(trainer));
            }
        }
    }

    pub(crate) fn each_training(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, training) in &self.trainings {
            each(&job_key(b'L', *no, &[]), &codec::encode(&training.head));
        }
    }

    pub(crate) fn each_checkpoint(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, training) in &self.trainings {
            for (number, checkpoint) in &training.checkpoints {
                each(&job_key(b'U', *no, &number.to_be_bytes()), &codec::encode(checkpoint));
            }
        }
    }

    /// Reads a record of datasets and jobs.
    pub(crate) fn load_training_record(
        &mut self,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), LoadError> {
        match key.first() {
            Some(b'D') => {
                let no = DatasetNo(u32::from_be_bytes(number(key, 1)?));
                self.datasets.insert(no, read(key, value)?);
            }
            Some(b'L') => self.loading_training(key)?.head = read(key, value)?,
            Some(b'I') => {
                let name = key.get(5..).and_then(|name| std::str::from_utf8(name).ok());
                let name = name.ok_or_else(|| bad(key))?.to_owned();
                let trainer = read(key, value)?;
                self.loading_training(key)?.trainers.insert(name, trainer);
            }
            Some(b'H') => {
                let dataset = DatasetNo(u32::from_be_bytes(number(key, 5)?));
                let epoch = u64::from_be_bytes(number(key, 9)?);
                let record = u16::from_be_bytes(number(key, 17)?);
                let shards: Vec<_> = read(key, value)?;
                let training = self.loading_training(key)?;
                let dataset_epoch = training.dataset_epochs.entry((dataset, epoch)).or_default();
                if usize::from(record) * crate::training::dataset_epoch::SHARDS_PER_RECORD as usize
                    != dataset_epoch.shards.len()
                {
                    return Err(bad(key));
                }
                dataset_epoch.shards.extend(shards);
            }
            Some(b'U') => {
                let checkpoint = u32::from_be_bytes(number(key, 5)?);
                let found = read(key, value)?;
                self.loading_training(key)?.checkpoints.insert(checkpoint, found);
            }
            _ => return Err(bad(key)),
        }
        Ok(())
    }

    fn loading_training(&mut self, key: &[u8]) -> Result<&mut Training, LoadError> {
        let no = TrainingNo(u32::from_be_bytes(number(key, 1)?));
        Ok(self.trainings.entry(no).or_default())
    }
}
