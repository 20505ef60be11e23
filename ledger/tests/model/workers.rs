//! Workers: registered, silent, back, gone.

use crate::naive::{Model, Outcome};
use crate::rows::{Lease, Row, RowState};
use rollout_ledger::id::{Attempt, RunNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::{HeldRows, Registration, Rejection, Reply, Rows, SlotOffer};
use std::collections::{BTreeMap, BTreeSet};

/// Rows that ended badly at a slot: by a death, with all that ran, or by a failure, with the first of the report.
#[derive(Clone)]
pub(crate) struct Ended {
    pub(crate) by_death: bool,
    /// Its input could not be read.
    pub(crate) unreadable: bool,
    pub(crate) rows: BTreeSet<(u32, u64)>,
}

impl Ended {
    /// Whether it has rows of a run.
    pub(crate) fn is_of(&self, no: u32) -> bool {
        self.rows.iter().any(|row| row.0 == no)
    }
}

pub(crate) struct Slot {
    pub(crate) offer: SlotOffer,
    pub(crate) last_pull: u64,
    pub(crate) last_grant: Vec<HeldRows>,
    /// What ended badly there since it last finished a row.
    pub(crate) incidents: Vec<Ended>,
    pub(crate) cordoned_until: Option<u64>,
    pub(crate) last_death: u64,
    /// By the ledger itself.
    pub(crate) cordoned: bool,
}

pub(crate) struct Worker {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) instance: u64,
    pub(crate) address: String,
    pub(crate) suspect: Option<(u64, u64)>,
    /// Rows that it may have started when it fell silent: run, attempt and row.
    pub(crate) unreported_starts: BTreeSet<(u32, Attempt, u64)>,
    pub(crate) draining: bool,
    /// When it must be gone.
    pub(crate) gone_by: Option<u64>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) stores: Vec<String>,
}

impl Worker {
    pub(crate) fn ready(&self) -> bool {
        self.suspect.is_none() && !self.draining
    }
}

fn slots(offers: &[SlotOffer]) -> Vec<Slot> {
    let empty = |offer: &SlotOffer| Slot {
        offer: offer.clone(),
        last_pull: 0,
        last_grant: Vec::new(),
        incidents: Vec::new(),
        cordoned_until: None,
        last_death: 0,
        cordoned: false,
    };
    offers.iter().map(empty).collect()
}

impl Model {
    pub(crate) fn register(&mut self, r: Registration) -> Outcome {
        if !self.namespaces.contains_key(&r.namespace) {
            return Err(Rejection::NamespaceUnknown(r.namespace));
        }
        let holder = self
            .workers
            .iter()
            .find(|(_, w)| w.namespace == r.namespace && w.name == r.name)
            .map(|(id, _)| *id);
        if let Some(session) = holder {
            let worker = &self.workers[&session];
            let other = worker.instance != r.instance;
            if r.holder_alive && other {
                let (name, address) = (worker.name.clone(), worker.address.clone());
                return Err(Rejection::WorkerNameTaken { name, address });
            }
            if other {
                self.worker_crashed(session, &r.started, &r.held);
            }
            if r.resume == Some(session) {
                return Ok(self.resume(session, &r));
            }
            self.end(session);
        }
        let session = SessionId::at(self.index, self.op);
        self.sessions.push((session, r.name.clone()));
        let dropped = self.lost(&r.namespace, &r.held);
        self.workers.insert(
            session,
            Worker {
                namespace: r.namespace,
                name: r.name,
                instance: r.instance,
                address: r.address,
                suspect: None,
                unreported_starts: BTreeSet::new(),
                draining: false,
                gone_by: None,
                slots: slots(&r.slots),
                stores: r.stores,
            },
        );
        self.adopt_held(session, &r.held, r.slots.len());
        Ok(Reply::Registered { session, resumed: false, dropped })
    }

