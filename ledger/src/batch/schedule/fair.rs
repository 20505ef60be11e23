//! Fair sharing by virtual time: the rows that a run was served, divided by its weight.
//!
//! A pull is served from the run with the least virtual time among those that the slot fits. Slots that fit different
//! runs share one clock for each run, so a run that one slot has served already waits at the others: in the long run
//! the shares are max-min fair by weight, whatever the overlap (`tests/behavior/fairness.rs`).
//!
//! *Invariant:* a run saves up nothing while it has nothing to give. When it joins, its time is at least that of the
//! run that is served next at the slots where that time is latest, and at most a few turns more
//! ([`levels`](super::levels)), so it neither waits behind what others were served before nor keeps them waiting
//! until it has caught up. Old service fades: when a time reaches [`TIME_MAX`], all are halved, which keeps their
//! order.

use super::{Candidate, Share};
use crate::batch::eligibility::Turn;
use crate::kernel::id::{RunNo, SlotRef};
use crate::kernel::limits;
use crate::machine::ledger::Ledger;
use crate::machine::version_gate::SCHEDULING_VERSION;
use std::collections::BTreeMap;

/// Virtual time of one row of a run of weight 1.
const ROW: u64 = 1 << 20;
/// The virtual time at which all are halved: that of a run of weight 1 after 2^14 rows. A run that was served faster,
/// at slots that others do not fit, waits for at most this many rows per unit of weight once it shares slots with
/// them.
const TIME_MAX: u64 = ROW << 14;
/// By how much a run that joins may be ahead of those that it joins: a fair share is never further ahead than one turn.
pub(super) const AHEAD_MAX: u64 = 4 * limits::QUANTUM_ROWS as u64 * ROW;

/// Virtual time after this many more rows.
fn later(time: u64, rows: u64, weight: u64) -> u64 {
    time.saturating_add(rows.saturating_mul(ROW) / weight.max(1))
}

impl Ledger {
    /// Whether the cluster's version shares by virtual time.
    pub(crate) fn is_fair(&self) -> bool {
        self.meta.version() >= SCHEDULING_VERSION
    }

    pub(super) fn share_fairly(&mut self, slot: SlotRef, left: u64, empty: bool) -> Share {
        let (share, times) = self.pick(slot, left, empty);
        let fades = times.values().any(|time| *time >= TIME_MAX);
        for (no, time) in times {
            self.set_time(no, time);
        }
        if fades {
            self.fade();
        }
        share
    }

    /// The result of a pull, and the new virtual times of the runs that serve it.
    fn pick(&self, slot: SlotRef, mut left: u64, empty: bool) -> (Share, BTreeMap<RunNo, u64>) {
        let (mut share, mut times) = (Share::default(), BTreeMap::new());
        let Some(pulls) = self.slot(slot) else { return (share, times) };
        let mut unseen = self.turns_for(pulls).peekable();
        // Runs that gave rows and have more.
        let mut seen: BTreeMap<Turn, Candidate> = BTreeMap::new();
        while left > 0 {
            let again = seen.first_key_value().map(|(turn, _)| *turn);
            let first = unseen.peek().copied();
            let next = match (again, first) {
                (Some(again), first) if first.is_none_or(|first| again < first) => seen.pop_first(),
                (_, Some(turn)) => {
                    unseen.next();
                    let empty = empty && share.rows.is_empty();
                    self.candidate(turn.run, slot, pulls, empty).map(|found| (turn, found))
                }
                _ => break,
            };
            let Some((turn, mut candidate)) = next else { continue };
            share.group = candidate.group(!share.rows.is_empty());
            if let Some((no, group)) = share.group {
                let group = self.runs.get(&no).and_then(|run| run.flight.groups.get(&group));
                let rows = group.map_or(0, |group| group.rows.len());
                times.insert(no, later(turn.time, rows, candidate.weight));
                break;
            }
            let take =
                left.min(candidate.rows).min(candidate.weight * u64::from(limits::QUANTUM_ROWS));
            if take == 0 {
                continue; // It has a group, which is not for this slot now.
            }
            left -= take;
            candidate.rows -= take;
            share.add(turn.run, take);
            let time = later(turn.time, take, candidate.weight);
            times.insert(turn.run, time);
            if candidate.rows > 0 {
                seen.insert(Turn { time, ..turn }, candidate);
            }
        }
        (share, times)
    }

    pub(super) fn set_time(&mut self, no: RunNo, time: u64) {
        let Some(run) = self.runs.get_mut(&no).filter(|run| run.head.service != time) else {
            return;
        };
        run.head.service = time;
        self.runs.mark(no);
        self.refresh_active(no);
    }

    /// Halves all virtual times.
    fn fade(&mut self) {
        let served = self.runs.values().filter(|run| run.head.service > 0 && !run.ended());
        let halves: Vec<_> = served.map(|run| (run.no, run.head.service / 2)).collect();
        for (no, time) in halves {
            self.set_time(no, time);
        }
    }

    /// The cluster's version shares by virtual time from now on.
    pub(crate) fn begin_fair_sharing(&mut self) {
        self.meta.forget_turns();
        for no in self.runs.numbers() {
            if let Some(run) = self.runs.get_mut(&no).filter(|run| run.head.service > 0) {
                run.head.service = 0;
                self.runs.mark(no);
            }
            self.refresh_active(no);
        }
    }
}
