//! Claims: grants pending rows to a slot under a new attempt. `schedule.rs` chooses the runs.
//!
//! *Invariant:* a granted row was pending, and from then on it belongs to its slot alone. A repeated pull gets the
//! grants of the first one. Only the process that registered last may pull. A group is granted alone, and a slot that
//! has a group, or is reserved for one, gets nothing else.

use crate::batch::bisection::GroupNo;
use crate::batch::grant::Grant;
use crate::fleet::slot::Slot;
use crate::kernel::id::{Attempt, RunNo, SessionId, SlotRef};
use crate::kernel::limits;
use crate::kernel::reply::{GrantedRows, Rejection, Reply};
use crate::kernel::rows::Rows;
use crate::machine::apply::Context;
use crate::machine::command::HeldRows;
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// Grants pending rows to a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The pulling slot.
    pub slot: SlotRef,
    /// The pulling process: rows that a dead process pulled must not go to its successor, which would not know of
    /// them.
    pub instance: u64,
    /// The sequence number of the slot's pull. A repeated number gets the same reply.
    pub seq: u64,
    /// How many rows at most.
    pub rows_max: u32,
}

impl Operation for Claim {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = true;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        true
    }

    fn rows(&self) -> u64 {
        u64::from(self.rows_max)
    }

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        ledger.subject_of_worker(self.slot.session)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.check_instance(self.slot.session, self.instance)?;
        ledger.claim(ctx, self.slot, self.seq, self.rows_max)
    }
}

impl Ledger {
    pub(crate) fn claim(
        &mut self,
        ctx: &mut Context,
        slot: SlotRef,
        seq: u64,
        rows_max: u32,
    ) -> Result<Reply, Rejection> {
        let held = self.pull_slot(slot)?;
        if held.last_pull() >= seq {
            return match held.last_pull() == seq {
                true => Ok(Reply::Granted(held.last_grant().to_vec())),
                false => Err(Rejection::PullStale { last: held.last_pull() }),
            };
        }
        let room = limits::SLOT_ROWS_MAX.saturating_sub(held.rows_held() as u32);
        let want = rows_max.min(room).min(limits::CLAIM_ROWS_MAX);
        self.settle_slots();
        let granted = self.serve(ctx, slot, want);
        self.remember_answer(slot, seq, &granted)?;
        Ok(Reply::Granted(granted))
    }

    /// Keeps the answer to a pull for its repeat, unless it is empty: then the pull waits at the leader and comes
    /// again.
    pub(crate) fn remember_answer(
        &mut self,
        slot: SlotRef,
        seq: u64,
        granted: &[GrantedRows],
    ) -> Result<(), Rejection> {
        if !granted.is_empty() {
            let held = self.pull_slot(slot)?;
            held.remember_answer(seq, granted.to_vec());
            self.workers.mark_slot(slot);
        }
        Ok(())
    }

    /// Grants up to `want` new rows to a slot.
    fn serve(&mut self, ctx: &mut Context, slot: SlotRef, want: u32) -> Vec<GrantedRows> {
        let Some(worker) = self.workers.get(&slot.session) else { return Vec::new() };
        let at = slot.slot.0 as usize;
        if want == 0 || !self.takes_work(worker, at) && !self.takes_only_groups(worker, at) {
            return Vec::new(); // A cordoned slot's pull waits, as one that finds nothing does.
        }
        let empty = worker.slots().get(at).is_some_and(|s| s.rows_held() == 0);
        if let Some((run, group)) = self.own_group(slot) {
            return match empty {
                true => self.grant_group(ctx, slot, (run, group), want).into_iter().collect(),
                false => Vec::new(),
            };
        }
        let share = self.share(slot, want, empty);
        let mut granted = Vec::new();
        for (run, count) in share.rows {
            granted.extend(self.grant(ctx, slot, run, count));
        }
        match share.group {
            Some(group) if granted.is_empty() && empty => {
                granted.extend(self.grant_group(ctx, slot, group, want));
            }
            Some(group) => self.reserve_group(slot, group),
            None => {}
        }
        granted
    }

    /// Reserves the group for the slot, which gets no other rows until it holds none.
    fn reserve_group(&mut self, slot: SlotRef, (no, group): (RunNo, GroupNo)) {
        let Some(run) = self.runs.get_mut(&no) else { return };
        if let Some(group) = run.flight.groups.get_mut(&group) {
            group.emptying = Some(slot);
            self.runs.mark(no);
        }
    }

    /// Grants a whole group, or as much of it as requested.
    fn grant_group(
        &mut self,
        ctx: &mut Context,
        slot: SlotRef,
        (no, group): (RunNo, GroupNo),
        want: u32,
    ) -> Option<GrantedRows> {
        let run = self.runs.get(&no)?;
        let room = run.room().min(self.namespace_room(&run.head.namespace)).min(want.into());
        if room == 0 {
            return None;
        }
        let attempt = ctx.attempt()?;
        let rows = self.runs.get_mut(&no)?.take_group(group, room as u32);
        self.hand_out(ctx, slot, (no, attempt), rows, Some(group))
    }

    /// Refuses a pull of a process that another one has replaced. No process would read the answer, and the session would
    /// hold the rows until it ends.
    pub(crate) fn check_instance(
        &self,
        session: SessionId,
        instance: u64,
    ) -> Result<(), Rejection> {
        match self.workers.get(&session) {
            Some(worker) if worker.instance() == instance => Ok(()),
            _ => Err(Rejection::SessionUnknown),
        }
    }

    pub(crate) fn pull_slot(&mut self, slot: SlotRef) -> Result<&mut Slot, Rejection> {
        let worker = self.workers.get_mut(&slot.session).ok_or(Rejection::SessionUnknown)?;
        if !worker.is_ready() {
            return Err(Rejection::WorkerNotReady);
        }
        worker.slot_mut(slot.slot.0 as usize).ok_or(Rejection::SlotUnknown)
    }

    fn grant(
        &mut self,
        ctx: &mut Context,
        slot: SlotRef,
        no: RunNo,
        count: u32,
    ) -> Option<GrantedRows> {
        let attempt = ctx.attempt()?;
        let worker = self.workers.get(&slot.session)?;
        let kept_from = self.kept_from(self.runs.get(&no)?, worker, slot.slot);
        let rows = self.runs.get_mut(&no)?.take_pending(count, kept_from.as_ref());
        self.hand_out(ctx, slot, (no, attempt), rows, None)
    }

    /// Gives rows that were just removed from the pending ones to a slot.
    fn hand_out(
        &mut self,
        ctx: &Context,
        slot: SlotRef,
        (no, attempt): (RunNo, Attempt),
        rows: Rows,
        group: Option<GroupNo>,
    ) -> Option<GrantedRows> {
        let run = self.runs.change(&no)?;
        let len = rows.len();
        let grant = Grant { slot, rows: rows.clone(), granted_at: self.meta.clock(), group };
        run.flight.grants.insert(attempt, grant);
        run.head.counts.running += len;
        self.namespaces.add_running(&run.head.namespace, len);
        let segments = run.segments_of(&rows);
        self.refresh_active(no);
        if let Ok(held) = self.pull_slot(slot) {
            held.hold((no, attempt), len);
            if group.is_some() {
                held.begin_trial((no, attempt));
            }
        }
        let (held, alone) = (HeldRows { run: no, attempt, rows }, group.is_some());
        let how = if alone { "trial" } else { "claim" };
        self.emit(ctx, EventKind::Granted { slot, held: held.clone(), how });
        Some(GrantedRows { held, segments, alone })
    }
}
