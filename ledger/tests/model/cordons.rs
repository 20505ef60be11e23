//! Cordons of slots: those of operators, by name, and those that the ledger sets itself after incidents.

use crate::naive::{Model, Outcome};
use crate::rows::{Row, RowState};
use crate::workers::Ended;
use rollout_ledger::id::{SessionId, SlotRef};
use rollout_ledger::view::RunState;
use rollout_ledger::{Rejection, Reply};
use std::collections::BTreeSet;

impl Model {
    /// An engine died of rows at a slot, or a row failed there.
    pub(crate) fn count_incident(&mut self, slot: SlotRef, ended: Ended) {
        let Some(worker) = self.workers.get(&slot.session) else { return };
        let Some(held) = worker.slots.get(usize::from(slot.slot.0)) else { return };
        let (mut listed, cordoned) = (held.incidents.clone(), held.cordoned);
        if self.is_fair() {
            listed.retain(|known| {
                known.by_death != ended.by_death || known.rows.is_disjoint(&ended.rows)
            });
        }
        let most = self.cordon_after + 5;
        if listed.len() == most {
            listed.retain(|known| known.by_death || known.rows.iter().any(|row| self.is_open(row)));
        }
        if listed.len() == most {
            let unreadable = listed.iter().rposition(|known| known.unreadable);
            let failure = listed.iter().rposition(|known| !known.by_death);
            let death = if self.is_fair() { most - 1 } else { 0 };
            listed.remove(unreadable.or(failure).unwrap_or(death));
        }
        listed.push(ended);
        let worker = self.workers.get_mut(&slot.session).expect("found");
        worker.slots[usize::from(slot.slot.0)].incidents = listed.clone();
        if cordoned || self.counting(slot, &listed) < self.cordon_after {
            return;
        }
        if self.is_fair() {
            let full = listed.len() == most && !listed.iter().any(|known| known.unreadable);
            let completed = listed.iter().filter(|known| self.is_completed(known));
            if full && completed.count() < self.cordon_after {
                return;
            }
            if !self.may_be_cordoned(slot) {
                return self.pause_runs_of(slot, &listed);
            }
        }
        let deaths = listed.iter().filter(|known| known.by_death).count();
        let until = (deaths < self.cordon_after).then_some(self.clock + 600_000);
        let worker = self.workers.get_mut(&slot.session).expect("found");
        let held = &mut worker.slots[usize::from(slot.slot.0)];
        (held.cordoned, held.cordoned_until) = (true, until);
        self.note(if until.is_some() { "slot cordoned for failures" } else { "slot cordoned" });
    }

    /// An operator sets after how many incidents a slot is cordoned.
    pub(crate) fn set_cordon_after(&mut self, value: u32) -> Outcome {
        if self.version < 3 {
            return Err(Rejection::VersionLow { needs: 3, version: self.version });
        }
        if !(1..=20).contains(&value) {
            let text = format!("cordon-after cannot be {value}: set 1 to 20");
            return Err(Rejection::Invalid(text));
        }
        if self.cordon_after != value as usize {
            self.cordon_after = value as usize;
            for held in self.workers.values_mut().flat_map(|worker| &mut worker.slots) {
                held.incidents.truncate(self.cordon_after + 3);
            }
            self.note("setting changed");
        }
        Ok(Reply::Ok)
    }

    fn counting(&self, slot: SlotRef, listed: &[Ended]) -> usize {
        let failures = listed.iter().filter(|known| !known.by_death && !known.unreadable);
        let runs: BTreeSet<u32> = failures.flat_map(|f| &f.rows).map(|row| row.0).collect();
        let of_two_runs = |known: &Ended| !known.by_death && !known.unreadable && runs.len() > 1;
        let deaths = || listed.iter().filter(|known| known.by_death);
        let of_one_run = deaths().next().is_some_and(|first| {
            first.rows.iter().any(|(no, _)| deaths().all(|death| death.is_of(*no)))
        });
        let doubtful = self.is_fair() && of_one_run;
        let by_itself =
            |known: &Ended| known.by_death && !(doubtful && self.others_died_too(slot, known));
        let counts =
            |known: &&Ended| by_itself(known) || of_two_runs(known) || self.is_completed(known);
        listed.iter().filter(counts).count()
    }

