//! How a mock trainer names the samples of several epochs, and which of them a job's state contains.
//!
//! *Invariant:* a sample of an epoch has one id, which encodes both.

use std::collections::BTreeMap;

/// Ids per epoch: more than any dataset of a test has samples.
const EPOCH_IDS: u64 = 1 << 32;

/// The id of a sample in an epoch.
pub fn sample_id(epoch: u64, sample: u64) -> u64 {
    epoch * EPOCH_IDS + sample
}

/// Decodes the ids of a checkpoint.
pub fn sample_ids(bytes: &[u8]) -> Vec<u64> {
    let words = bytes.chunks_exact(8).map(|word| word.try_into().map(u64::from_le_bytes));
    words.filter_map(Result::ok).collect()
}

/// Checks that each of `samples` samples is in once in each of `epochs` epochs; returns what is wrong.
pub fn not_once(ids: &[u64], epochs: u64, samples: u64) -> Option<String> {
    let mut times: BTreeMap<u64, u32> = BTreeMap::new();
    ids.iter().for_each(|id| *times.entry(*id).or_default() += 1);
    let wanted = (0..epochs).flat_map(|epoch| (0..samples).map(move |n| sample_id(epoch, n)));
    let mut wrong = Vec::new();
    for id in wanted {
        let times = times.remove(&id).unwrap_or(0);
        if times != 1 {
            wrong.push(format!("sample {} of epoch {}: {times}", id % EPOCH_IDS, id / EPOCH_IDS));
        }
    }
    wrong.extend(times.keys().map(|id| format!("id {id} is no sample's")));
    (!wrong.is_empty()).then(|| wrong.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_repeated_and_foreign_samples_are_found() {
        let mut ids: Vec<u64> = (0..2).flat_map(|e| (0..3).map(move |n| sample_id(e, n))).collect();
        assert_eq!(not_once(&ids, 2, 3), None);
        ids.swap_remove(4);
        ids.push(2);
        ids.push(7);
        let wrong = not_once(&ids, 2, 3).unwrap();
        assert_eq!(wrong, "sample 2 of epoch 0: 2, sample 1 of epoch 1: 0, id 7 is no sample's");
    }
}
