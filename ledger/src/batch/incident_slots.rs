//! Which slots have incidents with a row, and which have deaths with rows of a run.
//!
//! *Invariant:* derived from the incidents of the slots in the index of offers. The rows of an incident are cut into
//! blocks whose lengths are powers of two and whose starts are multiples of their length, so a range of rows has few
//! blocks, and a row is in at most one block of each length. So a few lookups find the slots of a row, however many
//! slots have incidents. An entry counts the incidents of its slot that contain it, so adding or removing an incident
//! costs its own rows, and not those of the others.
//! Absent: which incidents count, and when they are removed (`slot_incidents.rs`).

use crate::batch::slot_incidents::SlotIncident;
use crate::kernel::id::{RunNo, SessionId, SlotNo, SlotRef};
use crate::kernel::rows::Rows;
use crate::kernel::visits::count_visit;
use std::collections::{BTreeMap, BTreeSet};

/// Longer blocks are cut: a slot holds at most this many rows.
const LEVEL_MAX: u32 = crate::kernel::limits::SLOT_ROWS_MAX.ilog2();

/// A block of rows of a run: its length as a power of two, and its start as a multiple of the length.
type Block = (RunNo, u32, u64);

const FIRST: SlotRef = SlotRef { session: SessionId(0), slot: SlotNo(0) };

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IncidentSlots {
    rows: BTreeMap<(Block, SlotRef), u32>,
    /// The slots whose engines died of rows of a run.
    deaths: BTreeMap<(RunNo, SlotRef), u32>,
}

fn count<K: Ord>(entries: &mut BTreeMap<K, u32>, key: K) {
    *entries.entry(key).or_default() += 1;
}

fn uncount<K: Ord>(entries: &mut BTreeMap<K, u32>, key: &K) {
    let Some(count) = entries.get_mut(key) else { return };
    *count -= 1;
    if *count == 0 {
        entries.remove(key);
    }
}

fn blocks(no: RunNo, rows: &Rows) -> impl Iterator<Item = Block> {
    rows.ranges().iter().flat_map(move |&(start, len)| {
        let (mut at, end) = (start, start + u64::from(len));
        std::iter::from_fn(move || {
            let left = end.checked_sub(at).filter(|left| *left > 0)?;
            let level = at.trailing_zeros().min(left.ilog2()).min(LEVEL_MAX);
            let block = (no, level, at >> level);
            at += 1u64 << level;
            Some(block)
        })
    })
}

fn blocks_of(incidents: &[SlotIncident]) -> impl Iterator<Item = Block> {
    let rows = incidents.iter().flat_map(|incident| &incident.rows);
    rows.flat_map(|(no, rows)| blocks(*no, rows))
}

/// The runs that have rows in the deaths among some incidents.
fn runs_of_deaths(incidents: &[SlotIncident]) -> impl Iterator<Item = RunNo> {
    incidents.iter().filter(|incident| incident.is_death()).flat_map(SlotIncident::runs)
}

impl IncidentSlots {
    /// A slot has these incidents too.
    pub(crate) fn add(&mut self, slot: SlotRef, incidents: &[SlotIncident]) {
        blocks_of(incidents).for_each(|block| count(&mut self.rows, (block, slot)));
        runs_of_deaths(incidents).for_each(|no| count(&mut self.deaths, (no, slot)));
    }

    /// Removes a slot's incidents. They must not have changed since they were added.
    pub(crate) fn remove(&mut self, slot: SlotRef, incidents: &[SlotIncident]) {
        blocks_of(incidents).for_each(|block| uncount(&mut self.rows, &(block, slot)));
        runs_of_deaths(incidents).for_each(|no| uncount(&mut self.deaths, &(no, slot)));
    }

    /// Whether the engine of another slot died of rows of a run.
    pub(crate) fn another_died_of(&self, no: RunNo, slot: SlotRef) -> bool {
        let died = self.deaths.range((no, FIRST)..).map(|entry| *entry.0);
        let died = died.take_while(|entry| entry.0 == no);
        died.inspect(|_| count_visit()).any(|entry| entry.1 != slot)
    }

    /// The slots that have incidents with a row.
    pub(crate) fn of_row(&self, no: RunNo, row: u64) -> BTreeSet<SlotRef> {
        let in_block = |level: u32| {
            let block: Block = (no, level, row >> level);
            let entries = self.rows.range((block, FIRST)..).map(|entry| *entry.0);
            entries.take_while(move |entry| entry.0 == block).map(|entry| entry.1)
        };
        (0..=LEVEL_MAX).flat_map(in_block).inspect(|_| count_visit()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::incident::EndKind;

    #[test]
    fn a_range_is_found_by_each_of_its_rows_and_by_no_other() {
        let lens = |start: u64| (1..70u32).step_by(2).map(move |len| (start, len));
        for (start, len) in (0..40u64).step_by(3).flat_map(lens) {
            let rows = vec![(RunNo(2), Rows::range(start, len))];
            let incidents = [SlotIncident::new(EndKind::EngineDied, rows)];
            let mut index = IncidentSlots::default();
            index.add(FIRST, &incidents);
            assert!(index.rows.len() <= 12, "{} blocks", index.rows.len());
            for row in 0..120 {
                let within = (start..start + u64::from(len)).contains(&row);
                assert_eq!(index.of_row(RunNo(2), row).len(), usize::from(within), "{row}");
                assert!(index.of_row(RunNo(1), row).is_empty());
            }
            index.remove(FIRST, &incidents);
            assert_eq!(index, IncidentSlots::default());
        }
    }

    #[test]
    fn removing_an_incident_leaves_the_others_of_its_slot() {
        let incident = |end, rows: Rows| SlotIncident::new(end, vec![(RunNo(2), rows)]);
        let failure = incident(EndKind::RowFailed, Rows::range(5, 1));
        let deaths = [3, 4].map(|len| incident(EndKind::EngineDied, Rows::range(5, len)));
        let mut index = IncidentSlots::default();
        index.add(FIRST, &deaths);
        index.add(FIRST, std::slice::from_ref(&failure));
        let other = SlotRef { session: SessionId(1), slot: SlotNo(0) };
        for death in deaths {
            assert!(
                index.another_died_of(RunNo(2), other) && !index.of_row(RunNo(2), 6).is_empty()
            );
            index.remove(FIRST, &[death]);
        }
        assert!(!index.another_died_of(RunNo(2), other) && index.of_row(RunNo(2), 6).is_empty());
        assert_eq!(index.of_row(RunNo(2), 5), BTreeSet::from([FIRST]));
        index.remove(FIRST, &[failure]);
        assert_eq!(index, IncidentSlots::default());
    }

    #[test]
    fn a_range_of_more_rows_than_a_slot_holds_is_found_too() {
        let rows = vec![(RunNo(2), Rows::range(1, 5 << LEVEL_MAX))];
        let mut index = IncidentSlots::default();
        index.add(FIRST, &[SlotIncident::new(EndKind::EngineDied, rows)]);
        for row in [1, 1 << LEVEL_MAX, 5 << LEVEL_MAX] {
            assert_eq!(index.of_row(RunNo(2), row).len(), 1, "{row}");
        }
        assert!(index.of_row(RunNo(2), (5 << LEVEL_MAX) + 1).is_empty());
    }
}
