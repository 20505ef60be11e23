//! Forming a cluster, replacing members, and everything that is refused.

use crate::cluster::{
    Cluster, Member, bulk, chain_and_digest, eventually, logging, open_clients, waiting,
};
use rollout_proto::v1::peer_client::PeerClient;
use rollout_proto::v1::{HelloRequest, PeerMessage};
use rollout_proto::{ChannelOptions, ClientTls, DialMap, Endpoint, Security, channel};
use rollout_raft::{ClusterError, ClusterId, Node};
use tonic::Code;

fn client(member: &Member, security: &Security) -> PeerClient<tonic::transport::Channel> {
    let endpoint =
        Endpoint::with_name(&member.config.name, &member.record().peer_addr).expect("an endpoint");
    let tls = ClientTls::load(security).expect("certificates");
    let options = ChannelOptions::default();
    PeerClient::new(channel(&endpoint, &tls, &DialMap::default(), &options).expect("a channel"))
}

#[tokio::test(flavor = "multi_thread")]
async fn forming_needs_every_member_and_is_repeated_after_a_failure() {
    logging();
    let dir = tempfile::tempdir().expect("a directory");
    let mut members = waiting(dir.path(), &["a", "b", "c"], |_| {}).await;
    let records: Vec<_> = members.iter().map(Member::record).collect();
    members[2].stop().await;
    let failed = members[0].node().bootstrap(records.clone()).await;
    assert!(
        matches!(failed, Err(ClusterError::Unreachable { ref name, .. }) if name == "c"),
        "{failed:?}"
    );
    assert!(members[0].node().is_waiting(), "nothing was begun");
    members[2].restart().await;

    // As if an earlier attempt had died after its first steps.
    let id = ClusterId([9; 16]);
    members[0].node().adopt(id, 1, "a").await.expect("adopted");
    members[1].node().adopt(id, 2, "b").await.expect("adopted");
    let formed = members[0].node().bootstrap(records.clone()).await;
    assert_eq!(formed, Ok(id), "the earlier attempt is continued");
    assert_eq!(members[0].node().bootstrap(records.clone()).await, Ok(id), "and may be repeated");
    let cluster = Cluster { members, id, dir };
    cluster.open().await;

    let mut others = records;
    others[1].zone = "elsewhere".into();
    let refused = cluster.members[0].node().bootstrap(others).await;
    assert!(matches!(refused, Err(ClusterError::Refused(_))), "{refused:?}");
}

