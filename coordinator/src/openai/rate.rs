//! Owns: the requests per second of each key on this member.
//!
//! Invariant: in any time of `t` seconds, a key with a limit of `n` makes at most `n * (t + 1)` requests here. Members
//! count by themselves, so a key that uses all members may make as many on each.
//! Absent: other limits of keys, which the ledger enforces.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Keys that are counted at a time: as many as a cluster can have.
const KEYS_MAX: usize = 16_384;
/// A key that has made no request for this long may make a second's worth at once.
const BURST: Duration = Duration::from_secs(1);

/// When each key's requests so far are paid for, at its rate. A key whose time has passed has no entry or an old one.
#[derive(Default)]
pub(super) struct Rates(Mutex<HashMap<String, Instant>>);

impl Rates {
    /// Counts a request of a key that may make `per_second`; 0 is no limit.
    ///
    /// # Errors
    /// The key is over its limit: how long it must wait.
    pub(super) fn take(&self, key: &str, per_second: u32, now: Instant) -> Result<(), Duration> {
        if per_second == 0 {
            return Ok(());
        }
        let cost = BURST / per_second;
        let mut paid_at = self.0.lock();
        let paid = paid_at.get(key).copied().filter(|paid| *paid > now).unwrap_or(now) + cost;
        let ahead = paid - now;
        if ahead > BURST {
            return Err(ahead - BURST);
        }
        if let Some(entry) = paid_at.get_mut(key) {
            *entry = paid;
            return Ok(());
        }
        if paid_at.len() >= KEYS_MAX {
            paid_at.retain(|_, paid| *paid > now);
        }
        if paid_at.len() >= KEYS_MAX {
            return Err(BURST);
        }
        paid_at.insert(key.to_owned(), paid);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_makes_a_seconds_worth_of_requests_at_once_and_then_its_rate() {
        let (rates, begin) = (Rates::default(), Instant::now());
        for _ in 0..10 {
            rates.take("k1", 10, begin).expect("a burst");
        }
        assert_eq!(rates.take("k1", 10, begin), Err(Duration::from_millis(100)));
        rates.take("k2", 10, begin).expect("another key");
        let later = begin + Duration::from_millis(100);
        rates.take("k1", 10, later).expect("one more after a tenth of a second");
        assert!(rates.take("k1", 10, later).is_err());
        let hour = begin + Duration::from_secs(3600);
        for _ in 0..10 {
            rates.take("k1", 10, hour).expect("time does not add up");
        }
        assert!(rates.take("k1", 10, hour).is_err());
    }

    #[test]
    fn a_key_without_a_limit_is_not_counted() {
        let (rates, now) = (Rates::default(), Instant::now());
        for _ in 0..100_000 {
            rates.take("k1", 0, now).expect("no limit");
        }
        assert!(rates.0.lock().is_empty());
    }

    #[test]
    fn the_number_of_counted_keys_is_bounded() {
        let (rates, now) = (Rates::default(), Instant::now());
        for key in 0..KEYS_MAX {
            rates.take(&key.to_string(), 1, now).expect("room");
        }
        assert!(rates.take("one more", 1, now).is_err());
        rates.take("one more", 1, now + BURST).expect("keys that have paid need no entry");
        assert_eq!(rates.0.lock().len(), 1);
    }
}
