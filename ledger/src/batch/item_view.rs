//! Single rows for their users: the state of each, its holder, and its history.
//!
//! *Invariant:* a row shows in exactly one state, the one by which the invariants of a run know it. A page costs in
//! proportion to the rows that it returns, and to the segments that it skips.

use crate::batch::failure_record::FailureRecord;
use crate::batch::incident::{Incident, NamedSlot};
use crate::batch::run::Run;
use crate::batch::segment::Outcome;
use crate::kernel::id::{Attempt, LedgerMs, RunNo, SegmentNo, SlotRef};
use crate::kernel::rows::Rows;
use crate::machine::command::PartDecl;
use crate::machine::ledger::Ledger;

/// The states of a row, for filters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemState {
    /// May be granted, or not reached yet.
    Pending,
    /// Is pending at some time.
    Waiting,
    /// A slot has it.
    Running,
    /// Has a result.
    Done,
    /// Failed for good.
    Failed,
}

/// The state of a row, with its holder or result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ItemPlace {
    /// May be granted.
    Pending,
    /// Is pending then, in ledger time.
    Waiting(LedgerMs),
    /// This slot has it, under this attempt.
    Running(SlotRef, Attempt),
    /// Its result is in this part, at this row of it.
    Done(PartDecl, u32),
    /// Failed for good.
    Failed,
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemView {
    /// Its number.
    pub row: u64,
    /// The segment that has its input.
    pub segment: SegmentNo,
    /// Its place.
    pub place: ItemPlace,
    /// The second slot that runs it, at a run's tail. The first of the two that reports decides the row.
    pub speculative: Option<(SlotRef, Attempt)>,
    /// The rows of its bisection group, itself included; empty if it is no suspect.
    pub group: Rows,
    /// Its history.
    pub failure_record: FailureRecord,
    /// The slots that it avoids, if no slot has it and it failed a short time ago.
    pub avoids: Option<AvoidedSlots>,
}

/// Slots that failed a row and get it only if no other slot fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AvoidedSlots {
    /// In the order of their latest failures.
    pub slots: Vec<NamedSlot>,
    /// The ledger time from which any slot may have the row.
    pub until: LedgerMs,
}

impl AvoidedSlots {
    fn of(incident: &Incident) -> Option<Self> {
        let slots = incident.earlier.iter().chain([&incident.at]).cloned().collect();
        Some(Self { slots, until: incident.until? })
    }
}

impl Ledger {
    /// One row of a run; `None` if there is no such row.
    pub fn item(&self, no: RunNo, row: u64) -> Option<ItemView> {
        self.runs.get(&no).filter(|run| row < run.head.rows).map(|run| item_of(run, row))
    }

    /// The first rows in a state, at most `max`, from row `from` on.
    pub fn items(&self, no: RunNo, state: ItemState, from: u64, max: usize) -> Vec<ItemView> {
        let Some(run) = self.runs.get(&no) else { return Vec::new() };
        let rows: Vec<u64> = match state {
            ItemState::Failed | ItemState::Waiting => {
                let waits = state == ItemState::Waiting;
                let wanted =
                    |t: &FailureRecord| if waits { t.not_before.is_some() } else { t.failed };
                let failures = run.failures.range(from..).filter(|t| wanted(t.1));
                failures.map(|t| *t.0).take(max).collect()
            }
            ItemState::Running => {
                let grants = run.flight.grants.values();
                first(grants.map(|grant| &grant.rows), from, max)
            }
            ItemState::Pending => {
                // Rows with a reused result are done among the fresh ones.
                let fresh = run.head.next_fresh.max(from)..run.head.rows;
                let fresh = fresh.filter(|row| run.outcome(*row) == Outcome::NONE).take(max);
                let fresh = Rows::from_ranges(fresh.map(|row| (row, 1))).unwrap_or_default();
                let groups = run.ready_groups().map(|t| &t.1.rows);
                let returned: Vec<u64> = run.flight.returned.from(from).take(max).collect();
                let mut rows = first(groups.chain([&fresh]), from, max);
                rows.extend(returned);
                rows.sort_unstable();
                rows.truncate(max);
                rows
            }
            ItemState::Done => done_rows(run, from, max),
        };
        rows.into_iter().map(|row| item_of(run, row)).collect()
    }
}

/// The lowest rows of several sets that share none.
fn first<'a>(sets: impl Iterator<Item = &'a Rows>, from: u64, max: usize) -> Vec<u64> {
    let mut found: Vec<u64> = Vec::new();
    for rows in sets {
        found.extend(rows.from(from).take(max));
    }
    found.sort_unstable();
    found.truncate(max);
    found
}

fn done_rows(run: &Run, from: u64, max: usize) -> Vec<u64> {
    let segments = run.segments.iter().skip(run.segment_at(from));
    let rows = segments.filter(|s| s.decided > 0).flat_map(|segment| {
        let done = move |row: &u64| segment.outcome(*row).part().is_some();
        (segment.first_row.max(from)..segment.end()).filter(done)
    });
    rows.take(max).collect()
}

fn item_of(run: &Run, row: u64) -> ItemView {
    let failure_record = run.failures.get(&row).cloned().unwrap_or_default();
    let outcome = run.outcome(row);
    let grant = run.flight.grants.iter().find(|g| g.1.rows.contains(row));
    let place = match (outcome.part(), grant) {
        (Some((part, at)), _) => match run.parts.get(part.0 as usize) {
            Some(part) => ItemPlace::Done(part.clone(), at),
            None => ItemPlace::Pending, // An image without its parts was refused on loading.
        },
        (None, _) if outcome == Outcome::FAILED => ItemPlace::Failed,
        (None, Some((attempt, grant))) => ItemPlace::Running(grant.slot, *attempt),
        (None, None) => failure_record.not_before.map_or(ItemPlace::Pending, ItemPlace::Waiting),
    };
    let speculative =
        run.flight.speculative.iter().find(|speculative| speculative.1.rows.contains(row));
    let own = || run.flight.groups.values().map(|t| &t.rows).find(|rows| rows.contains(row));
    let held = grant.filter(|g| g.1.group.is_some()).map(|g| &g.1.rows);
    let group = held.or_else(own).cloned().unwrap_or_default();
    // The incident of a group is that of its first row.
    let first = group.ranges().first().and_then(|(row, _)| run.failures.get(row));
    let is_free = matches!(place, ItemPlace::Pending | ItemPlace::Waiting(_));
    let incident = first.unwrap_or(&failure_record).open_incident().filter(|_| is_free);
    let avoids = incident.and_then(AvoidedSlots::of);
    ItemView {
        row,
        segment: SegmentNo(run.segment_at(row) as u32),
        place,
        speculative: speculative.map(|(attempt, speculative)| (speculative.slot, *attempt)),
        group,
        failure_record,
        avoids,
    }
}
