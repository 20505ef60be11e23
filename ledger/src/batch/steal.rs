//! Stealing: unstarted rows that a slot yields become another slot's, in one operation.
//!
//! *Invariant:* a row moves only while it is live under the attempt and session that yielded it, so a result that won
//! first stays, and a later one is refused. Rows that the idle slot cannot take are pending: no row is lost between
//! the two slots, and none has two holders. A group's rows stay together: they go back to their group. A row that
//! another slot runs too stays with that slot alone. Rows that the idle slot failed last do not move to it while
//! another slot fits: `avoided_rows.rs`.
//!
//! Absent: the choice of the two slots. The leader chooses from the queues that workers report to it,
//! which are not in the log.

use crate::batch::grant::Grant;
use crate::batch::run::RunState;
use crate::kernel::id::{Attempt, RunNo, SlotRef};
use crate::kernel::limits;
use crate::kernel::reply::{GrantedRows, Rejection, Reply};
use crate::kernel::rows::Rows;
use crate::machine::apply::Context;
use crate::machine::command::HeldRows;
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject, rows_of};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Moves unstarted rows that a slot yielded to an idle one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steal {
    /// The slot that yielded them.
    pub victim: SlotRef,
    /// The yielded rows.
    pub held: Vec<HeldRows>,
    /// The slot that gets them. Rows that it cannot take become pending.
    pub idle_slot: SlotRef,
    /// The pulling process of the idle slot.
    pub instance: u64,
    /// The idle slot's pull that this answers.
    pub seq: u64,
}

impl Operation for Steal {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = true;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        false
    }

    fn rows(&self) -> u64 {
        rows_of(&self.held)
    }

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        ledger.subject_of_worker(self.victim.session)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        let Self { victim, held, idle_slot: slot, instance, seq } = self;
        ledger.steal(ctx, victim, &held, IdleSlot { slot, instance, seq })
    }
}

/// The idle slot that gets rows, and the pull that they answer.
pub(crate) struct IdleSlot {
    pub(crate) slot: SlotRef,
    pub(crate) instance: u64,
    pub(crate) seq: u64,
}

impl Ledger {
    pub(crate) fn steal(
        &mut self,
        ctx: &mut Context,
        victim: SlotRef,
        held: &[HeldRows],
        idle_slot: IdleSlot,
    ) -> Result<Reply, Rejection> {
        if held.iter().map(|h| h.rows.len()).sum::<u64>() > u64::from(limits::CLAIM_ROWS_MAX) {
            let max = u64::from(limits::CLAIM_ROWS_MAX);
            return Err(Rejection::Limit { what: "rows given up at once".into(), max });
        }
        self.settle_slots();
        let mut room = self.room_of_idle_slot(&idle_slot);
        let mut refused = Vec::new();
        let mut stolen: BTreeMap<RunNo, (Attempt, Rows)> = BTreeMap::new();
        for set in held {
            let live = self.taken_of(victim, set).unwrap_or_default();
            let (mut live, stale) = set.rows.partition(&live);
            if !stale.is_empty() {
                refused.push(self.refuse_stale(victim, set, stale));
            }
            let aside = self.release_shared_rows(set.run, set.attempt, &live);
            self.emit_returned(ctx, victim, (set.run, set.attempt), &aside, "nacked");
            live.subtract(&aside);
            let tried = self.runs.get(&set.run).and_then(|r| r.flight.grants.get(&set.attempt));
            let moves = room > 0 && tried.is_none_or(|grant| grant.group.is_none());
            let mut fit = match moves && self.may_steal(idle_slot.slot, set.run) {
                true => live.partition(&self.kept_of(idle_slot.slot, set.run, &live)).1,
                false => Rows::default(),
            };
            if !fit.is_empty() {
                let attempt = stolen.get(&set.run).map(|s| s.0).or_else(|| ctx.attempt());
                if let Some(attempt) = attempt {
                    let moves = fit.take_first(room);
                    live.subtract(&moves);
                    room -= moves.len() as u32;
                    self.move_rows(ctx, victim, set, (idle_slot.slot, attempt), &moves);
                    let (_, rows) = stolen.entry(set.run).or_insert((attempt, Rows::default()));
                    rows.unite(&moves);
                }
            }
            self.give_back(set.run, set.attempt, &live);
            self.emit_returned(ctx, victim, (set.run, set.attempt), &live, "nacked");
        }
        let granted = self.answer_idle_slot(&idle_slot, stolen);
        Ok(Reply::Stolen { granted, refused })
    }

