//! Owns: forming a cluster, replacing a member, handing leadership over.
//!
//! Invariant: a member is adopted only with an empty disk, and its id is never used again: the first are 1 to n,
//! later ones are log indexes. Forming can be repeated until it succeeds, and never forms two clusters.
//! Absent: who may ask. The coordinator checks that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, InitializeError, RaftError};
use openraft::{ChangeMembers, Instant};
use rand::Rng;
use rollout_proto::v1::{AdoptRequest, HelloRequest, HelloResponse};

use crate::errors::{ClusterError, NotLeader};
use crate::member::{ClusterId, MemberRecord};
use crate::peer::{Dialer, Lane};
use crate::running::Running;
use crate::types::Types;

/// How long a peer may take to answer while a cluster is formed or changed.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// How long a transfer of leadership may take.
const TRANSFER_LIMIT: Duration = Duration::from_secs(3);

/// Leases within which a member answered a heartbeat, if it is to be preferred as a successor.
const HEARD_LATELY: u32 = 2;

/// Refuses a list of members that cannot form a cluster, and gives them their ids.
pub(crate) fn number_members(
    mut members: Vec<MemberRecord>,
) -> Result<Vec<MemberRecord>, ClusterError> {
    let bad = |text: String| Err(ClusterError::BadMembers(text));
    if members.is_empty() {
        return bad("a cluster needs at least one member".into());
    }
    if let Some(problem) = members.iter().find_map(MemberRecord::problem) {
        return bad(problem);
    }
    // The ids must come out the same when the request is repeated, whoever repeats it.
    members.sort_by(|a, b| a.name.cmp(&b.name));
    for (id, member) in (1..).zip(&mut members) {
        if member.id != 0 && member.id != id {
            return bad(format!(
                "member {} asks for id {}; ids are given out, not chosen",
                member.name, member.id
            ));
        }
        member.id = id;
    }
    for (what, distinct) in [
        ("name", members.iter().map(|m| &m.name).collect::<BTreeSet<_>>().len()),
        ("peer address", members.iter().map(|m| &m.peer_addr).collect::<BTreeSet<_>>().len()),
    ] {
        if distinct != members.len() {
            return bad(format!("two members have the same {what}"));
        }
    }
    Ok(members)
}

/// A cluster id that nobody else has.
pub(crate) fn random_cluster_id() -> ClusterId {
    ClusterId(rand::rng().random())
}

fn not_reached(member: &MemberRecord, why: impl std::fmt::Display) -> ClusterError {
    ClusterError::Unreachable {
        name: member.name.clone(),
        addr: member.peer_addr.clone(),
        why: why.to_string(),
    }
}

pub(crate) async fn hello(
    dialer: &Dialer,
    member: &MemberRecord,
) -> Result<HelloResponse, ClusterError> {
    let mut client =
        dialer.client(member, Lane::Control).map_err(|error| not_reached(member, error))?;
    let answer = tokio::time::timeout(ASK_LIMIT, client.hello(HelloRequest {}))
        .await
        .map_err(|_| not_reached(member, format!("no answer within {ASK_LIMIT:?}")))?
        .map_err(|status| not_reached(member, status.message()))?
        .into_inner();
    if answer.name != member.name {
        return Err(ClusterError::Refused(format!(
            "{} answers as member {:?}, expected {:?}",
            member.peer_addr, answer.name, member.name
        )));
    }
    Ok(answer)
}

pub(crate) async fn adopt(
    dialer: &Dialer,
    member: &MemberRecord,
    cluster: ClusterId,
) -> Result<(), ClusterError> {
    let mut client =
        dialer.client(member, Lane::Control).map_err(|error| not_reached(member, error))?;
    let request = AdoptRequest {
        cluster_id: cluster.to_string(),
        member_id: member.id,
        name: member.name.clone(),
    };
    match tokio::time::timeout(ASK_LIMIT, client.adopt(request)).await {
        Err(_) => Err(not_reached(member, format!("no answer within {ASK_LIMIT:?}"))),
        Ok(Err(status)) if status.code() == tonic::Code::FailedPrecondition => Err(
            ClusterError::Refused(format!("member {} refused: {}", member.name, status.message())),
        ),
        Ok(Err(status)) => Err(not_reached(member, status.message())),
        Ok(Ok(_)) => Ok(()),
    }
}

/// The cluster id that members were given by an attempt that died in the middle; refuses members that are in use.
pub(crate) fn earlier_attempt(
    members: &[MemberRecord],
    answers: &[HelloResponse],
) -> Result<Option<ClusterId>, ClusterError> {
    let mut earlier: Option<(ClusterId, &str)> = None;
    for (member, answer) in members.iter().zip(answers) {
        if answer.cluster_id.is_empty() {
            continue;
        }
        if !answer.empty {
            return Err(ClusterError::Refused(format!(
                "member {} is part of cluster {} and has data",
                member.name, answer.cluster_id
            )));
        }
        let cluster: ClusterId = answer.cluster_id.parse().map_err(|error| {
            ClusterError::Refused(format!("member {} answers nonsense: {error}", member.name))
        })?;
        if answer.member_id != member.id {
            return Err(ClusterError::Refused(format!(
                "member {} was given id {} for another list of members; empty its data directory",
                member.name, answer.member_id
            )));
        }
        match earlier {
            Some((other, name)) if other != cluster => {
                return Err(ClusterError::Refused(format!(
                    "members {name} and {} were adopted by two attempts, {other} and {cluster}; empty the data \
                     directory of one",
                    member.name
                )));
            }
            _ => earlier = Some((cluster, &member.name)),
        }
    }
    Ok(earlier.map(|(cluster, _)| cluster))
}

