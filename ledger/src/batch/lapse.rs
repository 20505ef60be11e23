//! Owns: the end of a lease. Rows leave an attempt when the lease lapses, when a worker returns them, or when they are
//! decided.
//!
//! *Invariant:* the counts of the run, its namespace and the slot change together with the grant. Rows of a lapsed
//! lease are pending, and the ledger accepts a late result of such a row until another slot gets it.
//! Absent: why a lease ends. It lapses after a timeout (`machine/clock.rs`), when a worker is silent
//! (`fleet/suspect.rs`), and with a session (`fleet/session.rs`) or a run (`run_end.rs`). Rows are given back when a
//! worker registers again without them (`fleet/register.rs`), returns them (`nack.rs`), drops them for another slot
//! (`steal.rs`), or cannot use the store (`store_refusal.rs`). `session_leases.rs` restores lapsed leases.

use crate::batch::grant::Grant;
use crate::kernel::id::{Attempt, RunNo};
use crate::kernel::rows::Rows;
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;

impl Ledger {
    /// Takes some rows from an attempt for good: it may no longer decide them. Rows that no other slot runs become
    /// pending again, a group's rows as a group. Returns these rows.
    pub(crate) fn give_back(&mut self, no: RunNo, attempt: Attempt, rows: &Rows) -> Rows {
        let aside = self.release_shared_rows(no, attempt, rows);
        let (_, rows) = rows.partition(&aside);
        if rows.is_empty() {
            return rows;
        }
        let live = self.runs.get(&no).and_then(|r| r.flight.grants.get(&attempt));
        let group = live.and_then(|grant| grant.group);
        self.release(no, attempt, &rows);
        if let Some(run) = self.runs.get_mut(&no) {
            run.put_back(group, &rows);
            run.head.counts.returned += rows.len();
        }
        self.refresh_active(no);
        rows
    }

    /// Ends a lease but not the attempt: its rows are pending, and the ledger accepts a late result
    /// of a row that no other slot got since.
    pub(crate) fn lapse(&mut self, ctx: &Context, no: RunNo, attempt: Attempt, why: &'static str) {
        let Some(run) = self.runs.get(&no) else { return };
        let Some((slot, rows)) = run.holding(attempt) else { return };
        self.lapse_rows(no, attempt, &rows);
        self.emit_returned(ctx, slot, (no, attempt), &rows, why);
    }

    /// [`lapse`](Self::lapse) for some of an attempt's rows.
    pub(crate) fn lapse_rows(&mut self, no: RunNo, attempt: Attempt, rows: &Rows) {
        let Some(run) = self.runs.get(&no) else { return };
        let Some((_, held)) = run.holding(attempt) else { return };
        let grant = run.flight.grants.get(&attempt).cloned();
        let rows = self.give_back(no, attempt, &rows.partition(&held).0);
        if let Some(grant) = grant.filter(|_| !rows.is_empty()) {
            let empty = Grant { rows: Rows::default(), ..grant };
            self.runs.lapse(no, attempt, empty, &rows);
        }
        #[cfg(feature = "seeded-bugs")]
        self.lose(no, attempt, &rows);
    }

    /// Removes rows from an attempt, live or lapsed, and updates all counts of them.
    pub(crate) fn release(&mut self, no: RunNo, attempt: Attempt, rows: &Rows) {
        let Some(run) = self.runs.change(&no) else { return };
        let late = run.release_lapsed(attempt, rows);
        let Some(grant) = run.flight.grants.get_mut(&attempt) else { return };
        grant.rows.subtract(rows);
        let len = rows.len() - late;
        let (slot, ended) = (grant.slot, grant.rows.is_empty());
        if ended {
            run.flight.grants.remove(&attempt);
        }
        let ended = run.holding(attempt).is_none();
        run.head.counts.running -= len;
        self.namespaces.remove_running(&run.head.namespace, len);
        if let Some(held) = self.slot_mut(slot) {
            held.release((no, attempt), len, ended);
        }
    }
}
