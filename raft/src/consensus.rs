//! Owns: a running member's part in consensus: who leads, for how long, who keeps up, and what may be read.
//!
//! Invariant: all of it works on one [`running::Running`], which openraft drives.
//! Absent: the links between members (`peer`), changes of the members (`membership`), and the start (`node`).

pub(crate) mod elector;
pub(crate) mod follower_lag;
pub(crate) mod heartbeats;
pub(crate) mod leadership;
pub(crate) mod lease;
pub(crate) mod progress;
pub(crate) mod quorum;
pub(crate) mod reachability;
pub(crate) mod reads;
pub(crate) mod rtt;
pub(crate) mod running;
pub(crate) mod suspended_time;
pub(crate) mod transfer;
