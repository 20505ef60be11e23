//! One epoch of one dataset in one job: the state of each shard.
//!
//! *Invariant:* the samples of a shard that are in the job's state are a prefix of the shard: first those in the last
//! complete checkpoint (`sealed`), then those in the marks of the generation, each with the step after which they are
//! in. A shard is free, held by one trainer, or finished, and never held by two trainers at a time. The fields below
//! the comment `Derived` are recomputed from `shards`.
//!
//! Absent: which trainer may claim ([`crate::training::shard`]), and when a checkpoint is complete
//! ([`crate::training::checkpoint_ops`]).

use crate::kernel::id::Attempt;
use crate::training::dataset::Dataset;
use crate::training::shard_ring::{Arc, Ring, place};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Shards of one record of the image.
pub(crate) const SHARDS_PER_RECORD: u32 = 1024;

/// The state of one shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shard {
    /// How many of its samples the generation's last complete checkpoint holds.
    pub(crate) sealed: u32,
    pub(crate) state: ShardState,
    /// What was done since then, by step and by samples, both ascending.
    pub(crate) marks: Vec<Mark>,
}

/// The holder state of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ShardState {
    /// No trainer has it.
    #[default]
    Free,
    /// A trainer has claimed it.
    Claimed(Box<ShardClaim>),
    /// Every sample is in the job's state. The claim identifies a repeated report.
    Finished {
        /// The claim; `None` if the shard was restored from a checkpoint.
        token: Option<Attempt>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardClaim {
    pub(crate) trainer: String,
    pub(crate) token: Attempt,
}

/// How many samples of a shard are in the job's state after this step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) step: u64,
    pub(crate) samples: u32,
}

impl Shard {
    /// How many of its samples are in the job's state.
    pub(crate) fn done(&self) -> u32 {
        self.marks.last().map_or(self.sealed, |mark| mark.samples)
    }

    /// The least number of samples that were in the job's state after a step.
    pub(crate) fn done_at(&self, step: u64) -> u32 {
        self.marks.iter().rev().find(|m| m.step <= step).map_or(self.sealed, |m| m.samples)
    }

    /// The greatest number of samples that can have been in the job's state after a step: that of the first later mark, or
    /// what the holder may have read.
    pub(crate) fn most_at(&self, step: u64, len: u32) -> u32 {
        match self.marks.iter().find(|m| m.step > step) {
            Some(later) => later.samples,
            // A holder that has read the whole shard has finished it.
            None if matches!(self.state, ShardState::Claimed(_)) => len - 1,
            None => self.done(),
        }
    }

    fn seal(&mut self, step: u64, progress: u32) -> bool {
        let sealed = self.done_at(step).max(progress);
        let (marks, was) = (self.marks.len(), self.sealed);
        self.marks.retain(|m| m.step > step && m.samples > sealed);
        self.sealed = sealed;
        self.marks.len() != marks || sealed != was
    }
}

/// Counts of shards by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatasetEpochCounts {
    /// All shards.
    pub shards: u32,
    /// Shards that no trainer has.
    pub free: u32,
    /// A trainer has claimed it.
    pub claimed: u32,
    /// Finished shards, including those in a checkpoint.
    pub finished: u32,
    /// Whole in a complete checkpoint.
    pub sealed: u32,
}

/// One epoch of a dataset in a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DatasetEpoch {
    /// By number. Records of [`SHARDS_PER_RECORD`].
    pub(crate) shards: Vec<Shard>,
    // Derived.
    /// The shard at each position of the epoch's order.
    pub(crate) order: Vec<u32>,
    /// The position of each shard.
    pub(crate) positions: Vec<u32>,
    /// The place of each shard on the circle of trainers.
    places: Vec<u64>,
    /// The shards by their places.
    around: Vec<u32>,
    /// Free shards by position, for each trainer that is preferred for some. The key is `None` if there are no trainers.
    free: BTreeMap<Option<String>, BTreeSet<u32>>,
    /// Shards that are claimed, by trainer.
    pub(crate) held: BTreeMap<String, BTreeSet<u32>>,
    pub(crate) finished: u32,
}

