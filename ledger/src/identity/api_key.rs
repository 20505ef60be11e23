//! Owns: what an API key is: the role, the namespace and the limits of a caller of the HTTP API.
//!
//! *Invariant:* the ledger never has a secret, only its hash. A key has one namespace and one role, and both stay as
//! they are: to change them, create another key.
//!
//! Absent: the keys that exist (`api_keys.rs`), and what a limit counts, which the operations on batches and files check.

use crate::kernel::names::check_name;
use crate::kernel::reply::Rejection;
use crate::machine::version_gate::came_with;
use serde::{Deserialize, Serialize};

/// Characters of a key's id.
pub const API_KEY_ID_LEN: usize = 8;

/// What the holder of a key may do in the key's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeyRole {
    /// Reads.
    Viewer,
    /// Reads, and changes what clients change.
    Client,
    /// Reads, and changes everything in the namespace.
    Admin,
}

came_with!(KeyRole, KEY_ROLES, {
    5: KeyRole::Viewer | KeyRole::Client | KeyRole::Admin,
});

/// How much the holder of a key may use; 0 for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyLimits {
    /// Requests per second, at each member.
    pub requests_per_s: u32,
    /// Batches that have not ended.
    pub open_batches: u32,
    /// Rows of its batches that wait for a worker.
    pub waiting_rows: u64,
    /// Bytes of its files.
    pub stored_bytes: u64,
}

/// The spec of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKeySpec {
    /// The name that people know it by. Several keys may have the same.
    pub name: String,
    /// Its only namespace, which exists.
    pub namespace: String,
    /// What its holder may do there.
    pub role: KeyRole,
    /// How long it is valid, in milliseconds of ledger time from its creation; 0: it does not expire.
    pub ttl_ms: u64,
    /// How much its holder may use.
    pub limits: KeyLimits,
}

impl ApiKeySpec {
    /// Checks everything that depends on the spec alone.
    pub(super) fn check(&self) -> Result<(), Rejection> {
        check_name("key's", &self.name)?;
        check_name("namespace's", &self.namespace)
    }
}

/// A key at a glance, without its secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiKeyView<'a> {
    /// Its id, which is also the public part of its text.
    pub id: &'a str,
    /// Its spec.
    pub spec: &'a ApiKeySpec,
    /// blake3 of its whole text. Compare it in constant time.
    pub secret_hash: &'a [u8; 32],
    /// When it was created, in milliseconds since 1970 by the leader's clock; informational only.
    pub created_wall_ms: u64,
    /// For how many milliseconds of ledger time it is still valid; `None`: it does not expire.
    pub left_ms: Option<u64>,
}

/// Refuses an id that no key can have.
pub(super) fn check_id(id: &str) -> Result<(), Rejection> {
    let good = id.len() == API_KEY_ID_LEN && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    match good {
        true => Ok(()),
        false => Err(Rejection::Invalid(format!(
            "the id of an API key has {API_KEY_ID_LEN} of a-z A-Z 0-9"
        ))),
    }
}
