//! The gRPC contract of `rollout`, the identities behind it, and the one client that follows
//! the leader.
//!
//! *Invariant:* generated types are the wire's alone: they never enter the ledger or the storage.

/// The generated contract, package `rollout.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    tonic::include_proto!("rollout.v1");
    /// The contract's descriptors, encoded: who wants to list every method reads them.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
}

pub mod authz;
mod identity;
pub mod pki;
mod tls;

pub use authz::AuthzLayer;
pub use identity::{
    IDENTITY_NAME_BYTES_MAX, IDENTITY_NAMESPACES_MAX, Identity, IdentityError, PeerInfo, Role,
    peer_identity,
};
pub use tls::{
    ClientTls, Incoming, Security, ServerConn, ServerTls, TlsError, TlsFiles, server_name,
};
