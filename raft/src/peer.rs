//! Owns: communication between members: the outgoing links, and which members are connected.
//!
//! Invariant: every message names the cluster, the sender and the receiver, and a message that names the wrong ones
//! is refused before it reaches consensus.
//! Absent: the incoming side, `node/peer_service.rs`, and the meaning of the messages; openraft decides.

mod append;
mod dial;
pub(crate) mod followers;
pub(crate) mod handovers;
mod heartbeat_stream;
mod link;
mod presence;
mod snapshot;

pub(crate) use dial::{Dialer, Lane};
pub(crate) use link::{PeerContext, PeerLinks};
pub(crate) use presence::{Presence, StreamGuard};
pub(crate) use snapshot::receive_files;

use rollout_proto::v1::PeerMessage;

/// Largest message between members, in bytes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 32 << 20;

/// A frame from one member to another.
pub(crate) fn frame(cluster: &str, from: u64, to: u64, payload: Vec<u8>) -> PeerMessage {
    let (cluster_id, payload) = (cluster.to_owned(), payload.into());
    PeerMessage { cluster_id, from, to, payload, ..PeerMessage::default() }
}
