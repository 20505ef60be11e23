//! Consensus, the disk and the events in memory.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Profile;

/// Shortest interval between heartbeats that is accepted, in milliseconds.
pub const HEARTBEAT_MIN_MS: u64 = 5;

/// The timings that a profile has, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timings {
    /// Time between heartbeats of a leader.
    pub heartbeat_ms: u64,
    /// Shortest election timeout.
    pub election_min_ms: u64,
    /// Longest election timeout.
    pub election_max_ms: u64,
}

impl Timings {
    /// Those of [`Profile::Near`].
    pub const NEAR: Self = Self { heartbeat_ms: 50, election_min_ms: 150, election_max_ms: 250 };
    /// Those of [`Profile::FarZones`]: a failover then takes 2 to 4 s.
    pub const FAR_ZONES: Self =
        Self { heartbeat_ms: 300, election_min_ms: 1000, election_max_ms: 2000 };
}

/// Consensus.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Raft {
    /// The longest round trip between members and the longest fsync; the same on all members.
    ///
    /// [The limits of each](../deploy-three-zones.md#choosing-the-profile).
    pub profile: Profile,
    /// Time between heartbeats of a leader.
    ///
    /// The answer to a heartbeat may take up to two and a half times this interval.
    #[schemars(range(min = HEARTBEAT_MIN_MS))]
    #[schemars(extend("x-default" = Timings::NEAR.heartbeat_ms, "x-far" = Timings::FAR_ZONES.heartbeat_ms))]
    pub heartbeat_ms: Option<u64>,
    /// Shortest election timeout; at least three heartbeats.
    #[schemars(range(min = 1))]
    #[schemars(extend("x-default" = Timings::NEAR.election_min_ms, "x-far" = Timings::FAR_ZONES.election_min_ms))]
    pub election_min_ms: Option<u64>,
    /// Longest election timeout, above `election_min_ms`; also the length of a leader's lease.
    #[schemars(range(min = 1))]
    #[schemars(extend("x-default" = Timings::NEAR.election_max_ms, "x-far" = Timings::FAR_ZONES.election_max_ms))]
    pub election_max_ms: Option<u64>,
    /// Interval between writes of the image.
    #[schemars(range(min = 1))]
    pub image_interval_ms: u64,
    /// Bytes of log after which the member writes the image at once.
    #[schemars(range(min = 1))]
    pub image_log_bytes: u64,
    /// Minimum amount of log to retain, for members that are briefly behind.
    pub log_keep_bytes: u64,
}

impl Default for Raft {
    fn default() -> Self {
        Self {
            profile: Profile::default(),
            heartbeat_ms: None,
            election_min_ms: None,
            election_max_ms: None,
            image_interval_ms: 1000,
            image_log_bytes: 64 << 20,
            log_keep_bytes: 1 << 30,
        }
    }
}

impl Raft {
    /// The timings of the profile, unless the file has others.
    pub fn timings(&self) -> Timings {
        let usual = match self.profile {
            Profile::Near => Timings::NEAR,
            Profile::FarZones => Timings::FAR_ZONES,
        };
        Timings {
            heartbeat_ms: self.heartbeat_ms.unwrap_or(usual.heartbeat_ms),
            election_min_ms: self.election_min_ms.unwrap_or(usual.election_min_ms),
            election_max_ms: self.election_max_ms.unwrap_or(usual.election_max_ms),
        }
    }
}

/// Thresholds of free space on the data disk.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Storage {
    /// Free bytes of `data_dir`'s disk below which the member raises the alarm `DISK_LOW`.
    pub low_bytes: u64,
    /// Free bytes below which a leader refuses writes that make the ledger larger.
    ///
    /// See [a full disk](failures.md#a-full-disk). 0 for both keys disables the check.
    pub reserve_bytes: u64,
}

impl Default for Storage {
    fn default() -> Self {
        Self { low_bytes: 2 << 30, reserve_bytes: 512 << 20 }
    }
}

/// How many events are kept in memory for readers that follow.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Events {
    /// Bytes of events kept in memory.
    ///
    /// Readers that [follow the events](events-and-audit.md#events) are served from memory.
    #[schemars(range(min = 1))]
    pub bytes_max: usize,
    /// Number of events kept in memory.
    #[schemars(range(min = 1))]
    pub count_max: usize,
}

impl Default for Events {
    fn default() -> Self {
        Self { bytes_max: 32 << 20, count_max: 200_000 }
    }
}