    fn resume(&mut self, session: SessionId, r: &Registration) -> Reply {
        self.adopt(session);
        for (no, run) in (1..).zip(&mut self.runs) {
            for (number, row) in (0..).zip(&mut run.rows) {
                let Some(lease) = row.leases().find(|l| l.slot.session == session) else {
                    continue;
                };
                let kept = r.held.iter().any(|h| {
                    h.run == RunNo(no) && h.attempt == lease.attempt && h.rows.contains(number)
                });
                if !kept && !row.release_shared_rows(lease.attempt) {
                    row.state = RowState::Pending { late: None };
                    run.returned += 1;
                }
            }
        }
        self.move_to_first(session, r.slots.len());
        let dropped = self.lost(&r.namespace, &r.held);
        let worker = self.workers.get_mut(&session).expect("found");
        let mut fresh = slots(&r.slots);
        if worker.instance == r.instance {
            for (new, old) in fresh.iter_mut().zip(&mut worker.slots) {
                new.last_pull = old.last_pull;
                new.last_grant = std::mem::take(&mut old.last_grant);
                new.incidents = std::mem::take(&mut old.incidents);
                (new.last_death, new.cordoned) = (old.last_death, old.cordoned);
                new.cordoned_until = old.cordoned_until;
            }
        } else {
            (worker.draining, worker.gone_by) = (false, None);
        }
        worker.slots = fresh;
        worker.instance = r.instance;
        worker.address = r.address.clone();
        worker.stores.clone_from(&r.stores);
        worker.suspect = None;
        worker.unreported_starts.clear();
        self.trim_grants(session);
        Reply::Registered { session, resumed: true, dropped }
    }

    /// Rows of slots that are gone move to the first slot, except that a trial must run alone.
    fn move_to_first(&mut self, session: SessionId, slots: usize) {
        let first = SlotRef { session, slot: SlotNo(0) };
        let in_trial = self.trial_at(first);
        for run in &mut self.runs {
            let gone = |lease: &Lease| {
                lease.slot.session == session && usize::from(lease.slot.slot.0) >= slots
            };
            let mut moved = BTreeSet::new();
            for row in &mut run.rows {
                let ended: Vec<Lease> = row.leases().filter(gone).collect();
                for lease in ended {
                    if !in_trial && row.trial.is_none() {
                        moved.insert(lease.attempt);
                    } else if !row.release_shared_rows(lease.attempt) {
                        row.state = RowState::Pending { late: None };
                        run.returned += 1;
                    }
                }
            }
            for row in &mut run.rows {
                let lease = match &mut row.state {
                    RowState::Running(lease) | RowState::Pending { late: Some(lease) } => {
                        Some(lease)
                    }
                    _ => None,
                };
                for lease in lease.into_iter().chain(&mut row.speculative) {
                    if moved.contains(&lease.attempt) {
                        lease.slot = first;
                        self.events.push("lease moved to the first slot".into());
                    }
                }
            }
        }
    }

    /// What of these the attempt may not decide any more.
    fn lost(&self, namespace: &str, held: &[HeldRows]) -> Vec<HeldRows> {
        let mut dropped = Vec::new();
        for set in held {
            let foreign = self.is_foreign_to(namespace, set.run);
            let run = self.runs.get((set.run.0 as usize).wrapping_sub(1));
            let gone = set.rows.iter().filter(|row| {
                let row = run.and_then(|r| r.rows.get(*row as usize));
                let late = match row.map(|r| r.state) {
                    Some(RowState::Pending { late }) => late,
                    _ => None,
                };
                let leases = row.into_iter().flat_map(|r| r.leases()).chain(late);
                foreign || !leases.into_iter().any(|l| l.attempt == set.attempt)
            });
            let rows = Rows::from_ranges(gone.map(|r| (r, 1))).expect("ascending");
            if !rows.is_empty() {
                dropped.push(HeldRows { run: set.run, attempt: set.attempt, rows });
            }
        }
        dropped
    }

