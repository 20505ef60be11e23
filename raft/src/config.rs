//! Owns: the settings of consensus, and the combinations that are refused. Crate `rollout-config` has the defaults of
//! those that an operator sets.
//!
//! Invariant: a configuration that passed [`RaftConfig::validate`] can be started.
//! Absent: flags, environment and files. The daemon reads those.

use std::path::PathBuf;
use std::time::Duration;

use openraft::{Config, SnapshotPolicy};
use rollout_config::coordinator::{Events, HEARTBEAT_MIN_MS, Profile, Raft, Storage, Timings};
use rollout_proto::{DialMap, Revocations, Security};

/// Settings of one member's consensus.
///
/// The defaults are those of [`Profile::Near`]. For longer round trips or slower disks use
/// [`RaftConfig::far_zones`].
#[derive(Debug, Clone)]
pub struct RaftConfig {
    /// The directory of the member's identity, log and image.
    pub data_dir: PathBuf,
    /// The member's name. A data directory of another name is refused.
    pub name: String,
    /// The cluster that this member must belong to, if the operator sets it. Another one on disk is refused.
    pub cluster_id: Option<crate::ClusterId>,
    /// The profile of these timings, if none of them was changed.
    pub profile: Profile,
    /// Milliseconds between heartbeats of a leader. An answer may take two and a half times as long.
    pub heartbeat_ms: u64,
    /// Shortest random part of an election timeout, in milliseconds; at least three heartbeats.
    pub election_min_ms: u64,
    /// Longest random part of an election timeout, and the length of a leader's lease, in milliseconds.
    pub election_max_ms: u64,
    /// Replaces the addresses under which other members are dialed.
    pub dial_map: DialMap,
    /// How connections to other members are secured.
    pub security: Security,
    /// Members whose certificates this process knows to be revoked.
    pub revocations: Revocations,
    /// Milliseconds between writes of the ledger's image.
    pub image_interval_ms: u64,
    /// Bytes of applied commands after which the image is written at once.
    pub image_log_bytes: u64,
    /// Bytes of log kept for followers that are briefly behind, at least.
    pub log_keep_bytes: u64,
    /// Minutes that a follower may take to receive and install a snapshot.
    pub snapshot_timeout_minutes: u64,
    /// Largest command that is proposed, in bytes.
    pub command_bytes_max: usize,
    /// Milliseconds of one fsync after which a leader hands over.
    pub stall_transfer_ms: u64,
    /// Milliseconds of one fsync after which the process ends.
    pub stall_exit_ms: u64,
    /// Approximate bytes of events kept in memory for followers of events.
    pub events_bytes_max: usize,
    /// Events kept in memory.
    pub events_count_max: usize,
    /// Bytes free on the disk of `data_dir` below which it has little room.
    pub disk_low_bytes: u64,
    /// Below this many free bytes a leader accepts nothing that grows: the rest is reserved for finishing work.
    pub disk_reserve_bytes: u64,
    /// The oldest and the newest cluster version that this build can run.
    pub versions: (u32, u32),
    /// Threads of the runtime on which consensus runs, apart from everything else.
    pub threads: usize,
}

/// The least time that a connection gets.
const CONNECT_LIMIT_MIN: Duration = Duration::from_secs(1);

/// How long a busy machine may stall without counting as a broken link.
const STANDSTILL_MAX: Duration = Duration::from_secs(2);

/// A configuration that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("raft configuration: {0}")]
pub struct BadConfig(String);

impl RaftConfig {
    /// The defaults, for members as far apart as [`Profile::Near`] says.
    pub fn new(
        data_dir: impl Into<PathBuf>,
        name: impl Into<String>,
        dial_map: DialMap,
        security: Security,
    ) -> Self {
        let (raft, storage, events) = (Raft::default(), Storage::default(), Events::default());
        Self {
            data_dir: data_dir.into(),
            name: name.into(),
            cluster_id: None,
            profile: Profile::Near,
            heartbeat_ms: Timings::NEAR.heartbeat_ms,
            election_min_ms: Timings::NEAR.election_min_ms,
            election_max_ms: Timings::NEAR.election_max_ms,
            dial_map,
            security,
            revocations: Revocations::default(),
            image_interval_ms: raft.image_interval_ms,
            image_log_bytes: raft.image_log_bytes,
            log_keep_bytes: raft.log_keep_bytes,
            snapshot_timeout_minutes: 30,
            // A request of a client has 4 MiB, and the scope of its caller less than 16 KiB.
            command_bytes_max: (4 << 20) + (16 << 10),
            stall_transfer_ms: 1000,
            stall_exit_ms: 5000,
            events_bytes_max: events.bytes_max,
            events_count_max: events.count_max,
            disk_low_bytes: storage.low_bytes,
            disk_reserve_bytes: storage.reserve_bytes,
            versions: (1, 1),
            threads: 2,
        }
    }

    /// Timings for members as far apart as [`Profile::FarZones`] says: a failover then takes 2 to 4 s.
    #[must_use]
    pub fn far_zones(mut self) -> Self {
        self.profile = Profile::FarZones;
        self.heartbeat_ms = Timings::FAR_ZONES.heartbeat_ms;
        self.election_min_ms = Timings::FAR_ZONES.election_min_ms;
        self.election_max_ms = Timings::FAR_ZONES.election_max_ms;
        self.stall_transfer_ms = 3000;
        self.stall_exit_ms = 15_000;
        self
    }