/// Writes the first entry, which names all members at once. Repeating it does no harm.
pub(crate) async fn initialize(
    running: &Running,
    members: &[MemberRecord],
) -> Result<(), ClusterError> {
    let nodes: BTreeMap<u64, MemberRecord> =
        members.iter().map(|member| (member.id, member.clone())).collect();
    match running.raft.initialize(nodes).await {
        Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
        Err(error) => Err(ClusterError::Refused(error.to_string())),
    }
}

/// Waits until the first list of members is known here.
pub(crate) async fn formed(running: &Running) -> Result<(), ClusterError> {
    let known =
        |metrics: &openraft::RaftMetrics<Types>| metrics.membership_config.log_id().is_some();
    let waited = running.raft.wait(Some(ASK_LIMIT)).metrics(known, "the members are known").await;
    waited.map(drop).map_err(|error| ClusterError::Unfinished(error.to_string()))
}

/// Hands leadership to the named voter, or to the one whose log is longest, and waits until it has left.
pub(crate) async fn transfer_leader(
    running: &Running,
    to: Option<&str>,
) -> Result<(), ClusterError> {
    let me = running.context.me;
    let target = {
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        let Some(replication) = metrics.replication.as_ref().filter(|_| metrics.state.is_leader())
        else {
            let leader = metrics.current_leader.filter(|id| *id != me);
            let leader = leader.and_then(|id| metrics.membership_config.get_node(&id).cloned());
            return Err(NotLeader { leader }.into());
        };
        let config = &metrics.membership_config;
        let named = |id: &u64| {
            config.get_node(id).is_some_and(|member| to.is_none_or(|to| member.name == to))
        };
        let voters: Vec<u64> = config.voter_ids().filter(|id| *id != me && named(id)).collect();
        let heard = |id: &u64| {
            metrics.heartbeat.as_ref().and_then(|acked| acked.get(id).copied().flatten())
        };
        let answers = |id: &u64| {
            heard(id).is_some_and(|at| at.elapsed() < HEARD_LATELY * running.config.lease())
        };
        voters.into_iter().max_by_key(|id| (answers(id), replication.get(id).copied().flatten()))
    };
    let Some(target) = target else {
        let text = match to {
            Some(name) => format!("{name:?} is not another voter of this cluster"),
            None => "there is no other voter".to_owned(),
        };
        return Err(ClusterError::Refused(text));
    };
    let ended = |error: &dyn std::fmt::Display| ClusterError::Unfinished(error.to_string());
    running.raft.trigger().transfer_leader(target).await.map_err(|error| ended(&error))?;
    running
        .raft
        .wait(Some(TRANSFER_LIMIT))
        .metrics(|metrics| metrics.current_leader.is_some_and(|id| id != me), "leadership has left")
        .await
        .map(drop)
        .map_err(|error| ended(&format!("leadership has not left: {error}")))
}

/// Brings `fresh`, a waiting member, into the cluster in place of whoever has its name. Returns its id.
pub(crate) async fn replace_member(
    running: &Running,
    mut fresh: MemberRecord,
) -> Result<u64, ClusterError> {
    if let Some(problem) = fresh.problem() {
        return Err(ClusterError::BadMembers(problem));
    }
    let (_, index) = crate::reads::confirm(running).await?;
    let (old, pending, voters, highest) = membership(running, &fresh.name);
    let answer = hello(&running.context.dialer, &fresh).await?;
    let resumed = pending
        .filter(|id| answer.member_id == *id && answer.cluster_id == running.context.cluster_text);
    fresh.id = match resumed {
        Some(id) => id,
        None if !answer.cluster_id.is_empty() => {
            return Err(ClusterError::Refused(format!(
                "member {} belongs to cluster {} already; start it with an empty data directory",
                fresh.name, answer.cluster_id
            )));
        }
        // Every index is given out once, so is every id.
        None => index.max(highest) + 1,
    };
    if resumed.is_none() {
        adopt(&running.context.dialer, &fresh, running.identity.cluster_id).await?;
    }
    let id = fresh.id;
    running.raft.add_learner(id, fresh, true).await.map_err(changed)?;
    let keep: BTreeSet<u64> =
        voters.into_iter().filter(|voter| Some(*voter) != old).chain([id]).collect();
    running
        .raft
        .change_membership(ChangeMembers::ReplaceAllVoters(keep), false)
        .await
        .map_err(changed)?;
    Ok(id)
}