    /// Lapsed rows without another holder are the session's again, attempt by attempt, except that a trial must run
    /// alone.
    fn adopt(&mut self, session: SessionId) {
        for at in 0..self.runs.len() {
            let late = |row: &Row| match row.state {
                RowState::Pending { late: Some(lease) } if lease.slot.session == session => {
                    Some((lease.attempt, lease.slot, row.trial.is_some()))
                }
                _ => None,
            };
            let attempts: BTreeSet<_> = self.runs[at].rows.iter().filter_map(late).collect();
            for (attempt, slot, trial) in attempts {
                let others = self.runs.iter().enumerate().flat_map(|(i, r)| {
                    r.rows.iter().filter_map(move |row| {
                        let lease = row.leases().find(|l| l.slot == slot)?;
                        Some((row.trial.is_some(), i != at || lease.attempt != attempt))
                    })
                });
                let others: Vec<(bool, bool)> = others.collect();
                let in_trial = others.iter().any(|o| o.0);
                let company = match in_trial {
                    true => others.iter().any(|o| o.0 && o.1),
                    false => trial && !others.is_empty(),
                };
                let run = &mut self.runs[at];
                if company || run.ended() {
                    continue;
                }
                for row in &mut run.rows {
                    if let RowState::Pending { late: Some(lease) } = row.state
                        && lease.attempt == attempt
                    {
                        row.state = RowState::Running(lease);
                        run.returned -= 1;
                        let what = if trial { "trial adopted" } else { "lease adopted" };
                        self.events.push(what.into());
                    }
                }
                self.tidy();
            }
        }
    }

    /// Moves rows of a session that is gone to a worker that still has them.
    fn adopt_held(&mut self, session: SessionId, held: &[HeldRows], slots: usize) {
        for set in held {
            if self.is_foreign(session, set.run) {
                continue;
            }
            let gone = |lease: &Lease| !self.workers.contains_key(&lease.slot.session);
            let Some(run) = self.runs.get_mut((set.run.0 as usize).wrapping_sub(1)) else {
                continue;
            };
            if run.ended() {
                continue;
            }
            let theirs = |row: &Row| match row.state {
                RowState::Pending { late: Some(l) } if l.attempt == set.attempt => {
                    (row.trial.is_none() && gone(&l)).then_some(l)
                }
                _ => None,
            };
            let comes = |number: usize, row: &Row| {
                set.rows.contains(number as u64) && theirs(row).is_some()
            };
            if !run.rows.iter().enumerate().any(|(number, row)| comes(number, row)) {
                continue;
            }
            for (number, row) in run.rows.iter_mut().enumerate() {
                let Some(lease) = theirs(row) else { continue };
                if set.rows.contains(number as u64) {
                    let same = Some(lease.slot.slot).filter(|slot| usize::from(slot.0) < slots);
                    let slot = SlotRef { session, slot: same.unwrap_or(SlotNo(0)) };
                    row.state = RowState::Running(Lease { slot, ..lease });
                    run.returned -= 1;
                    self.events.push("lease adopted by a new session".into());
                } else {
                    row.state = RowState::Pending { late: None };
                }
            }
            self.tidy();
        }
    }

    /// A repeated pull gets what is left of its answer; new rows when nothing is.
    fn trim_grants(&mut self, session: SessionId) {
        let Some(mut worker) = self.workers.remove(&session) else { return };
        for slot in &mut worker.slots {
            let had = !slot.last_grant.is_empty();
            let mut left = Vec::new();
            for set in slot.last_grant.drain(..) {
                let run = &self.runs[set.run.0 as usize - 1];
                let live = set.rows.iter().filter(|r| {
                    let row = run.rows.get(*r as usize);
                    row.is_some_and(|row| row.leases().any(|l| l.attempt == set.attempt))
                });
                let rows = Rows::from_ranges(live.map(|r| (r, 1))).expect("ascending");
                if !rows.is_empty() {
                    left.push(HeldRows { rows, ..set });
                }
            }
            slot.last_grant = left;
            if had && slot.last_grant.is_empty() {
                slot.last_pull -= 1;
                self.events.push("pull of lost rows".into());
            }
        }
        self.workers.insert(session, worker);
    }

    fn end(&mut self, session: SessionId) {
        for run in &mut self.runs {
            run.lapse(|lease| lease.slot.session == session);
        }
        self.workers.remove(&session);
    }

    pub(crate) fn deregister(&mut self, session: SessionId) -> Outcome {
        if !self.workers.contains_key(&session) {
            return Err(Rejection::SessionUnknown);
        }
        self.end(session);
        Ok(Reply::Ok)
    }

