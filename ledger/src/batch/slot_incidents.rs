//! The incidents of a slot, and when the ledger cordons the slot for them.
//!
//! *Invariant:* a slot lists its incidents since it last finished a row, at most [`limits::INCIDENTS_SPARE`] more than
//! cordon it: deaths of its engine with the rows that ran, and reports of failed rows with the first row of each. A
//! death replaces deaths that share a row with it, and a failure replaces failures that do. A death is removed when
//! one of its rows is proven to be the cause. A failure counts if another slot has completed the row since, or if rows
//! of two runs failed there. Rows with unreadable input prove nothing as long as no other slot has completed them: the
//! objects of two runs may be gone, and then every slot fails. The cluster's settings (`setting.rs`) say how many
//! incidents that count cordon the slot, unless `cordon_limit.rs` forbids it.
//! A death counts at once if no other slot has one with rows of the same run. Each death costs the slot a restart of
//! its engine and turns all rows that ran into trials, for which other slots run empty: a broken slot would do that
//! to a run until others completed its rows. If other slots have such deaths too, the rows may be the cause, and a
//! death counts as a failure does, so that rows that kill every engine cordon no healthy slot. A slot is judged with
//! each of its incidents, and when a row of them is proven to be the cause.
//! Deaths alone cordon a slot until it finishes a row of a trial, or until too few of them count. A cordon that
//! needed failures ends with any finished row, or after [`limits::FAILURE_CORDON_MS`]: other slots may have gone
//! meanwhile, and a repaired slot has no other way to show it.
//! Below cluster version 3 the list has deaths outside of trials, none replaces another, and any slot may be
//! cordoned.
//! Absent: rows that are invalid, stores that refuse, and cordons of operators (`cordon.rs`).

use crate::batch::cordon_ends::CordonEnds;
use crate::batch::done_rows::DoneRows;
use crate::batch::incident::EndKind;
use crate::batch::segment::Outcome;
use crate::fleet::slot::Slot;
use crate::kernel::counted::counted;
use crate::kernel::id::{LedgerMs, RunNo, SlotRef};
use crate::kernel::limits;
use crate::kernel::rows::Rows;
use crate::machine::apply::Context;
use crate::machine::command::FailureClass;
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// An incident at a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SlotIncident {
    pub(crate) end: EndKind,
    pub(crate) rows: Vec<(RunNo, Rows)>,
    #[serde(skip)]
    done: DoneRows,
}

impl SlotIncident {
    pub(crate) fn new(end: EndKind, rows: Vec<(RunNo, Rows)>) -> Self {
        Self { end, rows, done: DoneRows::default() }
    }

    pub(crate) fn has(&self, no: RunNo, row: u64) -> bool {
        self.rows.iter().any(|(run, rows)| *run == no && rows.contains(row))
    }

    pub(crate) fn runs(&self) -> impl Iterator<Item = RunNo> + '_ {
        self.rows.iter().map(|(no, _)| *no)
    }

    fn replaces(&self, earlier: &Self) -> bool {
        let meets = |(no, rows): &(RunNo, Rows)| {
            let mut same_run = earlier.rows.iter().filter(|(run, _)| run == no);
            same_run.any(|(_, others)| !others.partition(rows).0.is_empty())
        };
        self.is_death() == earlier.is_death() && self.rows.iter().any(meets)
    }

    pub(crate) fn is_death(&self) -> bool {
        self.end == EndKind::EngineDied
    }
}

/// Whether a run has rows in each death.
fn are_of_one_run(incidents: &[SlotIncident]) -> bool {
    let mut deaths = incidents.iter().filter(|incident| incident.is_death());
    let Some(first) = deaths.next() else { return false };
    let mut common: BTreeSet<RunNo> = first.runs().collect();
    for death in deaths {
        common.retain(|no| death.runs().any(|run| run == *no));
    }
    !common.is_empty()
}

/// The encoding of a slot's incidents below cluster version 3: all of them are deaths.
pub(crate) mod as_deaths {
    use super::SlotIncident;
    use crate::batch::incident::EndKind;
    use crate::kernel::id::RunNo;
    use crate::kernel::rows::Rows;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        incidents: &[SlotIncident],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(incidents.iter().map(|incident| &incident.rows))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<SlotIncident>, D::Error> {
        let deaths: Vec<Vec<(RunNo, Rows)>> = Deserialize::deserialize(deserializer)?;
        let death = |rows| SlotIncident::new(EndKind::EngineDied, rows);
        Ok(deaths.into_iter().map(death).collect())
    }
}

