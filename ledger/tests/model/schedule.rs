//! Which slots get rows: one row after the other.

use crate::naive::{Model, Outcome};
use crate::rows::{Lease, Row, RowState};
use crate::runs::Run;
use crate::workers::Worker;
use rollout_ledger::id::{Attempt, RunNo, SegmentNo, SlotRef};
use rollout_ledger::view::RunState;
use rollout_ledger::{GrantedRows, HeldRows, Rejection, Reply, Rows, SegmentRef, limits};
use std::collections::BTreeMap;

impl Model {
    pub(crate) fn claim(&mut self, slot: SlotRef, seq: u64, rows_max: u32) -> Outcome {
        let worker = self.workers.get(&slot.session).ok_or(Rejection::SessionUnknown)?;
        if !worker.ready() {
            return Err(Rejection::WorkerNotReady);
        }
        let pulls = worker.slots.get(usize::from(slot.slot.0)).ok_or(Rejection::SlotUnknown)?;
        if pulls.last_pull == seq {
            let again: Vec<GrantedRows> =
                pulls.last_grant.iter().map(|h| self.granted(h.clone())).collect();
            if !again.is_empty() {
                self.note("pull repeated");
            }
            return Ok(Reply::Granted(again));
        }
        if pulls.last_pull > seq {
            return Err(Rejection::PullStale { last: pulls.last_pull });
        }
        if rows_max == 0 || !self.takes_work(slot) && !self.takes_only_trials(slot) {
            return Ok(Reply::Granted(Vec::new()));
        }
        let empty = self.held_at(slot).next().is_none();
        let mut order: Vec<u32> = Vec::new();
        let mut picked: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        let mut left = rows_max;
        let mut trial = self.own_trial(slot);
        let own = trial.is_some();
        if self.is_fair() && trial.is_none() {
            trial = self.serve_fairly(slot, empty, &mut left, &mut order, &mut picked);
        }
        for priority in (0..=9).rev() {
            if trial.is_none() && !self.is_fair() {
                let empty = empty && order.is_empty();
                trial = self.serve(slot, priority, empty, &mut left, &mut order, &mut picked);
            }
        }
        match trial {
            Some((no, number)) if empty && order.is_empty() => {
                let rows = self.trial_rows(slot, no, number, rows_max);
                if !rows.is_empty() {
                    self.trials.insert(Attempt::at(self.index, self.granted));
                    self.runs[no as usize - 1].emptying.remove(&number);
                    order.push(no);
                    picked.insert(no, rows);
                    self.note("trial granted");
                    if self.cordoned(slot) {
                        self.note("trial granted to a cordoned slot");
                    }
                }
            }
            Some((no, number)) if !own => {
                self.runs[no as usize - 1].emptying.insert(number, slot);
                self.note("slot empties itself");
            }
            _ => {}
        }
        let mut grants = Vec::new();
        for no in order {
            let mut rows = picked.remove(&no).unwrap_or_default();
            rows.sort_unstable();
            let attempt = Attempt::at(self.index, self.granted);
            self.granted += 1;
            // The rows were marked with whatever attempt; now it is known which.
            for &row in &rows {
                let lease = Lease { attempt, slot, granted_at: self.clock };
                let row = &mut self.runs[no as usize - 1].rows[row as usize];
                (row.state, row.granted) = (RowState::Running(lease), true);
            }
            let rows = Rows::from_ranges(rows.into_iter().map(|r| (r, 1))).expect("ascending");
            grants.push(HeldRows { run: RunNo(no), attempt, rows });
        }
        self.remember_grants(slot, seq, &grants);
        Ok(Reply::Granted(grants.into_iter().map(|h| self.granted(h)).collect()))
    }

    /// The trial that a slot empties itself for.
    pub(crate) fn own_trial(&self, slot: SlotRef) -> Option<(u32, u32)> {
        let mut runs: Vec<u32> = (1..=self.runs.len() as u32).collect();
        runs.sort_by_key(|no| (9 - self.runs[*no as usize - 1].spec.priority, *no));
        runs.into_iter().find_map(|no| {
            let run = &self.runs[no as usize - 1];
            let own = |t: &u32| run.emptying.get(t) == Some(&slot);
            let trial = run.ready_trials().into_iter().find(own)?;
            (self.fits(no, slot) && self.cordon_allows_trials(no, slot)).then_some((no, trial))
        })
    }

    /// As much of a trial as fits the pull and the caps.
    fn trial_rows(&self, slot: SlotRef, no: u32, trial: u32, rows_max: u32) -> Vec<u64> {
        let run = &self.runs[no as usize - 1];
        let room = |cap: u64, used: u64| if cap == 0 { u64::MAX } else { cap.saturating_sub(used) };
        let name = &self.workers[&slot.session].namespace;
        let used = self.runs.iter().filter(|r| r.namespace == *name).map(|r| r.running()).sum();
        let most = room(run.spec.running_rows_max, run.running())
            .min(room(self.namespaces[name], used))
            .min(rows_max.into());
        let rows = (0..)
            .zip(&run.rows)
            .filter(|(_, r)| matches!(r.state, RowState::Pending { .. }) && r.trial == Some(trial));
        rows.map(|r| r.0).take(most as usize).collect()
    }

