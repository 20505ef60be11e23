//! The gRPC contract of `rollout`, the identities behind it, the client that follows the leader, the protocol between a
//! daemon and the supervisor that started it, and how one program starts another.
//!
//! *Invariant:* generated types stay on the wire: they never enter the ledger or the storage.

#![warn(missing_docs)]

/// The generated contract, package `rollout.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    tonic::include_proto!("rollout.v1");
    /// The contract's descriptors in encoded form, from which a program can list every method.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
}

/// The servers of the contract for tests. A test implements the methods that it needs; every other method answers
/// `UNIMPLEMENTED`. Real services implement the traits of [`v1`]: these have no default answers, so the compiler checks
/// that a service has every method.
#[doc(hidden)]
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod fakes {
    include!(concat!(env!("OUT_DIR"), "/fakes/rollout.v1.rs"));
}

mod answer_position;
mod api_key;
pub mod authz;
mod bytes_codec;
mod channel;
pub mod client;
mod connect_error;
mod crypto;
mod dry_run;
mod endpoint;
pub mod enrollment;
mod error;
mod event_kinds;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod identity;
mod member_address;
mod methods;
pub mod pki;
pub mod programs;
mod revocations;
mod rows;
mod stamp;
mod supervisor;
mod tls;
pub mod trace;
mod version;

pub use answer_position::{AnswerPosition, LOG_POSITION_HEADER};
pub use api_key::{ApiKey, NoApiKey};
pub use authz::AuthzLayer;
pub use bytes_codec::BytesCodec;
pub use channel::{
    CONNECTION_WINDOW_BYTES, ChannelOptions, MESSAGE_BYTES_MAX, STORE_REQUEST_BYTES_MAX,
    STREAM_WINDOW_BYTES, channel, presented,
};
pub use client::{
    CallOptions, Client, ClientConfig, ClientError, HasHeader, MemberRef, OnWait, PendingRequest,
    Session, services,
};
pub use connect_error::{ConnectError, Phase};
pub use dry_run::{DRY_RUNS, DryRunnable};
pub use endpoint::{DialMap, Endpoint, EndpointError, HostPort};
pub use error::{ErrorCode, Outcome, RpcError, UnknownCode};
pub use event_kinds::EVENT_KINDS;
pub use identity::{
    IDENTITY_NAME_BYTES_MAX, IDENTITY_NAMESPACES_MAX, Identity, IdentityError, PeerInfo, Role,
    peer_identity,
};
pub use member_address::{MEMBER_ADDRESS_SHAPE, MemberAddress, MemberAddressError};
pub use methods::{METHODS, Method};
pub use pki::TlsFiles;
pub use revocations::{RevocationList, Revocations};
pub use rows::RowsError;
pub use stamp::{
    CLUSTER_HEADER, Channel, EPOCH_HEADER, Stamp, UNCONFIRMED_HEADER, sender_knows, unconfirmed,
};
pub use supervisor::Supervisor;
pub use tls::{
    ClientTls, Incoming, OnRevoked, Security, ServerConn, ServerTls, TlsError, server_name,
};
pub use version::{commit, version};

/// In a request for a list of runs, workers, datasets, training jobs, rendezvous or checkpoints: those of every
/// namespace that the caller may see. No namespace can have this name, so a member of an older build refuses it as
/// unknown.
pub const ALL_NAMESPACES: &str = "*";

/// Log entries that a member may lack when it gets its vote or leadership, and while it serves: some rounds of
/// replication under load. Members refuse more, and so do the plans of `rolloutctl`.
pub const LACKS_MAX: u64 = 256;
