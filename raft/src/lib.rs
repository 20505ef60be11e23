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

mod backup;
mod cluster;
mod codec;
mod compaction;
mod config;
mod digest;
mod disk_space;
mod elector;
mod entry_cache;
mod errors;
mod event_ring;
mod fatal;
mod follower_lag;
mod followers;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handovers;
mod heartbeats;
mod identity;
mod joining;
mod leadership;
mod lease;
mod log_meter;
mod log_store;
mod machine;
mod member;
mod membership;
mod node;
mod peer;
mod progress;
mod quorum;
mod reachability;
mod reads;
mod reclaim;
mod records;
mod restore;
mod rtt;
mod running;
mod runtime;
mod salvage;
mod snapshot_files;
mod state_machine;
mod status;
#[cfg(test)]
mod store_suite;
mod stores;
mod successor;
mod suspended_time;
#[cfg(test)]
mod test_member;
mod transfer;
mod types;
mod voters;
mod watchdog;

pub use backup::{Backup, BackupError};
pub use config::{BadConfig, COMMAND_BYTES_CEILING, RaftConfig};
pub use digest::Digests;
pub use disk_space::DiskRoom;
pub use errors::{ClusterError, NotLeader, OpenError, ProposeError};
pub use event_ring::{Compacted, EventName, EventPage, EventPosition, EventRecord};
pub use follower_lag::LACKS_MAX;
pub use handovers::{Handover, LeaderLeft};
pub use identity::Identity;
pub use leadership::Leadership;
pub use member::{BadClusterId, ClusterId, Joins, MAX_MEMBER_TEXT_BYTES, MemberRecord};
pub use node::{Node, PeerService};
pub use reachability::{MemberReachability, Reachability};
pub use restore::{RestoreError, RestorePlan, Restored, restore};
pub use rollout_storage::{NO_SPACE_EXIT, Space};
pub use rtt::RoundTrips;
pub use salvage::{SalvageError, Salvaged, owner, salvage};
pub use status::{NodeStatus, PeerStatus, Role};
