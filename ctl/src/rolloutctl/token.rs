//! `rolloutctl token`: who may enroll for a certificate, without copying keys to the host.
//!
//! Invariant: a secret is generated here, shown once, and never sent: the cluster gets its hash.

pub(super) mod create;
pub(super) mod list;
pub(super) mod revoke;
mod summary;
