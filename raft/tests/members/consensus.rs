//! Three members over TCP with mTLS: tests the promises of consensus to the coordinator.

use std::time::Duration;

use crate::cluster::{
    Cluster, LIMIT, bulk, chain_and_digest, digest_at, eventually, logging, open_clients, opened,
    sessions, waiting,
};
use rollout_raft::{Leadership, Node, ProposeError, Role};

#[tokio::test(flavor = "multi_thread")]
async fn three_members_apply_the_same_commands_in_the_same_order() {
    let cluster = Cluster::form(|_| {}).await;
    let (leader, epoch) = cluster.open().await;
    let node = cluster.members[leader].node();
    let mut last = 0;
    for round in 0..20 {
        let (index, replies) = node.propose(epoch, bulk(epoch, 10, round)).await.expect("applied");
        assert_eq!(opened(&replies), 10);
        assert!(index > last);
        last = index;
    }
    cluster.all_applied(last).await;
    let expected = chain_and_digest(node);
    for (_, other) in cluster.running() {
        assert_eq!(chain_and_digest(other), expected);
        assert_eq!(other.members(), node.members());
        assert_eq!(other.identity().map(|identity| identity.cluster_id), Some(cluster.id));
    }
    let read = node.read_index().await.expect("leads");
    assert!(read >= last);
    assert!(node.lease_valid());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proposal_for_another_epoch_is_certainly_not_appended() {
    let cluster = Cluster::form(|_| {}).await;
    let (leader, epoch) = cluster.open().await;
    let node = cluster.members[leader].node();
    let before = node.status().last_log;
    for stale in [epoch - 1, epoch + 1] {
        let refused = node.propose(stale, open_clients(stale, &["x".into()])).await;
        assert!(matches!(refused, Err(ProposeError::NotLeader { .. })), "{refused:?}");
    }
    let follower = cluster.members[(leader + 1) % 3].node();
    let refused = follower.propose(epoch, open_clients(epoch, &["x".into()])).await;
    let Err(ProposeError::NotLeader { leader: Some(hint) }) = refused else {
        panic!("a follower refuses and names the leader: {refused:?}")
    };
    assert_eq!(hint.name, node.config().name);
    assert!(follower.barrier().await.is_err() && follower.read_index().await.is_err());
    assert!(!follower.lease_valid());
    assert_eq!(node.status().last_log, before);
    let too_large = node.propose(epoch, vec![0; node.config().command_bytes_max + 1]).await;
    assert!(matches!(too_large, Err(ProposeError::TooLarge { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledged_command_survives_the_end_of_each_member() {
    let mut cluster = Cluster::form(|config| config.image_interval_ms = 50).await;
    let mut acknowledged = Vec::new();
    for round in 0..3 {
        let (leader, epoch) = cluster.open().await;
        let node = cluster.members[leader].node();
        for tag in 0..5 {
            let (_, replies) =
                node.propose(epoch, bulk(epoch, 3, round * 5 + tag)).await.expect("applied");
            acknowledged.extend(sessions(&replies));
        }
        cluster.members[leader].stop().await;
        let (next, later) = cluster.open().await;
        assert_ne!(next, leader);
        assert!(later > epoch, "a new leader has a new term");
        cluster.members[leader].restart().await;
    }
    let (leader, epoch) = cluster.open().await;
    let node = cluster.members[leader].node();
    let (index, _) =
        node.propose(epoch, open_clients(epoch, &["last".into()])).await.expect("applied");
    cluster.all_applied(index).await;
    let expected = chain_and_digest(node);
    for (_, other) in cluster.running() {
        assert_eq!(chain_and_digest(other), expected);
        let lost = other.with_ledger(|ledger| {
            let lost =
                acknowledged.iter().filter(|session| ledger.client_holder(**session).is_none());
            lost.count()
        });
        assert_eq!(lost, Some(0), "of {} acknowledged sessions", acknowledged.len());
    }
    assert_eq!(acknowledged.len(), 45);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_cluster_restarts_with_members_names_and_state() {
    let mut cluster = Cluster::form(|_| {}).await;
    let (leader, epoch) = cluster.open().await;
    let node = cluster.members[leader].node();
    let (index, _) = node.propose(epoch, bulk(epoch, 50, 1)).await.expect("applied");
    cluster.all_applied(index).await;
    let (chain, members) = (chain_and_digest(node).0, node.members());
    let position = node.membership_index();
    for member in &mut cluster.members {
        member.stop().await;
    }
    for member in &mut cluster.members {
        member.restart().await;
    }
    let (leader, later) = cluster.leader().await;
    assert!(later > epoch, "a restarted leader wins a new term");
    let node = cluster.members[leader].node();
    assert_eq!(chain_and_digest(node).0, chain);
    assert_eq!(node.members(), members);
    assert_eq!(node.membership_index(), position);
    assert_eq!(members.len(), 3);
    for ((record, voter), (member, id)) in members.iter().zip(cluster.members.iter().zip(1..)) {
        assert!(voter);
        let mut expected = member.record();
        expected.id = id;
        assert_eq!(*record, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_goes_to_the_member_that_is_named() {
    let cluster = Cluster::form(|_| {}).await;
    let (leader, _) = cluster.open().await;
    let target = (leader + 1) % 3;
    let name = cluster.members[target].config.name.clone();
    cluster.members[leader].node().transfer_leader(Some(&name)).await.expect("handed over");
    let (next, epoch) = cluster.open().await;
    assert_eq!(next, target);
    let led =
        *cluster.members[next].node().leadership().borrow() == Leadership::Leader { term: epoch };
    assert!(led);
    assert!(cluster.members[next].node().transfer_leader(Some("nobody")).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn all_members_agree_on_the_digests_at_a_logged_index() {
    let cluster = Cluster::form(|_| {}).await;
    let (leader, epoch) = cluster.open().await;
    let node = cluster.members[leader].node();
    node.propose(epoch, bulk(epoch, 200, 1)).await.expect("applied");
    let (index, _) = node.propose(epoch, digest_at(epoch)).await.expect("applied");
    node.propose(epoch, bulk(epoch, 200, 2)).await.expect("applied");
    let expected = node.digests(index, LIMIT).await.expect("computed");
    assert!(expected.image.is_ok(), "{expected:?}");
    for (_, other) in cluster.running() {
        assert_eq!(other.digests(index, LIMIT).await.as_ref(), Some(&expected));
    }
    assert_eq!(node.digests(index + 1, Duration::from_millis(1)).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_a_quorum_neither_reads_nor_accepts_commands() {
    let mut cluster = Cluster::form(|_| {}).await;
    let (leader, epoch) = cluster.open().await;
    for at in 0..3 {
        if at != leader {
            cluster.members[at].stop().await;
        }
    }
    let node = cluster.members[leader].node();
    eventually("the lease ends", async || (!node.lease_valid()).then_some(())).await;
    assert!(node.read_index().await.is_err());
    assert!(node.barrier().await.is_err());
    let refused = node.propose(epoch, open_clients(epoch, &["x".into()])).await;
    assert!(matches!(refused, Err(ProposeError::NotLeader { .. })), "{refused:?}");
    for at in 0..3 {
        if at != leader {
            cluster.members[at].restart().await;
        }
    }
    cluster.open().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_left_over_member_reports_that_it_hears_no_leader() {
    let mut cluster = Cluster::form(|_| {}).await;
    let (leader, _) = cluster.open().await;
    let (dead, left) = ((leader + 1) % 3, (leader + 2) % 3);
    let named = |node: &Node| node.heard_leader().map(|member| member.name);
    let name = cluster.members[leader].config.name.clone();
    for (_, node) in cluster.running() {
        eventually("it hears the leader", async || named(node).filter(|n| *n == name)).await;
    }
    cluster.members[dead].stop().await;
    cluster.members[leader].stop().await;
    let node = cluster.members[left].node();
    eventually("it hears nobody", async || named(node).is_none().then_some(())).await;
    // The member to which it would send a caller: it knows no better one.
    assert_eq!(node.leader().map(|member| member.name), Some(name));

    // The other one is back, and with it a leader; then it is the leader that is left.
    cluster.members[dead].restart().await;
    let (leader, _) = cluster.leader().await;
    let name = cluster.members[leader].config.name.clone();
    for (_, node) in cluster.running() {
        eventually("it hears the new one", async || named(node).filter(|n| *n == name)).await;
    }
    let other = if leader == dead { left } else { dead };
    cluster.members[other].stop().await;
    let node = cluster.members[leader].node();
    eventually("it has no quorum", async || named(node).is_none().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_member_that_still_runs_hears_no_leader() {
    let cluster = Cluster::form(|_| {}).await;
    let (leader, _) = cluster.open().await;
    let gone = (leader + 1) % 3;
    let name = cluster.members[gone].config.name.clone();
    cluster.members[leader].node().remove_member(&name).await.expect("removed");
    let node = cluster.members[gone].node();
    eventually("nobody sends to it", async || node.heard_leader().is_none().then_some(())).await;
    assert!(cluster.members[leader].node().heard_leader().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_beyond_the_kept_log_is_given_a_snapshot() {
    let mut cluster = Cluster::form(|config| {
        config.log_keep_bytes = 64 << 10;
        config.image_interval_ms = 20;
    })
    .await;
    let (leader, epoch) = cluster.open().await;
    let lagging = (leader + 1) % 3;
    cluster.members[lagging].stop().await;
    let node = cluster.members[leader].node();
    let applied = cluster.members[(leader + 2) % 3].node().status().last_log;
    let mut tag = 0;
    eventually("the log is purged beyond what the follower has", async || {
        tag += 1;
        node.propose(epoch, bulk(epoch, 100, tag)).await.expect("applied");
        (node.status().purged > applied).then_some(())
    })
    .await;
    assert!(node.status().log_bytes < 4 * (64 << 10), "{:?}", node.status());
    cluster.members[lagging].restart().await;
    let node = cluster.members[leader].node();
    let (index, _) =
        node.propose(epoch, open_clients(epoch, &["after".into()])).await.expect("applied");
    cluster.all_applied(index).await;
    let status = cluster.members[lagging].node().status();
    assert_eq!(status.role, Role::Follower);
    assert!(status.snapshot_index > applied, "it was served by a snapshot: {status:?}");
    assert_eq!(chain_and_digest(cluster.members[lagging].node()), chain_and_digest(node));

    // What was installed is on its disk.
    cluster.members[lagging].stop().await;
    cluster.members[lagging].restart().await;
    cluster.all_applied(index).await;
    let node = cluster.members[leader].node();
    assert_eq!(chain_and_digest(cluster.members[lagging].node()), chain_and_digest(node));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_member_alone_is_its_own_quorum_for_as_long_as_it_lives() {
    logging();
    let dir = tempfile::tempdir().expect("a directory");
    let members = waiting(dir.path(), &["a"], |_| {}).await;
    let node = members[0].node();
    let id = node.bootstrap(vec![members[0].record()]).await.expect("formed");
    let cluster = Cluster { members, id, dir };
    cluster.open().await;
    // Far longer than any lease: a single member gets no acknowledgments.
    let led = std::time::Instant::now();
    while led.elapsed() < std::time::Duration::from_secs(3) {
        let node = cluster.members[0].node();
        assert!(node.lease_valid(), "after {:?}", led.elapsed());
        assert!(node.heard_leader().is_some());
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
