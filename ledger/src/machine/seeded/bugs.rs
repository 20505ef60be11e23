//! What the ledger's seeded bugs share. Only builds with the feature `seeded-bugs` have it.
//!
//! Absent: the behavior of bugs that change rows (`batch/seeded_bugs.rs`).

// Some of these use types and methods that the ledger must not use.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use crate::batch::failure_record::{FailureRecord, Strikes};
use crate::kernel::id::SlotRef;
use crate::machine::command::HeldRows;
use crate::machine::ledger::Ledger;
use crate::machine::seeded::{Bug, seeded};
use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds of this member's own clock.
pub(crate) fn own_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// A row's failure record as in an image.
pub(crate) fn imaged_failure_record(record: &FailureRecord) -> FailureRecord {
    let mut record = record.clone();
    if seeded(Bug::StrikesNotInSnapshot) {
        record.strikes = Strikes::default();
    }
    record
}

impl Ledger {
    /// The last `max` rows that a slot holds, by attempt.
    pub fn last_held(&self, slot: SlotRef, mut max: u32) -> Vec<HeldRows> {
        let mut found = Vec::new();
        let queues = self.queues(slot.session);
        for held in queues.into_iter().nth(slot.slot.0 as usize).into_iter().flatten() {
            let mut rows = held.rows;
            let few = rows.take_first(max);
            max -= few.len() as u32;
            if !few.is_empty() {
                found.push(HeldRows { rows: few, ..held });
            }
        }
        found
    }
}
