//! Owns: the keys that a client waits for, and which of them have been seen.
//!
//! Invariant: a key that was seen once is not waited for again, whatever happens to it, as in TCPStore.
//! Absent: the wait itself.

use bytes::Bytes;
use parking_lot::Mutex;
use rollout_proto::v1;

/// Several keys or queues that a client waits for.
pub struct Waiting {
    awaited: Vec<v1::StoreAwaited>,
    left: Mutex<Vec<v1::StoreAwaited>>,
}

impl Waiting {
    /// A wait for all of these; none has been seen yet.
    pub fn new(awaited: Vec<v1::StoreAwaited>) -> Self {
        Self { left: Mutex::new(awaited.clone()), awaited }
    }

    /// Waits for all of them again.
    pub fn again(&self) {
        self.left.lock().clone_from(&self.awaited);
    }

    /// How many there are in total.
    pub fn total(&self) -> usize {
        self.awaited.len()
    }

    /// The keys that have not been seen yet.
    pub fn missing(&self) -> Vec<Bytes> {
        self.left.lock().iter().map(|awaited| awaited.key.clone()).collect()
    }

    pub(crate) fn left(&self) -> Vec<v1::StoreAwaited> {
        self.left.lock().clone()
    }

    /// Marks those at these positions of the remaining ones as seen.
    pub(crate) fn saw(&self, seen: &[u32]) {
        let mut at = 0..;
        let not_seen = |_: &v1::StoreAwaited| at.next().is_some_and(|at| !seen.contains(&at));
        self.left.lock().retain(not_seen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::present;

    #[test]
    fn a_key_that_was_seen_is_not_waited_for_again() {
        let keys = ["a", "b", "c", "b"].map(|key| present(Bytes::from_static(key.as_bytes())));
        let waiting = Waiting::new(keys.to_vec());
        waiting.saw(&[]);
        assert_eq!(waiting.missing(), ["a", "b", "c", "b"]);
        waiting.saw(&[0, 2]);
        assert_eq!((waiting.missing(), waiting.total()), (vec!["b".into(), "b".into()], 4));
        waiting.saw(&[1, 7]);
        assert_eq!(waiting.missing(), ["b"]);
        waiting.again();
        assert_eq!(waiting.missing().len(), 4);
    }
}
