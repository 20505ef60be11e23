//! Owns: checking whether the remaining voters could continue at once, and what the operator should do if not.
//!
//! Invariant: the voters are asked now. A voter that only fails to answer keeps its place.
//! Absent: the change itself.

use std::collections::BTreeSet;
use std::time::Instant;

use openraft::async_runtime::WatchReceiver;
use rollout_proto::LACKS_MAX;

use super::known_members::KnownMembers;
use crate::consensus::follower_lag::{FollowerProgress, KEEPS_UP_WITHIN, LOOK_EVERY};
use crate::consensus::running::Running;
use crate::errors::ClusterError;
use crate::member::MemberRecord;
use crate::membership::cluster::hello;

/// A voter's present answer.
enum VoterState {
    Answers,
    /// It waits with an empty disk. Its vote is lost, and only another member can take its place.
    LostItsDisk,
    /// There is no answer, or another member answers. The voter may be alive.
    Nothing,
}

async fn state_of(running: &Running, member: &MemberRecord) -> VoterState {
    if member.id == running.context.me {
        return VoterState::Answers;
    }
    match hello(&running.context.dialer, member).await {
        Ok(answer) if answer.member_id == member.id => VoterState::Answers,
        Ok(answer) if answer.cluster_id.is_empty() => VoterState::LostItsDisk,
        _ => VoterState::Nothing,
    }
}

/// Refuses to continue with `keep` as voters if they could not commit anything at once. They are asked now: a voter
/// heard a moment ago may be dead, and a change that no majority can commit stops the cluster. So does a change for
/// which a member must catch up first, for as long as that takes.
pub(super) async fn check_majority(
    running: &Running,
    known: &KnownMembers,
    keep: &BTreeSet<u64>,
    gone: &str,
) -> Result<(), ClusterError> {
    let answers = keep
        .iter()
        .filter_map(|id| known.members.get(id))
        .map(async |member| (member, state_of(running, member).await));
    let (mut answering, mut lost, mut silent) = (BTreeSet::new(), Vec::new(), Vec::new());
    for (member, answer) in futures::future::join_all(answers).await {
        match answer {
            VoterState::Answers => drop(answering.insert(member.id)),
            VoterState::LostItsDisk => lost.push(member),
            VoterState::Nothing => silent.push(member),
        }
    }
    let (answer, needed) = (answering.len(), keep.len() / 2 + 1);
    if answer >= needed {
        return check_pace(running, known, &answering, needed, gone).await;
    }
    Err(ClusterError::Unsafe(format!(
        "without {gone} there would be {} voters, of which {answer} would answer and {needed} are needed; {}",
        keep.len(),
        mended(&lost, &silent)
    )))
}

/// How to bring voters back. A voter that merely does not answer is not replaced: it may be alive.
fn mended(lost: &[&MemberRecord], silent: &[&MemberRecord]) -> String {
    let replace = |member: &&MemberRecord| {
        format!("{} has lost its disk, so first: {}", member.name, member.replace_command())
    };
    let mut steps: Vec<String> = lost.iter().map(replace).collect();
    if !silent.is_empty() {
        let names: Vec<&str> = silent.iter().map(|member| member.name.as_str()).collect();
        steps.push(format!(
            "bring back {} first; rolloutctl alarm list says how, and how to replace one that is lost for good",
            names.join(", ")
        ));
    }
    steps.join("; ")
}

/// Refuses if fewer than `needed` of the answering voters, including this leader, have nearly all of the log.
async fn check_pace(
    running: &Running,
    known: &KnownMembers,
    answering: &BTreeSet<u64>,
    needed: usize,
    gone: &str,
) -> Result<(), ClusterError> {
    let give_up = Instant::now() + KEEPS_UP_WITHIN;
    loop {
        let behind = behind(running, answering);
        if answering.len() - behind.len() >= needed {
            return Ok(());
        }
        if Instant::now() >= give_up {
            return Err(ClusterError::Unsafe(format!(
                "without {gone} the cluster could write nothing until {} caught up: more than {LACKS_MAX} entries are missing \
                 there; rolloutctl member list says how far each is",
                known.names(&behind)
            )));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// The members among these that lack more than a little of this leader's log.
fn behind(running: &Running, of: &BTreeSet<u64>) -> BTreeSet<u64> {
    let metrics = running.raft.metrics();
    let metrics = metrics.borrow_watched();
    let lease = running.config.lease();
    let close =
        |id: u64| id == running.context.me || FollowerProgress::of(&metrics, id, lease).is_close();
    of.iter().copied().filter(|id| !close(*id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_voter_that_has_lost_its_disk_may_be_replaced() {
        let member = |name: &str| MemberRecord {
            name: name.into(),
            peer_addr: format!("{name}:7421"),
            client_addr: format!("{name}:7420"),
            ..MemberRecord::default()
        };
        let (b, c, d) = (member("b"), member("c"), member("d"));
        let back = "bring back c, d first; rolloutctl alarm list says how, and how to replace one that is lost for good";
        assert_eq!(mended(&[], &[&c, &d]), back);
        let replace = "b has lost its disk, so first: rolloutctl member replace b --peer-addr b:7421 --client-addr b:7420";
        assert_eq!(mended(&[&b], &[]), replace);
        assert_eq!(mended(&[&b], &[&c, &d]), format!("{replace}; {back}"));
    }
}
