//! The order in which an epoch goes through the shards of a dataset.
//!
//! *Invariant:* the order is a permutation of all shards that depends on the dataset's name and seed, on the epoch
//! and on the number of shards, and on nothing else; the order that a version computes never changes (the vectors
//! below). Integers only.

use crate::training::dataset::DatasetSpec;

/// The order version of new datasets.
pub const ORDER_VERSION: u32 = 1;

/// The inputs of an epoch's order and its shards' seeds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EpochOf<'a> {
    pub(crate) dataset: &'a str,
    pub(crate) spec: &'a DatasetSpec,
    pub(crate) epoch: u64,
}

impl EpochOf<'_> {
    fn hasher(&self, what: &str) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new();
        hasher.update(what.as_bytes());
        hasher.update(&(self.dataset.len() as u32).to_le_bytes());
        hasher.update(self.dataset.as_bytes());
        hasher.update(&self.spec.seed.to_le_bytes());
        hasher.update(&self.epoch.to_le_bytes());
        hasher
    }

    /// The shards in the order of the epoch: Fisher and Yates' shuffle, from the last place down, with numbers from
    /// blake3's output, except for numbers that would favor some shards.
    pub(crate) fn order(&self) -> Vec<u32> {
        let shards = self.spec.shards();
        let mut order: Vec<u32> = (0..shards).collect();
        if self.spec.in_order {
            return order;
        }
        let mut hasher = self.hasher("rollout epoch order 1");
        hasher.update(&shards.to_le_bytes());
        let mut numbers = Numbers(hasher.finalize_xof());
        for place in (1..order.len()).rev() {
            let other = numbers.below(place as u64 + 1);
            order.swap(place, other as usize);
        }
        order
    }

    /// A seed by which a reader may order the samples of a shard.
    pub(crate) fn shard_seed(&self, shard: u32) -> u64 {
        let mut hasher = self.hasher("rollout shard seed 1");
        hasher.update(&shard.to_le_bytes());
        first_u64(hasher.finalize().as_bytes())
    }
}

/// The first eight bytes of a digest as a number.
pub(crate) fn first_u64(digest: &[u8; 32]) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first)
}

struct Numbers(blake3::OutputReader);

impl Numbers {
    /// A uniformly distributed number below `bound`, which is 1 or more.
    fn below(&mut self, bound: u64) -> u64 {
        // The largest multiple of the bound that fits: above it, some numbers would be more likely.
        let fair = u64::MAX - u64::MAX % bound;
        loop {
            let mut bytes = [0; 8];
            self.0.fill(&mut bytes);
            let number = u64::from_le_bytes(bytes);
            if number < fair {
                return number % bound;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(shards: u64, seed: u64) -> DatasetSpec {
        DatasetSpec { samples: shards * 10, shard_samples: 10, seed, ..DatasetSpec::default() }
    }

    fn order(shards: u64, seed: u64, epoch: u64) -> Vec<u32> {
        EpochOf { dataset: "pile", spec: &spec(shards, seed), epoch }.order()
    }

    #[test]
    fn the_orders_of_version_1_are_these_for_ever() {
        let orders = [order(12, 42, 0), order(12, 42, 1), order(12, 7, 0)];
        let of = EpochOf { dataset: "pile", spec: &spec(12, 42), epoch: 3 };
        let seeds = [of.shard_seed(0), of.shard_seed(11)];
        let long: Vec<u8> = order(65_536, 1, 9).iter().flat_map(|s| s.to_le_bytes()).collect();
        let long = blake3::hash(&long).to_hex();
        let found = (orders.each_ref().map(Vec::as_slice), seeds, long.as_str());
        assert_eq!(found, (VECTORS.each_ref().map(<[u32; 12]>::as_slice), SEEDS, LONG));
    }

    #[test]
    fn every_epoch_has_every_shard_once() {
        for shards in [1, 2, 3, 64, 1000] {
            for epoch in 0..4 {
                let mut all = order(shards, 5, epoch);
                all.sort_unstable();
                assert_eq!(all, (0..shards as u32).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn in_order_is_by_number() {
        let spec = DatasetSpec { in_order: true, ..spec(5, 3) };
        assert_eq!(EpochOf { dataset: "x", spec: &spec, epoch: 8 }.order(), [0, 1, 2, 3, 4]);
    }

    const VECTORS: [[u32; 12]; 3] = [
        [1, 0, 6, 5, 8, 9, 11, 3, 10, 2, 7, 4],
        [0, 3, 6, 10, 9, 8, 1, 5, 4, 11, 7, 2],
        [3, 9, 11, 7, 8, 2, 0, 5, 6, 1, 10, 4],
    ];
    const SEEDS: [u64; 2] = [8_346_202_251_287_269_346, 16_197_572_682_966_889_262];
    const LONG: &str = "e4311e467b563d0774449a8e2a7a39943ea8734015cee549ff24e1ae36a111fd";
}