    /// Whether an engine of another slot died of rows of a run that has rows in this death.
    fn others_died_too(&self, slot: SlotRef, death: &Ended) -> bool {
        self.slots().into_iter().filter(|other| *other != slot).any(|other| {
            let held = &self.workers[&other.session].slots[usize::from(other.slot.0)];
            let died = held.incidents.iter().filter(|known| known.by_death);
            died.flat_map(|known| &known.rows).any(|(no, _)| death.is_of(*no))
        })
    }

    fn row(&self, row: &(u32, u64)) -> Option<&Row> {
        self.runs[row.0 as usize - 1].rows.get(row.1 as usize)
    }

    fn is_open(&self, row: &(u32, u64)) -> bool {
        let gone = self.runs[row.0 as usize - 1].forgotten;
        !gone && self.row(row).is_none_or(|row| row.state != RowState::Failed)
    }

    fn is_completed(&self, ended: &Ended) -> bool {
        let done = |row: &(u32, u64)| self.row(row).is_some_and(|row| row.result().is_some());
        !ended.rows.is_empty() && ended.rows.iter().all(done)
    }

    /// Cordons for failures end by themselves.
    pub(crate) fn end_failure_cordons(&mut self) {
        let now = self.clock;
        let mut lifted = false;
        for held in self.workers.values_mut().flat_map(|w| &mut w.slots) {
            if held.cordoned_until.take_if(|until| *until <= now).is_some() {
                held.incidents.clear();
                (held.cordoned, lifted) = (false, true);
            }
        }
        if lifted {
            self.note("cordon for failures over");
        }
    }

    /// The other ready slots with a model: how many there are, how many the ledger has cordoned, and how many take
    /// work.
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
    fn pause_runs_of(&mut self, slot: SlotRef, listed: &[Ended]) {
        let runs = |ended: &Ended| ended.rows.iter().map(|row| row.0).collect::<BTreeSet<u32>>();
        let completed: Vec<&Ended> = listed.iter().filter(|e| self.is_completed(e)).collect();
        let deaths: Vec<_> = listed.iter().filter(|e| e.by_death).map(runs).collect();
        let latest = deaths.last().cloned().unwrap_or_default();
        let related = latest.iter().any(|no| deaths.iter().all(|runs| runs.contains(no)));
        let pauses = if completed.len() >= self.cordon_after {
            completed.into_iter().flat_map(runs).collect()
        } else if deaths.len() >= self.cordon_after && !related {
            latest
        } else {
            return;
        };
        let mut paused = false;
        for no in pauses {
            let run = &mut self.runs[no as usize - 1];
            if run.state == RunState::Running {
                (run.state, paused) = (RunState::Paused, true);
            }
        }
        if paused {
            let worker = self.workers.get_mut(&slot.session).expect("found");
            worker.slots[usize::from(slot.slot.0)].incidents.clear();
            self.note("runs of a slot's incidents are paused");
        }
    }

    /// A row is the cause: no slot is to blame for its incidents.
    pub(crate) fn clear_slots_of(&mut self, row: (u32, u64)) {
        let mut lifted = false;
        let mut concerned = Vec::new();
        for slot in self.slots() {
            let worker = self.workers.get_mut(&slot.session).expect("found");
            let held = &mut worker.slots[usize::from(slot.slot.0)];
            let before = held.incidents.len();
            held.incidents.retain(|ended| !ended.rows.contains(&row));
            if held.incidents.len() < before {
                concerned.push((slot, held.incidents.clone()));
            }
        }
        for (slot, left) in concerned {
            let few = self.counting(slot, &left) < self.cordon_after;
            let worker = self.workers.get_mut(&slot.session).expect("found");
            let held = &mut worker.slots[usize::from(slot.slot.0)];
            if few && held.cordoned {
                (held.cordoned, held.cordoned_until, lifted) = (false, None, true);
            }
        }
        if lifted {
            self.note("slot cleared");
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
                (held.cordoned, held.cordoned_until, held.incidents) = (false, None, Vec::new());
            }
        }
        Ok(Reply::Ok)
    }

    pub(crate) fn cordoned(&self, slot: SlotRef) -> bool {
        let worker = &self.workers[&slot.session];
        let held = worker.slots.get(usize::from(slot.slot.0));
        self.cordoned_by_operators(slot) || held.is_some_and(|held| held.cordoned)
    }

    pub(crate) fn cordoned_by_operators(&self, slot: SlotRef) -> bool {
        let worker = &self.workers[&slot.session];
        let key = (worker.namespace.clone(), worker.name.clone());
        let by_name = self.cordons.get(&key);
        by_name.is_some_and(|(whole, slots)| *whole || slots.contains(&slot.slot.0))
    }
}
