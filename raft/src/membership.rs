//! Owns: changes of a formed cluster: members that join, are replaced, get another address, or leave.
//!
//! Invariant: the log entry that lists a member gives out its id, above every earlier index, so no id is given out twice. A
//! member joins without a vote, and `joining` completes the rest under any leader. A change is refused if no majority of
//! the voters that it leaves answers and keeps up.
//! Absent: who may ask, which the coordinator checks; the two steps of a change of voters; see `voters`.

pub(crate) mod cluster;
pub(crate) mod joining;
mod known_members;
mod majority;
pub(crate) mod voters;

use std::collections::{BTreeMap, BTreeSet};

use openraft::ChangeMembers;
use openraft::async_runtime::WatchReceiver;

use self::cluster::hello;
use self::known_members::KnownMembers;
use self::majority::check_majority;
use self::voters::changed;
use crate::consensus::follower_lag::FollowerProgress;
use crate::consensus::reads;
use crate::consensus::running::Running;
use crate::consensus::transfer::step_aside;
use crate::errors::ClusterError;
use crate::member::{Joins, MemberRecord};

/// Lists `fresh`, a waiting member, as joining, replacing the voter `replace` if one is named, and returns its id.
/// Afterward it is adopted, gets the log, and gets its vote. Its build must support the cluster's version; the
/// member itself reports the versions that it supports.
pub(crate) async fn add_member(
    running: &Running,
    mut fresh: MemberRecord,
    replace: Option<&str>,
) -> Result<u64, ClusterError> {
    if let Some(problem) = fresh.problem() {
        return Err(ClusterError::BadMembers(problem));
    }
    let _alone = running.changing.lock().await;
    let (_, index) = reads::confirm(running).await?;
    voters::finish(running).await?;
    let known = KnownMembers::of(running);
    let replaced = known.replaced(replace)?;
    if let Joins::Voter { replaces } = &mut fresh.joins {
        *replaces = replaced;
    }
    if let Some(id) = known.listed(&fresh) {
        return still_joins(running, &known, &fresh, id).await;
    }
    known.check_new(&fresh, replaced)?;
    let answer = hello(&running.context.dialer, &fresh).await?;
    if !answer.cluster_id.is_empty() {
        return Err(ClusterError::Refused(format!(
            "member {} belongs to cluster {} already; start it with an empty data directory",
            fresh.name, answer.cluster_id
        )));
    }
    let version = running.machine.read(|state| state.ledger.version());
    (fresh.version_min, fresh.version_max) = (answer.version_min, answer.version_max);
    if !(fresh.version_min..=fresh.version_max).contains(&version) {
        return Err(ClusterError::Refused(format!(
            "member {} can run cluster versions {} to {}, and the cluster has version {version}: start a build there that \
             can run it",
            fresh.name, fresh.version_min, fresh.version_max
        )));
    }
    let highest = known.members.keys().max().copied().unwrap_or(0);
    let id = index.max(highest) + 1;
    fresh.id = id;
    tracing::info!(member = fresh.name, id, replaces = replaced, "a member joins");
    running.raft.add_learner(id, fresh, false).await.map_err(changed)?;
    Ok(id)
}

/// The id of a learner that was listed before. It is refused if it was adopted or had some of the log, and now
/// answers with an empty disk: an id belongs to one data directory.
async fn still_joins(
    running: &Running,
    known: &KnownMembers,
    fresh: &MemberRecord,
    id: u64,
) -> Result<u64, ClusterError> {
    let had_some = {
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        FollowerProgress::of(&metrics, id, running.config.lease()).matched.is_some()
            || known.members.get(&id).is_some_and(|member| member.adopted)
    };
    // A learner that does not answer now may do so later.
    let empty = had_some
        && hello(&running.context.dialer, fresh)
            .await
            .is_ok_and(|answer| answer.cluster_id.is_empty());
    match empty {
        false => Ok(id),
        true => Err(ClusterError::Refused(format!(
            "member {:?} lost its disk while it joined; {}",
            fresh.name,
            known.take_out(&fresh.name)
        ))),
    }
}

/// Gives a learner a vote as soon as it has caught up.
pub(crate) async fn promote_member(running: &Running, name: &str) -> Result<(), ClusterError> {
    let _alone = running.changing.lock().await;
    reads::confirm(running).await?;
    voters::finish(running).await?;
    let known = KnownMembers::of(running);
    let Some(learner) = known.find(name, false) else {
        return known.find(name, true).map(drop).ok_or_else(|| known.unknown(name));
    };
    if matches!(learner.joins, Joins::Voter { .. }) {
        return Ok(());
    }
    let member = MemberRecord { joins: Joins::default(), ..learner.clone() };
    set(running, member).await
}

