//! Opens the session of a client, whose requests take effect once.

use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// Opens a client session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenClient {
    /// Human-readable.
    pub name: String,
    /// The owner, as `role/name` of its certificate. Only its requests belong to this session.
    pub holder: String,
}

impl Operation for OpenClient {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        false
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        Subject::Nothing
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.open_client(ctx, self.name, self.holder)
    }
}

impl Ledger {
    fn open_client(
        &mut self,
        ctx: &Context,
        name: String,
        holder: String,
    ) -> Result<Reply, Rejection> {
        if name.len() > limits::NAME_BYTES_MAX || holder.len() > limits::HOLDER_BYTES_MAX {
            return Err(Rejection::Invalid("the client's name is too long".into()));
        }
        let session = ctx.session();
        self.clients.open(session, (name, holder), self.meta.clock(), self.meta.version());
        Ok(Reply::ClientOpened { session })
    }
}