impl Slot {
    pub(crate) fn deaths_listed(&self) -> usize {
        self.incidents().iter().filter(|incident| incident.is_death()).count()
    }

    /// The incidents in words. `code` is that of the latest death.
    pub(crate) fn describe_incidents(&self, code: &str) -> String {
        let code = if code.is_empty() { String::new() } else { format!(" ({code})") };
        let deaths = self.deaths_listed();
        match (deaths, self.incidents().len() - deaths) {
            (deaths, 0) => {
                let died = counted(deaths as u64, "time");
                format!("its engine died {died} without finishing a row{code}")
            }
            (0, failed) => {
                let rows = counted(failed as u64, "row");
                format!("{rows} failed there without a finished one between")
            }
            (deaths, failed) => {
                let (died, failed) =
                    (counted(deaths as u64, "time"), counted(failed as u64, "time"));
                format!(
                    "its engine died {died} and rows failed there {failed} without a finished one between{code}"
                )
            }
        }
    }
}

impl Ledger {
    /// Rows failed at a slot: the first of them counts against it.
    pub(crate) fn count_failure(
        &mut self,
        ctx: &Context,
        slot: SlotRef,
        (no, row): (RunNo, u64),
        class: FailureClass,
    ) {
        let of_row = matches!(class, FailureClass::InvalidRow | FailureClass::StoreRefused);
        if !of_row && self.asks_a_second_slot() {
            let rows = vec![(no, Rows::range(row, 1))];
            let end = match class {
                FailureClass::InputUnreadable => EndKind::InputUnreadable,
                _ => EndKind::RowFailed,
            };
            self.count_incident(ctx, slot, SlotIncident::new(end, rows), "");
        }
    }

    /// How many incidents that count cordon a slot.
    pub(crate) fn cordon_after(&self) -> usize {
        self.settings.cordon_after() as usize
    }

    /// How many incidents a slot lists at most.
    fn incidents_max(&self) -> usize {
        self.cordon_after() + limits::INCIDENTS_SPARE
    }

    /// After a change of the setting: drops the latest incidents of each list that would be full with its next one. A slot
    /// with a full list counts as judged before, but it was not judged by the new number.
    pub(crate) fn shorten_incidents(&mut self) {
        let most = self.incidents_max() - 2;
        let long = self.slots().filter(|(_, _, held)| held.incidents().len() > most);
        let long: Vec<SlotRef> = long.map(|(_, at, _)| at).collect();
        for slot in long {
            let mut listed = self.take_incidents(slot);
            listed.truncate(most);
            self.put_incidents(slot, listed);
        }
    }

    /// Lists an incident, and cordons the slot if too many count.
    pub(crate) fn count_incident(
        &mut self,
        ctx: &Context,
        slot: SlotRef,
        incident: SlotIncident,
        code: &str,
    ) {
        self.list_incident(slot, incident);
        self.read_outcomes(slot);
        let after = self.cordon_after();
        let Some(held) = self.slot(slot).filter(|held| held.cordon().is_none()) else { return };
        if self.counting(slot, held.incidents()) < after {
            return;
        }
        let guarded = self.asks_a_second_slot();
        // A slot with a full list was judged before: only rows that other slots have completed since are new
        // evidence. Unreadable rows fill the list too, but are no reason to judge again.
        let unreadable = |incident: &SlotIncident| incident.end == EndKind::InputUnreadable;
        let full = held.incidents().len() >= self.incidents_max()
            && !held.incidents().iter().any(unreadable);
        let completed = || self.completed(held.incidents()).count();
        if guarded && full && completed() < after {
            return;
        }
        let reason = held.describe_incidents(code);
        let needs_failures = held.deaths_listed() < after;
        if guarded && !self.may_be_cordoned(slot) {
            return self.pause_runs_of(ctx, slot);
        }
        let until = LedgerMs(self.meta.clock().0.saturating_add(limits::FAILURE_CORDON_MS));
        let until = needs_failures.then_some(until);
        if let Some(until) = until {
            self.cordon_ends.add(until, slot);
        }
        let Some(held) = self.slot_mut(slot) else { return };
        held.set_cordon(reason.clone(), until);
        self.emit_own_cordon(ctx, slot, true, reason);
    }

