//! Members join and leave a working cluster: no client waits longer than for an election, and nothing is lost.

use crate::cluster::{
    Cluster, Member, bulk, chain_and_digest, eventually, logging, open_clients, set_version,
    waiting,
};
use rollout_raft::{ClusterError, Joins, MemberRecord, Node};

/// A cluster of the first `formed` of these members; the others wait.
async fn partly(names: &[&str], formed: usize) -> Cluster {
    logging();
    let dir = tempfile::tempdir().expect("a directory");
    let members = waiting(dir.path(), names, |config| config.versions = (1, 3)).await;
    let records = members[..formed].iter().map(Member::record).collect();
    let id = members[0].node().bootstrap(records).await.expect("a cluster");
    Cluster { members, id, dir }
}

fn voters(node: &Node) -> Vec<String> {
    let members = node.members().into_iter().filter(|(_, voter)| *voter);
    members.map(|(member, _)| member.name).collect()
}

impl Cluster {
    /// Asks the present leader until a leader has answered.
    async fn ask<T>(
        &self,
        ask: impl AsyncFn(&Node) -> Result<T, ClusterError>,
    ) -> Result<T, ClusterError> {
        eventually("a leader answers", async || {
            let (leader, _) = self.leader().await;
            match ask(self.members[leader].node()).await {
                Err(ClusterError::NotLeader(_)) => None,
                answer => Some(answer),
            }
        })
        .await
    }

    async fn voters_are(&self, names: &[&str]) {
        eventually("the voters are those", async || {
            let (leader, _) = self.leader().await;
            let mut found = voters(self.members[leader].node());
            found.sort();
            (found == names).then_some(())
        })
        .await;
    }

