//! Speculative attempts in the model, one by one: rows that a second worker runs while a first one does.

use crate::naive::{Model, Outcome};
use crate::rows::{Lease, RowState};
use crate::runs::Run;
use rollout_ledger::id::{Attempt, RunNo, SessionId, SlotRef};
use rollout_ledger::view::RunState;
use rollout_ledger::{HeldRows, Reply, Rows, Superseded};
use std::collections::BTreeMap;

impl Run {
    fn at_tail(&self) -> bool {
        self.spec.tail_duplicates
            && self.state == RunState::Running
            && self.closed
            && self.pending() == 0
    }

    /// The rows that another worker has had for a second and that no third one runs, from the oldest attempt on.
    fn rows_to_speculate_on(&self, session: SessionId, now: u64) -> Vec<u64> {
        let mut rows: Vec<(Attempt, u64)> = Vec::new();
        for (number, row) in (0..).zip(&self.rows) {
            if let RowState::Running(lease) = row.state
                && row.speculative.is_none()
                && row.trial.is_none()
                && !row.failed_once
                && lease.slot.session != session
                && lease.granted_at + 1000 <= now
            {
                rows.push((lease.attempt, number));
            }
        }
        rows.sort_unstable();
        rows.into_iter().map(|row| row.1).collect()
    }
}

impl Model {
    pub(crate) fn claim_speculatively(
        &mut self,
        slot: SlotRef,
        seq: u64,
        rows_max: u32,
    ) -> Outcome {
        let worker = self.workers.get(&slot.session);
        let pulls = worker.and_then(|w| w.slots.get(usize::from(slot.slot.0)));
        let answered = pulls.is_some_and(|s| s.last_pull >= seq);
        let reply = self.claim(slot, seq, rows_max)?;
        let nothing = reply == Reply::Granted(Vec::new()) && !answered;
        if !nothing || !self.takes_work(slot) || self.own_trial(slot).is_some() {
            return Ok(reply);
        }
        let mut runs: Vec<u32> = (1..=self.runs.len() as u32).collect();
        runs.sort_by_key(|no| (9 - self.runs[*no as usize - 1].spec.priority, *no));
        let (mut left, mut grants) = (rows_max as usize, Vec::new());
        for no in runs {
            let run = &self.runs[no as usize - 1];
            if !run.at_tail() || !self.may_steal(slot, RunNo(no)) {
                continue;
            }
            let mut rows = run.rows_to_speculate_on(slot.session, self.clock);
            rows.truncate(left);
            if rows.is_empty() {
                continue;
            }
            rows.sort_unstable();
            left -= rows.len();
            let attempt = Attempt::at(self.index, self.granted);
            self.granted += 1;
            let run = &mut self.runs[no as usize - 1];
            run.speculative_rows += rows.len() as u64;
            for row in &rows {
                run.rows[*row as usize].speculative =
                    Some(Lease { attempt, slot, granted_at: self.clock });
            }
            let rows = Rows::from_ranges(rows.into_iter().map(|r| (r, 1))).expect("sorted");
            grants.push(HeldRows { run: RunNo(no), attempt, rows });
            self.note("rows duplicated");
        }
        self.remember_grants(slot, seq, &grants);
        Ok(Reply::Granted(grants.into_iter().map(|h| self.granted(h)).collect()))
    }
}

/// The slots that lost rows to one set: first those with attempts later than or beside the winner's, then those that
/// had the rows first.
pub(crate) fn grouped(no: RunNo, lost: Vec<(Attempt, Lease, u64)>) -> Vec<Superseded> {
    let mut rivals: BTreeMap<(bool, Attempt), Vec<(Lease, u64)>> = BTreeMap::new();
    for (winner, rival, row) in lost {
        rivals.entry((rival.attempt < winner, rival.attempt)).or_default().push((rival, row));
    }
    let superseded = |((_, attempt), rows): ((bool, Attempt), Vec<(Lease, u64)>)| {
        let slot = rows[0].0.slot;
        let rows = Rows::from_ranges(rows.into_iter().map(|r| (r.1, 1))).expect("ascending");
        Superseded { slot, held: HeldRows { run: no, attempt, rows } }
    };
    rivals.into_iter().map(superseded).collect()
}