    /// How many of a slot's incidents count against it.
    fn counting(&self, slot: SlotRef, incidents: &[SlotIncident]) -> usize {
        let failures = incidents.iter().filter(|incident| incident.end == EndKind::RowFailed);
        let runs: BTreeSet<RunNo> = failures.flat_map(SlotIncident::runs).collect();
        let doubtful = self.asks_a_second_slot() && are_of_one_run(incidents);
        let counts = |incident: &&SlotIncident| match incident.end {
            EndKind::EngineDied => {
                !doubtful || !self.others_died_too(slot, incident) || self.is_completed(incident)
            }
            EndKind::RowFailed => runs.len() > 1 || self.is_completed(incident),
            EndKind::InputUnreadable => self.is_completed(incident),
        };
        incidents.iter().filter(counts).count()
    }

    /// Whether an engine of another slot died of rows of a run that has rows in a death at this slot.
    fn others_died_too(&self, slot: SlotRef, death: &SlotIncident) -> bool {
        death.runs().any(|no| self.incident_slots.another_died_of(no, slot))
    }

    /// The incidents of a slot whose rows other slots have all completed.
    pub(crate) fn completed<'a>(
        &self,
        incidents: &'a [SlotIncident],
    ) -> impl Iterator<Item = &'a SlotIncident> {
        incidents.iter().filter(|incident| self.is_completed(incident))
    }

    /// Whether all rows of an incident are done: its own slot has finished none since. Its outcomes must have been read
    /// (`read_outcomes`).
    fn is_completed(&self, incident: &SlotIncident) -> bool {
        incident.done.is_all(&incident.rows, &self.runs)
    }

    /// Reads the outcomes of a slot's incidents before it is judged. A command may have a thousand failures of a slot
    /// with deaths of thousands of rows, so rows that are done are not read again.
    fn read_outcomes(&mut self, slot: SlotRef) {
        if !self.asks_a_second_slot() {
            return; // No outcome decides there.
        }
        let Some(held) = self.slot_mut(slot) else { return };
        let mut listed = held.take_incidents();
        for SlotIncident { rows, done, .. } in &mut listed {
            done.advance(rows, &self.runs);
        }
        if let Some(held) = self.slot_mut(slot) {
            held.put_incidents(listed);
        }
    }

    /// Adds an incident. A full list makes room by dropping failures of rows that failed for good, then its latest
    /// row with unreadable input, then its latest failure, then its latest death: the latest ones go first because
    /// other slots need time to complete the rows of older ones. Below cluster version 3 the oldest death is dropped.
    fn list_incident(&mut self, slot: SlotRef, incident: SlotIncident) {
        let most = self.incidents_max();
        let Some(held) = self.slot_mut(slot) else { return };
        let mut listed = held.take_incidents();
        let mut gone = Vec::new();
        if self.asks_a_second_slot() {
            (gone, listed) = listed.into_iter().partition(|earlier| incident.replaces(earlier));
        }
        if listed.len() == most {
            let stays = |incident: &SlotIncident| incident.is_death() || self.is_open(incident);
            let (kept, closed): (Vec<_>, Vec<_>) = listed.into_iter().partition(stays);
            gone.extend(closed);
            listed = kept;
        }
        if listed.len() == most {
            let latest = |end: EndKind| listed.iter().rposition(|incident| incident.end == end);
            let failure = latest(EndKind::InputUnreadable).or_else(|| latest(EndKind::RowFailed));
            let death = if self.asks_a_second_slot() { listed.len() - 1 } else { 0 };
            gone.push(listed.remove(failure.unwrap_or(death)));
        }
        self.incident_slots.remove(slot, &gone);
        self.incident_slots.add(slot, std::slice::from_ref(&incident));
        listed.push(incident);
        if let Some(held) = self.slot_mut(slot) {
            held.put_incidents(listed);
        }
    }

    /// Takes all incidents from a slot.
    pub(crate) fn take_incidents(&mut self, slot: SlotRef) -> Vec<SlotIncident> {
        let held = self.slot_mut(slot);
        let listed = held.map(|held| held.take_incidents()).unwrap_or_default();
        self.incident_slots.remove(slot, &listed);
        listed
    }

    /// Puts the remaining incidents back into a slot.
    fn put_incidents(&mut self, slot: SlotRef, listed: Vec<SlotIncident>) {
        if self.slot(slot).is_none() {
            return;
        }
        self.incident_slots.add(slot, &listed);
        if let Some(held) = self.slot_mut(slot) {
            held.put_incidents(listed);
        }
    }

    /// Lifts the ledger's own cordon of a slot and drops its incidents. Returns whether there was a cordon.
    pub(crate) fn clear_incidents(&mut self, slot: SlotRef) -> bool {
        self.take_incidents(slot);
        self.slot_mut(slot).is_some_and(Slot::lift_cordon)
    }

    /// Whether rows of an incident exist and have not failed for good.
    fn is_open(&self, incident: &SlotIncident) -> bool {
        let open = |(no, rows): &(RunNo, Rows)| {
            let run = self.runs.get(no);
            run.is_some_and(|run| rows.iter().any(|row| run.outcome(row) != Outcome::FAILED))
        };
        incident.rows.iter().any(open)
    }

    /// A row is proven to be the cause: its incidents no longer count against any slot.
    pub(crate) fn clear_slots_of(&mut self, ctx: &Context, no: RunNo, row: u64) {
        let slots = self.incident_slots.of_row(no, row);
        for slot in &slots {
            let mut left = self.take_incidents(*slot);
            left.retain(|incident| !incident.has(no, row));
            self.put_incidents(*slot, left);
        }
        for slot in slots {
            self.read_outcomes(slot);
            let left = self.slot(slot).map_or(0, |held| self.counting(slot, held.incidents()));
            let few = left < self.cordon_after();
            if few && self.slot_mut(slot).is_some_and(Slot::lift_cordon) {
                let reason = format!("row {row} of run {no} was why its engine died");
                self.emit_own_cordon(ctx, slot, false, reason);
            }
        }
    }

    /// A slot has finished a row: nothing before counts against it. A cordon for deaths alone ends only with a row of
    /// a trial, which the slot got after the cordon; it may have had other rows before.
    pub(crate) fn row_finished(&mut self, ctx: &Context, slot: SlotRef, in_trial: bool) {
        let Some(held) = self.slot(slot) else { return };
        let for_failures = held.is_cordoned_for_failures();
        let nothing = held.cordon().is_none() && held.incidents().is_empty();
        if nothing || held.cordon().is_some() && !in_trial && !for_failures {
            return;
        }
        if self.clear_incidents(slot) {
            let reason = match for_failures {
                true => "it finished a row".to_owned(),
                false => "its engine finished a row of a trial".to_owned(),
            };
            self.emit_own_cordon(ctx, slot, false, reason);
        }
    }

    /// Ends the cordons for failures that are due, as many as one `Tick` may; the others stay due.
    pub(crate) fn end_failure_cordons(&mut self, ctx: &Context) {
        let mut ended = 0;
        while ended < limits::TICK_CORDONS_MAX {
            let due = self.cordon_ends.take_due(self.meta.clock());
            let Some((at, slot)) = due else { break };
            // Some entries are of cordons that ended earlier. They must not count, because a member that was loaded
            // from an image has none of them.
            let ends = self.slot(slot).is_some_and(|held| held.cordoned_until() == Some(at));
            if !ends {
                continue;
            }
            self.clear_incidents(slot);
            ended += 1;
            let reason = "its cordon for failed rows is over: it may try again".to_owned();
            self.emit_own_cordon(ctx, slot, false, reason);
        }
    }

    /// Builds the order in which cordons for failures end.
    pub(crate) fn derive_cordon_ends(&mut self) {
        let ends = self.slots().filter_map(|(_, at, slot)| Some((slot.cordoned_until()?, at)));
        self.cordon_ends = CordonEnds::of(ends);
    }

    fn emit_own_cordon(&mut self, ctx: &Context, slot: SlotRef, cordoned: bool, reason: String) {
        self.emit(ctx, EventKind::WorkerCordoned { slot, whole: false, cordoned, reason });
    }
}