    fn try_often_unreported(&mut self, unreported_starts: &BTreeSet<(u32, Attempt, u64)>) {
        let mut often: BTreeMap<(u32, Attempt), Vec<u64>> = BTreeMap::new();
        for &(no, attempt, row) in unreported_starts {
            if self.runs[no as usize - 1].rows[row as usize].crashes >= 3 {
                often.entry((no, attempt)).or_default().push(row);
            }
        }
        for ((no, _), rows) in often {
            self.events.push("suspected of ending workers unheard".into());
            let first = rows.len().div_ceil(2);
            let run = &mut self.runs[no as usize - 1];
            run.try_rows(&rows[..first], None);
            run.try_rows(&rows[first..], None);
        }
    }

    pub(crate) fn suspect_with_unreported_starts(
        &mut self,
        session: SessionId,
        started: &[HeldRows],
        unreported_starts: &[HeldRows],
        grace_ms: u64,
    ) -> Outcome {
        if self.workers.get(&session).is_some_and(Worker::ready) {
            let mut all = BTreeSet::new();
            for set in unreported_starts {
                let Some(run) = self.runs.get((set.run.0 as usize).wrapping_sub(1)) else {
                    continue;
                };
                let own = |row: &Row| match row.state {
                    RowState::Running(l) => {
                        (l.attempt, l.slot.session) == (set.attempt, session)
                            && row.trial.is_none()
                            && row.speculative.is_none()
                    }
                    _ => false,
                };
                let of = set.rows.iter().filter(|row| run.rows.get(*row as usize).is_some_and(own));
                all.extend(of.map(|row| (set.run.0, set.attempt, row)));
            }
            self.try_often_unreported(&all);
            self.workers.get_mut(&session).expect("found").unreported_starts = all;
        }
        self.suspect(session, started, grace_ms)
    }

    pub(crate) fn suspect(
        &mut self,
        session: SessionId,
        started: &[HeldRows],
        grace_ms: u64,
    ) -> Outcome {
        let until = self.clock + grace_ms;
        let worker = self.workers.get_mut(&session).ok_or(Rejection::SessionUnknown)?;
        if worker.suspect.is_some() {
            return Ok(Reply::Ok);
        }
        worker.suspect = Some((until, grace_ms));
        for (no, run) in (1..).zip(&mut self.runs) {
            for number in 0..run.rows.len() {
                let mine = run.rows[number].leases().find(|l| l.slot.session == session);
                let Some(lease) = mine else { continue };
                let begun = started.iter().any(|h| {
                    let this = h.run == RunNo(no) && h.attempt == lease.attempt;
                    this && h.rows.contains(number as u64)
                });
                let trial = run.rows[number].trial.is_some();
                if !begun && !trial && !run.rows[number].release_shared_rows(lease.attempt) {
                    run.rows[number].state = RowState::Pending { late: Some(lease) };
                    run.returned += 1;
                }
            }
        }
        Ok(Reply::Ok)
    }

    pub(crate) fn unsuspect(&mut self, session: SessionId) -> Outcome {
        let worker = self.workers.get_mut(&session).ok_or(Rejection::SessionUnknown)?;
        if worker.suspect.take().is_some() {
            worker.unreported_starts.clear();
            self.adopt(session);
            self.trim_grants(session);
        }
        Ok(Reply::Ok)
    }

    pub(crate) fn drain(&mut self, session: SessionId, deadline_ms: u64) -> Outcome {
        let end = self.clock + deadline_ms;
        let worker = self.workers.get_mut(&session).ok_or(Rejection::SessionUnknown)?;
        worker.draining = true;
        if deadline_ms > 0 && worker.gone_by.is_none_or(|known| end < known) {
            worker.gone_by = Some(end);
        }
        Ok(Reply::Ok)
    }

    pub(crate) fn restart_grace(&mut self) {
        for worker in self.workers.values_mut() {
            if let Some((until, grace_ms)) = &mut worker.suspect {
                *until = self.clock + *grace_ms;
            }
        }
    }

    pub(crate) fn end_silent(&mut self) {
        let now = self.clock;
        let due = |w: &Worker| {
            w.suspect.is_some_and(|(until, _)| until <= now) || w.gone_by.is_some_and(|t| t <= now)
        };
        let due: Vec<SessionId> = self.workers.iter().filter(|w| due(w.1)).map(|w| *w.0).collect();
        for session in due {
            self.worker_crashed(session, &[], &[]);
            self.end(session);
        }
    }
}
