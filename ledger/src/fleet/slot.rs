//! What one slot of a worker offers, and what it holds.
//!
//! *Invariant:* a slot lists exactly the live grants that name it, and counts their rows. A trial has no company. Other
//! domains read a slot, and change it only by the functions here.
//!
//! Absent: when a slot gets rows and loses them, and which incidents count against it. Runs decide that.

use crate::batch::eligibility::OfferNo;
use crate::batch::slot_incidents::{SlotIncident, as_deaths};
use crate::batch::spec::SlotOffer;
use crate::batch::tally::SlotUse;
use crate::kernel::id::{Attempt, LedgerMs, RunNo};
use crate::kernel::reply::GrantedRows;
use crate::kernel::visits::count_visit;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// One slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Slot {
    pub(super) offer: SlotOffer,
    /// The offer's number in the index. Derived.
    #[serde(skip)]
    pub(super) offer_no: OfferNo,
    /// How the sums count it. Derived.
    #[serde(skip)]
    pub(super) counted: Option<SlotUse>,
    pub(super) held: BTreeSet<(RunNo, Attempt)>,
    pub(super) rows_held: u64,
    pub(super) rows_done: u64,
    /// The latest pull and its answer, for a repeat at the next leader.
    pub(super) last_pull: u64,
    pub(super) last_grant: Vec<GrantedRows>,
    /// The trial that it holds: it gets nothing else meanwhile.
    pub(super) trial: Option<(RunNo, Attempt)>,
    /// Deaths of its engine; below cluster version 3 without those in trials.
    pub(super) deaths: u64,
    /// Its incidents since it last finished a row, oldest first.
    #[serde(with = "as_deaths")]
    pub(super) incidents: Vec<SlotIncident>,
    /// When the ledger's own cordon ends by itself, if it needed failures of rows. The image has this field from
    /// cluster version 3 on; before, there is no such end.
    #[serde(skip)]
    pub(super) cordoned_until: Option<LedgerMs>,
    /// The number of the latest death that its process has reported.
    pub(super) last_death: u64,
    /// Why the ledger cordoned it; a new process starts without a cordon.
    pub(super) cordon: Option<String>,
}

impl Slot {
    pub(crate) fn offer(&self) -> &SlotOffer {
        &self.offer
    }

    /// The offer's number in the index.
    pub(crate) fn offer_no(&self) -> OfferNo {
        self.offer_no
    }

    /// How the sums count it.
    pub(crate) fn counted(&self) -> Option<SlotUse> {
        count_visit();
        self.counted
    }

    /// The sums count it so from now on. Returns how they did before.
    pub(crate) fn count_as(&mut self, is: SlotUse) -> Option<SlotUse> {
        self.counted.replace(is)
    }

    /// The attempts that it holds.
    pub(crate) fn held(&self) -> &BTreeSet<(RunNo, Attempt)> {
        &self.held
    }

    pub(crate) fn rows_held(&self) -> u64 {
        self.rows_held
    }

    /// The trial that it holds: it gets nothing else meanwhile.
    pub(crate) fn trial(&self) -> Option<(RunNo, Attempt)> {
        self.trial
    }

    /// An attempt has this many more rows here.
    pub(crate) fn hold(&mut self, attempt: (RunNo, Attempt), rows: u64) {
        self.held.insert(attempt);
        self.rows_held += rows;
    }

    /// The attempt, which it holds, is a trial.
    pub(crate) fn begin_trial(&mut self, attempt: (RunNo, Attempt)) {
        self.trial = Some(attempt);
    }

    /// An attempt has this many fewer rows here, and no others if it has `ended`.
    pub(crate) fn release(&mut self, attempt: (RunNo, Attempt), rows: u64, ended: bool) {
        self.rows_held -= rows;
        if ended {
            self.held.remove(&attempt);
            self.trial = self.trial.filter(|trial| *trial != attempt);
        }
    }

    /// Rows that it has finished in this session.
    pub(crate) fn rows_done(&self) -> u64 {
        self.rows_done
    }

    /// It has finished this many more rows.
    pub(crate) fn add_done(&mut self, rows: u64) {
        self.rows_done += rows;
    }

    /// The latest pull that was answered; 0 if none was.
    pub(crate) fn last_pull(&self) -> u64 {
        self.last_pull
    }

    /// The answer to that pull.
    pub(crate) fn last_grant(&self) -> &[GrantedRows] {
        &self.last_grant
    }

    /// A pull is answered: its repeat gets the same answer.
    pub(crate) fn remember_answer(&mut self, pull: u64, granted: Vec<GrantedRows>) {
        (self.last_pull, self.last_grant) = (pull, granted);
    }

    /// Keeps some of the rows in the answer to the latest pull. If none remain, the pull counts as unanswered.
    pub(crate) fn revise_answer(&mut self, keep: impl FnMut(&mut GrantedRows) -> bool) {
        let had_any = !self.last_grant.is_empty();
        self.last_grant.retain_mut(keep);
        if had_any && self.last_grant.is_empty() {
            self.last_pull -= 1; // A pull that was answered has a seq of 1 at least.
        }
    }

    /// Deaths of its engine; below cluster version 3 without those in trials.
    pub(crate) fn deaths(&self) -> u64 {
        self.deaths
    }

    /// Its engine has died once more.
    pub(crate) fn count_death(&mut self) {
        self.deaths += 1;
    }

    /// Its process reports a death under this number, or without one if it is 0. Returns whether it has reported that
    /// death before.
    pub(crate) fn death_reported(&mut self, number: u64) -> bool {
        let told_before = number > 0 && number <= self.last_death;
        self.last_death = self.last_death.max(number);
        told_before
    }

    /// Its incidents since it last finished a row, oldest first.
    pub(crate) fn incidents(&self) -> &[SlotIncident] {
        &self.incidents
    }

    /// Takes its incidents. It does not change the index of slots by incident.
    pub(crate) fn take_incidents(&mut self) -> Vec<SlotIncident> {
        std::mem::take(&mut self.incidents)
    }

    /// Replaces its incidents. It does not change the index of slots by incident.
    pub(crate) fn put_incidents(&mut self, listed: Vec<SlotIncident>) {
        self.incidents = listed;
    }

    /// Why the ledger itself cordoned it.
    pub(crate) fn cordon(&self) -> Option<&str> {
        self.cordon.as_deref()
    }

    /// When the ledger's own cordon ends by itself.
    pub(crate) fn cordoned_until(&self) -> Option<LedgerMs> {
        self.cordoned_until
    }

    /// Whether the ledger's own cordon needed failures, and not deaths alone.
    pub(crate) fn is_cordoned_for_failures(&self) -> bool {
        self.cordoned_until.is_some()
    }

    /// The ledger cordons it, until then if the cordon needed failures.
    pub(crate) fn set_cordon(&mut self, reason: String, until: Option<LedgerMs>) {
        (self.cordon, self.cordoned_until) = (Some(reason), until);
    }

    /// Lifts the ledger's own cordon. Returns whether there was one.
    pub(crate) fn lift_cordon(&mut self) -> bool {
        self.cordoned_until = None;
        self.cordon.take().is_some()
    }

    /// Lifts the ledger's own cordon and drops its incidents, for a slot that is in no index.
    pub(super) fn forget_incidents(&mut self) {
        self.incidents.clear();
        self.lift_cordon();
    }
}
