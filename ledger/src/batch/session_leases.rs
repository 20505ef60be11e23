//! The leases of a session, and which lapsed leases are restored when its worker is heard again or returns.
//!
//! *Invariant:* the lease of a row is restored only while the row is pending, which it is until another slot gets it.
//! A trial runs alone on its slot: rows that would run beside it stay pending.
//! Absent: the end of a lease (`lapse.rs`). In `fleet`: registration (`register.rs`), silence (`suspect.rs`) and the
//! end of a session (`session.rs`).

use crate::batch::grant::Grant;
use crate::batch::run::RunState;
use crate::batch::segment::Outcome;
use crate::fleet::slot::Slot;
use crate::kernel::id::{Attempt, RunNo, SessionId, SlotNo, SlotRef};
use crate::kernel::rows::Rows;
use crate::machine::apply::Context;
use crate::machine::command::{HeldRows, slot_ref};
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;

impl Ledger {
    /// How many attempts a session holds, or would hold again if it were heard: the cost of its loss and its return.
    pub fn attempts_of(&self, session: SessionId) -> usize {
        let lapsed =
            self.runs.with_lapsed().map(|run| run.flight.lapsed.of_session(session).count());
        self.held_by(session).len() + lapsed.sum::<usize>()
    }

    pub(crate) fn held_by(&self, session: SessionId) -> Vec<(RunNo, Attempt)> {
        let slots = self.workers.get(&session).map_or(&[][..], |w| w.slots());
        slots.iter().flat_map(|s| s.held().iter().copied()).collect()
    }

    /// Restores the leases of rows that lapsed while this session was silent and that no other slot got.
    pub(crate) fn adopt_lapsed(&mut self, ctx: &Context, session: SessionId) {
        for no in self.runs.list_lapsed() {
            let Some(run) = self.runs.get(&no) else { continue };
            let mine: Vec<Attempt> = run.flight.lapsed.of_session(session).collect();
            for &attempt in &mine {
                self.revive(ctx, no, attempt);
            }
            if !mine.is_empty() {
                self.refresh_active(no);
            }
        }
    }

    /// Whether an attempt can move to the first slot: a trial must run alone.
    pub(crate) fn may_join_first(&self, session: SessionId, no: RunNo, attempt: Attempt) -> bool {
        let first = self.slot(SlotRef { session, slot: SlotNo(0) });
        let grant = self.runs.get(&no).and_then(|run| run.flight.grants.get(&attempt));
        first.is_some_and(|slot| slot.trial().is_none())
            && grant.is_none_or(|grant| grant.group.is_none())
    }

    /// Moves the rest of an attempt to the first slot of its session.
    pub(crate) fn move_to_first(&mut self, ctx: &Context, no: RunNo, attempt: Attempt) {
        let Some(run) = self.runs.get_mut(&no) else { return };
        let Some((from, rows)) = run.holding(attempt) else { return };
        let to = SlotRef { slot: SlotNo(0), ..from };
        let flight = &mut run.flight;
        let own = flight.grants.get(&attempt).map(|grant| grant.rows.clone());
        if let Some(grant) = flight.grants.get_mut(&attempt) {
            grant.slot = to;
        }
        flight.speculative.move_to(&attempt, to);
        flight.lapsed.move_to(&attempt, to);
        if let Some(held) = self.slot_mut(from) {
            held.release((no, attempt), rows.len(), true);
        }
        if let Some(held) = self.slot_mut(to) {
            held.hold((no, attempt), rows.len());
        }
        self.runs.mark(no);
        // For shared rows, the event names the attempt beside which this slot runs them.
        if let Some(rows) = own {
            let held = HeldRows { run: no, attempt, rows };
            self.emit(ctx, EventKind::Granted { slot: to, held, how: "back" });
        }
    }

    /// Restores the leases of rows that a worker still holds from a session that has ended, unless another slot got
    /// them since. So it does not run them twice. A group's rows go back to their group.
    pub(crate) fn adopt_held(&mut self, ctx: &Context, session: SessionId, held: &[HeldRows]) {
        for HeldRows { run: no, attempt, rows } in held {
            if self.is_foreign(session, *no) {
                continue;
            }
            let slots = self.workers.get(&session).map_or(0, |worker| worker.slots().len());
            let Some(run) = self.runs.get_mut(no).filter(|run| !run.ended()) else { continue };
            let Some(grant) = run.flight.lapsed.get(attempt) else { continue };
            if self.workers.contains_key(&grant.slot.session) || grant.group.is_some() {
                continue;
            }
            let same = Some(grant.slot.slot).filter(|slot| usize::from(slot.0) < slots);
            let slot = same.unwrap_or(SlotNo(0));
            // The worker has lost the rows that it does not list.
            let (mine, _) = grant.rows.partition(rows);
            if !mine.is_empty() {
                let grant = Grant { rows: mine, slot: SlotRef { session, slot }, ..*grant };
                run.flight.lapsed.insert(*attempt, grant);
                self.revive(ctx, *no, *attempt);
                self.refresh_active(*no);
            }
        }
    }