/// Polls a bootstrap until `enough`, and some times more, and drops it, as a server does when its caller is gone.
async fn begun_and_dropped(member: &Member, enough: impl Fn() -> bool, polls: usize) {
    let mut forming = Box::pin(member.node().bootstrap(vec![member.record()]));
    let mut more = 0;
    eventually("it has begun", async || {
        let ended = futures::poll!(&mut forming).is_ready();
        more += usize::from(enough());
        (ended || more > polls).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bootstrap_whose_caller_goes_away_can_be_repeated_at_the_same_process() {
    logging();
    let dir = tempfile::tempdir().expect("a directory");
    let names = ["a", "b", "c", "d", "e", "f"];
    for (member, polls) in waiting(dir.path(), &names, |_| {}).await.iter().zip(0..) {
        let identity = member.config.data_dir.join("IDENTITY");
        // The first one is dropped while its stores are opened, the others later and later after that.
        begun_and_dropped(member, || polls == 0 || identity.exists(), polls).await;
        let formed = member.node().bootstrap(vec![member.record()]).await;
        assert!(formed.is_ok(), "after {polls} polls: {formed:?}");
        assert_eq!(member.node().identity().map(|identity| identity.cluster_id), formed.ok());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_stops_while_it_is_adopted_closes_its_stores_and_is_adopted_no_more() {
    logging();
    let dir = tempfile::tempdir().expect("a directory");
    let mut members = waiting(dir.path(), &["a"], |_| {}).await;
    begun_and_dropped(&members[0], || true, 0).await;
    let node = members[0].node().clone();
    members[0].stop().await;
    assert!(node.bootstrap(vec![members[0].record()]).await.is_err(), "it is stopping");
    drop(node);
    // Nothing has its directory open any more.
    members[0].restart().await;
    let formed = members[0].node().bootstrap(vec![members[0].record()]).await;
    assert!(formed.is_ok(), "{formed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_a_living_cluster_is_never_adopted_by_another() {
    let cluster = Cluster::form(|_| {}).await;
    cluster.open().await;
    let other = ClusterId([1; 16]);
    let adopted = cluster.members[1].node().adopt(other, 2, "b").await;
    assert!(adopted.is_err_and(|error| error.to_string().contains(&cluster.id.to_string())));
    let records = vec![cluster.members[1].record()];
    assert!(cluster.members[1].node().bootstrap(records).await.is_err());
    cluster.open().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_another_cluster_or_for_another_member_are_refused() {
    let cluster = Cluster::form(|_| {}).await;
    cluster.open().await;
    let member = &cluster.members[0];
    let mut client = client(member, &cluster.members[1].config.security);
    let id = cluster.id.to_string();
    let other = ClusterId([1; 16]).to_string();
    for (cluster_id, from, to) in [(&other, 2, 1), (&id, 2, 3), (&id, 1, 1)] {
        let message = PeerMessage {
            cluster_id: cluster_id.clone(),
            from,
            to,
            payload: vec![1].into(),
            ..PeerMessage::default()
        };
        let answers = [
            client.vote(message.clone()).await.err(),
            client.pre_vote(message.clone()).await.err(),
            client.transfer_leader(message.clone()).await.err(),
            match client.append(tokio_stream::iter([message])).await {
                Ok(stream) => stream.into_inner().message().await.err(),
                Err(status) => Some(status),
            },
        ];
        for answer in answers {
            let code = answer.as_ref().map(tonic::Status::code);
            assert_eq!(
                code,
                Some(Code::FailedPrecondition),
                "{cluster_id} {from} {to}: {answer:?}"
            );
        }
    }
    let malformed = PeerMessage {
        cluster_id: id,
        from: 2,
        to: 1,
        payload: vec![1, 2, 3].into(),
        ..PeerMessage::default()
    };
    assert_eq!(
        client.vote(malformed).await.err().map(|status| status.code()),
        Some(Code::InvalidArgument)
    );
    // Member b's certificate does not make it member c.
    let message = PeerMessage {
        cluster_id: cluster.id.to_string(),
        from: 3,
        to: 1,
        payload: vec![1].into(),
        ..PeerMessage::default()
    };
    let answer = client.vote(message).await.err().map(|status| status.code());
    assert_eq!(answer, Some(Code::PermissionDenied));
    let hello = client.hello(HelloRequest::default()).await.expect("an answer").into_inner();
    assert_eq!((hello.name.as_str(), hello.member_id, hello.empty), ("a", 1, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_member_cannot_disturb_the_others() {
    let mut cluster = Cluster::form(|_| {}).await;
    let (leader, epoch) = cluster.open().await;
    let removed = (leader + 1) % 3;
    let name = cluster.members[removed].config.name.clone();
    let security = cluster.members[removed].config.security.clone();
    let old_id = removed as u64 + 1;
    let node = cluster.members[leader].node();
    node.remove_member(&name).await.expect("removed");
    cluster.members[removed].stop().await;
    let rest = [leader, (leader + 2) % 3];
    eventually("the rest know it", async || {
        let knows = |at: usize| cluster.members[at].node().members().len() == 2;
        rest.iter().all(|at| knows(*at)).then_some(())
    })
    .await;
    let before = cluster.members[leader].node().status();
    let cluster_id = cluster.id.to_string();
    let message = |from: u64, at: usize| PeerMessage {
        cluster_id: cluster_id.clone(),
        from,
        to: at as u64 + 1,
        // A message that is read is refused for another reason.
        payload: vec![1].into(),
        ..PeerMessage::default()
    };
    // Its own id, and one that a later member could have.
    for from in [old_id, 1_000_000] {
        for at in rest {
            let mut client = client(&cluster.members[at], &security);
            for answer in [
                client.vote(message(from, at)).await.map(drop),
                client.pre_vote(message(from, at)).await.map(drop),
            ] {
                let code = answer.as_ref().err().map(tonic::Status::code);
                let wanted =
                    if from == old_id { Code::PermissionDenied } else { Code::Unavailable };
                assert_eq!(code, Some(wanted), "{from} at {at}: {answer:?}");
            }
        }
    }
    let node = cluster.members[leader].node();
    node.propose(epoch, open_clients(epoch, &["z".into()])).await.expect("it still leads");
    assert_eq!(node.status().term, before.term);

    // Without a leader, a member hears an id that it does not list: that member may have joined in an entry that it has not
    // read. It still refuses the removed one.
    cluster.members[leader].stop().await;
    let left = rest[1];
    let mut client = client(&cluster.members[left], &security);
    eventually("an id that is not listed is heard", async || {
        let answer = client.vote(message(1_000_000, left)).await.map(drop);
        let code = answer.as_ref().err().map(tonic::Status::code);
        assert!(matches!(code, Some(Code::Unavailable | Code::InvalidArgument)), "{answer:?}");
        (code == Some(Code::InvalidArgument)).then_some(())
    })
    .await;
    let answer = client.vote(message(old_id, left)).await.map(drop);
    let code = answer.as_ref().err().map(tonic::Status::code);
    assert_eq!(code, Some(Code::PermissionDenied), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_directory_waits_and_is_replaced_under_a_new_id() {
    let mut cluster = Cluster::form(|_| {}).await;
    let (leader, epoch) = cluster.open().await;
    let node = cluster.members[leader].node();
    node.propose(epoch, bulk(epoch, 20, 1)).await.expect("applied");
    let lost = (leader + 1) % 3;
    cluster.members[lost].stop().await;
    let data = cluster.members[lost].config.data_dir.clone();
    std::fs::remove_dir_all(&data).expect("its files are closed");
    cluster.members[lost].restart().await;
    assert!(cluster.members[lost].node().is_waiting(), "it does not vote with what it forgot");
    assert_eq!(cluster.members[lost].node().status().lacks, None, "nobody leads it");
    eventually("it knows that it is sought", async || {
        cluster.members[lost].node().awaits_replacement().then_some(())
    })
    .await;

    let node = cluster.members[leader].node();
    let record = cluster.members[lost].record();
    // It would be half of what is left, and has no vote to give.
    let third = cluster.members[(leader + 2) % 3].config.name.clone();
    let refused = node.remove_member(&third).await;
    let Err(ClusterError::Unsafe(why)) = refused else { panic!("{refused:?}") };
    let (peer, client, zone) = (&record.peer_addr, &record.client_addr, &record.zone);
    let places = format!("--peer-addr {peer} --client-addr {client} --zone {zone}");
    assert!(why.ends_with(&format!("rolloutctl member replace {} {places}", record.name)), "{why}");
    let twice = node.add_member(record.clone(), None).await;
    assert!(matches!(twice, Err(ClusterError::Refused(_))), "the name is taken: {twice:?}");
    let name = record.name.clone();
    let fresh = node.add_member(record.clone(), Some(&name)).await.expect("listed");
    assert!(fresh > 3, "ids are never used again");
    eventually("it has the lost one's vote", async || {
        let members = node.members();
        let voter = members.iter().any(|(member, voter)| member.id == fresh && *voter);
        (voter && members.len() == 3).then_some(())
    })
    .await;
    let (index, _) =
        node.propose(epoch, open_clients(epoch, &["x".into()])).await.expect("applied");
    cluster.all_applied(index).await;
    assert_eq!(chain_and_digest(cluster.members[lost].node()), chain_and_digest(node));
    assert!(!cluster.members[lost].node().awaits_replacement(), "it has its place");
    eventually("it knows that it lacks nothing", async || {
        (cluster.members[lost].node().status().lacks == Some(0)).then_some(())
    })
    .await;

    // The others may now fail one at a time again.
    let third = (leader + 2) % 3;
    cluster.members[third].stop().await;
    let node = cluster.members[leader].node();
    node.propose(epoch, open_clients(epoch, &["y".into()])).await.expect("applied");
    let name = cluster.members[third].config.name.clone();
    node.remove_member(&name).await.expect("removed");
    assert_eq!(node.members().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_contradicts_the_configuration_is_refused_naming_both() {
    let mut cluster = Cluster::form(|_| {}).await;
    cluster.open().await;
    cluster.members[0].stop().await;
    let own = cluster.members[0].config.clone();
    let refusal = async |config| match Node::open(config).await {
        Ok(_) => panic!("opened"),
        Err(error) => error.to_string(),
    };

    let mut renamed = own.clone();
    renamed.name = "z".into();
    let said = refusal(renamed).await;
    assert!(said.contains(" a ") && said.contains(" z "), "{said}");

    let mut moved = own.clone();
    moved.cluster_id = Some(ClusterId([1; 16]));
    let said = refusal(moved).await;
    let (here, there) = (cluster.id.to_string(), ClusterId([1; 16]).to_string());
    assert!(said.contains(&here) && said.contains(&there), "{said}");

    // Half a directory is worse than none: its votes are gone.
    std::fs::rename(own.data_dir.join("log"), own.data_dir.join("gone")).expect("renamed");
    let said = refusal(own.clone()).await;
    assert!(said.contains("IDENTITY") || said.contains("identity"), "{said}");
    std::fs::rename(own.data_dir.join("gone"), own.data_dir.join("log")).expect("renamed");
    std::fs::remove_file(own.data_dir.join("IDENTITY")).expect("removed");
    let said = refusal(own.clone()).await;
    assert!(said.contains("IDENTITY"), "{said}");
    // An image alone is also the state of a member.
    std::fs::remove_dir_all(own.data_dir.join("log")).expect("removed");
    let said = refusal(own).await;
    assert!(said.contains("an image of the ledger"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_moves_to_another_address_and_keeps_its_id() {
    let mut cluster = Cluster::form(|_| {}).await;
    let (leader, epoch) = cluster.open().await;
    let moving = (leader + 1) % 3;
    cluster.members[moving].stop().await;
    let node = cluster.members[leader].node();
    let name = cluster.members[moving].config.name.clone();
    let find = |node: &Node| {
        let members = node.members();
        members.into_iter().find(|(member, _)| member.name == name).expect("known").0
    };
    let mut record = find(node);
    let position = node.membership_index();
    let port = crate::cluster::free_port();
    record.peer_addr = format!("127.0.0.1:{port}");
    record.version_max = 9;
    let refused = node.update_member(record.clone()).await;
    assert!(matches!(refused, Err(ClusterError::Unreachable { .. })), "{refused:?}");
    cluster.members[moving].port = port;
    cluster.members[moving].restart().await;
    let node = cluster.members[leader].node();
    node.update_member(record.clone()).await.expect("updated");
    assert_eq!(find(node), record);
    assert!(node.membership_index() > position);
    let (index, _) =
        node.propose(epoch, open_clients(epoch, &["x".into()])).await.expect("applied");
    cluster.all_applied(index).await;
    let stranger = rollout_raft::MemberRecord { id: 77, ..record.clone() };
    assert!(matches!(node.update_member(stranger).await, Err(ClusterError::Refused(_))));

    // The leader is no exception: its wrong address would show only when it no longer leads.
    let me = node.identity().expect("a member").member_id;
    let own = node.members().into_iter().find(|(member, _)| member.id == me).expect("known").0;
    let nowhere = format!("127.0.0.1:{}", crate::cluster::free_port());
    let moved = rollout_raft::MemberRecord { peer_addr: nowhere, ..own.clone() };
    let refused = node.update_member(moved).await;
    assert!(matches!(refused, Err(ClusterError::Unreachable { .. })), "{refused:?}");
    let taken = rollout_raft::MemberRecord { peer_addr: record.peer_addr, ..own.clone() };
    let refused = node.update_member(taken).await;
    assert!(matches!(refused, Err(ClusterError::Refused(_))), "{refused:?}");
    // This does not change a member's target role, whatever the record says.
    let joins = rollout_raft::Joins::Learner;
    let zoned = rollout_raft::MemberRecord { zone: "z".into(), joins, ..own.clone() };
    node.update_member(zoned).await.expect("updated");
    let now = node.members().into_iter().find(|(member, _)| member.id == me).expect("known").0;
    assert_eq!(now, rollout_raft::MemberRecord { zone: "z".into(), ..own });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_member_is_a_cluster() {
    logging();
    let dir = tempfile::tempdir().expect("a directory");
    let members = waiting(dir.path(), &["solo"], |_| {}).await;
    let id = members[0].node().bootstrap(vec![members[0].record()]).await.expect("a cluster");
    let cluster = Cluster { members, id, dir };
    let (_, epoch) = cluster.open().await;
    let node = cluster.members[0].node();
    node.propose(epoch, bulk(epoch, 5, 1)).await.expect("applied");
    assert!(node.read_index().await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_another_authority_cannot_connect() {
    let cluster = Cluster::form(|_| {}).await;
    let elsewhere = tempfile::tempdir().expect("a directory");
    let stranger = crate::cluster::certificates(elsewhere.path(), &["b"]).remove(0);
    let mut client = client(&cluster.members[0], &stranger);
    assert!(client.hello(HelloRequest::default()).await.is_err());
}
