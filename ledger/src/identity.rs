//! Owns: who may speak: client sessions, join tokens, API keys, revocations, the members as seen, namespaces and their
//! quotas.

pub(crate) mod api_key;
pub(crate) mod api_keys;
pub(crate) mod client;
pub(crate) mod create_api_key;
pub(crate) mod member;
pub(crate) mod namespace;
pub(crate) mod open_client;
pub(crate) mod quota;
pub(crate) mod revocation;
pub(crate) mod revoke_api_key;
pub(crate) mod set_namespace;
pub(crate) mod token;
