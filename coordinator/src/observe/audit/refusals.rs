//! Bounds the audit lines of refused requests whose caller has a certificate. Nothing of such a request was applied.
//!
//! *Invariant:* the audit log has at most [`LINES_MAX`] such lines of one identity in each [`WINDOW`]. The next line
//! after that says how many refusals have none. Without this bound, one client could rotate the audit files and so
//! delete the lines about all others. A request that was applied, or may have been, always has its line.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Lines of one identity in a window.
pub(super) const LINES_MAX: u32 = 10;
pub(super) const WINDOW: Duration = Duration::from_secs(1);
/// Identities with a count of their own. If its window is over, an entry makes room for another one, and its refusals
/// without a line are added to a count that all further identities share.
const IDENTITIES_MAX: usize = 1024;

struct Count {
    since: Instant,
    lines: u32,
    unlogged: u64,
}

/// Counts refusals by identity.
#[derive(Default)]
pub(super) struct Refusals(Mutex<HashMap<String, Count>>);

impl Refusals {
    /// If this refusal gets a line: how many have had none since the last line.
    pub(super) fn line_due(&self, identity: &str, now: Instant) -> Option<u64> {
        self.count(identity, now, |count| {
            if is_over(count, now) {
                (count.since, count.lines) = (now, 0);
            }
            if count.lines >= LINES_MAX {
                count.unlogged += 1;
                return None;
            }
            count.lines += 1;
            Some(std::mem::take(&mut count.unlogged))
        })
    }

    /// Counts a refusal that gets no line.
    pub(super) fn count_unlogged(&self, identity: &str, now: Instant) {
        self.count(identity, now, |count| count.unlogged += 1);
    }

    fn count<T>(&self, identity: &str, now: Instant, add: impl FnOnce(&mut Count) -> T) -> T {
        let mut counts = self.0.lock();
        if counts.len() >= IDENTITIES_MAX && !counts.contains_key(identity) {
            make_room(&mut counts, now);
        }
        let key = match counts.len() >= IDENTITIES_MAX && !counts.contains_key(identity) {
            true => "",
            false => identity,
        };
        add(counts.entry(key.to_owned()).or_insert(Count { since: now, lines: 0, unlogged: 0 }))
    }
}

fn make_room(counts: &mut HashMap<String, Count>, now: Instant) {
    let mut unlogged = 0;
    counts.retain(|identity, count| {
        let stays = identity.is_empty() || !is_over(count, now);
        unlogged += if stays { 0 } else { count.unlogged };
        stays
    });
    if unlogged > 0 {
        let shared = Count { since: now, lines: 0, unlogged: 0 };
        counts.entry(String::new()).or_insert(shared).unlogged += unlogged;
    }
}

fn is_over(count: &Count, now: Instant) -> bool {
    now.saturating_duration_since(count.since) >= WINDOW
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_identity_gets_its_lines_and_others_theirs() {
        let (refusals, begin) = (Refusals::default(), Instant::now());
        let told = (0..1000).filter(|_| refusals.line_due("client/loud", begin).is_some()).count();
        assert_eq!(told, LINES_MAX as usize);
        assert_eq!(refusals.line_due("client/quiet", begin), Some(0));
        let later = begin + WINDOW;
        assert_eq!(refusals.line_due("client/loud", later), Some(1000 - u64::from(LINES_MAX)));
        assert_eq!(refusals.line_due("client/loud", later), Some(0));
        (0..3).for_each(|_| refusals.count_unlogged("client/loud", later));
        assert_eq!(refusals.line_due("client/loud", later), Some(3), "what had no line counts too");
    }

    #[test]
    fn identities_that_were_over_their_bound_once_make_room_for_others() {
        let (refusals, begin) = (Refusals::default(), Instant::now());
        for n in 0..IDENTITIES_MAX {
            let identity = format!("client/loud{n}");
            for _ in 0..=LINES_MAX {
                refusals.line_due(&identity, begin);
            }
        }
        let later = begin + WINDOW;
        let told = (0..100).filter(|n| refusals.line_due(&format!("client/c{n}"), later).is_some());
        assert_eq!(told.count(), 100);
        let shared = refusals.0.lock().get("").map(|count| count.unlogged);
        assert_eq!(shared, Some(IDENTITIES_MAX as u64), "one each");
    }

    #[test]
    fn many_identities_take_bounded_room_and_no_more_lines() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let told =
            (0..20_000).filter(|n| refusals.line_due(&format!("client/c{n}"), now).is_some());
        assert_eq!(told.count(), IDENTITIES_MAX + LINES_MAX as usize);
        assert!(refusals.0.lock().len() <= IDENTITIES_MAX + 1);
    }
}
