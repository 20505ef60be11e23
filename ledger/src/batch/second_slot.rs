//! Shows readers which rows of a run wait for a slot other than the one that had them.
//!
//! *Invariant:* reading changes nothing. Rows of bisection groups are named; other rows are counted by slot, and no
//! row is visited. The reason why a run is stuck is empty unless the run has nothing else to give.
//! Absent: which groups and rows a slot does not get (`incident.rs`, `avoided_rows.rs`).

use crate::batch::incident::EndKind;
use crate::batch::run::Run;
use crate::kernel::counted::counted;
use crate::kernel::id::RunNo;
use crate::kernel::limits;
use crate::machine::ledger::Ledger;

/// The most slots to name with their rows.
const NAMED_MAX: usize = 3;
/// The most slots to check. If their rows wait, those of further slots are assumed to wait too.
const CHECKED_MAX: usize = 64;

impl Ledger {
    /// How many rows of a run that no slot has avoid the slots that failed them. Takes time in proportion to the run's
    /// bisection groups.
    pub fn rows_that_avoid_slots(&self, no: RunNo) -> u64 {
        let Some(run) = self.runs.get(&no).filter(|_| self.asks_a_second_slot()) else { return 0 };
        let groups = run.flight.groups.iter();
        let avoiding = groups.filter(|(number, _)| run.incident_of_group(**number).is_some());
        run.flight.avoided.listed() + avoiding.map(|(_, group)| group.rows.len()).sum::<u64>()
    }

    /// Describes the rows that wait for another slot; empty if any slot that asks now may get rows.
    pub(crate) fn waits_for_another_slot(&self, run: &Run) -> String {
        let others = run.grantable_beside_groups() > run.flight.avoided.listed();
        if !self.asks_a_second_slot() || others || run.room() == 0 {
            return String::new();
        }
        match (self.waiting_groups(run), self.waiting_rows(run)) {
            (Some(groups), Some(rows)) if groups.is_empty() || rows.is_empty() => groups + &rows,
            (Some(groups), Some(rows)) => format!("{groups}; {rows}"),
            _ => String::new(),
        }
    }

    /// The groups that wait; `None` if one does not.
    fn waiting_groups(&self, run: &Run) -> Option<String> {
        let mut waiting = Vec::new();
        for (number, group) in run.ready_groups() {
            let excluded = self.excluded_slot(run, number)?;
            if !self.another_slot_takes(run, excluded.0) {
                return None;
            }
            waiting.push((number, group, excluded));
        }
        let Some((number, group, (at, until))) = waiting.first() else {
            return Some(String::new());
        };
        let name = self.worker_name(at.session).map_or("", |name| name.1);
        let (slot, rows) = (at.slot, &group.rows);
        let noun = if rows.len() == 1 { "row" } else { "rows" };
        let what = match run.incident_of_group(*number).map(|incident| incident.end) {
            Some(EndKind::RowFailed) => format!("{noun} {rows} failed at {name} slot {slot}"),
            _ => format!("an engine of {name} slot {slot} died of {noun} {rows}"),
        };
        let seconds = until.0.saturating_sub(self.meta.clock().0).div_ceil(1000);
        let more = match waiting.len() {
            1 => String::new(),
            2 => "; 1 more group of rows waits too".to_owned(),
            groups => format!("; {} more groups of rows wait too", groups - 1),
        };
        let they_wait = they_wait(rows.len());
        Some(format!("{what}: {they_wait} for another slot, for {seconds} s at most{more}"))
    }

    /// The waiting rows outside of groups, counted by the slot that failed them last; `None` if some do not wait.
    fn waiting_rows(&self, run: &Run) -> Option<String> {
        let (mut named, mut more, mut all) = (Vec::new(), 0, 0);
        for (number, (worker, slot, rows)) in run.flight.avoided.by_slot().enumerate() {
            if number < CHECKED_MAX && !self.is_kept_from_own(run, worker, slot) {
                return None;
            }
            all += rows;
            let failed = counted(rows, "row");
            match number < NAMED_MAX {
                true => named.push(format!("{failed} failed at {worker} slot {slot}")),
                false => more += rows,
            }
        }
        if named.is_empty() {
            return Some(String::new());
        }
        if more > 0 {
            named.push(format!("{} failed at other slots", counted(more, "row")));
        }
        let (what, seconds) = (named.join(", "), limits::SECOND_SLOT_WAIT_MS / 1000);
        Some(format!("{what}: {} for another slot, for {seconds} s at most", they_wait(all)))
    }
}

fn they_wait(rows: u64) -> &'static str {
    if rows == 1 { "it waits" } else { "they wait" }
}
