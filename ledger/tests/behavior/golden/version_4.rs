//! Records that a member writes from cluster version 4 on, and not before.
//!
//! *Invariant:* version 3 writes none of them, so a member of an older build can read its image.

use super::{Records, hex, lock};
use crate::broken_workers::two_failed;
use rollout_ledger::Ledger;

fn records(ledger: &Ledger) -> Records {
    let mut records = Records::new();
    ledger.for_each_record(|key, value| records.push((key.to_vec(), value.to_vec())));
    records
}

#[test]
fn the_bytes_of_a_row_that_two_slots_failed_are_locked() {
    let lines = |version: u32| -> Vec<String> {
        let (fleet, _, _) = two_failed(version);
        let records = records(&fleet.ledger);
        let loaded = Ledger::load(records.clone()).expect("whole");
        loaded.check_invariants().expect("holds");
        assert_eq!(loaded.state_digest(), fleet.ledger.state_digest());
        let rows = records.iter().filter(|(key, _)| key[0] == b'T');
        rows.map(|(key, value)| format!("T {} {}", hex(key), hex(value))).collect()
    };
    let (before, now) = (lines(3), lines(4));
    assert!(before.len() == 1 && now.len() == 1 && now[0].starts_with(&before[0]), "{before:?}");
    assert!(now[0].len() > before[0].len(), "the first slot that failed it follows");
    lock("records_4.txt", &now);
}
