//! Which trainer a shard is preferred for: consistent hashing with virtual nodes.
//!
//! *Invariant:* a shard's owner depends on its dataset's name, its number and the names of the trainers alone. When a
//! trainer goes, only its own shards move; when one comes, shards move to it alone, those of its arcs
//! ([`Ring::arcs_of`]). A preference decides nothing: the claims do ([`crate::training::dataset_epoch`]).

use crate::training::shard_order::first_u64;
use std::collections::{BTreeMap, BTreeSet};

/// Points of one trainer.
pub(crate) const POINTS: u32 = 150;

/// The trainers on a circle of 64-bit numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ring {
    /// If two trainers share a point, the first by name owns it, so that the order of joining does not matter.
    points: BTreeMap<u64, BTreeSet<String>>,
}

/// A part of the circle that a joining trainer takes over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arc {
    /// It begins after this place; `None`: it is the whole circle.
    pub(crate) after: Option<u64>,
    /// Its last point; the arc wraps around if this is not after its beginning.
    pub(crate) upto: u64,
    /// Its previous owner; `None` if there are no trainers.
    pub(crate) owner: Option<String>,
}

fn point(trainer: &str, number: u32) -> u64 {
    hash("rollout ring 1", trainer, number)
}

/// The position of a shard on the circle.
pub(crate) fn place(dataset: &str, shard: u32) -> u64 {
    hash("rollout ring shard 1", dataset, shard)
}

fn hash(what: &str, name: &str, number: u32) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(what.as_bytes());
    hasher.update(&(name.len() as u32).to_le_bytes());
    hasher.update(name.as_bytes());
    hasher.update(&number.to_le_bytes());
    first_u64(hasher.finalize().as_bytes())
}

impl Ring {
    pub(crate) fn of<'a>(trainers: impl IntoIterator<Item = &'a String>) -> Self {
        let mut ring = Self::default();
        trainers.into_iter().for_each(|name| ring.add(name));
        ring
    }

    pub(crate) fn add(&mut self, trainer: &str) {
        for number in 0..POINTS {
            self.points.entry(point(trainer, number)).or_default().insert(trainer.to_owned());
        }
    }

    pub(crate) fn remove(&mut self, trainer: &str) {
        for number in 0..POINTS {
            let point = point(trainer, number);
            if let Some(here) = self.points.get_mut(&point) {
                here.remove(trainer);
                if here.is_empty() {
                    self.points.remove(&point);
                }
            }
        }
    }

    /// The arcs that a trainer would take over by joining. Arcs may overlap.
    pub(crate) fn arcs_of(&self, trainer: &str) -> Vec<Arc> {
        let Some((&last, _)) = self.points.last_key_value() else {
            return vec![Arc { after: None, upto: u64::MAX, owner: None }];
        };
        let points = (0..POINTS).map(|number| point(trainer, number));
        let first_there = |at: &u64| {
            let there = self.points.get(at).and_then(BTreeSet::first);
            there.is_none_or(|there| trainer < there.as_str())
        };
        let arc = |upto: u64| {
            let before = self.points.range(..upto).next_back().map_or(last, |(before, _)| *before);
            // With a single point, at this place, there is nothing in between.
            let after = Some(before).filter(|before| *before != upto);
            Arc { after, upto, owner: self.owner(upto).map(str::to_owned) }
        };
        points.filter(first_there).map(arc).collect()
    }

    /// The trainer of the first point at or after the place; `None` if there are no trainers.
    pub(crate) fn owner(&self, place: u64) -> Option<&str> {
        #[cfg(test)]
        LOOK_UPS.with(|count| count.set(count.get() + 1));
        let mut after = self.points.range(place..).chain(&self.points);
        after.next().and_then(|(_, here)| here.first()).map(String::as_str)
    }
}

#[cfg(test)]
thread_local! {
    /// How often this thread has looked up an owner: the cost of a change of the trainers.
    pub(crate) static LOOK_UPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners(ring: &Ring) -> Vec<String> {
        (0..2000).map(|shard| ring.owner(place("pile", shard)).unwrap().to_owned()).collect()
    }

    fn names(count: u32) -> Vec<String> {
        (0..count).map(|n| format!("t{n}")).collect()
    }

    #[test]
    fn only_the_shards_of_a_trainer_that_goes_move() {
        let names = names(8);
        let mut ring = Ring::of(&names);
        let before = owners(&ring);
        for gone in &names {
            ring.remove(gone);
            for (was, is) in before.iter().zip(owners(&ring)) {
                assert!(*was == is || was == gone, "{was} lost a shard to {is} when {gone} went");
            }
            ring.add(gone);
            assert_eq!(owners(&ring), before, "{gone} got its own back");
        }
    }

    #[test]
    fn a_trainer_has_about_its_share() {
        let ring = Ring::of(&names(8));
        let all = owners(&ring);
        for name in names(8) {
            let share = all.iter().filter(|owner| **owner == name).count();
            assert!((150..=350).contains(&share), "{name} has {share} of 2000");
        }
    }

    #[test]
    fn points_and_places_are_these_for_ever() {
        assert_eq!([point("t0", 0), point("t0", 149), place("pile", 7)], VECTORS);
        assert_eq!(Ring::default().owner(7), None);
    }

    const VECTORS: [u64; 3] =
        [12_753_238_505_594_802_383, 4_271_990_572_238_903_105, 1_328_052_584_436_164_145];
}