    /// Gives rows of one priority, one by one, until a trial comes.
    fn serve(
        &mut self,
        slot: SlotRef,
        priority: u8,
        empty: bool,
        left: &mut u32,
        order: &mut Vec<u32>,
        picked: &mut BTreeMap<u32, Vec<u64>>,
    ) -> Option<(u32, u32)> {
        if *left == 0 || !self.has_room(slot) {
            return None;
        }
        let mut fitting: Vec<u32> =
            (1..=self.runs.len() as u32).filter(|no| self.can_serve(*no, slot, priority)).collect();
        let offers: BTreeMap<u32, (u32, bool)> = (1..=self.runs.len() as u32)
            .filter(|no| self.fits(*no, slot) && self.priority(*no) == priority)
            .filter_map(|no| Some((no, self.offered(no, slot, empty)?)))
            .collect();
        fitting.extend(offers.keys());
        fitting.sort_unstable();
        fitting.dedup();
        // Alone, a run needs no turns.
        let alone = fitting.len() == 1;
        let turn = self.turns.get(&priority).copied().unwrap_or(0);
        let mut at = fitting.iter().position(|no| *no >= turn).unwrap_or(0);
        let mut served = false;
        let mut trial = None;
        while *left > 0 && !fitting.is_empty() && self.has_room(slot) {
            at %= fitting.len();
            let no = fitting[at];
            let run = &mut self.runs[no as usize - 1];
            if run.deficit == 0 && !alone {
                run.deficit = u64::from(run.weight * limits::QUANTUM_ROWS);
            }
            if let Some(&(number, _)) = offers.get(&no).filter(|o| o.1 || !served) {
                let waits = |r: &&Row| {
                    matches!(r.state, RowState::Pending { .. }) && r.trial == Some(number)
                };
                let rows = run.rows.iter().filter(waits).count() as u64;
                run.deficit = run.deficit.saturating_sub(if alone { 0 } else { rows });
                at += usize::from(!alone && run.deficit == 0);
                trial = Some((no, number));
                break;
            }
            let run = &mut self.runs[no as usize - 1];
            let Some(row) = run.first(ordinary) else {
                run.deficit = 0; // It has a trial, which is not for this slot now.
                fitting.remove(at);
                continue;
            };
            let lease = Lease { attempt: Attempt(0), slot, granted_at: self.clock };
            (run.rows[row].state, run.rows[row].granted) = (RowState::Running(lease), true);
            run.deficit -= u64::from(!alone);
            let spent = run.deficit == 0;
            *left -= 1;
            served = true;
            if !order.contains(&no) {
                order.push(no);
            }
            picked.entry(no).or_default().push(row as u64);
            if !self.can_serve(no, slot, priority) {
                if !alone {
                    self.runs[no as usize - 1].deficit = 0;
                }
                fitting.remove(at);
            } else if spent {
                at += 1;
            }
        }
        if (served || trial.is_some()) && !alone && !fitting.is_empty() {
            self.turns.insert(priority, fitting[at % fitting.len()]);
        }
        trial
    }

    fn priority(&self, no: u32) -> u8 {
        self.runs[no as usize - 1].spec.priority
    }

    /// Whether a run has a row for this slot, ignoring trials and its namespace's cap.
    fn can_serve(&self, no: u32, slot: SlotRef, priority: u8) -> bool {
        let run = &self.runs[no as usize - 1];
        run.spec.priority == priority
            && self.fits(no, slot)
            && !self.cordoned(slot)
            && run.first(ordinary).is_some()
    }

    /// Whether a run may give rows to this slot, if it has any.
    pub(crate) fn fits(&self, no: u32, slot: SlotRef) -> bool {
        let running = self.runs[no as usize - 1].state == RunState::Running;
        running && self.fits_paused_or_not(no, slot)
    }

    /// The same, but that the run may be paused.
    pub(crate) fn fits_paused_or_not(&self, no: u32, slot: SlotRef) -> bool {
        let run = &self.runs[no as usize - 1];
        let worker = &self.workers[&slot.session];
        let offer = &worker.slots[usize::from(slot.slot.0)].offer;
        let cap = run.spec.running_rows_max;
        run.namespace == worker.namespace
            && offer.models.contains(&run.spec.engine.model)
            && self.has_store(run, worker)
            && (cap == 0 || run.running() < cap)
    }

    /// Whether a worker can use a run's store: only from version 3 on by a URL above it.
    pub(crate) fn has_store(&self, run: &Run, worker: &Worker) -> bool {
        let url = &run.spec.store_url;
        let allows = |listed: &String| {
            let rest = url.strip_prefix(listed.as_str());
            rest.is_some_and(|rest| rest.is_empty() || self.version >= 3 && rest.starts_with('/'))
        };
        url.is_empty() || worker.stores.iter().any(allows)
    }

    pub(crate) fn has_room(&self, slot: SlotRef) -> bool {
        let name = &self.workers[&slot.session].namespace;
        let cap = self.namespaces[name];
        let runs = self.runs.iter().filter(|r| r.namespace == *name);
        cap == 0 || runs.map(|r| r.running()).sum::<u64>() < cap
    }

    pub(crate) fn granted(&self, held: HeldRows) -> GrantedRows {
        let run = &self.runs[held.run.0 as usize - 1];
        let mut segments = Vec::new();
        let mut first_row = 0;
        for (number, segment) in (0..).zip(&run.segments) {
            let end = first_row + u64::from(segment.rows);
            if held.rows.iter().any(|r| (first_row..end).contains(&r)) {
                segments.push(SegmentRef {
                    number: SegmentNo(number),
                    first_row,
                    rows: segment.rows,
                    blob: segment.blob.clone(),
                });
            }
            first_row = end;
        }
        let alone = self.trials.contains(&held.attempt);
        GrantedRows { held, segments, alone }
    }
}

/// Whether a row may be granted in any company.
fn ordinary(row: &Row) -> bool {
    matches!(row.state, RowState::Pending { .. }) && row.trial.is_none()
}
