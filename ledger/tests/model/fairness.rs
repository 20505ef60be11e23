//! Fair sharing, one row after the other: every run has a clock, and the run that is behind is next.

use crate::naive::Model;
use crate::rows::{Avoids, Lease, Row, RowState};
use crate::runs::Run;
use rollout_ledger::id::{Attempt, SessionId, SlotRef};
use rollout_ledger::limits;
use rollout_ledger::view::RunState;
use std::collections::{BTreeMap, BTreeSet};

/// By how much a row of a run of weight 1 moves its clock.
const ROW: u64 = 1 << 20;
/// How far ahead of others a run may join, and how far behind them one may be where other shares are fair than before.
const AHEAD: u64 = 4 * limits::QUANTUM_ROWS as u64 * ROW;

/// What was, before an operation.
pub(crate) struct Before {
    giving: BTreeSet<u32>,
    open: BTreeMap<u32, (bool, u32)>,
    sessions: BTreeMap<SessionId, String>,
}

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

    /// What decides whose times move after an operation.
    pub(crate) fn before(&self) -> Before {
        Before { giving: self.giving(), open: self.open(), sessions: self.session_names() }
    }

    /// The runs that have not ended, whether they are paused, and their weights.
    fn open(&self) -> BTreeMap<u32, (bool, u32)> {
        let runs = (1..).zip(&self.runs);
        let open =
            runs.filter(|(_, run)| matches!(run.state, RunState::Running | RunState::Paused));
        open.map(|(no, run)| (no, (run.state == RunState::Paused, run.weight))).collect()
    }

    fn session_names(&self) -> BTreeMap<SessionId, String> {
        self.workers.iter().map(|(session, w)| (*session, w.namespace.clone())).collect()
    }

    /// The namespaces in which slots have gone, or the open runs or their weights are others.
    fn reshaped(&self, before: &Before) -> BTreeSet<String> {
        let gone =
            before.sessions.iter().filter(|(session, _)| !self.workers.contains_key(session));
        let mut names: BTreeSet<String> = gone.map(|(_, namespace)| namespace.clone()).collect();
        let open = self.open();
        for no in before.open.keys().chain(open.keys()) {
            if before.open.get(no) != open.get(no) {
                names.insert(self.runs[*no as usize - 1].namespace.clone());
            }
        }
        names
    }

    /// Runs that had no rows to give and have some now are not behind those that had; and if the fair shares have
    /// changed, no run is far behind the next one.
    pub(crate) fn settle_fairly(&mut self, before: &Before) {
        if !self.is_fair() {
            return;
        }
        let now = self.giving();
        let mut placed: BTreeSet<u32> = now.intersection(&before.giving).copied().collect();
        for namespace in self.reshaped(before) {
            let mut left: BTreeSet<u32> = placed.clone();
            left.retain(|no| self.runs[*no as usize - 1].namespace == namespace);
            while let Some(no) = left.first().copied() {
                let group = self.group(no, &left);
                left.retain(|other| !group.contains(other));
                self.close_gaps(&group);
            }
        }
        for no in now.difference(&before.giving) {
            self.take_place(*no, &placed);
            placed.insert(*no);
        }
    }

    /// The runs of one priority that share slots with a run, directly or through others of these.
    fn group(&self, no: u32, of: &BTreeSet<u32>) -> BTreeSet<u32> {
        let (mut group, mut size) = (BTreeSet::from([no]), 0);
        while group.len() > size {
            size = group.len();
            let joined = |other: &&u32| group.iter().any(|one| self.rivals(*one, **other));
            let more: Vec<u32> = of.iter().filter(joined).copied().collect();
            group.extend(more);
        }
        group
    }

    /// Whether some slot could serve both.
    fn rivals(&self, one: u32, other: u32) -> bool {
        let priority = |no: u32| self.runs[no as usize - 1].spec.priority;
        let both = |slot: &SlotRef| self.meets(one, *slot) && self.meets(other, *slot);
        priority(one) == priority(other) && self.slots().iter().any(both)
    }

    fn close_gaps(&mut self, group: &BTreeSet<u32>) {
        let mut last_first: Vec<(u64, u32)> =
            group.iter().map(|no| (self.runs[*no as usize - 1].time, *no)).collect();
        last_first.sort_unstable();
        last_first.reverse();
        let (mut next, mut up) = (None, 0);
        for (time, no) in last_first {
            up += next.map_or(0, |next: u64| (next - time).saturating_sub(AHEAD));
            next = Some(time);
            if up > 0 {
                self.events.push("a gap is closed".into());
            }
            self.runs[no as usize - 1].time = time + up;
        }
    }

    fn take_place(&mut self, no: u32, placed: &BTreeSet<u32>) {
        let same = |other: &u32| {
            let (run, other) = (&self.runs[no as usize - 1], &self.runs[*other as usize - 1]);
            run.spec.priority == other.spec.priority && run.namespace == other.namespace
        };
        let others: BTreeSet<u32> = placed.iter().copied().filter(|other| same(other)).collect();
        // The run that it would follow, at each slot that it may use.
        let followed: Vec<(u64, u32)> = self
            .slots()
            .into_iter()
            .filter(|slot| self.meets(no, *slot))
            .filter_map(|slot| {
                let there = others.iter().filter(|other| self.meets(**other, slot));
                there.map(|other| (self.runs[*other as usize - 1].time, *other)).min()
            })
            .collect();
        let times = || followed.iter().map(|(time, _)| *time);
        let (Some(first), Some(last)) = (times().min(), times().max()) else { return };
        if last - first > AHEAD {
            let mut left = others.clone();
            for (_, other) in &followed {
                if !left.contains(other) {
                    continue;
                }
                let group = self.group(*other, &others);
                left.retain(|other| !group.contains(other));
                let level = followed.iter().filter(|(_, other)| group.contains(other));
                let up = last - level.map(|(time, _)| *time).max().unwrap_or(last);
                if up > 0 {
                    self.events.push("a group is moved up".into());
                }
                group.iter().for_each(|no| self.runs[*no as usize - 1].time += up);
            }
        }
        let run = &mut self.runs[no as usize - 1];
        if run.time < last {
            self.events.push("a run joins with the time of others".into());
        }
        run.time = run.time.clamp(last, last + AHEAD);
    }

    /// Whether a slot meets a run's need.
    fn meets(&self, no: u32, slot: SlotRef) -> bool {
        let run = &self.runs[no as usize - 1];
        let worker = &self.workers[&slot.session];
        let offer = &worker.slots[usize::from(slot.slot.0)].offer;
        run.namespace == worker.namespace
            && offer.models.contains(&run.spec.engine.model)
            && self.has_store(run, worker)
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
            // Rows that it failed last are for others.
            let avoids = self.avoids_in_claim(slot, no);
            let may = |row: &Row| ordinary(row) && !row.is_avoided(&avoids);
            let some_kept = |row: &Row| ordinary(row) && row.is_avoided(&avoids);
            // If the slot avoids some rows, the others follow the order of `order_for_avoiding_slot`.
            let first = |run: &Run| match run.rows.iter().any(some_kept) {
                true => run.first_by(may, Row::order_for_avoiding_slot),
                false => run.first(may),
            };
            let run = &mut self.runs[no as usize - 1];
            if let Some((number, _)) = offer.filter(|offer| offer.1 || order.is_empty()) {
                let waits = |r: &&Row| {
                    matches!(r.state, RowState::Pending { .. }) && r.trial == Some(number)
                };
                let rows = run.rows.iter().filter(waits).count() as u64;
                run.time += rows * ROW / u64::from(run.weight);
                trial = Some((no, number));
                break;
            }
            let mut taken = 0;
            while taken < u64::from(self.runs[no as usize - 1].weight * limits::QUANTUM_ROWS) {
                let serves =
                    *left > 0 && !self.cordoned(slot) && self.has_room(slot) && self.fits(no, slot);
                let run = &mut self.runs[no as usize - 1];
                let Some(row) = first(run).filter(|_| serves) else { break };
                let lease = Lease { attempt: Attempt(0), slot, granted_at: self.clock };
                (run.rows[row].state, run.rows[row].granted) = (RowState::Running(lease), true);
                picked.entry(no).or_default().push(row as u64);
                *left -= 1;
                taken += 1;
            }
            let run = &mut self.runs[no as usize - 1];
            run.time += taken * ROW / u64::from(run.weight);
            if taken > 0 && !order.contains(&no) {
                order.push(no);
            }
            let more = self.runs[no as usize - 1].first(may).is_some() && self.fits(no, slot);
            if !more && self.runs[no as usize - 1].first(ordinary).is_some() {
                self.note("a row is for another worker");
            }
            if taken == 0 || !more {
                open.retain(|other| *other != no);
            }
        }
        trial
    }

    /// Which failed rows of a run a slot that claims does not get. Notes the rules that decide about pending rows that
    /// several slots failed, one of them of its worker.
    fn avoids_in_claim(&mut self, slot: SlotRef, no: u32) -> Avoids {
        let avoids = self.avoids(slot, no);
        let mut rules: BTreeSet<&'static str> = BTreeSet::new();
        for row in self.runs[no as usize - 1].rows.iter().filter(|row| ordinary(row)) {
            let failed = row.failed_at();
            if failed.len() > 1 && failed.iter().any(|at| at.0 == avoids.own.0) {
                rules.insert(avoids.rule(&failed).event());
            }
        }
        // A slot with a cordon gets none of them anyway.
        let takes = avoids.fitting.contains(&avoids.own);
        rules.into_iter().filter(|_| takes).for_each(|rule| self.note(rule));
        avoids
    }
}

/// Whether a row may be granted in any company.
fn ordinary(row: &Row) -> bool {
    matches!(row.state, RowState::Pending { .. }) && row.trial.is_none()
}
