//! Owns: choosing the next leader when this member's disk is slow or full: it asks the other voters about their
//! disks.
//!
//! Invariant: leadership goes only to a disk that is much better, so it does not circulate among bad ones. A voter
//! that does not answer or does not keep up is not a candidate.
//! Absent: when to ask (the watchdog for a slow disk, the coordinator for a full one), and how leadership is handed
//! over.

use openraft::async_runtime::WatchReceiver;
use rollout_proto::v1::HelloResponse;

use crate::cluster::hello;
use crate::disk_space::DiskRoom;
use crate::errors::ClusterError;
use crate::member::MemberRecord;
use crate::pace::Pace;
use crate::running::Running;
use crate::transfer::{Handover, transfer_leader};

/// How many times faster the disk of a successor must be.
const TIMES_FASTER: u64 = 4;

/// Hands leadership to the voter whose disk is the fastest now, if that is worth it.
pub(crate) async fn to_a_faster_one(running: &Running, own_us: u64) -> Result<(), ClusterError> {
    let answers = others(running).await;
    let asked = answers.iter().map(|(name, answer)| (answer.fsync_us, name.as_str()));
    let Some((its_us, name)) = fastest(asked, own_us) else {
        tracing::warn!(
            own_us,
            "the disk is slow, and no voter that keeps up has a much faster one"
        );
        return Ok(());
    };
    tracing::warn!(own_us, its_us, to = name, "the disk is slow; leadership is handed over");
    transfer_leader(running, Some(name), Handover::SlowDisk).await
}

/// Hands leadership to the voter whose disk has the most room, if one is not full; returns whether there is one.
pub(crate) async fn to_one_with_room(running: &Running) -> Result<bool, ClusterError> {
    let answers = others(running).await;
    let asked = answers.iter().map(|(name, answer)| (answer.disk_room, name.as_str()));
    let Some(name) = roomiest(asked) else { return Ok(false) };
    tracing::warn!(to = name, "the disk is full; leadership is handed over");
    transfer_leader(running, Some(name), Handover::FullDisk).await.map(|()| true)
}

/// The answers of the other voters that keep up.
async fn others(running: &Running) -> Vec<(String, HelloResponse)> {
    let others: Vec<MemberRecord> = {
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        let config = &metrics.membership_config;
        let keeps_up = |id: u64| Pace::of(&metrics, id, running.config.lease()).keeps_up();
        let ids = config.voter_ids().filter(|id| *id != running.context.me && keeps_up(*id));
        ids.filter_map(|id| config.get_node(&id).cloned()).collect()
    };
    let asked = others.into_iter().map(async |member| {
        let answer = hello(&running.context.dialer, &member).await.ok()?;
        (answer.member_id == member.id).then_some((member.name, answer))
    });
    futures::future::join_all(asked).await.into_iter().flatten().collect()
}

/// The voter with the fastest fsyncs, if it is much faster. Voters that do not report times are ignored.
fn fastest<'a>(
    voters: impl Iterator<Item = (u64, &'a str)>,
    own_us: u64,
) -> Option<(u64, &'a str)> {
    let known = voters.filter(|(its_us, _)| *its_us > 0);
    known.min().filter(|(its_us, _)| its_us.saturating_mul(TIMES_FASTER) <= own_us)
}

/// The voter with the most disk room, as [`told`], if any is not full. A voter with an older build does not report
/// its room and may have some: it is better than none.
fn roomiest<'a>(voters: impl Iterator<Item = (u32, &'a str)>) -> Option<&'a str> {
    let worth = |room: u32| match room {
        ENOUGH => Some(2),
        LOW => Some(1),
        FULL => None,
        _ => Some(0),
    };
    let open = voters.filter_map(|(room, name)| Some((worth(room)?, name)));
    open.max_by_key(|(worth, _)| *worth).map(|(_, name)| name)
}

const ENOUGH: u32 = 1;
const LOW: u32 = 2;
const FULL: u32 = 3;

/// Room as members report it to each other; an older build reports 0.
pub(crate) fn told(room: DiskRoom) -> u32 {
    match room {
        DiskRoom::Enough => ENOUGH,
        DiskRoom::Low => LOW,
        DiskRoom::Full => FULL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leadership_goes_to_the_fastest_disk_and_to_none_that_is_hardly_better() {
        let of = |voters: &[(u64, &'static str)], own_us| {
            fastest(voters.iter().copied(), own_us).map(|(_, name)| name)
        };
        assert_eq!(of(&[(9_000, "b"), (2_000, "c")], 700_000), Some("c"));
        assert_eq!(of(&[(700_000, "b"), (650_000, "c")], 700_000), None, "all are slow");
        assert_eq!(of(&[(0, "b"), (170_000, "c")], 700_000), Some("c"), "b does not say");
        assert_eq!(of(&[(0, "b")], 700_000), None);
        assert_eq!(of(&[], 700_000), None);
    }

    #[test]
    fn leadership_goes_to_the_disk_with_most_room_and_to_none_that_is_full() {
        let of = |voters: &[(u32, &'static str)]| roomiest(voters.iter().copied());
        assert_eq!(of(&[(ENOUGH, "b"), (FULL, "c")]), Some("b"));
        assert_eq!(of(&[(LOW, "b"), (ENOUGH, "c")]), Some("c"));
        assert_eq!(of(&[(ENOUGH, "b"), (0, "c")]), Some("b"), "c does not say");
        assert_eq!(of(&[(FULL, "b"), (0, "c")]), Some("c"));
        assert_eq!(of(&[(FULL, "b"), (FULL, "c")]), None, "it would only go round");
        assert_eq!(of(&[]), None);
    }
}
