//! Sets of small numbers as words of bits.

pub(super) fn get(words: &[u64], index: usize) -> bool {
    words[index / 64] >> (index % 64) & 1 == 1
}

pub(super) fn set(words: &mut [u64], index: usize) {
    words[index / 64] |= 1 << (index % 64);
}

pub(super) fn clear(words: &mut [u64], index: usize) {
    words[index / 64] &= !(1 << (index % 64));
}

pub(super) fn intersect(a: &[u64], b: &[u64]) -> bool {
    a.iter().zip(b).any(|(a, b)| a & b != 0)
}

/// Whether `a` is a subset of `b`; missing words count as empty.
pub(super) fn subset(a: &[u64], b: &[u64]) -> bool {
    a.iter().enumerate().all(|(i, a)| a & !b.get(i).copied().unwrap_or(0) == 0)
}

/// The numbers below `end` that are not in the set, from those of word `low` on.
pub(super) fn zeros_from(words: &[u64], low: usize, end: usize) -> impl Iterator<Item = usize> {
    words[low..]
        .iter()
        .zip(low..)
        .flat_map(|(word, at)| {
            let mut free = !word;
            std::iter::from_fn(move || {
                let bit = free.trailing_zeros() as usize;
                (free != 0).then(|| {
                    free &= free - 1;
                    at * 64 + bit
                })
            })
        })
        .take_while(move |&index| index < end)
}
