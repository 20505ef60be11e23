//! Cordons of slots: those of operators, by name, and those that the ledger puts up itself after deaths.

use crate::naive::{Model, Outcome};
use crate::rows::RowState;
use rollout_ledger::id::{SessionId, SlotRef};
use rollout_ledger::view::RunState;
use rollout_ledger::{Rejection, Reply};
use std::collections::BTreeSet;

impl Model {
    pub(crate) fn count_death(&mut self, slot: SlotRef, ran: BTreeSet<(u32, u64)>, in_trial: bool) {
        let Some(worker) = self.workers.get_mut(&slot.session) else { return };
        let held = &mut worker.slots[usize::from(slot.slot.0)];
        if in_trial {
            held.against.retain(|known| known.is_disjoint(&ran));
        }
        held.against.push(ran);
        if held.against.len() > 8 {
            held.against.remove(0);
        }
        if held.against.len() < 3 || held.cordoned {
            return;
        }
        if self.is_fair() && !self.may_be_cordoned(slot) {
            return self.pause_what_it_dies_of(slot);
        }
        let worker = self.workers.get_mut(&slot.session).expect("found");
        worker.slots[usize::from(slot.slot.0)].cordoned = true;
        self.note("slot cordoned");
    }

    /// A row failed at a slot, and no engine died.
    pub(crate) fn count_failure(&mut self, slot: SlotRef, failure: (u32, u64)) {
        let state = |(no, row): &(u32, u64)| {
            self.runs[*no as usize - 1].rows.get(*row as usize).map(|row| row.state)
        };
        let worker = &self.workers[&slot.session];
        let Some(held) = worker.slots.get(usize::from(slot.slot.0)) else { return };
        let (mut listed, cordoned) = (held.failures.clone(), held.cordoned);
        listed.retain(|known| *known != failure);
        if listed.len() == 8 {
            listed.retain(|failure| {
                !self.runs[failure.0 as usize - 1].forgotten
                    && state(failure) != Some(RowState::Failed)
            });
            listed.truncate(7);
        }
        listed.push(failure);
        let runs: BTreeSet<u32> = listed.iter().map(|failure| failure.0).collect();
        let done = |failure: &&(u32, u64)| matches!(state(failure), Some(RowState::Done { .. }));
        let proven: Vec<u32> = listed.iter().filter(done).map(|failure| failure.0).collect();
        let counted = if runs.len() > 1 { listed.len() } else { proven.len() };
        let asked_enough = listed.len() == 8 && proven.len() < 3;
        let (cordons, mut clears) = (!asked_enough && self.may_be_cordoned(slot), false);
        if counted >= 3 && !cordoned && !cordons && proven.len() >= 3 {
            for no in &proven {
                let run = &mut self.runs[*no as usize - 1];
                if run.state == RunState::Running {
                    (run.state, clears) = (RunState::Paused, true);
                }
            }
        }
        let cordons = counted >= 3 && !cordoned && cordons;
        let until = self.clock + 600_000;
        let worker = self.workers.get_mut(&slot.session).expect("found");
        let held = &mut worker.slots[usize::from(slot.slot.0)];
        held.failures = if clears { Vec::new() } else { listed };
        held.cordoned |= cordons;
        if cordons {
            held.cordoned_until = Some(until);
        }
        if cordons {
            self.note("slot cordoned for failures");
        }
    }

    /// Cordons for failures end by themselves.
    pub(crate) fn end_failure_cordons(&mut self) {
        let now = self.clock;
        let mut lifted = false;
        for held in self.workers.values_mut().flat_map(|w| &mut w.slots) {
            if held.cordoned_until.take_if(|until| *until <= now).is_some() {
                held.failures.clear();
                (held.cordoned, lifted) = (false, true);
            }
        }
        if lifted {
            self.note("cordon for failures over");
        }
    }

    /// Of the ready slots with a model beside this one: how many there are, how many the ledger has cordoned, and how many
    /// take work.
    fn beside(&self, slot: SlotRef, model: &str) -> (usize, usize, usize) {
        let namespace = &self.workers[&slot.session].namespace;
        let mut found = (0, 0, 0);
        for other in self.slots().into_iter().filter(|other| *other != slot) {
            let worker = &self.workers[&other.session];
            let of = &worker.slots[usize::from(other.slot.0)];
            let bare = model.rsplit_once('@').map_or(model, |(name, _)| name);
            let offers = of.offer.models.iter().any(|o| o == model || o == bare || o == "*");
            if worker.namespace == *namespace && worker.ready() && offers {
                found.0 += 1;
                found.1 += usize::from(of.cordoned);
                found.2 += usize::from(!self.cordoned(other));
            }
        }
        found
    }