    /// Writes, and waits until all that run have it and are equal.
    async fn writes_and_agrees(&self, tag: &str) {
        let index = eventually("a write", async || {
            let (leader, epoch) = self.open().await;
            let write = open_clients(epoch, &[tag.to_owned()]);
            self.members[leader].node().propose(epoch, write).await.ok().map(|(index, _)| index)
        })
        .await;
        let (leader, _) = self.leader().await;
        let listed: Vec<String> = self.members[leader]
            .node()
            .members()
            .into_iter()
            .map(|(member, _)| member.name)
            .collect();
        let expected = chain_and_digest(self.members[leader].node());
        for member in
            self.members.iter().filter(|m| m.is_running() && listed.contains(&m.config.name))
        {
            assert!(
                member.node().applied(index, crate::cluster::LIMIT).await,
                "{} lags",
                member.config.name
            );
            assert_eq!(chain_and_digest(member.node()), expected, "{}", member.config.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_members_become_five_and_three_again_though_the_leader_goes_first() {
    let mut cluster = partly(&["a", "b", "c", "d", "e"], 3).await;
    let (leader, epoch) = cluster.open().await;
    cluster.members[leader].node().propose(epoch, bulk(epoch, 200, 1)).await.expect("applied");
    for joins in [3, 4] {
        let record = cluster.members[joins].record();
        let first = cluster.ask(async |node| node.add_member(record.clone(), None).await).await;
        let again = cluster.ask(async |node| node.add_member(record.clone(), None).await).await;
        if let (Ok(first), Ok(again)) = (&first, &again) {
            assert_eq!(first, again, "asked twice, it joins once");
        } else {
            // It had its vote before the second call, which then finds a voter of that name.
            assert!(
                matches!((&first, &again), (Ok(_), Err(ClusterError::Refused(_)))),
                "{again:?}"
            );
        }
    }
    cluster.voters_are(&["a", "b", "c", "d", "e"]).await;
    cluster.writes_and_agrees("five").await;
    let ids: std::collections::BTreeSet<u64> =
        cluster.members.iter().filter_map(|m| m.node().identity()).map(|i| i.member_id).collect();
    assert_eq!(ids.len(), 5, "every member has an id of its own");

    let (leader, _) = cluster.leader().await;
    let first = cluster.members[leader].config.name.clone();
    let second = if first == "a" { "b" } else { "a" };
    for name in [&*first, second] {
        cluster.ask(async |node| node.remove_member(name).await).await.expect("removed");
    }
    let left: Vec<&str> =
        ["a", "b", "c", "d", "e"].into_iter().filter(|n| *n != first && *n != second).collect();
    cluster.voters_are(&left).await;
    for member in &mut cluster.members {
        if member.config.name == first || member.config.name == second {
            member.stop().await;
        }
    }
    cluster.writes_and_agrees("three").await;
    let gone = cluster.ask(async |node| node.remove_member(&first).await).await;
    assert!(matches!(gone, Err(ClusterError::NoMember(_))), "{gone:?}");
}

/// The first message with entries does not reach as far as the entry that lists such a leader.
#[tokio::test(flavor = "multi_thread")]
async fn members_join_under_a_leader_that_joined_late_itself() {
    let cluster = partly(&["a", "b", "c", "d", "e", "f"], 3).await;
    let write_many = async |tag: &str| {
        let (leader, epoch) = cluster.open().await;
        for number in 0..40 {
            let write = open_clients(epoch, &[format!("{tag}{number}")]);
            cluster.members[leader].node().propose(epoch, write).await.expect("applied");
        }
    };
    let join = async |at: usize, all: &[&str]| {
        let record = cluster.members[at].record();
        cluster.ask(async |node| node.add_member(record.clone(), None).await).await.expect("joins");
        cluster.voters_are(all).await;
    };
    write_many("before").await;
    join(3, &["a", "b", "c", "d"]).await;
    write_many("beside").await;
    cluster.ask(async |node| node.transfer_leader(Some("d")).await).await.expect("handed over");
    let (leader, _) = cluster.leader().await;
    assert_eq!(leader, 3, "the member that joined leads");
    write_many("under it").await;
    join(4, &["a", "b", "c", "d", "e"]).await;
    join(5, &["a", "b", "c", "d", "e", "f"]).await;
    cluster.writes_and_agrees("six").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_is_removed_even_if_the_caller_disconnects_at_once() {
    let cluster = partly(&["a", "b", "c"], 3).await;
    let (leader, _) = cluster.open().await;
    let third = cluster.members[(leader + 1) % 3].config.name.clone();
    let mut removing = Box::pin(cluster.members[leader].node().remove_member(&third));
    assert!(futures::poll!(&mut removing).is_pending(), "it takes a quorum's time");
    drop(removing);
    let mut left = vec!["a", "b", "c"];
    left.retain(|name| *name != third);
    cluster.voters_are(&left).await;
    cluster.writes_and_agrees("two").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_member_is_replaced_in_one_step_that_any_leader_finishes() {
    let mut cluster = partly(&["a", "b", "c", "d"], 3).await;
    let (leader, epoch) = cluster.open().await;
    cluster.members[leader].node().propose(epoch, bulk(epoch, 100, 1)).await.expect("applied");
    let dead = (leader + 1) % 3;
    let name = cluster.members[dead].config.name.clone();
    cluster.members[dead].stop().await;
    let record = cluster.members[3].record();
    let node = cluster.members[leader].node();
    node.add_member(record, Some(&name)).await.expect("listed");
    // The leader that listed it is gone at once; the log says what remains to be done.
    node.transfer_leader(None).await.expect("handed over");
    let mut left = vec!["a", "b", "c", "d"];
    left.retain(|other| *other != name);
    cluster.voters_are(&left).await;
    cluster.writes_and_agrees("replaced").await;
    let (leader, _) = cluster.leader().await;
    assert_eq!(cluster.members[leader].node().members().len(), 3, "the dead one is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_stays_one_until_it_is_promoted() {
    let cluster = partly(&["a", "b", "c", "d"], 3).await;
    cluster.open().await;
    let record = MemberRecord { joins: Joins::Learner, ..cluster.members[3].record() };
    cluster.ask(async |node| node.add_member(record.clone(), None).await).await.expect("listed");
    eventually("it has the log", async || {
        let (leader, _) = cluster.leader().await;
        let status = cluster.members[leader].node().status();
        let peer = status.peers.iter().find(|peer| peer.name == "d")?;
        (peer.matched.is_some() && peer.matched == status.last_log).then_some(())
    })
    .await;
    cluster.voters_are(&["a", "b", "c"]).await;
    cluster.ask(async |node| node.promote_member("d").await).await.expect("asked");
    cluster.voters_are(&["a", "b", "c", "d"]).await;
    cluster.writes_and_agrees("four").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_loses_its_disk_while_it_joins_is_not_taken_for_the_one_that_it_was() {
    let mut cluster = partly(&["a", "b", "c", "d"], 3).await;
    let (leader, epoch) = cluster.open().await;
    let node = cluster.members[leader].node().clone();
    node.propose(epoch, bulk(epoch, 100, 1)).await.expect("applied");
    let record = MemberRecord { joins: Joins::Learner, ..cluster.members[3].record() };
    let id = node.add_member(record.clone(), None).await.expect("listed");
    eventually("it has the log", async || {
        let status = node.status();
        let peer = status.peers.iter().find(|peer| peer.name == "d")?;
        (peer.matched.is_some() && peer.matched == status.last_log).then_some(())
    })
    .await;
    assert_eq!(node.add_member(record.clone(), None).await, Ok(id), "asked again, it is the same");
    cluster.members[3].stop().await;
    assert_eq!(node.add_member(record.clone(), None).await, Ok(id), "it may come back");
    std::fs::remove_dir_all(&cluster.members[3].config.data_dir).expect("its files are closed");
    cluster.members[3].restart().await;
    let lost = node.add_member(record.clone(), None).await;
    let Err(ClusterError::Refused(why)) = lost else { panic!("{lost:?}") };
    assert!(why.contains("lost its disk") && why.contains("member remove d"), "{why}");
    node.remove_member("d").await.expect("removed");
    let again = node.add_member(record, None).await.expect("listed");
    assert!(again > id, "an id is of one directory");
    eventually("it is made part of the cluster", async || {
        (!cluster.members[3].node().is_waiting()).then_some(())
    })
    .await;
    cluster.writes_and_agrees("again").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_never_heard_of_an_adopted_member_does_not_adopt_an_empty_disk_under_its_id()
{
    let mut cluster = partly(&["a", "b", "c", "d"], 3).await;
    let (leader, epoch) = cluster.open().await;
    let node = cluster.members[leader].node().clone();
    let version = set_version(epoch, rollout_ledger::SCHEDULING_VERSION);
    node.propose(epoch, version).await.expect("applied");
    let record = MemberRecord { joins: Joins::Learner, ..cluster.members[3].record() };
    node.add_member(record.clone(), None).await.expect("listed");
    eventually("the members agree that it was adopted", async || {
        let adopted = |node: &Node| node.members().iter().any(|(m, _)| m.name == "d" && m.adopted);
        cluster.members[..3].iter().all(|member| adopted(member.node())).then_some(())
    })
    .await;
    cluster.members[3].stop().await;
    node.transfer_leader(None).await.expect("handed over");
    eventually("another member leads", async || {
        let (now, _) = cluster.leader().await;
        (now != leader).then_some(())
    })
    .await;
    std::fs::remove_dir_all(&cluster.members[3].config.data_dir).expect("its files are closed");
    cluster.members[3].restart().await;
    let lost = cluster.ask(async |node| node.add_member(record.clone(), None).await).await;
    let Err(ClusterError::Refused(why)) = lost else { panic!("{lost:?}") };
    assert!(why.contains("lost its disk") && why.contains("member remove d"), "{why}");
    // The leader checks its learners four times a second.
    let looks = std::time::Duration::from_secs(1);
    let adopted = eventually("it is adopted", async || {
        (!cluster.members[3].node().is_waiting()).then_some(())
    });
    let adopted = tokio::time::timeout(looks, adopted).await;
    assert!(adopted.is_err(), "an empty disk was adopted under a used id");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_costs_the_majority_or_confuses_members_is_refused() {
    let mut cluster = partly(&["a", "b", "c", "d"], 3).await;
    let (leader, _) = cluster.open().await;
    let (dead, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let names: Vec<String> = cluster.members.iter().map(|m| m.config.name.clone()).collect();
    cluster.members[dead].stop().await;
    let node = cluster.members[leader].node();
    // At once, before any member has missed it: a change that cannot be committed would stop the cluster.
    let refused = node.remove_member(&names[other]).await;
    assert!(
        matches!(refused, Err(ClusterError::Unsafe(ref why)) if why.contains(&format!("bring back {} first", names[dead]))),
        "{refused:?}"
    );
    assert!(!format!("{refused:?}").contains("member replace"), "it may be alive: {refused:?}");
    assert_eq!(voters(node).len(), 3, "nothing was changed");
    let unknown = node.add_member(cluster.members[3].record(), Some("nobody")).await;
    assert!(matches!(unknown, Err(ClusterError::NoMember(_))), "{unknown:?}");
    let taken = MemberRecord {
        peer_addr: cluster.members[other].record().peer_addr,
        ..cluster.members[3].record()
    };
    let taken = node.add_member(taken, None).await;
    assert!(matches!(taken, Err(ClusterError::Refused(_))), "{taken:?}");
    let mut misnamed = cluster.members[3].record();
    misnamed.name = "x".into();
    let misnamed = node.add_member(misnamed, None).await;
    assert!(misnamed.is_err(), "whoever answers there is d");
    assert_eq!(node.members().len(), 3, "nothing was changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_place_of_a_voter_is_given_to_one_at_a_time() {
    let mut cluster = partly(&["a", "b", "c", "d", "e"], 3).await;
    let (leader, _) = cluster.open().await;
    let old = cluster.members[(leader + 1) % 3].config.name.clone();
    let (first, second) = (cluster.members[3].record(), cluster.members[4].record());
    let node = cluster.members[leader].node().clone();
    let id = node.add_member(first.clone(), Some(&old)).await.expect("listed");
    // Before it can have its vote, which takes two looks of the leader.
    cluster.members[3].stop().await;
    let refused = node.add_member(second.clone(), Some(&old)).await;
    let Err(ClusterError::Refused(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("\"d\"") && why.contains("member remove d"), "{why}");
    assert_eq!(node.add_member(first, Some(&old)).await, Ok(id), "asked again, it is the same");
    assert_eq!(node.members().len(), 4, "nothing was changed");
    let learner = node.add_member(second.clone(), Some("d")).await;
    let Err(ClusterError::Refused(why)) = learner else { panic!("{learner:?}") };
    assert!(why.contains("\"d\" is a learner"), "{why}");
    let backup = node.backup("test", 5).await.expect("a backup").expect("of a cluster");
    assert_eq!(backup.header().members.len(), 3, "a cluster that begins with it has its voters");
    drop(backup);

    // Taken out, it makes room for the other one.
    node.remove_member("d").await.expect("removed");
    node.add_member(second, Some(&old)).await.expect("listed");
    let mut left = vec!["a", "b", "c", "e"];
    left.retain(|name| *name != old);
    cluster.voters_are(&left).await;
}
