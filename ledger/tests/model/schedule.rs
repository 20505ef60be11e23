//! Who gets rows: one row after the other.

use crate::naive::{Model, Outcome};
use crate::runs::{Lease, RowState};
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
        let mut order: Vec<u32> = Vec::new();
        let mut picked: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        let mut left = rows_max;
        for priority in (0..=9).rev() {
            self.serve(slot, priority, &mut left, &mut order, &mut picked);
        }
        let mut grants = Vec::new();
        for no in order {
            let rows = picked.remove(&no).unwrap_or_default();
            let attempt = Attempt::at(self.index, self.granted);
            self.granted += 1;
            // The rows were marked with whatever attempt; now it is known which.
            for &row in &rows {
                let lease = Lease { attempt, slot, granted_at: self.clock };
                self.runs[no as usize - 1].rows[row as usize].state = RowState::Running(lease);
            }
            let rows = Rows::from_ranges(rows.into_iter().map(|r| (r, 1))).expect("ascending");
            grants.push(HeldRows { run: RunNo(no), attempt, rows });
        }
        if !grants.is_empty() {
            self.grants.extend(grants.iter().map(|g| (slot, g.clone())));
            let worker = self.workers.get_mut(&slot.session).expect("found");
            let pulls = &mut worker.slots[usize::from(slot.slot.0)];
            (pulls.last_pull, pulls.last_grant) = (seq, grants.clone());
        }
        Ok(Reply::Granted(grants.into_iter().map(|h| self.granted(h)).collect()))
    }

    /// Gives rows of one priority, one by one.
    fn serve(
        &mut self,
        slot: SlotRef,
        priority: u8,
        left: &mut u32,
        order: &mut Vec<u32>,
        picked: &mut BTreeMap<u32, Vec<u64>>,
    ) {
        let mut fitting: Vec<u32> =
            (1..=self.runs.len() as u32).filter(|no| self.can_serve(*no, slot, priority)).collect();
        // Alone, a run needs no turns.
        let alone = fitting.len() == 1;
        let turn = self.turns.get(&priority).copied().unwrap_or(0);
        let mut at = fitting.iter().position(|no| *no >= turn).unwrap_or(0);
        let mut served = false;
        while *left > 0 && !fitting.is_empty() && self.namespace_has_room(slot) {
            at %= fitting.len();
            let no = fitting[at];
            let run = &mut self.runs[no as usize - 1];
            if run.deficit == 0 && !alone {
                run.deficit = u64::from(run.spec.weight * limits::QUANTUM_ROWS);
            }
            let pending = |r: &crate::runs::Row| matches!(r.state, RowState::Pending { .. });
            let row = run.rows.iter().position(pending).expect("it has pending rows");
            let lease = Lease { attempt: Attempt(0), slot, granted_at: self.clock };
            run.rows[row].state = RowState::Running(lease);
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
        if served && !alone && !fitting.is_empty() {
            self.turns.insert(priority, fitting[at % fitting.len()]);
        }
    }

    /// Whether a run has a row for this slot, but for its namespace's cap.
    fn can_serve(&self, no: u32, slot: SlotRef, priority: u8) -> bool {
        let run = &self.runs[no as usize - 1];
        let worker = &self.workers[&slot.session];
        let offer = &worker.slots[usize::from(slot.slot.0)].offer;
        let cap = run.spec.running_rows_max;
        run.spec.priority == priority
            && run.state == RunState::Running
            && run.namespace == worker.namespace
            && offer.models.contains(&run.spec.engine.model)
            && run.pending() > 0
            && (cap == 0 || run.running() < cap)
    }

    fn namespace_has_room(&self, slot: SlotRef) -> bool {
        let name = &self.workers[&slot.session].namespace;
        let cap = self.namespaces[name];
        let runs = self.runs.iter().filter(|r| r.namespace == *name);
        cap == 0 || runs.map(|r| r.running()).sum::<u64>() < cap
    }

    fn granted(&self, held: HeldRows) -> GrantedRows {
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
        GrantedRows { held, segments, alone: false }
    }
}
