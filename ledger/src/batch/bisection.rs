//! Bisection of rows that were running when an engine died: each half is a *bisection group*, which runs apart from all
//! others. An attempt with its rows is a *trial*, and users see the group by that name.
//!
//! *Invariant:* a group's rows are pending or, with a `not_before`, waiting; they are in one group and nowhere else.
//! A group is granted to a slot that holds nothing, and that slot gets nothing more until the group's rows are
//! decided or have come back. Rows that come back from a trial form a group again. So an engine that dies in a trial
//! was killed by one of its rows.
//!
//! A busy slot never runs empty by itself. The first slot that pulls when a group is ready empties itself for it: it
//! gets nothing until it holds nothing. One slot does that for one group, so the others continue.
//!
//! After a trial killed an engine, slots other than that engine's come first for a while, even if one of them has had
//! the group and gave it back: `incident.rs`. From cluster version 4 on, all slots that failed its rows come after
//! the others. Below cluster version 3 this applies only to a group of one row.
//!
//! A slot that the ledger itself has cordoned still gets groups if it is empty and no slot without a cordon could run
//! them, now or when it is heard again: otherwise rows that kill engines would cordon a whole fleet, and no slot
//! would be left to find them.

use crate::batch::run::Run;
use crate::fleet::slot::Slot;
use crate::fleet::worker::Worker;
use crate::kernel::id::{Attempt, LedgerMs, RunNo, SlotRef};
use crate::kernel::rows::Rows;
use crate::kernel::visits::count_visit;
use crate::machine::ledger::Ledger;
use serde::{Deserialize, Serialize};
use std::cell::OnceCell;
use std::cmp::Reverse;

/// A group's number within its run, from 1. Rows that come back from a trial keep the number.
pub(crate) type GroupNo = u32;

/// Rows to try together, with no others beside them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BisectionGroup {
    pub(crate) rows: Rows,
    /// Until when they wait, if they do.
    pub(crate) not_before: Option<LedgerMs>,
    /// The slot that gets nothing else until it is empty and gets this.
    pub(crate) emptying: Option<SlotRef>,
}

/// A group that a slot may have.
#[derive(Clone, Copy)]
pub(crate) struct Offered {
    pub(crate) group: GroupNo,
    /// No other slot empties itself for it.
    pub(crate) free: bool,
}

impl Run {
    /// Makes a group of rows that are in nothing else.
    pub(crate) fn add_group(&mut self, rows: Rows, not_before: Option<LedgerMs>) {
        self.flight.groups_made += 1;
        let group = BisectionGroup { rows, not_before, ..BisectionGroup::default() };
        self.flight.groups.insert(self.flight.groups_made, group);
    }

    /// Whether a live attempt is a trial.
    pub(crate) fn is_trial(&self, attempt: Attempt) -> bool {
        self.flight.grants.get(&attempt).is_some_and(|grant| grant.group.is_some())
    }

    /// Makes rows of an attempt pending again, in their group if they were in one.
    pub(crate) fn put_back(&mut self, group: Option<GroupNo>, rows: &Rows) {
        match group {
            None => self.bring_back(rows),
            Some(no) => self.flight.groups.entry(no).or_default().rows.unite(rows),
        }
    }

    /// Takes rows that a slot had before out of the pending ones.
    pub(crate) fn take_back(&mut self, group: Option<GroupNo>, rows: &Rows) {
        let Some(no) = group else { return self.take_out(rows) };
        let Some(group) = self.flight.groups.get_mut(&no) else { return };
        group.rows.subtract(rows);
        if group.rows.is_empty() {
            self.flight.groups.remove(&no);
        }
    }

    /// The groups that are pending.
    pub(crate) fn ready_groups(&self) -> impl Iterator<Item = (GroupNo, &BisectionGroup)> {
        let ready = self.flight.groups.iter().filter(|t| t.1.not_before.is_none());
        ready.map(|(no, group)| {
            count_visit();
            (*no, group)
        })
    }

    /// Ends the wait of the groups that waited until then at most, and takes their rows out of `due`.
    pub(crate) fn end_group_waits(&mut self, until: LedgerMs, due: &mut Rows) {
        for group in self.flight.groups.values_mut() {
            if group.not_before.is_some_and(|at| at <= until) {
                group.not_before = None;
                due.subtract(&group.rows);
            }
        }
    }

    /// Makes ordinary rows of all groups.
    pub(crate) fn dissolve_groups(&mut self) {
        for group in std::mem::take(&mut self.flight.groups).into_values() {
            self.bring_back(&group.rows);
        }
        self.flight.excluded.clear();
    }

    /// Takes up to `count` rows of a group.
    pub(crate) fn take_group(&mut self, no: GroupNo, count: u32) -> Rows {
        let Some(group) = self.flight.groups.get_mut(&no) else { return Rows::default() };
        let rows = group.rows.take_first(count);
        group.emptying = None;
        if group.rows.is_empty() {
            self.flight.groups.remove(&no);
        }
        self.outdate_lapsed(&rows);
        rows
    }
}

