//! The kinds of fault in each family.
//!
//! *Invariant:* a kind's name begins with its family's.

use crate::family::Family;

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    LeaderMinority,
    LeaderMajority,
    Bridge,
    OneWay,
    ClientsCut,
    KillLeader,
    KillMinority,
    KillAll,
    PauseLeader,
    PauseMinority,
    PowerLeader,
    PowerMinority,
    PowerAll,
    ClockLeader,
    ClockMinority,
    ClockAll,
    DiskSlow,
    DiskSyncFails,
    DiskWriteFails,
    DiskFull,
    BitflipLeader,
    BitflipMinority,
    SnapshotCut,
    SnapshotInterrupted,
    SnapshotKilled,
    SnapshotLeaderCut,
    LatencyLimit,
    LatencyBeyond,
    LatencyLink,
    LatencySwings,
    RollingRestart,
    MembershipFive,
    MembershipReplace,
    MembershipLeader,
    MembershipCut,
    LeaseLeaderCut,
    UpgradeMembers,
    UpgradeVersion,
}

impl Kind {
    pub(super) fn of(family: Family) -> &'static [Kind] {
        match family {
            Family::None | Family::All => &[],
            Family::Partition => &[
                Kind::LeaderMinority,
                Kind::LeaderMajority,
                Kind::Bridge,
                Kind::OneWay,
                Kind::ClientsCut,
            ],
            Family::Kill => &[Kind::KillLeader, Kind::KillMinority, Kind::KillAll],
            Family::Pause => &[Kind::PauseLeader, Kind::PauseMinority],
            Family::Power => &[Kind::PowerLeader, Kind::PowerMinority, Kind::PowerAll],
            Family::Clock => &[Kind::ClockLeader, Kind::ClockMinority, Kind::ClockAll],
            Family::Disk => {
                &[Kind::DiskSlow, Kind::DiskSyncFails, Kind::DiskWriteFails, Kind::DiskFull]
            }
            Family::Bitflip => &[Kind::BitflipLeader, Kind::BitflipMinority],
            Family::Snapshot => &[
                Kind::SnapshotCut,
                Kind::SnapshotInterrupted,
                Kind::SnapshotKilled,
                Kind::SnapshotLeaderCut,
            ],
            Family::Latency => {
                &[Kind::LatencyLimit, Kind::LatencyBeyond, Kind::LatencyLink, Kind::LatencySwings]
            }
            Family::Rolling => &[Kind::RollingRestart],
            Family::Membership => &[
                Kind::MembershipFive,
                Kind::MembershipReplace,
                Kind::MembershipLeader,
                Kind::MembershipCut,
            ],
            Family::Lease => &[Kind::LeaseLeaderCut],
            Family::Upgrade => &[Kind::UpgradeMembers, Kind::UpgradeVersion],
        }
    }

    /// The faults that every run with this family injects; the verdict requires them.
    pub(super) fn due(family: Family) -> &'static [Kind] {
        match family {
            Family::None | Family::All => &[],
            Family::Partition => &[Kind::LeaderMinority, Kind::LeaderMajority],
            Family::Kill => &[Kind::KillLeader],
            Family::Pause => &[Kind::PauseLeader],
            Family::Power => &[Kind::PowerAll],
            Family::Clock => &[Kind::ClockLeader],
            Family::Disk => &[Kind::DiskSlow, Kind::DiskSyncFails],
            Family::Bitflip => &[Kind::BitflipMinority],
            Family::Snapshot => &[Kind::SnapshotCut, Kind::SnapshotLeaderCut],
            Family::Latency => &[Kind::LatencyBeyond],
            Family::Rolling => &[Kind::RollingRestart],
            Family::Membership => &[
                Kind::MembershipFive,
                Kind::MembershipReplace,
                Kind::MembershipLeader,
                Kind::MembershipCut,
            ],
            Family::Lease => &[Kind::LeaseLeaderCut],
            Family::Upgrade => &[Kind::UpgradeMembers, Kind::UpgradeVersion],
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::LeaderMinority => "partition-leader-minority",
            Kind::LeaderMajority => "partition-leader-majority",
            Kind::Bridge => "partition-bridge",
            Kind::OneWay => "partition-one-way",
            Kind::ClientsCut => "partition-clients",
            Kind::KillLeader => "kill-leader",
            Kind::KillMinority => "kill-minority",
            Kind::KillAll => "kill-all",
            Kind::PauseLeader => "pause-leader",
            Kind::PauseMinority => "pause-minority",
            Kind::PowerLeader => "power-leader",
            Kind::PowerMinority => "power-minority",
            Kind::PowerAll => "power-all",
            Kind::ClockLeader => "clock-leader",
            Kind::ClockMinority => "clock-minority",
            Kind::ClockAll => "clock-all",
            Kind::DiskSlow => "disk-slow",
            Kind::DiskSyncFails => "disk-sync-fails",
            Kind::DiskWriteFails => "disk-write-fails",
            Kind::DiskFull => "disk-full",
            Kind::BitflipLeader => "bitflip-leader",
            Kind::BitflipMinority => "bitflip-minority",
            Kind::SnapshotCut => "snapshot-cut",
            Kind::SnapshotInterrupted => "snapshot-interrupted",
            Kind::SnapshotKilled => "snapshot-killed",
            Kind::SnapshotLeaderCut => "snapshot-leader-cut",
            Kind::LatencyLimit => "latency-limit",
            Kind::LatencyBeyond => "latency-beyond",
            Kind::LatencyLink => "latency-link",
            Kind::LatencySwings => "latency-swings",
            Kind::RollingRestart => "rolling-restart",
            Kind::MembershipFive => "membership-five",
            Kind::MembershipReplace => "membership-replace",
            Kind::MembershipLeader => "membership-leader",
            Kind::MembershipCut => "membership-cut",
            Kind::LeaseLeaderCut => "lease-leader-cut",
            Kind::UpgradeMembers => "upgrade-members",
            Kind::UpgradeVersion => "upgrade-version",
        }
    }
}

/// The names of the faults that a run with this family must prove.
pub(crate) fn required(family: &str) -> Vec<&'static str> {
    let of = Family::EACH.into_iter().filter(|known| known.name() == family);
    of.flat_map(Kind::due).map(|kind| kind.name()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_named_after_its_family_and_what_is_due_can_be_drawn() {
        for family in Family::EACH {
            assert!(!Kind::due(family).is_empty());
            for kind in Kind::of(family) {
                assert!(kind.name().starts_with(&format!("{}-", family.name())), "{kind:?}");
            }
            assert!(Kind::due(family).iter().all(|kind| Kind::of(family).contains(kind)));
            assert_eq!(Family::expanded(&[family, family]), [family]);
        }
        assert_eq!(Family::expanded(&[Family::None]), []);
        assert_eq!(
            (Family::listed(&[]), Family::listed(&["kill".into()])),
            ("none".into(), "kill".into())
        );
        let all = Family::expanded(&[Family::Kill, Family::All]);
        assert_eq!(all, Family::EACH[..9], "the others are asked for by name");
        let named =
            [Family::Membership, Family::Lease, Family::All, Family::Rolling, Family::Upgrade];
        assert_eq!(Family::expanded(&named), Family::EACH);
    }
}
