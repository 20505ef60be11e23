//! Drops a shared store with its contents.

use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::command::StoreName;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// Drops a shared store with its contents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DropStore {
    /// Which.
    pub store: StoreName,
}

impl Operation for DropStore {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        Cost::GrowsWithState
    }

    fn grows(&self) -> bool {
        false
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        Subject::Namespace(&self.store.namespace)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.drop_store(ctx, &self.store)
    }
}

impl Ledger {
    /// Has no effect if there is no such store: it is gone already.
    fn drop_store(&mut self, ctx: &Context, name: &StoreName) -> Result<Reply, Rejection> {
        self.check_drop(ctx, name)?;
        if let Some(no) = self.stores.no(name) {
            self.stores.remove(no);
        }
        Ok(Reply::Ok)
    }
}
