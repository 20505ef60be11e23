//! The index as the leader uses it: which slots wait for the same work, and which slots a queue can use.
//!
//! *Invariant:* reading changes nothing, and takes time in proportion to what it returns.

use crate::batch::eligibility::{CohortNo, NeedNo};
use crate::kernel::id::{LedgerMs, RunNo, SlotRef};
use crate::machine::ledger::Ledger;
use std::cmp::Reverse;

/// A run at its tail, of whose running rows idle slots may make speculative attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The run.
    pub run: RunNo,
    /// Rows that may get a speculative attempt, by the slots that hold them, up to the requested number.
    pub rows: Vec<(SlotRef, u32)>,
}

impl Ledger {
    /// Changes whenever slots may have moved to other cohorts.
    pub fn eligibility_version(&self) -> u64 {
        self.index.version()
    }

    /// The cohort of a slot: the slots that fit the same runs.
    pub fn cohort(&self, slot: SlotRef) -> Option<CohortNo> {
        self.index.cohort(self.slot(slot)?.offer_no())
    }

    /// The needs that the slots of a cohort meet.
    pub fn cohort_needs(&self, cohort: CohortNo) -> Vec<NeedNo> {
        self.index.needs(cohort).collect()
    }

    /// The cohorts whose slots fit a run.
    pub fn cohorts_for(&self, run: RunNo) -> Vec<CohortNo> {
        self.index.cohorts(run).collect()
    }

    /// The needs of the runs whose rows a slot holds.
    pub fn held_needs(&self, slot: SlotRef) -> Vec<NeedNo> {
        let held = self.slot(slot).into_iter().flat_map(|slot| slot.held());
        let mut needs: Vec<NeedNo> = held.filter_map(|(run, _)| self.index.need(*run)).collect();
        needs.sort_unstable();
        needs.dedup();
        needs
    }

    /// The routes of the OpenAI API that registered slots of a namespace report, sorted. A slot whose engine is
    /// restarting, or that takes no work for now, counts too.
    pub fn routes<'a>(&'a self, namespace: &str) -> impl Iterator<Item = &'a str> {
        self.index.routes(namespace)
    }

    /// Whether a registered slot of a namespace reports a route, such as `/v1/embeddings`.
    pub fn has_route(&self, namespace: &str, route: &str) -> bool {
        self.index.has_route(namespace, route)
    }

    /// Whether a slot may be given rows that another slot has not started, or runs.
    pub fn takes_others_rows(&self, slot: SlotRef) -> bool {
        let worker = self.workers.get(&slot.session);
        worker.is_some_and(|worker| self.takes_work(worker, slot.slot.0 as usize))
            && self.own_group(slot).is_none()
    }

    /// The runs whose rows may get a speculative attempt now, in serving order, with at most `rows_max` rows each.
    pub fn tails(&self, now: LedgerMs, rows_max: u32) -> Vec<Tail> {
        let tails = self.run_lists.tails().filter_map(|no| self.runs.get(&no));
        let mut tails: Vec<_> = tails.filter(|run| run.at_tail()).collect();
        tails.sort_unstable_by_key(|run| (Reverse(run.head.spec.priority), run.no));
        let tail = |run: &crate::batch::run::Run| {
            let held = run.rows_to_speculate_on(None, now, rows_max);
            let rows = held.into_iter().map(|(slot, rows)| (slot, rows.len() as u32)).collect();
            Tail { run: run.no, rows }
        };
        tails.into_iter().map(tail).filter(|tail| !tail.rows.is_empty()).collect()
    }
}