    fn models(&self, slot: SlotRef) -> &[String] {
        &self.workers[&slot.session].slots[usize::from(slot.slot.0)].offer.models
    }

    /// A fifth of a model's slots, one at least and never the last.
    fn may_be_cordoned(&self, slot: SlotRef) -> bool {
        self.models(slot).iter().all(|model| {
            let (others, cordoned, free) = self.beside(slot, model);
            free > 0 && cordoned < ((others + 1) / 5).max(1)
        })
    }

    /// Of a slot that is broken, as others show.
    fn pause_what_it_dies_of(&mut self, slot: SlotRef) {
        let against = &self.workers[&slot.session].slots[usize::from(slot.slot.0)].against;
        let runs = |ran: &BTreeSet<(u32, u64)>| ran.iter().map(|row| row.0).collect();
        let each: Vec<BTreeSet<u32>> = against.iter().map(runs).collect();
        let latest = each[each.len() - 1].clone();
        let common: BTreeSet<u32> =
            latest.iter().copied().filter(|no| each.iter().all(|runs| runs.contains(no))).collect();
        let done = |row: &(u32, u64)| {
            let of = self.runs[row.0 as usize - 1].rows.get(row.1 as usize);
            of.is_some_and(|row| row.result().is_some())
        };
        let proven = against.iter().filter(|ran| !ran.is_empty() && ran.iter().all(done)).count();
        if !common.is_empty() && proven < 3 {
            return;
        }
        let mut paused = false;
        for no in if common.is_empty() { latest } else { common } {
            let run = &mut self.runs[no as usize - 1];
            if run.state == RunState::Running {
                (run.state, paused) = (RunState::Paused, true);
            }
        }
        if paused {
            let worker = self.workers.get_mut(&slot.session).expect("found");
            worker.slots[usize::from(slot.slot.0)].against.clear();
            self.note("what a slot dies of is paused");
        }
    }

    /// A row is guilty: no slot is to blame for the deaths of engines that ran it.
    pub(crate) fn acquit(&mut self, row: (u32, u64)) {
        let mut lifted = false;
        for held in self.workers.values_mut().flat_map(|w| &mut w.slots) {
            let before = held.against.len();
            held.against.retain(|ran| !ran.contains(&row));
            let for_deaths = held.cordoned && held.cordoned_until.is_none();
            if held.against.len() < before && held.against.len() < 3 && for_deaths {
                (held.cordoned, lifted) = (false, true);
            }
        }
        if lifted {
            self.note("slot acquitted");
        }
    }

    pub(crate) fn cordon(
        &mut self,
        session: SessionId,
        slot: Option<u16>,
        cordoned: bool,
    ) -> Outcome {
        let worker = self.workers.get_mut(&session).ok_or(Rejection::SessionUnknown)?;
        if slot.is_some_and(|n| usize::from(n) >= worker.slots.len()) {
            return Err(Rejection::SlotUnknown);
        }
        let key = (worker.namespace.clone(), worker.name.clone());
        let (whole, slots) = self.cordons.entry(key).or_default();
        match (slot, cordoned) {
            (Some(_), false) if *whole => {
                return Err(Rejection::Invalid(
                    "the whole worker is cordoned: uncordon it without naming a slot".into(),
                ));
            }
            (None, true) => *whole = true,
            (None, false) => (*whole, *slots) = (false, BTreeSet::new()),
            (Some(slot), true) => drop(slots.insert(slot)),
            (Some(slot), false) => drop(slots.remove(&slot)),
        }
        for (number, held) in (0..).zip(&mut worker.slots) {
            if !cordoned && slot.is_none_or(|slot| slot == number) {
                (held.cordoned, held.cordoned_until, held.against) = (false, None, Vec::new());
                held.failures.clear();
            }
        }
        Ok(Reply::Ok)
    }

    pub(crate) fn cordoned(&self, slot: SlotRef) -> bool {
        let worker = &self.workers[&slot.session];
        self.cordoned_by_operators(slot) || worker.slots[usize::from(slot.slot.0)].cordoned
    }

    pub(crate) fn cordoned_by_operators(&self, slot: SlotRef) -> bool {
        let worker = &self.workers[&slot.session];
        let key = (worker.namespace.clone(), worker.name.clone());
        let by_name = self.cordons.get(&key);
        by_name.is_some_and(|(whole, slots)| *whole || slots.contains(&slot.slot.0))
    }
}
