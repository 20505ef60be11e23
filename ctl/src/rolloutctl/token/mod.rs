//! `rolloutctl token`: who may come for a certificate, without anybody carrying keys to it.
//!
//! Invariant: a secret is drawn here, shown once, and never sent: the cluster gets its hash.

pub(super) mod create;
pub(super) mod list;
pub(super) mod revoke;
mod shown;
