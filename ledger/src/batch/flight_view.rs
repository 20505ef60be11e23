//! The rows of a run in flight, as services read them: who holds them, and what they wait for.
//!
//! *Invariant:* reading changes nothing, and takes time in proportion to what it returns.

use crate::batch::grant::Grant;
use crate::batch::run::Run;
use crate::kernel::id::{Attempt, LedgerMs, RunNo, SlotRef};
use crate::kernel::rows::Rows;
use crate::machine::command::HeldRows;
use crate::machine::ledger::Ledger;
use std::collections::BTreeMap;

/// The rows of a run that are neither fresh nor decided: their holders, or what they wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlightView {
    /// Rows that came back, and are granted before fresh ones.
    pub returned: Rows,
    /// Attempts that hold rows, and the slots that they were granted to.
    pub live: Vec<(SlotRef, HeldRows)>,
    /// Second attempts of rows that others hold too.
    pub speculative: Vec<(SlotRef, HeldRows)>,
    /// Attempts whose lease has ended, with the returned rows for which a late result is accepted.
    pub lapsed: Vec<(SlotRef, HeldRows)>,
    /// Rows that wait after a failure, and until when.
    pub waiting: Vec<(u64, LedgerMs)>,
    /// Bisection groups: pending ones, waiting ones, and those that attempts hold.
    pub groups: Vec<BisectionGroupView>,
}

/// Rows that run apart from all others, because an engine died under some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BisectionGroupView {
    /// Its number within the run.
    pub number: u32,
    /// Its rows that no slot has.
    pub rows: Rows,
    /// Until when these wait, if they do.
    pub not_before: Option<LedgerMs>,
    /// The slot that empties itself for it.
    pub emptying: Option<SlotRef>,
    /// The slot whose engine died of its rows, and until when other slots come first.
    pub excluded_slot: Option<(SlotRef, LedgerMs)>,
    /// The attempts that have its other rows, or had them last.
    pub attempts: Vec<Attempt>,
}

impl Ledger {
    /// The holders of a run's rows. For inspection; takes time in proportion to what it returns.
    pub fn flight_view(&self, no: RunNo) -> Option<FlightView> {
        let run = self.runs.get(&no)?;
        let held = |grants: &BTreeMap<Attempt, Grant>| {
            let rows = |(&attempt, g): (&Attempt, &Grant)| {
                (g.slot, HeldRows { run: no, attempt, rows: g.rows.clone() })
            };
            grants.iter().map(rows).collect()
        };
        Some(FlightView {
            returned: run.flight.returned.to_rows(),
            live: held(&run.flight.grants),
            speculative: held(&run.flight.speculative),
            lapsed: held(&run.flight.lapsed),
            waiting: run.failures.iter().filter_map(|(r, t)| Some((*r, t.not_before?))).collect(),
            groups: self.group_views(run),
        })
    }

    fn group_views(&self, run: &Run) -> Vec<BisectionGroupView> {
        let mut views: BTreeMap<u32, BisectionGroupView> = BTreeMap::new();
        for (&number, group) in &run.flight.groups {
            let view = BisectionGroupView {
                number,
                rows: group.rows.clone(),
                not_before: group.not_before,
                emptying: group.emptying,
                excluded_slot: self.excluded_slot(run, number),
                attempts: Vec::new(),
            };
            views.insert(number, view);
        }
        let attempts = run.flight.grants.iter().chain(&run.flight.lapsed);
        for (attempt, number) in attempts.filter_map(|(a, g)| Some((*a, g.group?))) {
            let view = views.entry(number).or_default();
            view.number = number;
            if !view.attempts.contains(&attempt) {
                view.attempts.push(attempt);
            }
        }
        views.into_values().collect()
    }
}
