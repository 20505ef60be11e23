//! Owns: choosing the next leader when this member's disk is full: it asks the other voters about their disks.
//!
//! Invariant: leadership goes only to a disk that is not full, so it does not circulate among full ones. A voter that
//! does not answer or does not keep up is not a candidate.
//! Absent: when to ask, which the coordinator decides, and how leadership is handed over.

use openraft::async_runtime::WatchReceiver;
use rollout_proto::v1::HelloResponse;

use crate::consensus::follower_lag::FollowerProgress;
use crate::consensus::running::Running;
use crate::consensus::transfer::transfer_leader;
use crate::errors::ClusterError;
use crate::member::MemberRecord;
use crate::membership::cluster::hello;
use crate::ops::disk_space::DiskRoom;
use crate::peer::handovers::Handover;

/// Hands leadership to the voter whose disk has the most room, if one is not full; returns whether there is one.
pub(crate) async fn to_one_with_room(running: &Running) -> Result<bool, ClusterError> {
    let answers = others(running).await;
    let rooms = answers.iter().map(|(name, answer)| (answer.disk_room, name.as_str()));
    let Some(name) = roomiest(rooms) else { return Ok(false) };
    tracing::warn!(to = name, "the disk is full; transferring leadership");
    transfer_leader(running, Some(name), Handover::FullDisk).await.map(|()| true)
}

/// The answers of the other voters that keep up.
async fn others(running: &Running) -> Vec<(String, HelloResponse)> {
    let others: Vec<MemberRecord> = {
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        let config = &metrics.membership_config;
        let keeps_up =
            |id: u64| FollowerProgress::of(&metrics, id, running.config.lease()).keeps_up();
        let ids = config.voter_ids().filter(|id| *id != running.context.me && keeps_up(*id));
        ids.filter_map(|id| config.get_node(&id).cloned()).collect()
    };
    let requests = others.into_iter().map(async |member| {
        let answer = hello(&running.context.dialer, &member).await.ok()?;
        (answer.member_id == member.id).then_some((member.name, answer))
    });
    futures::future::join_all(requests).await.into_iter().flatten().collect()
}

/// The voter with the most disk room, as [`disk_room_number`], if any is not full. A voter with an older build does not
/// report its room and may have some: it is better than none.
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
pub(crate) fn disk_room_number(room: DiskRoom) -> u32 {
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
