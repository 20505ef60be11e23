//! Returns rows that a slot did not finish. They are pending at once and get no strike.

use crate::kernel::id::SlotRef;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::command::HeldRows;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject, rows_of};
use serde::{Deserialize, Serialize};

/// Returns rows that a slot did not finish, without counting a strike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nack {
    /// The reporting slot.
    pub slot: SlotRef,
    /// The returned rows.
    pub held: Vec<HeldRows>,
}

impl Operation for Nack {
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
        ledger.subject_of_worker(self.slot.session)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        Ok(ledger.nack(ctx, self.slot, &self.held))
    }
}

impl Ledger {
    /// Rows come back: pending at once, without a strike.
    fn nack(&mut self, ctx: &Context, slot: SlotRef, held: &[HeldRows]) -> Reply {
        let mut refused = Vec::new();
        for set in held {
            let taken = self.taken_of(slot, set).unwrap_or_default();
            let (taken, rest) = set.rows.partition(&taken);
            #[cfg(feature = "seeded-bugs")]
            let (_, rest) = rest.partition(&self.nack_of_anyone(set.run, &rest));
            if !rest.is_empty() {
                refused.push(self.refuse_stale(slot, set, rest));
            }
            self.give_back(set.run, set.attempt, &taken);
            self.emit_returned(ctx, slot, (set.run, set.attempt), &taken, "nacked");
        }
        Reply::Taken { refused }
    }
}
