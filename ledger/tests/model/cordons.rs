//! Cordons of slots: those of operators, by name, and those that the ledger puts up itself after deaths.

use crate::naive::{Model, Outcome};
use rollout_ledger::id::{SessionId, SlotRef};
use rollout_ledger::{Rejection, Reply};
use std::collections::BTreeSet;

impl Model {
    pub(crate) fn count_death(&mut self, slot: SlotRef, ran: BTreeSet<(u32, u64)>) {
        let Some(worker) = self.workers.get_mut(&slot.session) else { return };
        let held = &mut worker.slots[usize::from(slot.slot.0)];
        held.against.push(ran);
        if held.against.len() > 8 {
            held.against.remove(0);
        }
        if held.against.len() >= 3 && !held.cordoned {
            held.cordoned = true;
            self.note("slot cordoned");
        }
    }

    /// A row is guilty: no slot is to blame for the deaths of engines that ran it.
    pub(crate) fn acquit(&mut self, row: (u32, u64)) {
        let mut lifted = false;
        for held in self.workers.values_mut().flat_map(|w| &mut w.slots) {
            let before = held.against.len();
            held.against.retain(|ran| !ran.contains(&row));
            if held.against.len() < before && held.against.len() < 3 && held.cordoned {
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
                (held.cordoned, held.against) = (false, Vec::new());
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
