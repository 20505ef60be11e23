//! Stealing in the model: rows that move from one slot to another, one by one.

use crate::naive::{Model, Outcome};
use crate::rows::{Lease, RowState};
use rollout_ledger::id::{Attempt, RunNo, SlotRef};
use rollout_ledger::view::RunState;
use rollout_ledger::{HeldRows, RefusedRows, Rejection, Reply, Rows, limits};
use std::collections::BTreeMap;

impl Model {
    pub(crate) fn steal(
        &mut self,
        victim: SlotRef,
        held: &[HeldRows],
        (idle_slot, instance, seq): (SlotRef, u64, u64),
    ) -> Outcome {
        if held.iter().map(|h| h.rows.len()).sum::<u64>() > u64::from(limits::CLAIM_ROWS_MAX) {
            let max = u64::from(limits::CLAIM_ROWS_MAX);
            return Err(Rejection::Limit { what: "rows given up at once".into(), max });
        }
        let takes = self.answers(idle_slot, instance, seq);
        let mut attempts: BTreeMap<RunNo, Attempt> = BTreeMap::new();
        let mut got: BTreeMap<RunNo, Vec<u64>> = BTreeMap::new();
        let mut refused = Vec::new();
        for set in held {
            let fits = takes && self.may_steal(idle_slot, set.run);
            let avoids = fits.then(|| self.avoids(idle_slot, set.run.0));
            let mut stale = Vec::new();
            for row in set.rows.iter() {
                if !self.is_live(victim, set, row) {
                    let run = self.run_of(set.run).ok();
                    if let Some(r) = run.and_then(|run| run.rows.get_mut(row as usize)) {
                        r.drop_lapsed_lease(set.attempt, victim.session);
                    }
                    stale.push(row);
                    continue;
                }
                let (index, clock, granted) = (self.index, self.clock, self.granted);
                let attempt = *attempts.entry(set.run).or_insert(Attempt::at(index, granted));
                let run = &mut self.runs[set.run.0 as usize - 1];
                let run_row = &mut run.rows[row as usize];
                if run_row.release_shared_rows(set.attempt) {
                    attempts.retain(|no, _| got.contains_key(no));
                    self.note("one of two given up");
                    continue;
                }
                let kept = avoids.as_ref().is_some_and(|avoids| run_row.is_avoided(avoids));
                if !fits || kept || run_row.trial.is_some() {
                    attempts.retain(|no, _| got.contains_key(no));
                    run_row.state = RowState::Pending { late: None };
                    run.returned += 1;
                    self.note("stolen row not taken");
                    continue;
                }
                let lease = Lease { attempt, slot: idle_slot, granted_at: clock };
                run_row.state = RowState::Running(lease);
                run.stolen += 1;
                let rows = got.entry(set.run).or_default();
                self.granted += u32::from(rows.is_empty());
                rows.push(row);
            }
            let rows = Rows::from_ranges(stale.into_iter().map(|r| (r, 1))).expect("ascending");
            if !rows.is_empty() {
                let why = Rejection::AttemptStale;
                refused.push(RefusedRows { run: set.run, attempt: set.attempt, rows, why });
            }
        }
        let grants: Vec<HeldRows> = got
            .into_iter()
            .map(|(run, mut rows)| {
                rows.sort_unstable();
                let rows = Rows::from_ranges(rows.into_iter().map(|r| (r, 1))).expect("sorted");
                HeldRows { run, attempt: attempts[&run], rows }
            })
            .collect();
        self.remember_grants(idle_slot, seq, &grants);
        Ok(Reply::Stolen {
            granted: grants.into_iter().map(|h| self.granted(h)).collect(),
            refused,
        })
    }

    /// Whether that pull is still to be answered, by a slot that takes work.
    fn answers(&self, slot: SlotRef, instance: u64, seq: u64) -> bool {
        let Some(worker) = self.workers.get(&slot.session) else { return false };
        let pulls = worker.slots.get(usize::from(slot.slot.0));
        worker.instance == instance
            && self.takes_work(slot)
            && self.own_trial(slot).is_none()
            && pulls.is_some_and(|s| s.last_pull < seq)
    }

    pub(crate) fn may_steal(&self, slot: SlotRef, no: RunNo) -> bool {
        let Some(run) = self.runs.get((no.0 as usize).wrapping_sub(1)) else { return false };
        let worker = &self.workers[&slot.session];
        let offer = &worker.slots[usize::from(slot.slot.0)].offer;
        run.state == RunState::Running
            && run.namespace == worker.namespace
            && offer.models.contains(&run.spec.engine.model)
            && self.has_store(run, worker)
    }

    fn is_live(&self, slot: SlotRef, set: &HeldRows, row: u64) -> bool {
        let run = self.runs.get((set.run.0 as usize).wrapping_sub(1));
        let row = run.and_then(|r| r.rows.get(row as usize));
        row.is_some_and(|row| row.live_for(set.attempt, slot.session))
    }

    /// The pull's answer, also for its repeat.
    pub(crate) fn remember_grants(&mut self, slot: SlotRef, seq: u64, grants: &[HeldRows]) {
        if grants.is_empty() {
            return;
        }
        self.grants.extend(grants.iter().map(|g| (slot, g.clone())));
        let worker = self.workers.get_mut(&slot.session).expect("found");
        let pulls = &mut worker.slots[usize::from(slot.slot.0)];
        (pulls.last_pull, pulls.last_grant) = (seq, grants.to_vec());
    }
}
