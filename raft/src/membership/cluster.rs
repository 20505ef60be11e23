//! Owns: forming a cluster, and the questions to members before they are part of one.
//!
//! Invariant: a member is adopted only with an empty disk; the first ids are 1 to n. Forming can be repeated until it
//! succeeds, and never forms two clusters.
//! Absent: changes of a formed cluster; see `membership`. The coordinator checks who may ask.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::errors::{InitializeError, RaftError};
use rand::Rng;
use rollout_proto::v1::{AdoptRequest, HelloRequest, HelloResponse};

use crate::consensus::running::Running;
use crate::errors::ClusterError;
use crate::member::{ClusterId, MemberRecord};
use crate::peer::{Dialer, Lane};
use crate::types::Types;

/// How long a peer may take to answer while a cluster is formed or changed.
const ASK_LIMIT: Duration = Duration::from_secs(5);

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
    // A repeated request must give the same ids, even if another caller repeats it.
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

/// A cluster id that no other cluster has.
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
    let answer = tokio::time::timeout(ASK_LIMIT, client.hello(HelloRequest::default()))
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

/// The cluster id that members got from an interrupted attempt; refuses members that are in use.
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
    let has_members =
        |metrics: &openraft::RaftMetrics<Types>| metrics.membership_config.log_id().is_some();
    let waited =
        running.raft.wait(Some(ASK_LIMIT)).metrics(has_members, "the members are known").await;
    waited.map(drop).map_err(|error| ClusterError::Unfinished(error.to_string()))
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
        HelloResponse { cluster_id: cluster.into(), member_id: id, empty, ..Default::default() }
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
