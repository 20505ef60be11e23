//! Revokes an API key: it is no longer valid.
//!
//! *Invariant:* the key is gone for good. An id that no valid key has is refused, so that a misspelled id does not look
//! like a revoked key.

use crate::kernel::reply::{Rejection, Reply};
use crate::kernel::versions::OPENAI_API_VERSION;
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// Revokes an API key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokeApiKey {
    /// Its id.
    pub id: String,
}

impl Operation for RevokeApiKey {
    const SINCE: u32 = OPENAI_API_VERSION;
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

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        match ledger.api_keys.namespace_of(&self.id) {
            Some(namespace) => Subject::Namespace(namespace),
            None => Subject::Nothing,
        }
    }

    fn dry_run(&self, ledger: &Ledger) -> Option<Result<(), Rejection>> {
        Some(ledger.api_keys.check_is_there(&self.id))
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.api_keys.check_is_there(&self.id)?;
        ledger.api_keys.remove(self.id, ctx.index());
        Ok(Reply::Ok)
    }
}