/// Replaces the record of a member, whose id and name stay.
pub(crate) async fn update_member(
    running: &Running,
    member: MemberRecord,
) -> Result<(), ClusterError> {
    if let Some(problem) = member.problem() {
        return Err(ClusterError::BadMembers(problem));
    }
    crate::reads::confirm(running).await?;
    let known = {
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.get_node(&member.id).cloned()
    };
    match known {
        Some(known) if known == member => return Ok(()),
        Some(known) if known.name == member.name => {}
        _ => {
            let text = format!("there is no member {:?} with id {}", member.name, member.id);
            return Err(ClusterError::Refused(text));
        }
    }
    // Whoever answers at a new address must be this very member: two members behind one id would split the cluster.
    if member.id != running.context.me {
        let answer = hello(&running.context.dialer, &member).await?;
        if answer.member_id != member.id || answer.cluster_id != running.context.cluster_text {
            return Err(ClusterError::Refused(format!(
                "{} is member {} of cluster {:?}, not member {} of this cluster",
                member.peer_addr, answer.member_id, answer.cluster_id, member.id
            )));
        }
    }
    let change = ChangeMembers::SetNodes(BTreeMap::from([(member.id, member)]));
    running.raft.change_membership(change, true).await.map(drop).map_err(changed)
}

/// Takes a member out of the cluster.
pub(crate) async fn remove_member(running: &Running, name: &str) -> Result<(), ClusterError> {
    crate::reads::confirm(running).await?;
    let (old, pending, voters, _) = membership(running, name);
    let gone: BTreeSet<u64> = old.into_iter().chain(pending).collect();
    if gone.is_empty() {
        return Err(ClusterError::Refused(format!("there is no member {name:?}")));
    }
    let keep: BTreeSet<u64> = voters.into_iter().filter(|id| !gone.contains(id)).collect();
    if keep.is_empty() {
        return Err(ClusterError::Refused("the last voter cannot be removed".to_owned()));
    }
    if old.is_some() {
        let change = ChangeMembers::ReplaceAllVoters(keep);
        running.raft.change_membership(change, false).await.map_err(changed)?;
    }
    if let Some(learner) = pending {
        let change = ChangeMembers::RemoveNodes(BTreeSet::from([learner]));
        running.raft.change_membership(change, false).await.map_err(changed)?;
    }
    Ok(())
}

/// The voter and the learner of a name, all voters, and the highest id in use.
fn membership(running: &Running, name: &str) -> (Option<u64>, Option<u64>, Vec<u64>, u64) {
    let metrics = running.raft.metrics();
    let metrics = metrics.borrow_watched();
    let config = &metrics.membership_config;
    let voters: Vec<u64> = config.voter_ids().collect();
    let of_name = |voter: bool| {
        let mut nodes = config.nodes();
        nodes.find(|(id, m)| m.name == name && voters.contains(id) == voter).map(|(id, _)| *id)
    };
    let highest = config.nodes().map(|(id, _)| *id).max().unwrap_or(0);
    let (old, pending) = (of_name(true), of_name(false));
    (old, pending, voters, highest)
}

fn changed(error: RaftError<Types, ClientWriteError<Types>>) -> ClusterError {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => {
            NotLeader { leader: forward.leader_node }.into()
        }
        other => ClusterError::Unfinished(format!("the membership was not changed: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, port: u16) -> MemberRecord {
        MemberRecord {
            name: name.into(),
            peer_addr: format!("127.0.0.1:{port}"),
            client_addr: format!("127.0.0.1:{}", port + 1),
            ..MemberRecord::default()
        }
    }

    fn answer(cluster: &str, id: u64, empty: bool) -> HelloResponse {
        HelloResponse { cluster_id: cluster.into(), member_id: id, name: String::new(), empty }
    }

    #[test]
    fn ids_do_not_depend_on_the_order_of_the_list() {
        let forward = number_members(vec![member("a", 1), member("b", 3)]);
        let backward = number_members(vec![member("b", 3), member("a", 1)]);
        assert_eq!(forward, backward);
        assert!(number_members(vec![member("a", 1), member("a", 3)]).is_err());
        assert!(number_members(vec![member("a", 1), member("b", 1)]).is_err());
        assert!(number_members(vec![]).is_err());
    }

    #[test]
    fn an_attempt_that_died_is_continued_and_a_living_cluster_is_not_touched()
    -> Result<(), ClusterError> {
        let members = number_members(vec![member("a", 1), member("b", 3)])?;
        let cluster = "000102030405060708090a0b0c0dfeff";
        let none = answer("", 0, true);
        assert_eq!(earlier_attempt(&members, &[none.clone(), none.clone()])?, None);
        let found = earlier_attempt(&members, &[answer(cluster, 1, true), none.clone()])?;
        assert_eq!(found.map(|id| id.to_string()).as_deref(), Some(cluster));
        for bad in [
            [answer(cluster, 1, false), none.clone()],
            [answer(cluster, 2, true), none.clone()],
            [answer(cluster, 1, true), answer("ff0102030405060708090a0b0c0dfeff", 2, true)],
        ] {
            assert!(earlier_attempt(&members, &bad).is_err(), "{bad:?}");
        }
        Ok(())
    }
}