impl DatasetEpoch {
    /// An epoch in which nothing is done yet.
    pub(crate) fn open(dataset: &Dataset, epoch: u64, ring: &Ring) -> Self {
        let shards = vec![Shard::default(); dataset.spec.shards() as usize];
        Self::with(shards, dataset, epoch, ring)
    }

    /// With shards in this state.
    pub(crate) fn with(shards: Vec<Shard>, dataset: &Dataset, epoch: u64, ring: &Ring) -> Self {
        let mut dataset_epoch = Self { shards, ..Self::default() };
        dataset_epoch.derive(dataset, epoch, ring);
        dataset_epoch
    }

    /// Rebuilds the derived fields.
    pub(crate) fn derive(&mut self, dataset: &Dataset, epoch: u64, ring: &Ring) {
        self.order = dataset.epoch(epoch).order();
        self.positions = vec![0; self.order.len()];
        for (position, &shard) in (0..).zip(&self.order) {
            self.positions[shard as usize] = position;
        }
        let numbers = 0..self.shards.len() as u32;
        self.places = numbers.clone().map(|shard| place(&dataset.name, shard)).collect();
        self.around = numbers.collect();
        self.around.sort_unstable_by_key(|&shard| (self.places[shard as usize], shard));
        self.held.clear();
        self.finished = 0;
        for (number, shard) in (0..).zip(&self.shards) {
            match &shard.state {
                ShardState::Free => {}
                ShardState::Claimed(claim) => {
                    self.held.entry(claim.trainer.clone()).or_default().insert(number);
                }
                ShardState::Finished { .. } => self.finished += 1,
            }
        }
        self.prefer(ring);
    }

    /// Recomputes the preferred trainer of each free shard after the trainers changed.
    pub(crate) fn prefer(&mut self, ring: &Ring) {
        self.free.clear();
        let free = (0..).zip(&self.shards).filter(|shard| shard.1.state == ShardState::Free);
        let free: Vec<u32> = free.map(|shard| shard.0).collect();
        free.into_iter().for_each(|number| self.offer(number, ring));
    }

    /// Lists a free shard for the trainer that is preferred for it.
    fn offer(&mut self, number: u32, ring: &Ring) {
        let owner = ring.owner(self.places[number as usize]).map(str::to_owned);
        self.free.entry(owner).or_default().insert(self.positions[number as usize]);
    }

    fn withdraw(&mut self, number: u32, ring: &Ring) {
        let owner = ring.owner(self.places[number as usize]).map(str::to_owned);
        self.take_from(&owner, [self.positions[number as usize]]);
    }

    fn take_from(&mut self, owner: &Option<String>, positions: impl IntoIterator<Item = u32>) {
        let Some(free) = self.free.get_mut(owner) else { return };
        for at in positions {
            free.remove(&at);
        }
        if free.is_empty() {
            self.free.remove(owner);
        }
    }

    /// A trainer joins: the free shards of its arcs, and nothing else, become preferred for it.
    pub(crate) fn prefer_also(&mut self, trainer: &str, arcs: &[Arc]) {
        for arc in arcs {
            let free = |number: &u32| self.shards[*number as usize].state == ShardState::Free;
            let there = self.within(arc).filter(free);
            let there: Vec<u32> = there.map(|number| self.positions[number as usize]).collect();
            if !there.is_empty() {
                self.take_from(&arc.owner, there.iter().copied());
                self.free.entry(Some(trainer.to_owned())).or_default().extend(there);
            }
        }
    }

    /// Trainers left the ring: the free shards that were preferred for them, and nothing else, become preferred for
    /// others.
    pub(crate) fn prefer_no_more(&mut self, trainers: &BTreeSet<String>, ring: &Ring) {
        let gone = trainers.iter().filter_map(|name| self.free.remove(&Some(name.clone())));
        let positions: Vec<u32> = gone.flatten().collect();
        positions.into_iter().for_each(|at| self.offer(self.order[at as usize], ring));
    }

