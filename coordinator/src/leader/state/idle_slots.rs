//! Work for idle slots besides new rows: rows that busy slots have not started, and copies of rows at the tail of a
//! run.
//!
//! *Invariant:* the leader chooses under a read lock and acts after it. It has at most one open question to a busy slot
//! ([`crate::leader::stealing`]), and copies rows only if no slot has unstarted rows left.

use super::LeaderState;
use crate::leader::dispatch;
use crate::leader::ledger_read::ReadLedger;
use crate::leader::stealing::StealRequest;
use rollout_ledger::id::{LedgerMs, SlotRef};
#[cfg(feature = "seeded-bugs")]
use rollout_ledger::seeded::{Bug, seeded};
use rollout_ledger::{CohortNo, Ledger};
use rollout_proto::v1;
use rollout_raft::DiskRoom;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// Rows of one run that the leader offers to idle slots in one round, while other slots run them.
const SPECULATIVE_ROWS_MAX: u32 = 1024;

impl LeaderState {
    /// Asks busy slots for rows, on behalf of slots whose pulls still wait.
    pub(super) fn send_steal_requests(self: &Arc<Self>) {
        let cohorts = self.parked_pulls.cohorts();
        let waiting = |cohort| self.parked_pulls.slots(cohort);
        let choose = |l: &Ledger| self.stealing.choose(Instant::now(), &cohorts, waiting, l);
        for ask in self.node.ledger(choose) {
            let StealRequest { victim, id, rows_max, runs } = ask;
            tracing::debug!(session = %victim.session, slot = %victim.slot, id, rows_max, "asking for rows");
            #[cfg(feature = "seeded-bugs")]
            if seeded(Bug::StealUnasked) {
                let held = self.node.ledger(|l| l.last_held(victim, rows_max));
                tokio::spawn(dispatch::steal_without_consent(self.clone(), victim, id, held));
                continue;
            }
            let runs = runs.iter().map(|no| no.0).collect();
            let request = v1::Yield { slot: victim.slot.0.into(), id, rows_max, runs };
            let kind = Some(v1::leader_message::Kind::Yield(request));
            let message = v1::LeaderMessage { header: Some(self.header()), kind };
            let out = self.outbox(victim.session);
            metrics::counter!("rollout_steal_requests_total").increment(1);
            // The old name, for one release.
            metrics::counter!("rollout_steal_asks_total").increment(1);
            if out.is_none_or(|out| out.try_send(Ok(message)).is_err()) {
                self.stealing.forget_request(victim);
            }
        }
    }

    /// Offers rows that other slots run to slots that could start more, if a run's tail allows it and no unstarted
    /// rows are left for them.
    pub(super) fn offer_speculative_attempts(self: &Arc<Self>) {
        if self.node.disk_room() == DiskRoom::Full {
            return;
        }
        let now = self.now();
        for (slot, room) in self.node.ledger(|l| self.speculating_slots(l, now)) {
            if let Some(pull) = self.parked_pulls.take(slot) {
                tokio::spawn(dispatch::claim_speculatively_for(self.clone(), pull, room));
            }
        }
    }

    /// Slots that could run rows of other slots, with how many.
    fn speculating_slots(&self, ledger: &Ledger, now: LedgerMs) -> Vec<(SlotRef, u32)> {
        let waiting: BTreeSet<CohortNo> = self.parked_pulls.cohorts().into_iter().collect();
        let mut chosen: BTreeMap<SlotRef, u32> = BTreeMap::new();
        if waiting.is_empty() {
            return Vec::new();
        }
        // Computed once for each cohort, however many runs are at their tails.
        let mut idle: BTreeMap<CohortNo, Vec<(SlotRef, u32)>> = BTreeMap::new();
        let idle_of = |cohort| {
            let slots = self.parked_pulls.slots(cohort);
            let mut idle =
                self.stealing.idle((cohort, &slots), SPECULATIVE_ROWS_MAX as usize, ledger);
            idle.retain(|(slot, _)| ledger.takes_others_rows(*slot));
            idle
        };
        for tail in ledger.tails(now, SPECULATIVE_ROWS_MAX) {
            let mut left: u32 = tail.rows.iter().map(|held| held.1).sum();
            // A worker cannot speculate on its own rows.
            let others =
                |slot: &SlotRef| tail.rows.iter().any(|held| held.0.session != slot.session);
            for cohort in ledger.cohorts_for(tail.run) {
                if left == 0 || !waiting.contains(&cohort) {
                    continue;
                }
                let idle = idle.entry(cohort).or_insert_with(|| idle_of(cohort));
                idle.retain(|(slot, room)| {
                    if left == 0 || !others(slot) {
                        return true;
                    }
                    left = left.saturating_sub(*room);
                    chosen.insert(*slot, *room);
                    false
                });
            }
        }
        chosen.into_iter().collect()
    }
}
