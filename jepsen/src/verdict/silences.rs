//! Finds participants that the leader heard so often that they cannot have been silent for long.
//!
//! *Invariant:* an answered request was heard between its call and its answer. So the silence between two consecutive
//! signs of life lasts at most from the call of the first to the answer of the second. A new leader counts from its
//! own start, which only shortens a silence. The consequences of an earlier silence may take effect a little later.

use std::collections::BTreeMap;

/// A participant must have been heard this long before the queried time, so that the consequences of an earlier
/// silence are over.
pub(super) const SETTLED_NS: u64 = 3_000_000_000;

/// Signs of life by name, each with the interval in which it was heard.
#[derive(Default)]
pub(super) struct Signs<K>(BTreeMap<K, Vec<(u64, u64)>>);

impl<K: Ord> Signs<K> {
    /// Adds a sign of life between these two times.
    pub(super) fn add(&mut self, who: K, called_at: u64, answered_at: u64) {
        let signs = self.0.entry(who).or_default();
        let at = signs.partition_point(|sign| sign.0 <= called_at);
        signs.insert(at, (called_at, answered_at));
    }

    /// Whether it was certainly heard from `from` to `until`, never silent for `patience_ns`.
    pub(super) fn throughout(&self, who: &K, from: u64, until: u64, patience_ns: u64) -> bool {
        let (mut since, mut last) = (None, None);
        for &(called_at, answered_at) in self.0.get(who).into_iter().flatten() {
            if called_at >= until {
                break;
            }
            if last.is_none_or(|last| answered_at.saturating_sub(last) >= patience_ns) {
                since = Some(answered_at);
            }
            last = Some(called_at);
        }
        since.is_some_and(|since| since.saturating_add(SETTLED_NS) <= from)
            && last.is_some_and(|last| until.saturating_sub(last) < patience_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_possible_long_silence_means_not_heard_throughout() {
        let heard = |signs: &[(u64, u64)]| {
            let (mut all, s) = (Signs::default(), 1_000_000_000);
            signs.iter().for_each(|sign| all.add("a", sign.0 * s, sign.1 * s));
            all.throughout(&"a", 20 * s, 100 * s, 50 * s)
        };
        assert!(heard(&[(10, 12), (40, 45), (80, 85)]));
        assert!(heard(&[(80, 85), (10, 12), (40, 45)]), "in whatever order it was written down");
        assert!(!heard(&[(40, 45), (80, 85)]), "not from the beginning");
        assert!(!heard(&[(10, 12), (40, 45)]), "not until the end");
        assert!(!heard(&[(10, 12), (70, 75), (90, 95)]), "a silence");
        assert!(!heard(&[(10, 12), (40, 90), (95, 99)]), "an answer that came late");
        assert!(!heard(&[(17, 18), (40, 45), (80, 85)]), "just before");
        assert!(!heard(&[]));
    }
}