/// Changes the record of the member with that id: its addresses, its zone, and its supported versions. Everything
/// else stays as it is when the change is made, whatever it was when the change was requested.
pub(crate) async fn update_member(
    running: &Running,
    wanted: MemberRecord,
) -> Result<(), ClusterError> {
    if let Some(problem) = wanted.problem() {
        return Err(ClusterError::BadMembers(problem));
    }
    let _alone = running.changing.lock().await;
    reads::confirm(running).await?;
    voters::finish(running).await?;
    let known = KnownMembers::of(running);
    let (member, moves) = match known.members.get(&wanted.id) {
        Some(now) if now.name == wanted.name => {
            let moves = now.peer_addr != wanted.peer_addr;
            (MemberRecord { joins: now.joins, adopted: now.adopted, ..wanted }, moves)
        }
        _ => {
            let text = format!("there is no member {:?} with id {}", wanted.name, wanted.id);
            return Err(ClusterError::Refused(text));
        }
    };
    if known.members.get(&member.id) == Some(&member) {
        return Ok(());
    }
    let mut others = known.members.values().filter(|other| other.id != member.id);
    if let Some(other) = others.find(|other| moves && other.peer_addr == member.peer_addr) {
        let text = format!("member {:?} has the peer address {}", other.name, other.peer_addr);
        return Err(ClusterError::Refused(text));
    }
    // The process that answers at a new address must be this very member: two members with one id would split the cluster. If
    // this member moves itself, it dials the address that the others will dial.
    if moves || member.id != running.context.me {
        let answer = hello(&running.context.dialer, &member).await?;
        if answer.member_id != member.id || answer.cluster_id != running.context.cluster_text {
            return Err(ClusterError::Refused(format!(
                "{} is member {} of cluster {:?}, not member {} of this cluster",
                member.peer_addr, answer.member_id, answer.cluster_id, member.id
            )));
        }
    }
    set(running, member).await
}

/// Records that a learner has a data directory under its id, whichever member leads next.
pub(crate) async fn record_adopted(
    running: &Running,
    learner: &MemberRecord,
) -> Result<(), ClusterError> {
    let _alone = running.changing.lock().await;
    voters::finish(running).await?;
    match KnownMembers::of(running).members.get(&learner.id) {
        Some(member) if !member.adopted => {
            set(running, MemberRecord { adopted: true, ..member.clone() }).await
        }
        _ => Ok(()),
    }
}

async fn set(running: &Running, member: MemberRecord) -> Result<(), ClusterError> {
    let change = ChangeMembers::SetNodes(BTreeMap::from([(member.id, member)]));
    running.raft.change_membership(change, true).await.map(drop).map_err(changed)
}

/// Removes a member from the cluster. A leader that is to be removed hands leadership over first; the request must
/// then go to its successor.
pub(crate) async fn remove_member(running: &Running, name: &str) -> Result<(), ClusterError> {
    let _alone = running.changing.lock().await;
    reads::confirm(running).await?;
    let known = KnownMembers::of(running);
    if known.ids(name).is_empty() {
        return Err(known.unknown(name));
    }
    voters::finish(running).await?;
    let known = KnownMembers::of(running);
    let gone = known.ids(name);
    if gone.is_empty() {
        // The change that was finished removed it.
        return Ok(());
    }
    let keep: BTreeSet<u64> = known.voters.difference(&gone).copied().collect();
    if keep.is_empty() {
        return Err(ClusterError::Unsafe(format!(
            "{name} is the last voter: removing it would end the cluster; {}",
            known.another_voter(&gone)
        )));
    }
    if keep.len() < known.voters.len() {
        check_majority(running, &known, &keep, name).await?;
        if gone.contains(&running.context.me) {
            return Err(step_aside(running).await);
        }
        voters::replace(running, keep).await?;
    }
    let learners: BTreeSet<u64> = gone.difference(&known.voters).copied().collect();
    if !learners.is_empty() {
        let change = ChangeMembers::RemoveNodes(learners);
        running.raft.change_membership(change, false).await.map_err(changed)?;
    }
    tracing::info!(member = name, "a member was removed");
    Ok(())
}

/// Gives `learner` its vote, and the place of the voter that it replaces.
pub(crate) async fn promote(running: &Running, learner: &MemberRecord) -> Result<(), ClusterError> {
    let _alone = running.changing.lock().await;
    voters::finish(running).await?;
    let known = KnownMembers::of(running);
    let replaced = match learner.joins {
        Joins::Voter { replaces } => replaces,
        Joins::Learner => return Ok(()),
    };
    if replaced == Some(running.context.me) {
        return Err(step_aside(running).await);
    }
    let stays = known.voters.iter().copied().filter(|id| Some(*id) != replaced);
    let keep: BTreeSet<u64> = stays.chain([learner.id]).collect();
    voters::replace(running, keep).await
}