    /// Refuses a configuration that cannot work, with the reason.
    pub fn validate(&self) -> Result<(), BadConfig> {
        let bad = |text: String| Err(BadConfig(text));
        if self.name.is_empty() {
            return bad("a member needs a name".into());
        }
        if self.heartbeat_ms < HEARTBEAT_MIN_MS {
            return bad(format!(
                "heartbeat_ms is {}, the least is {HEARTBEAT_MIN_MS}",
                self.heartbeat_ms
            ));
        }
        if self.election_min_ms < 3 * self.heartbeat_ms {
            return bad(format!(
                "election_min_ms is {}, but one lost heartbeat must not cause an election: at least three \
                 heartbeats of {} ms",
                self.election_min_ms, self.heartbeat_ms
            ));
        }
        if self.election_max_ms <= self.election_min_ms {
            return bad(format!(
                "election_max_ms ({}) must exceed election_min_ms ({})",
                self.election_max_ms, self.election_min_ms
            ));
        }
        if self.stall_exit_ms <= self.stall_transfer_ms {
            return bad(format!(
                "stall_exit_ms ({}) must exceed stall_transfer_ms ({})",
                self.stall_exit_ms, self.stall_transfer_ms
            ));
        }
        if self.disk_low_bytes < self.disk_reserve_bytes {
            return bad(format!(
                "low_bytes ({}) must not be below reserve_bytes ({})",
                self.disk_low_bytes, self.disk_reserve_bytes
            ));
        }
        let positive = [
            ("image_interval_ms", self.image_interval_ms),
            ("image_log_bytes", self.image_log_bytes),
            ("snapshot_timeout_minutes", self.snapshot_timeout_minutes),
            ("threads", self.threads as u64),
            ("command_bytes_max", self.command_bytes_max as u64),
            ("events.bytes_max", self.events_bytes_max as u64),
            ("events.count_max", self.events_count_max as u64),
        ];
        match positive.iter().find(|(_, value)| *value == 0) {
            Some((what, _)) => bad(format!("{what} is 0")),
            None if self.command_bytes_max > COMMAND_BYTES_CEILING => bad(format!(
                "command_bytes_max is {}, the most is {COMMAND_BYTES_CEILING}",
                self.command_bytes_max
            )),
            None => Ok(()),
        }
    }

    /// The lease of a leader: no other member is elected within this time of its last heartbeat.
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_millis(self.election_max_ms)
    }

    /// The interval between a leader's heartbeats.
    pub(crate) fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms)
    }

    /// How long the answer to a heartbeat may take: a round trip, the two fsyncs that it may wait for at the follower
    /// (the running one and the next), and the delays of busy machines. Votes get no longer, see `peer::link`.
    /// openraft has one setting for this and for the time between heartbeats. With that alone, either no heartbeat
    /// would be answered in time, or too few would be sent for the lease. So openraft gets this limit, and
    /// `heartbeats` sends them more often. It must be shorter than an election.
    pub(crate) fn answer_limit(&self) -> Duration {
        self.heartbeat() * 5 / 2
    }

    /// How long a connection to another member may take: name, TCP and TLS are three round trips.
    pub(crate) fn connect_limit(&self) -> Duration {
        (self.heartbeat() * 10).max(CONNECT_LIMIT_MIN)
    }

    /// How long a follower may hear nothing from the leader that it names. After two leases it asks for votes, and if
    /// no member was elected, again after two more. The rest is slack for a machine that stalls.
    pub(crate) fn silence_max(&self) -> Duration {
        4 * self.lease() + STANDSTILL_MAX
    }

    pub(crate) fn openraft(&self, cluster: &str) -> Result<Config, openraft::ConfigError> {
        Config {
            cluster_name: cluster.to_owned(),
            heartbeat_interval: self.answer_limit().as_millis() as u64,
            election_timeout_min: self.election_min_ms,
            election_timeout_max: self.election_max_ms,
            enable_pre_vote: Some(true),
            // A restarted leader must win a new term: one term is one process.
            enable_leader_restore: Some(false),
            // Snapshots and purges follow the log's bytes, see `compaction`.
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: u64::MAX / 2,
            purge_batch_size: 1,
            max_payload_entries: 1024,
            install_snapshot_timeout: self.snapshot_timeout_minutes * 60_000,
            backoff: "20ms 40ms 80ms ...500ms".to_owned(),
            ..Config::default()
        }
        .validate()
    }
}

/// The most that `command_bytes_max` may be: messages between members are limited to 32 MiB.
pub const COMMAND_BYTES_CEILING: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> RaftConfig {
        RaftConfig::new("/nowhere", "c1", DialMap::default(), Security::InsecurePlaintext)
    }

    #[test]
    fn the_documented_profiles_are_valid() {
        assert_eq!(config().validate(), Ok(()));
        assert_eq!(config().far_zones().validate(), Ok(()));
        assert!(config().openraft("x").is_ok());
        assert!(config().far_zones().openraft("x").is_ok());
    }

    #[test]
    fn an_answer_has_time_for_a_round_trip_and_two_fsyncs_and_fits_several_times_into_a_lease() {
        for config in [config(), config().far_zones()] {
            let needed = config.profile.rtt_max() + 2 * config.profile.fsync_max();
            assert!(config.answer_limit() >= needed, "{:?}", config.profile);
            // A member that wins an election can keep its lease.
            assert!(config.answer_limit() < Duration::from_millis(config.election_min_ms));
            assert!(config.heartbeat() + 2 * config.profile.rtt_max() < config.lease());
            assert!(config.connect_limit() >= 10 * config.profile.rtt_max());
        }
    }

    #[test]
    fn an_election_timeout_below_three_heartbeats_is_refused() {
        let refused = RaftConfig { election_min_ms: 149, ..config() }.validate();
        assert!(refused.is_err_and(|error| error.to_string().contains("three heartbeats")));
    }
}
