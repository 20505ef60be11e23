//! Consensus: the only crate that knows openraft.
//!
//! A [`Node`] is one member. It keeps the replicated log and the ledger's image below one directory, elects leaders
//! with the other members, and applies committed commands to the ledger in memory. The coordinator proposes commands
//! as bytes and gets the ledger's replies.
//!
//! - An acknowledged command is fsynced on a quorum; see `log_store`.
//! - A term has one leader and one process: the term is the fencing token of everything above.
//! - The ledger's image on disk is an earlier moment of the ledger; the log replays the rest; see `machine`.
//!
//! Absent: clocks, sessions, dispatch, clients. None of openraft's or RocksDB's types leave this crate.

mod codec;
mod config;
mod consensus;
mod errors;
mod fatal;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod member;
mod membership;
mod node;
mod ops;
mod peer;
mod state;
#[cfg(test)]
mod store_suite;
#[cfg(test)]
mod test_member;
mod types;

pub use config::{BadConfig, COMMAND_BYTES_CEILING, RaftConfig};
pub use consensus::leadership::Leadership;
pub use consensus::reachability::{MemberReachability, Reachability};
pub use consensus::rtt::RoundTrips;
pub use errors::{ClusterError, NotLeader, OpenError, ProposeError};
pub use member::{BadClusterId, ClusterId, Joins, MAX_MEMBER_TEXT_BYTES, MemberRecord};
pub use node::{Node, PeerService};
pub use ops::backup::{Backup, BackupError};
pub use ops::disk_space::DiskRoom;
pub use ops::restore::{RestoreError, RestorePlan, Restored, restore};
pub use ops::salvage::{SalvageError, Salvaged, owner, salvage};
pub use ops::status::{NodeStatus, PeerStatus, Role};
pub use peer::handovers::{Handover, LeaderLeft};
pub use rollout_storage::{NO_SPACE_EXIT, Space};
pub use state::digest::Digests;
pub use state::event_ring::{Compacted, EventName, EventPage, EventPosition, EventRecord};
pub use state::identity::Identity;