impl Ledger {
    /// Whether a slot takes any work at all.
    pub(crate) fn takes_work(&self, worker: &Worker, slot: usize) -> bool {
        worker.is_ready()
            && worker.slots().get(slot).is_some_and(|s| s.trial().is_none())
            && self.cordon_of(worker, slot).is_none()
    }

    /// Whether a slot has a cordon of the ledger's own, and could get a group now.
    pub(crate) fn takes_only_groups(&self, worker: &Worker, slot: usize) -> bool {
        worker.is_ready()
            && worker.slots().get(slot).is_some_and(|s| s.trial().is_none() && s.rows_held() == 0)
            && self.is_cordoned_by_itself(worker, slot)
    }

    /// Whether a run could give rows to this slot if it had some.
    pub(crate) fn serves(&self, run: &Run, worker: &Worker, slot: &Slot) -> bool {
        run.head.namespace == worker.namespace()
            && run.room() > 0
            && self.index.fits(slot.offer_no(), run.no)
    }

    /// The group that a slot empties itself for, as long as it could have it.
    pub(crate) fn own_group(&self, slot: SlotRef) -> Option<(RunNo, GroupNo)> {
        let worker = self.workers.get(&slot.session)?;
        let pulls = worker.slots().get(slot.slot.0 as usize)?;
        let own = self.run_lists.groups().filter_map(|no| {
            let run = self.runs.get(&no)?;
            let own = run.ready_groups().find(|t| t.1.emptying == Some(slot))?.0;
            let may =
                self.serves(run, worker, pulls) && self.cordon_allows_groups(run, slot, pulls);
            may.then_some((Reverse(run.head.spec.priority), no, own))
        });
        own.min().map(|(_, no, group)| (no, group))
    }

    /// The group of a run that a slot may have: any group if it is `empty`, otherwise one for which no other slot
    /// empties itself. It excludes a group for which other slots come first while one of them could have it. A slot
    /// with a cordon gets none while there is a slot without one.
    pub(crate) fn offered_group(&self, run: &Run, slot: SlotRef, empty: bool) -> Option<Offered> {
        let pulls = self.slot(slot)?;
        if run.flight.groups.is_empty() || !self.cordon_allows_groups(run, slot, pulls) {
            return None;
        }
        let free = |s: Option<SlotRef>| s.is_none_or(|s| !self.may_empty(s));
        let another = OnceCell::new();
        let takers = OnceCell::new();
        let excluded = |group| {
            self.is_excluded(run, slot, group)
                && *another.get_or_init(|| self.another_slot_takes(run, slot))
                || self.is_excluded_by_earlier(run, slot, group, &takers)
        };
        let open = || run.ready_groups().filter(|t| !excluded(t.0));
        let found = open().find(|t| free(t.1.emptying)).map(|t| Offered { group: t.0, free: true });
        let any = || open().next().map(|t| Offered { group: t.0, free: false });
        found.or_else(|| any().filter(|_| empty))
    }

    /// Whether a slot may have groups of a run: with a cordon of the ledger's own only if no slot without a cordon
    /// could. The slots of a worker that is only silent count, for it may come back.
    fn cordon_allows_groups(&self, run: &Run, slot: SlotRef, pulls: &Slot) -> bool {
        pulls.cordon().is_none()
            || !self.others(run, slot).any(|(w, number)| self.cordon_of(w, number).is_none())
    }

    /// The other slots that could have rows of a run, ignoring silence and cordons.
    pub(crate) fn others<'a>(
        &'a self,
        run: &'a Run,
        slot: SlotRef,
    ) -> impl Iterator<Item = (&'a Worker, usize)> {
        let others = self.index.slots_for(run.no).filter(move |at| *at != slot && run.room() > 0);
        let others =
            others.filter_map(|at| Some((self.workers.get(&at.session)?, at.slot.0 as usize)));
        others.filter(|(worker, _)| worker.drain().is_none())
    }

    /// Whether groups show, now or soon, if a slot that the ledger itself has cordoned stays so.
    pub(crate) fn groups_may_lift_cordon(&self, run: &Run, worker: &Worker, slot: SlotRef) -> bool {
        let number = slot.slot.0 as usize;
        let in_trial = worker.slots().get(number).is_some_and(|s| s.trial().is_some());
        self.is_cordoned_by_itself(worker, number) && (in_trial || !run.flight.groups.is_empty())
    }

    /// Whether a slot is still emptying itself: it holds rows, and may get the group once it holds none.
    fn may_empty(&self, slot: SlotRef) -> bool {
        let Some(worker) = self.workers.get(&slot.session) else { return false };
        let at = slot.slot.0 as usize;
        self.takes_work(worker, at) && worker.slots().get(at).is_some_and(|s| s.rows_held() > 0)
    }
}
