//! Creates an API key, or finds the same one.
//!
//! *Invariant:* a repeat with the same id, secret and spec changes nothing and gets the same answer, even if the
//! namespace is full meanwhile.

use crate::identity::api_key::ApiKeySpec;
use crate::kernel::reply::{Rejection, Reply};
use crate::kernel::versions::OPENAI_API_VERSION;
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// Creates an API key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateApiKey {
    /// Its id: [`API_KEY_ID_LEN`](crate::API_KEY_ID_LEN) letters and digits, which the client draws.
    pub id: String,
    /// blake3 of its whole text, which has 128 random bits or more beside the id.
    pub secret_hash: [u8; 32],
    /// Its spec.
    pub spec: ApiKeySpec,
}

impl Operation for CreateApiKey {
    const SINCE: u32 = OPENAI_API_VERSION;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn since(&self) -> u32 {
        self.spec.role.came_with()
    }

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        true
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        Subject::Namespace(&self.spec.namespace)
    }

    fn dry_run(&self, ledger: &Ledger) -> Option<Result<(), Rejection>> {
        Some(ledger.check_new_api_key(self).map(drop))
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        if ledger.check_new_api_key(&self)? {
            let at = (ledger.meta.clock(), ctx.wall_ms);
            ledger.api_keys.insert(self.id, self.secret_hash, self.spec, at);
        }
        Ok(Reply::Ok)
    }
}

impl Ledger {
    /// Whether the key is new; false if the same one exists.
    fn check_new_api_key(&self, op: &CreateApiKey) -> Result<bool, Rejection> {
        let is_new = self.api_keys.check_create(&op.id, &op.secret_hash, &op.spec)?;
        match self.namespaces.contains_key(&op.spec.namespace) {
            true => Ok(is_new),
            false => Err(Rejection::NamespaceUnknown(op.spec.namespace.clone())),
        }
    }
}