    /// The shards of an arc.
    fn within(&self, arc: &Arc) -> impl Iterator<Item = u32> + use<'_> {
        let upto = |at: u64| self.around.partition_point(|&n| self.places[n as usize] <= at);
        let (first, second) = match arc.after {
            None => (0..self.around.len(), 0..0),
            Some(after) if after < arc.upto => (upto(after)..upto(arc.upto), 0..0),
            Some(after) => (upto(after)..self.around.len(), 0..upto(arc.upto)),
        };
        self.around[first].iter().chain(&self.around[second]).copied()
    }

    /// The trainer for which a shard is preferred; empty if there is none.
    pub(crate) fn preferred<'a>(&self, shard: u32, ring: &'a Ring) -> &'a str {
        let place = self.places.get(shard as usize);
        place.and_then(|place| ring.owner(*place)).unwrap_or_default()
    }

    /// The free shards that a trainer is preferred for, in the epoch's order.
    pub(crate) fn free_of(&self, trainer: &str) -> Vec<u32> {
        let free = self.free.get(&Some(trainer.to_owned()));
        free.into_iter().flatten().map(|&at| self.order[at as usize]).collect()
    }

    /// The shard that the trainer gets: the first of its own in the epoch's order, or else the last one of the
    /// trainer with the most free shards.
    pub(crate) fn next_for(&self, trainer: &str) -> Option<u32> {
        let own = self.free.get(&Some(trainer.to_owned())).and_then(BTreeSet::first);
        let others = || {
            let most = self.free.values().rev().max_by_key(|free| free.len());
            most.and_then(BTreeSet::last)
        };
        own.or_else(others).map(|&at| self.order[at as usize])
    }

    /// Changes the state of a shard, and the derived fields.
    pub(crate) fn set_state(&mut self, number: u32, state: ShardState, ring: &Ring) {
        let Some(shard) = self.shards.get_mut(number as usize) else { return };
        match std::mem::replace(&mut shard.state, state.clone()) {
            ShardState::Free => self.withdraw(number, ring),
            ShardState::Claimed(claim) => {
                if let Some(held) = self.held.get_mut(&claim.trainer) {
                    held.remove(&number);
                    if held.is_empty() {
                        self.held.remove(&claim.trainer);
                    }
                }
            }
            ShardState::Finished { .. } => self.finished -= 1,
        }
        match state {
            ShardState::Free => self.offer(number, ring),
            ShardState::Claimed(claim) => {
                self.held.entry(claim.trainer).or_default().insert(number);
            }
            ShardState::Finished { .. } => self.finished += 1,
        }
    }

    /// Whether every shard is finished.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished as usize == self.shards.len()
    }

    /// Whether a shard is free.
    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// A checkpoint of this step is complete: seals what was done up to it, and what its ranks had read of the shards
    /// that they held. Returns the changed records, and whether the whole epoch is sealed.
    pub(crate) fn seal(
        &mut self,
        step: u64,
        progress: &BTreeMap<u32, u32>,
        dataset: &Dataset,
    ) -> (BTreeSet<u16>, bool) {
        let (mut changed, mut whole) = (BTreeSet::new(), true);
        for (number, shard) in (0..).zip(&mut self.shards) {
            if shard.seal(step, progress.get(&number).copied().unwrap_or(0)) {
                changed.insert(record_of(number));
            }
            whole &= shard.sealed == dataset.spec.shard_len(number);
        }
        (changed, whole)
    }

    /// The part of the epoch that a checkpoint completed now keeps.
    pub(crate) fn sealed(&self, dataset: &Dataset) -> SealedShards {
        let mut sealed =
            SealedShards { whole: vec![0; self.shards.len().div_ceil(8)], part: Vec::new() };
        for (number, shard) in (0u32..).zip(&self.shards) {
            if shard.sealed == dataset.spec.shard_len(number) {
                sealed.whole[number as usize / 8] |= 1 << (number % 8);
            } else if shard.sealed > 0 {
                sealed.part.push((number, shard.sealed));
            }
        }
        sealed
    }

    /// Counts of shards by state.
    pub(crate) fn counts(&self, dataset: &Dataset) -> DatasetEpochCounts {
        let claimed = self.held.values().map(|held| held.len() as u32).sum();
        let shards = self.shards.len() as u32;
        let sealed =
            |(number, shard): (u32, &Shard)| shard.sealed == dataset.spec.shard_len(number);
        DatasetEpochCounts {
            shards,
            free: shards - claimed - self.finished,
            claimed,
            finished: self.finished,
            sealed: (0..).zip(&self.shards).filter(|s| sealed(*s)).count() as u32,
        }
    }

    /// The shards of one record.
    pub(crate) fn record(&self, record: u16) -> Option<&[Shard]> {
        self.shards.chunks(SHARDS_PER_RECORD as usize).nth(usize::from(record))
    }

    /// The number of records.
    pub(crate) fn records(&self) -> u16 {
        self.shards.len().div_ceil(SHARDS_PER_RECORD as usize) as u16
    }
}

