//! Shards of an epoch: their order, the trainer that each is preferred for, the claims, and what follows from a
//! claim.

use super::{Cell, Job, refuse};
use crate::naive::{Model, Outcome};
use rollout_ledger::id::Attempt;
use rollout_ledger::{DatasetSpec, JobRefusal, Reply, ShardOp, ShardRef, TrainerRef};

fn first_u64(hasher: &blake3::Hasher) -> u64 {
    u64::from_le_bytes(hasher.finalize().as_bytes()[..8].try_into().unwrap())
}

fn point(what: &str, name: &str, number: u32) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(what.as_bytes());
    hasher.update(&(name.len() as u32).to_le_bytes());
    hasher.update(name.as_bytes()).update(&number.to_le_bytes());
    first_u64(&hasher)
}

/// The order of an epoch, by its definition.
fn order(dataset: &str, spec: &DatasetSpec, epoch: u64) -> Vec<u32> {
    let shards = spec.samples.div_ceil(u64::from(spec.shard_samples)) as u32;
    let mut order: Vec<u32> = (0..shards).collect();
    if spec.in_order {
        return order;
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"rollout epoch order 1").update(&(dataset.len() as u32).to_le_bytes());
    hasher.update(dataset.as_bytes()).update(&spec.seed.to_le_bytes());
    hasher.update(&epoch.to_le_bytes()).update(&shards.to_le_bytes());
    let mut bytes = hasher.finalize_xof();
    for place in (1..shards as usize).rev() {
        let mut number = [0; 8];
        bytes.fill(&mut number);
        // None of so few is refused.
        order.swap(place, (u64::from_le_bytes(number) % (place as u64 + 1)) as usize);
    }
    order
}

fn blank(spec: &DatasetSpec) -> Vec<Vec<Cell>> {
    let samples = vec![Cell::default(); spec.samples as usize];
    samples.chunks(spec.shard_samples as usize).map(<[Cell]>::to_vec).collect()
}

impl Job {
    /// The trainer for which a shard is preferred.
    pub(super) fn owner(&self, dataset: &str, shard: u32) -> Option<&String> {
        let place = point("rollout ring shard 1", dataset, shard);
        let points = self
            .world
            .iter()
            .flat_map(|name| (0..150).map(move |n| (point("rollout ring 1", name, n), name)));
        // The nearest point at or after the place, round the circle.
        points.min_by_key(|(at, name)| (at.wrapping_sub(place), *name)).map(|found| found.1)
    }

    pub(super) fn shard(&self, at: &(String, u64, u32)) -> Option<&Vec<Cell>> {
        self.cells.get(&(at.0.clone(), at.1))?.get(at.2 as usize)
    }

    fn is_free(&self, at: &(String, u64, u32)) -> bool {
        !self.claims.contains_key(at)
            && self.shard(at).is_some_and(|s| s.iter().any(|c| !c.is_in()))
    }

    fn next(&self, trainer: &str, dataset: &str, spec: &DatasetSpec, epoch: u64) -> Option<u32> {
        let free: Vec<u32> = order(dataset, spec, epoch)
            .into_iter()
            .filter(|shard| self.is_free(&(dataset.to_owned(), epoch, *shard)))
            .collect();
        let owned = |name: &str| {
            let mine = free.iter().filter(|s| self.owner(dataset, **s).is_some_and(|o| o == name));
            mine.copied().collect::<Vec<u32>>()
        };
        if let Some(first) = owned(trainer).first() {
            return Some(*first);
        }
        let most = self.world.iter().map(|name| (owned(name).len(), name));
        let (_, name) = most.max_by_key(|(n, name)| (*n, std::cmp::Reverse(*name)))?;
        owned(name).last().copied()
    }

    /// The progress reported to an open checkpoint for a shard.
    pub(super) fn said(&self, at: &(String, u64, u32)) -> Option<(usize, u64)> {
        let open = self.checkpoints.iter().filter(|c| c.is_open());
        let said = open.flat_map(|c| c.progress.iter().map(move |p| (p, c.step)));
        said.filter(|(p, _)| p.dataset == at.0 && p.epoch == at.1 && p.shard == at.2)
            .map(|(p, step)| (p.samples as usize, step))
            .max()
    }

