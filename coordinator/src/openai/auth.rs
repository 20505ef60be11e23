//! Owns: who calls: the API key of a request.
//!
//! Invariant: a request reaches a handler only with a secret whose hash the ledger has. Hashes are compared in constant
//! time. A key that was created before the request is known, on every member: a member that does not know it reads the
//! ledger again after a confirmation by the leader. A member that cannot know of recent revocations accepts no key.
//! Absent: how long a request may go on after its key has ended (`key_watch`); rates (`rate`).

use crate::openai::error::ApiError;
use crate::openai::state::ApiState;
use axum::http::{HeaderMap, Method, StatusCode, header};
use rollout_ledger::{KeyLimits, KeyRole};
use rollout_proto::{Identity, Role};

/// The first characters of every key.
const PREFIX: &str = "rk_";
/// Characters of a key's id.
const ID_CHARS: usize = 8;
/// Characters of a key's secret.
const SECRET_CHARS: usize = 43;

/// The caller of a request. Handlers get it as `Extension<Arc<KeyCaller>>`.
#[derive(Clone, Debug)]
pub(crate) struct KeyCaller {
    /// The id of the key.
    pub(crate) key_id: String,
    /// The only namespace that the caller may access.
    pub(crate) namespace: String,
    pub(crate) role: KeyRole,
    /// 0 means no limit.
    pub(crate) limits: KeyLimits,
    /// The same as an identity, for the scope of operations and for the audit.
    pub(crate) identity: Identity,
}
