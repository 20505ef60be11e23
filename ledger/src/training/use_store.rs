//! Uses a store.
//!
//! *Invariant:* an operation of the same request is executed once: a repeated `Add` counts once, a repeated `Pop` gives
//! the same element. From cluster version 3 on, the store of a round is gone for good once a later round of the job is
//! complete: a process that a round left behind cannot create it again. Only its members may use the store of the
//! latest complete round (`round_access.rs`).

use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::command::{StoreName, StoreOp};
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::training::store::Stores;
use serde::{Deserialize, Serialize};

/// Operations on a shared store, in order, each with its own answer. Without operations, this still counts as a
/// use and keeps the store alive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UseStore {
    /// Which.
    pub store: StoreName,
    /// At most [`limits::STORE_OPS_MAX`](crate::kernel::limits::STORE_OPS_MAX), of which at most
    /// [`limits::STORE_VALUE_OPS_MAX`](crate::kernel::limits::STORE_VALUE_OPS_MAX) may return a value.
    pub ops: Vec<StoreOp>,
}

impl Operation for UseStore {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn since(&self) -> u32 {
        Self::SINCE.max(self.ops.iter().map(StoreOp::came_with).max().unwrap_or(0))
    }

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        self.ops.iter().any(StoreOp::grows)
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        Subject::Namespace(&self.store.namespace)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.use_store_for(ctx, self.store, self.ops)
    }
}

impl Ledger {
    pub(crate) fn use_store_for(
        &mut self,
        ctx: &Context,
        name: StoreName,
        ops: Vec<StoreOp>,
    ) -> Result<Reply, Rejection> {
        Stores::check_request(&ops)?;
        self.check_round(ctx, &name)?;
        let no = self.use_store(name)?;
        Ok(Reply::Store(self.stores.execute(no, ops, self.meta.version())))
    }
}