    pub(super) fn is_done(&self, dataset: &str, epoch: u64) -> bool {
        let cells = self.cells.get(&(dataset.to_owned(), epoch));
        cells.is_some_and(|shards| shards.iter().flatten().all(|c| c.sealed))
    }
}

impl Model {
    pub(crate) fn shard(&mut self, op: ShardOp) -> Outcome {
        match op {
            ShardOp::Claim { by, dataset, epoch } => self.claim_shard(&by, dataset, epoch),
            ShardOp::Finish { by, shard, step } => self.end_claim(&by, shard, None, step),
            ShardOp::Release { by, shard, samples, step } => {
                self.end_claim(&by, shard, Some(samples as usize), step)
            }
        }
    }

    fn claim_shard(&mut self, by: &TrainerRef, dataset: String, epoch: u64) -> Outcome {
        self.heard(by)?;
        let Some(spec) = self.trainings.datasets.get(&dataset).cloned() else {
            return refuse(JobRefusal::DatasetUnknown);
        };
        let token = Attempt::at(self.index, self.granted);
        let job = self.heard(by)?;
        job.cells.entry((dataset.clone(), epoch)).or_insert_with(|| blank(&spec));
        let Some(number) = job.next(&by.trainer, &dataset, &spec, epoch) else {
            let cells = job.cells[&(dataset, epoch)].iter().flatten();
            return Ok(Reply::NoShard { finished: { cells }.all(Cell::is_in) });
        };
        let at = (dataset, epoch, number);
        let from = job.shard(&at).map_or(0, |s| s.iter().filter(|c| c.is_in()).count()) as u32;
        job.claims.insert(at, (by.trainer.clone(), token));
        self.granted += 1;
        Ok(Reply::Shard { number, token, from })
    }

    fn end_claim(
        &mut self,
        by: &TrainerRef,
        shard: ShardRef,
        samples: Option<usize>,
        step: u64,
    ) -> Outcome {
        self.heard(by)?;
        if !self.trainings.datasets.contains_key(&shard.dataset) {
            return refuse(JobRefusal::DatasetUnknown);
        }
        let job = self.heard(by)?;
        let at = (shard.dataset.clone(), shard.epoch, shard.number);
        let epoch = (shard.dataset, shard.epoch);
        if job.is_done(&epoch.0, epoch.1) {
            return match samples {
                None => Ok(Reply::ShardEnded { epoch_finished: true }),
                Some(_) => refuse(JobRefusal::ClaimStale),
            };
        }
        let finished = |job: &Job| job.cells[&epoch].iter().flatten().all(Cell::is_in);
        match job.claims.get(&at) {
            Some(claim) if *claim == (by.trainer.clone(), shard.token) => {}
            None if samples.is_none() && job.by_token.get(&at) == Some(&shard.token) => {
                return Ok(Reply::ShardEnded { epoch_finished: finished(job) });
            }
            _ => return refuse(JobRefusal::ClaimStale),
        }
        let cells = job.shard(&at).expect("claimed");
        let (len, done) = (cells.len(), cells.iter().filter(|c| c.is_in()).count());
        let samples = samples.unwrap_or(len);
        let least = done.max(job.said(&at).map_or(0, |said| said.0));
        if samples < least || samples > len {
            let (shard, samples) = (shard.number, samples as u64);
            let (least, most) = (least as u32, len as u32);
            return refuse(JobRefusal::Progress { shard, samples, least, most });
        }
        let mark = cells.iter().filter(|c| !c.sealed).filter_map(|c| c.step).max();
        if samples > done {
            job.check_step(&by.trainer, step, mark.unwrap_or(0))?;
            let trainer = job.trainers.get_mut(&by.trainer).expect("heard");
            trainer.contributed = trainer.contributed.max(Some(step));
        }
        let cells = &mut job.cells.get_mut(&epoch).expect("claimed")[at.2 as usize];
        for cell in &mut cells[done..samples] {
            assert!(!cell.is_in(), "a sample of {at:?} is in twice");
            (cell.step, cell.in_then) = (Some(step), samples as u32);
        }
        job.claims.remove(&at);
        job.ended.push(shard.token);
        if samples == len {
            job.by_token.insert(at, shard.token);
        }
        Ok(Reply::ShardEnded { epoch_finished: finished(job) })
    }
}
