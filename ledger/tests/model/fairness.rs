//! Fair sharing, one row after the other: every run has a clock, and the one that is behind is next.

use crate::naive::Model;
use crate::rows::{Lease, Row, RowState};
use rollout_ledger::id::{Attempt, SlotRef};
use rollout_ledger::limits;
use rollout_ledger::view::RunState;
use std::collections::{BTreeMap, BTreeSet};

/// By how much a row of a run of weight 1 moves its clock.
const ROW: u64 = 1 << 20;

impl Model {
    pub(crate) fn is_fair(&self) -> bool {
        self.version >= 3
    }

    /// The runs that some slot could be given something of, if it fitted.
    pub(crate) fn giving(&self) -> BTreeSet<u32> {
        let gives = |no: &u32| {
            let run = &self.runs[*no as usize - 1];
            let cap = run.spec.running_rows_max;
            let has = run.first(ordinary).is_some() || !run.ready_trials().is_empty();
            run.state == RunState::Running && has && (cap == 0 || run.running() < cap)
        };
        (1..=self.runs.len() as u32).filter(gives).collect()
    }

    /// Runs that had nothing to give before and have something now are not behind those that had.
    pub(crate) fn join_fairly(&mut self, before: &BTreeSet<u32>) {
        if !self.is_fair() {
            return;
        }
        let now = self.giving();
        let stayed: Vec<u32> = now.intersection(before).copied().collect();
        let joins = now.difference(before).filter_map(|no| {
            let rivals =
                self.slots().into_iter().filter(|slot| self.meets(*no, *slot)).filter_map(|slot| {
                    let of_priority = |other: &&u32| {
                        self.runs[**other as usize - 1].spec.priority
                            == self.runs[*no as usize - 1].spec.priority
                    };
                    let rivals =
                        stayed.iter().filter(of_priority).filter(|other| self.meets(**other, slot));
                    rivals.map(|other| self.runs[*other as usize - 1].time).min()
                });
            Some((*no, rivals.max()?))
        });
        for (no, time) in joins.collect::<Vec<_>>() {
            let run = &mut self.runs[no as usize - 1];
            let ahead = 4 * u64::from(limits::QUANTUM_ROWS) * ROW;
            run.time = match run.time {
                early if early < time => {
                    self.events.push("a run joins with the time of others".into());
                    time
                }
                late => late.min(time + ahead),
            };
        }
    }

    /// Whether a slot has what a run asks for.
    fn meets(&self, no: u32, slot: SlotRef) -> bool {
        let run = &self.runs[no as usize - 1];
        let worker = &self.workers[&slot.session];
        let offer = &worker.slots[usize::from(slot.slot.0)].offer;
        run.namespace == worker.namespace && offer.models.contains(&run.spec.engine.model)
    }

    /// Gives rows, one by one, until a trial comes.
    pub(crate) fn serve_fairly(
        &mut self,
        slot: SlotRef,
        empty: bool,
        left: &mut u32,
        order: &mut Vec<u32>,
        picked: &mut BTreeMap<u32, Vec<u64>>,
    ) -> Option<(u32, u32)> {
        let mut open: Vec<u32> =
            self.giving().into_iter().filter(|no| self.fits(*no, slot)).collect();
        let mut offers: BTreeMap<u32, Option<(u32, bool)>> = BTreeMap::new();
        let mut trial = None;
        while *left > 0 && self.has_room(slot) {
            let next = |no: &u32| {
                (
                    9 - self.runs[*no as usize - 1].spec.priority,
                    self.runs[*no as usize - 1].time,
                    *no,
                )
            };
            let Some(no) = open.iter().copied().min_by_key(next) else { break };
            let offer = *offers
                .entry(no)
                .or_insert_with(|| self.offered(no, slot, empty && order.is_empty()));
            let run = &mut self.runs[no as usize - 1];
            if let Some((number, _)) = offer.filter(|offer| offer.1 || order.is_empty()) {
                let waits = |r: &&Row| {
                    matches!(r.state, RowState::Pending { .. }) && r.trial == Some(number)
                };
                let rows = run.rows.iter().filter(waits).count() as u64;
                run.time += rows * ROW / u64::from(run.spec.weight);
                trial = Some((no, number));
                break;
            }
            let mut taken = 0;
            while taken < u64::from(self.runs[no as usize - 1].spec.weight * limits::QUANTUM_ROWS) {
                let serves =
                    *left > 0 && !self.cordoned(slot) && self.has_room(slot) && self.fits(no, slot);
                let run = &mut self.runs[no as usize - 1];
                let Some(row) = run.first(ordinary).filter(|_| serves) else { break };
                let lease = Lease { attempt: Attempt(0), slot, granted_at: self.clock };
                (run.rows[row].state, run.rows[row].granted) = (RowState::Running(lease), true);
                picked.entry(no).or_default().push(row as u64);
                *left -= 1;
                taken += 1;
            }
            let run = &mut self.runs[no as usize - 1];
            run.time += taken * ROW / u64::from(run.spec.weight);
            if taken > 0 && !order.contains(&no) {
                order.push(no);
            }
            let more = self.runs[no as usize - 1].first(ordinary).is_some() && self.fits(no, slot);
            if taken == 0 || !more {
                open.retain(|other| *other != no);
            }
        }
        trial
    }
}

/// Whether a row may be granted in any company.
fn ordinary(row: &Row) -> bool {
    matches!(row.state, RowState::Pending { .. }) && row.trial.is_none()
}
