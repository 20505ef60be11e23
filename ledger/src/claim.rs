//! Claims: pending rows become a slot's, under a new attempt.
//!
//! *Invariant:* a row that is granted was pending, and from then on nobody else's. A repeated
//! pull gets the grants that the first one made. Only the process that registered last pulls.

use crate::apply::Context;
use crate::command::HeldRows;
use crate::event::EventKind;
use crate::grant::Grant;
use crate::id::{RunNo, SessionId, SlotRef};
use crate::ledger::Ledger;
use crate::limits;
use crate::reply::{GrantedRows, Rejection, Reply};
use crate::worker::{Slot, WorkerState};

impl Ledger {
    pub(crate) fn claim(
        &mut self,
        ctx: &mut Context,
        slot: SlotRef,
        seq: u64,
        rows_max: u32,
    ) -> Result<Reply, Rejection> {
        let held = self.pull_slot(slot)?;
        if held.last_pull >= seq {
            return match held.last_pull == seq {
                true => Ok(Reply::Granted(held.last_grant.clone())),
                false => Err(Rejection::PullStale { last: held.last_pull }),
            };
        }
        let room = limits::SLOT_ROWS_MAX.saturating_sub(held.rows_held as u32);
        let mut granted = Vec::new();
        for (run, count) in self.share(slot, rows_max.min(room).min(limits::CLAIM_ROWS_MAX)) {
            granted.extend(self.grant(ctx, slot, run, count));
        }
        if !granted.is_empty() {
            // An empty answer is not remembered: the pull waits at the leader and comes again.
            let held = self.pull_slot(slot)?;
            held.last_pull = seq;
            held.last_grant = granted.clone();
            self.dirty.workers.insert(slot.session);
        }
        Ok(Reply::Granted(granted))
    }

    /// Refuses a pull of a process that was replaced: its answer would reach nobody, and its rows
    /// would be held for as long as the session lives.
    pub(crate) fn check_instance(
        &self,
        session: SessionId,
        instance: u64,
    ) -> Result<(), Rejection> {
        match self.workers.get(&session) {
            Some(worker) if worker.instance == instance => Ok(()),
            _ => Err(Rejection::SessionUnknown),
        }
    }

    fn pull_slot(&mut self, slot: SlotRef) -> Result<&mut Slot, Rejection> {
        let worker = self.workers.get_mut(&slot.session).ok_or(Rejection::SessionUnknown)?;
        if worker.state != WorkerState::Ready {
            return Err(Rejection::WorkerNotReady);
        }
        worker.slots.get_mut(slot.slot.0 as usize).ok_or(Rejection::SlotUnknown)
    }

    fn grant(
        &mut self,
        ctx: &mut Context,
        slot: SlotRef,
        no: RunNo,
        count: u32,
    ) -> Option<GrantedRows> {
        let attempt = ctx.attempt()?;
        let run = self.runs.get_mut(&no)?;
        let rows = run.take_pending(count);
        let len = rows.len();
        let grant = Grant { slot, rows: rows.clone(), granted_at: self.meta.clock };
        run.flight.grants.insert(attempt, grant);
        run.head.counts.running += len;
        if let Some(namespace) = self.namespaces.get_mut(&run.head.namespace) {
            namespace.running += len;
        }
        let segments = run.segments_of(&rows);
        if !run.has_pending() {
            self.refresh_active(no);
        }
        if let Ok(held) = self.pull_slot(slot) {
            held.held.insert((no, attempt));
            held.rows_held += len;
        }
        self.dirty.runs.insert(no);
        let held = HeldRows { run: no, attempt, rows };
        self.emit(ctx, EventKind::Granted { slot, held: held.clone(), how: "claim" });
        Some(GrantedRows { held, segments, alone: false })
    }
}
