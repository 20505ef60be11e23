//! Which runs serve a slot's pull.
//!
//! Priority is strict; within one priority, runs share fairly by weight: see [`fair`]. *Invariant:* the choice
//! depends on the log alone. A run whose turn it is gives its bisection groups before its other rows; each row of
//! a group costs as much as any other.

mod fair;
mod levels;
mod round_robin;

use crate::batch::bisection::{GroupNo, Offered};
use crate::batch::eligibility::Turn;
use crate::fleet::slot::Slot;
use crate::identity::namespace::Namespace;
use crate::kernel::id::{RunNo, SlotRef};
use crate::machine::ledger::Ledger;

/// A run that could serve a pull.
struct Candidate {
    run: RunNo,
    /// Rows outside of its groups.
    rows: u64,
    group: Option<Offered>,
    weight: u64,
}

impl Candidate {
    /// The group that comes before its other rows, for a slot that already got rows of other runs or not.
    fn group(&self, got: bool) -> Option<(RunNo, GroupNo)> {
        self.group.filter(|t| t.free || !got).map(|t| (self.run, t.group))
    }
}

/// The result of a pull.
#[derive(Default)]
pub(crate) struct Share {
    /// The number of rows per run.
    pub(crate) rows: Vec<(RunNo, u32)>,
    /// A group whose turn it is: at once, if the slot holds nothing and got nothing else.
    pub(crate) group: Option<(RunNo, GroupNo)>,
}

impl Share {
    fn add(&mut self, no: RunNo, rows: u64) {
        match self.rows.iter_mut().find(|share| share.0 == no) {
            Some(share) => share.1 += rows as u32,
            None if rows > 0 => self.rows.push((no, rows as u32)),
            None => {}
        }
    }
}

impl Ledger {
    /// The result of a pull for `want` rows, by a slot that is `empty` or not.
    pub(crate) fn share(&mut self, slot: SlotRef, want: u32, empty: bool) -> Share {
        // All runs of one pull share a namespace, because a worker serves one; they share the namespace's cap over
        // all priorities.
        let Some(worker) = self.workers.get(&slot.session) else { return Share::default() };
        let left = u64::from(want).min(self.namespace_room(worker.namespace()));
        match self.is_fair() {
            true => self.share_fairly(slot, left, empty),
            false => self.share_in_turns(slot, left, empty),
        }
    }

    /// The runs that have rows to give to a slot, in turn order. A cordoned slot gets only groups.
    pub(crate) fn turns_for(&self, pulls: &Slot) -> impl Iterator<Item = Turn> {
        let mut tries: Vec<Turn> = Vec::new();
        let mut cohort = None;
        if pulls.cordon().is_some() {
            let fitting =
                self.run_lists.groups().filter(|no| self.index.fits(pulls.offer_no(), *no));
            tries.extend(fitting.filter_map(|no| self.index.turn(no)));
            tries.sort_unstable();
        } else {
            cohort = self.index.cohort(pulls.offer_no());
        }
        cohort.into_iter().flat_map(|cohort| self.index.turns_at(cohort)).chain(tries)
    }

    /// What a run with rows to give would give to a slot.
    fn candidate(&self, no: RunNo, slot: SlotRef, pulls: &Slot, empty: bool) -> Option<Candidate> {
        let (run, worker) = (self.runs.get(&no)?, self.workers.get(&slot.session)?);
        let rows = match pulls.cordon() {
            None => self.grantable_to(run, worker, slot.slot).min(run.room()),
            Some(_) => 0,
        };
        let group = self.offered_group(run, slot, empty);
        let weight = run.head.spec.weight.into();
        (rows > 0 || group.is_some()).then_some(Candidate { run: no, rows, group, weight })
    }

    /// Rows that a namespace's runs together may still be granted.
    pub(crate) fn namespace_room(&self, name: &str) -> u64 {
        self.namespaces.get(name).map_or(u64::MAX, Namespace::room)
    }
}
