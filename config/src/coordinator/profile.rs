//! How far apart members may be: the profiles of `[raft] profile`, and the limits of each.
//!
//! *Invariant:* only this module defines the profiles and their limits. A test of `rollout-raft` compares its timings
//! with them, and `rolloutctl doctor` compares measured round trips. docs/deploy-three-zones.md has the same figures.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far apart members are, and how slow their disks.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Members within one region, on local disks.
    #[default]
    Near,
    /// Members in distant zones, or on slow disks.
    FarZones,
}

impl Profile {
    /// All profiles, the one with the shortest limits first.
    pub const ALL: [Self; 2] = [Self::Near, Self::FarZones];

    /// Its name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::FarZones => "far-zones",
        }
    }

    /// The longest round trip between two members, jitter included, at which heartbeats succeed.
    pub const fn rtt_max(self) -> Duration {
        match self {
            Self::Near => Duration::from_millis(40),
            Self::FarZones => Duration::from_millis(200),
        }
    }

    /// The longest fsync of a member. The answer to a heartbeat waits for a round trip and two fsyncs: a follower
    /// answers once everything that it has accepted is durable, and an entry that arrives during an fsync waits for
    /// that one and for its own.
    pub const fn fsync_max(self) -> Duration {
        match self {
            Self::Near => Duration::from_millis(40),
            Self::FarZones => Duration::from_millis(200),
        }
    }

    /// The first profile whose limit allows this round trip; `None` if it is too long for all.
    pub fn fitting(rtt: Duration) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| rtt <= profile.rtt_max())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_name_of_a_profile() {
        for profile in Profile::ALL {
            assert_eq!(serde_json::to_value(profile).unwrap(), profile.name());
        }
    }

    #[test]
    fn the_first_profile_that_allows_a_round_trip_is_chosen() {
        let fitting = |ms| Profile::fitting(Duration::from_millis(ms)).map(Profile::name);
        assert_eq!(fitting(0), Some("near"));
        assert_eq!(fitting(40), Some("near"));
        assert_eq!(fitting(41), Some("far-zones"));
        assert_eq!(fitting(200), Some("far-zones"));
        assert_eq!(fitting(201), None);
    }
}