    /// Rows that the idle slot may get: none if its pull was answered, or it takes no work.
    fn room_of_idle_slot(&mut self, idle_slot: &IdleSlot) -> u32 {
        if self.check_instance(idle_slot.slot.session, idle_slot.instance).is_err() {
            return 0;
        }
        let takes = |w| self.takes_work(w, idle_slot.slot.slot.0 as usize);
        let takes = self.workers.get(&idle_slot.slot.session).is_some_and(takes);
        if !takes || self.own_group(idle_slot.slot).is_some() {
            return 0;
        }
        match self.pull_slot(idle_slot.slot) {
            Ok(held) if held.last_pull() < idle_slot.seq => {
                limits::SLOT_ROWS_MAX.saturating_sub(held.rows_held() as u32)
            }
            _ => 0,
        }
    }

    /// Whether a slot may be given rows of a run. The run's caps do not matter: no more of its rows
    /// run than before.
    pub(crate) fn may_steal(&self, idle_slot: SlotRef, no: RunNo) -> bool {
        let (Some(run), Some(worker)) = (self.runs.get(&no), self.workers.get(&idle_slot.session))
        else {
            return false;
        };
        let Some(slot) = worker.slots().get(idle_slot.slot.0 as usize) else { return false };
        run.head.state == RunState::Running && self.index.fits(slot.offer_no(), no)
    }

    fn move_rows(
        &mut self,
        ctx: &Context,
        victim: SlotRef,
        set: &HeldRows,
        (idle_slot, attempt): (SlotRef, Attempt),
        rows: &Rows,
    ) {
        self.release(set.run, set.attempt, rows);
        let now = self.meta.clock();
        let Some(run) = self.runs.get_mut(&set.run) else { return };
        let grant = run.flight.grants.entry(attempt).or_insert(Grant {
            slot: idle_slot,
            rows: Rows::default(),
            granted_at: now,
            group: None,
        });
        grant.rows.unite(rows);
        run.head.counts.running += rows.len();
        run.head.counts.stolen += rows.len();
        self.namespaces.add_running(&run.head.namespace, rows.len());
        if let Some(slot) = self.slot_mut(idle_slot) {
            slot.hold((set.run, attempt), rows.len());
        }
        let held = HeldRows { run: set.run, attempt, rows: rows.clone() };
        self.emit(ctx, EventKind::Stolen { victim, idle_slot, lost: set.attempt, held });
    }

    /// The stolen rows are the answer to the idle slot's pull, also when it is repeated.
    fn answer_idle_slot(
        &mut self,
        idle_slot: &IdleSlot,
        stolen: BTreeMap<RunNo, (Attempt, Rows)>,
    ) -> Vec<GrantedRows> {
        let mut granted = Vec::new();
        for (no, (attempt, rows)) in stolen {
            let segments = self.runs.get(&no).map(|r| r.segments_of(&rows)).unwrap_or_default();
            let held = HeldRows { run: no, attempt, rows };
            granted.push(GrantedRows { held, segments, alone: false });
        }
        if let Some(slot) = self.slot_mut(idle_slot.slot).filter(|_| !granted.is_empty()) {
            slot.remember_answer(idle_slot.seq, granted.clone());
        }
        granted
    }
}
