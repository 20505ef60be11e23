//! Image records of trainings.
//!
//! *Invariant:* as in [`crate::machine::image`]. Keys: `L` a training's head; `I` a trainer, by training and name; `H` some
//! shards, by training, dataset, epoch and chunk; `U` a checkpoint, by training and number. The number of a training is
//! that of its job, or, below version 4, its own: [`crate::machine::ledger::Meta`] says which.

use crate::kernel::codec;
use crate::kernel::id::{DatasetNo, TrainingNo};
use crate::machine::image::{ImageDelta, key};
use crate::machine::image_load::{LoadError, bad, number, read};
use crate::training::job::Jobs;
use crate::training::state::Training;
use std::collections::BTreeSet;

/// The records of training jobs that differ from the image on disk.
#[derive(Clone, Debug, Default)]
pub(super) struct DirtyTrainings {
    heads: BTreeSet<TrainingNo>,
    trainers: BTreeSet<(TrainingNo, String)>,
    dataset_epochs: BTreeSet<(TrainingNo, DatasetNo, u64, u16)>,
    /// Epochs whose shards were all removed at once; those in `dataset_epochs` may have been added afterward.
    emptied_dataset_epochs: BTreeSet<(TrainingNo, DatasetNo, u64)>,
    checkpoints: BTreeSet<(TrainingNo, u32)>,
    /// The trainings have other numbers than in the image: all their records there are removed, and written again.
    all: bool,
}

/// The first bytes of the keys.
const TAGS: [u8; 4] = [b'H', b'I', b'L', b'U'];

impl DirtyTrainings {
    /// A training has changed, was made or was removed.
    pub(super) fn mark_head(&mut self, no: TrainingNo) {
        self.heads.insert(no);
    }

    pub(super) fn mark_trainer(&mut self, no: TrainingNo, name: String) {
        self.trainers.insert((no, name));
    }

    pub(super) fn mark_trainers(&mut self, names: impl IntoIterator<Item = (TrainingNo, String)>) {
        self.trainers.extend(names);
    }

    /// Records of shards have changed.
    pub(super) fn mark_shards(
        &mut self,
        records: impl IntoIterator<Item = (TrainingNo, DatasetNo, u64, u16)>,
    ) {
        self.dataset_epochs.extend(records);
    }

    /// All shards of these epochs were removed.
    pub(super) fn mark_removed_epochs(
        &mut self,
        epochs: impl IntoIterator<Item = (TrainingNo, DatasetNo, u64)>,
    ) {
        self.emptied_dataset_epochs.extend(epochs);
    }

    pub(super) fn mark_checkpoint(&mut self, no: TrainingNo, number: u32) {
        self.checkpoints.insert((no, number));
    }

    /// Marks every record: the trainings have other numbers now.
    pub(super) fn mark_all(&mut self) {
        *self = Self { all: true, ..Self::default() };
    }
}

fn job_key(tag: u8, no: TrainingNo, rest: &[u8]) -> Vec<u8> {
    key(tag, &[&no.0.to_be_bytes(), rest])
}

fn dataset_epoch_key(no: TrainingNo, dataset: DatasetNo, epoch: u64, rest: &[u8]) -> Vec<u8> {
    key(b'H', &[&no.0.to_be_bytes(), &dataset.0.to_be_bytes(), &epoch.to_be_bytes(), rest])
}

impl Jobs {
    /// Takes the records that changed since the last call.
    pub(crate) fn drain_trainings(&mut self, delta: &mut ImageDelta) {
        let dirty = std::mem::take(&mut self.dirty_trainings);
        if dirty.all {
            return self.write_all_trainings(delta);
        }
        for no in dirty.heads {
            let head = self.table.training(no).map(|training| codec::encode(&training.head));
            delta.set(job_key(b'L', no, &[]), head);
        }
        for (no, name) in dirty.trainers {
            let trainer = self.table.training(no).and_then(|t| t.trainers.get(&name));
            delta.set(job_key(b'I', no, name.as_bytes()), trainer.map(codec::encode));
        }
        for (no, dataset, epoch) in dirty.emptied_dataset_epochs {
            delta.delete_prefixes.push(dataset_epoch_key(no, dataset, epoch, &[]));
        }
        for (no, dataset, epoch, record) in dirty.dataset_epochs {
            let dataset_epoch =
                self.table.training(no).and_then(|t| t.dataset_epochs.get(&(dataset, epoch)));
            let shards = dataset_epoch.and_then(|dataset_epoch| dataset_epoch.record(record));
            let key = dataset_epoch_key(no, dataset, epoch, &record.to_be_bytes());
            delta.set(key, shards.map(|shards| codec::encode(&shards)));
        }
        for (no, checkpoint) in dirty.checkpoints {
            let found = self.table.training(no).and_then(|t| t.checkpoints.get(&checkpoint));
            delta.set(job_key(b'U', no, &checkpoint.to_be_bytes()), found.map(codec::encode));
        }
    }

    fn write_all_trainings(&self, delta: &mut ImageDelta) {
        delta.delete_prefixes.extend(TAGS.map(|tag| vec![tag]));
        let mut put = |key: &[u8], value: &[u8]| delta.puts.push((key.to_vec(), value.to_vec()));
        self.each_dataset_epoch(&mut put);
        self.each_trainer(&mut put);
        self.each_training_head(&mut put);
        self.each_checkpoint(&mut put);
    }

    pub(crate) fn each_dataset_epoch(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, training) in self.table.trainings() {
            for (&(dataset, epoch), dataset_epoch) in &training.dataset_epochs {
                for record in 0..dataset_epoch.records() {
                    let shards = dataset_epoch.record(record).unwrap_or_default();
                    let key = dataset_epoch_key(no, dataset, epoch, &record.to_be_bytes());
                    each(&key, &codec::encode(&shards));
                }
            }
        }
    }

    pub(crate) fn each_trainer(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, training) in self.table.trainings() {
            for (name, trainer) in &training.trainers {
                each(&job_key(b'I', no, name.as_bytes()), &codec::encode(trainer));
            }
        }
    }

    pub(crate) fn each_training_head(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, training) in self.table.trainings() {
            each(&job_key(b'L', no, &[]), &codec::encode(&training.head));
        }
    }

    pub(crate) fn each_checkpoint(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, training) in self.table.trainings() {
            for (number, checkpoint) in &training.checkpoints {
                each(&job_key(b'U', no, &number.to_be_bytes()), &codec::encode(checkpoint));
            }
        }
    }

    /// Reads a record of a training.
    pub(crate) fn load_training(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        match key.first() {
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
        Ok(self.table.loading_training(TrainingNo(u32::from_be_bytes(number(key, 1)?))))
    }
}