    /// After a silence or a resumption the answer to a slot's last pull may name rows that it has lost. A repeat of
    /// that pull gets the remaining rows or, if none remain, new rows.
    pub(crate) fn forget_lost_grants(&mut self, session: SessionId) {
        let Some(worker) = self.workers.get_mut(&session) else { return };
        let mut marked = Vec::new();
        for (number, slot) in worker.slots_mut().iter_mut().enumerate() {
            let (runs, mut changed) = (&self.runs, false);
            slot.revise_answer(|granted| {
                let HeldRows { run, attempt, rows } = &mut granted.held;
                let Some(run) = runs.get(run) else {
                    changed = true;
                    return false;
                };
                let live = run.holding(*attempt);
                let kept = live.map(|(_, held)| rows.partition(&held).0).unwrap_or_default();
                if kept != *rows {
                    changed = true;
                    granted.segments = run.segments_of(&kept);
                    *rows = kept;
                }
                !rows.is_empty()
            });
            if changed {
                marked.push(slot_ref(session, number));
            }
        }
        marked.into_iter().for_each(|at| self.workers.mark_slot(at));
    }

    fn revive(&mut self, ctx: &Context, no: RunNo, attempt: Attempt) {
        let company = |slot: &Slot, suspects: bool| match slot.trial() {
            Some(own) => own != (no, attempt),
            None => suspects && slot.rows_held() > 0,
        };
        let Some(run) = self.runs.get(&no).filter(|r| !r.ended()) else { return };
        let Some(grant) = run.flight.lapsed.get(&attempt) else { return };
        let (at, group) = (grant.slot, grant.group);
        if self.slot_mut(at).is_none_or(|slot| company(slot, group.is_some())) {
            return; // A trial has no company: what would be beside it stays pending.
        }
        let Some(run) = self.runs.get_mut(&no) else { return };
        let Some(grant) = run.flight.lapsed.remove(&attempt) else { return };
        let (slot, len) = (grant.slot, grant.rows.len());
        let back = HeldRows { run: no, attempt, rows: grant.rows.clone() };
        run.take_back(group, &grant.rows);
        run.head.counts.running += len;
        run.head.counts.returned = run.head.counts.returned.saturating_sub(len);
        match run.flight.grants.get_mut(&attempt) {
            Some(live) => live.rows.unite(&grant.rows),
            None => {
                run.flight.grants.insert(attempt, grant);
            }
        }
        self.namespaces.add_running(&run.head.namespace, len);
        if let Some(held) = self.slot_mut(slot) {
            held.hold((no, attempt), len);
            if group.is_some() {
                held.begin_trial((no, attempt));
            }
        }
        self.runs.mark(no);
        self.emit(ctx, EventKind::Granted { slot, held: back, how: "back" });
    }

    /// The rows of `held` that the attempt may no longer decide: another slot has them, or they are decided.
    pub fn lost_of(&self, held: &HeldRows) -> Option<HeldRows> {
        let mut rows = held.rows.clone();
        if let Some(run) = self.runs.get(&held.run) {
            let lapsed = run.flight.lapsed.get(&held.attempt).map(|grant| grant.rows.clone());
            for own in run.holding(held.attempt).map(|(_, rows)| rows).into_iter().chain(lapsed) {
                rows.subtract(&own);
            }
        }
        (!rows.is_empty()).then_some(HeldRows { run: held.run, attempt: held.attempt, rows })
    }

    /// The same for rows that have ended at their worker. It leaves out decided rows: the worker learns about them from
    /// the answer to its report, whether the leader accepts or refuses it.
    pub fn lost_of_ended(&self, held: &HeldRows) -> Option<HeldRows> {
        let mut lost = self.lost_of(held)?;
        let Some(run) = self.runs.get(&held.run) else { return Some(lost) };
        if run.head.state == RunState::Finished {
            return None; // All are, also where its rows are sealed.
        }
        // Do not visit more rows than exist, whatever a worker names.
        let end = run.segments.last().map_or(0, |last| last.first_row + u64::from(last.rows));
        let reported = lost.rows.iter().take_while(|row| *row < end);
        let decided = reported.filter(|row| run.outcome(*row) != Outcome::NONE);
        lost.rows.subtract(&Rows::from_ranges(decided.map(|row| (row, 1))).unwrap_or_default());
        (!lost.rows.is_empty()).then_some(lost)
    }
}
