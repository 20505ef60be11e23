//! Ids of objects that the API creates.
//!
//! *Invariant:* ids begin with the time of their creation, so the order of ids is that of creation, and a list may
//! continue after the id of an object that no longer exists. Clocks of members differ a little, and so does the order.

use rollout_ledger::UPLOAD_ID_DRAWN;
use std::time::{SystemTime, UNIX_EPOCH};

/// Hexadecimal digits of the milliseconds since 1970.
const TIME_DIGITS: usize = 12;
const RANDOM_DIGITS: usize = UPLOAD_ID_DRAWN - TIME_DIGITS;

/// A new id: the prefix, the time and random digits.
pub(super) fn new_id(prefix: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let now = now & ((1 << (4 * TIME_DIGITS)) - 1);
    let random = random(RANDOM_DIGITS);
    format!("{prefix}{now:0TIME_DIGITS$x}{random}")
}

/// Random hexadecimal digits, at most 32.
pub(super) fn random(digits: usize) -> String {
    let mut text = format!("{:032x}", rand::random::<u128>());
    text.truncate(digits);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_a_fixed_length_and_begins_with_the_time() {
        let ids: Vec<_> = (0..3).map(|_| new_id("file-")).collect();
        for id in &ids {
            assert_eq!(id.len(), "file-".len() + UPLOAD_ID_DRAWN, "{id}");
        }
        assert!(ids[0] != ids[1] && ids[1] != ids[2]);
        let time = |id: &str| id["file-".len()..][..TIME_DIGITS].to_owned();
        assert!(time(&ids[0]) <= time(&ids[2]));
    }
}