/// The record that has a shard.
pub(crate) fn record_of(shard: u32) -> u16 {
    (shard / SHARDS_PER_RECORD) as u16
}

/// The part of an epoch that a complete checkpoint contains.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SealedShards {
    /// Bit `n % 8` of byte `n / 8`: shard `n` is whole.
    pub(crate) whole: Vec<u8>,
    /// The number of samples of each of these shards.
    pub(crate) part: Vec<(u32, u32)>,
}

impl SealedShards {
    /// Restores the epoch as of the checkpoint: incomplete shards are free from their sealed position.
    pub(crate) fn reopen(&self, dataset: &Dataset) -> Vec<Shard> {
        let mut shards = vec![Shard::default(); dataset.spec.shards() as usize];
        for (number, shard) in (0u32..).zip(&mut shards) {
            let byte = self.whole.get(number as usize / 8).copied().unwrap_or(0);
            if byte >> (number % 8) & 1 == 1 {
                shard.sealed = dataset.spec.shard_len(number);
                shard.state = ShardState::Finished { token: None };
            }
        }
        for &(number, samples) in &self.part {
            if let Some(shard) = shards.get_mut(number as usize) {
                shard.sealed = samples;
            }
        }
        shards
    }
}

impl Shard {
    /// Checks the invariants of a shard of `len` samples.
    pub(crate) fn check(
        &self,
        len: u32,
        training: &crate::training::state::Training,
        tokens: &mut BTreeSet<Attempt>,
    ) -> Result<(), String> {
        let mut last = Mark { step: 0, samples: self.sealed };
        for mark in &self.marks {
            if mark.step < last.step || mark.samples <= last.samples {
                return Err(format!("its marks do not ascend: {:?}", self.marks));
            }
            if training.is_sealed(mark.step) {
                return Err(format!("{mark:?} is sealed already"));
            }
            last = *mark;
        }
        let whole = self.done() == len;
        match &self.state {
            ShardState::Finished { .. } if whole => Ok(()),
            ShardState::Free | ShardState::Claimed(_) if whole => Err("it is done and open".into()),
            ShardState::Finished { .. } => {
                Err(format!("it is finished at {} of {len}", self.done()))
            }
            ShardState::Free => Ok(()),
            ShardState::Claimed(claim) => {
                let trainer = training.trainers.get(&claim.trainer);
                if trainer.is_none_or(|trainer| trainer.incarnation.is_none()) {
                    return Err(format!("{} holds it and is not there", claim.trainer));
                }
                match tokens.insert(claim.token) {
                    true => Ok(()),
                    false => Err(format!("{} is held twice", claim.token)),
                }
            }
        }
    }
}
