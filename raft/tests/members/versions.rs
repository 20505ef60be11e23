//! Members of different builds in one cluster: which versions each supports, and which builds may no longer start.

use crate::cluster::{Cluster, Member, eventually, logging, open_clients, set_version, waiting};
use rollout_raft::{ClusterError, Node, OpenError, RaftConfig};

#[tokio::test(flavor = "multi_thread")]
async fn members_say_what_they_support_and_an_old_build_is_not_started_on_a_newer_version() {
    let newer = |config: &mut RaftConfig| config.versions = (1, 3);
    let mut cluster = Cluster::form(newer).await;
    // One is still of the build before.
    cluster.members[2].stop().await;
    cluster.members[2].config.versions = (1, 2);
    cluster.members[2].restart().await;
    let (leader, epoch) = cluster.open().await;
    let answers = eventually("all of them answer", async || {
        let answers = cluster.members[leader].node().supported_versions().await;
        answers.iter().all(|(_, answer)| answer.is_ok()).then_some(answers)
    })
    .await;
    let mut said: Vec<_> = answers
        .into_iter()
        .map(|(member, answer)| (member.name, answer.expect("an answer")))
        .collect();
    said.sort();
    let named = |name: &str, range| (name.to_owned(), range);
    assert_eq!(said, [named("a", (1, 3)), named("b", (1, 3)), named("c", (1, 2))]);

    // The cluster is raised to the version that all support, and all of them continue.
    let node = cluster.members[leader].node();
    let (index, _) = node.propose(epoch, set_version(epoch, 2)).await.expect("applied");
    cluster.all_applied(index).await;
    for (_, node) in cluster.running() {
        assert_eq!(node.with_ledger(|ledger| ledger.version()), Some(2));
    }
    let write = open_clients(epoch, &["later".to_owned()]);
    let (index, _) = node.propose(epoch, write).await.expect("applied");
    cluster.all_applied(index).await;

    // A build that does not know the version does not start, and says why; the right one does.
    cluster.members[2].stop().await;
    let mut old = cluster.members[2].config.clone();
    old.versions = (1, 1);
    match Node::open(old).await {
        Err(OpenError::Start(why)) => {
            assert!(why.contains("version 2") && why.contains("1 to 1"), "{why}");
        }
        Err(other) => panic!("refused for another reason: {other}"),
        Ok(_) => panic!("an old build was started on a newer version"),
    }
    cluster.members[2].restart().await;
    cluster.all_applied(index).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_member_that_cannot_run_what_the_cluster_runs_is_refused_and_its_own_word_is_recorded()
 {
    logging();
    let dir = tempfile::tempdir().expect("a directory");
    let newer = |config: &mut RaftConfig| config.versions = (1, 3);
    let mut members = waiting(dir.path(), &["a", "b", "c", "d"], newer).await;
    let records = members[..3].iter().map(Member::record).collect();
    let id = members[0].node().bootstrap(records).await.expect("a cluster");
    members[3].stop().await;
    members[3].config.versions = (1, 1);
    members[3].restart().await;
    let mut cluster = Cluster { members, id, dir };
    let (leader, epoch) = cluster.open().await;
    let node = cluster.members[leader].node().clone();
    node.propose(epoch, set_version(epoch, 2)).await.expect("applied");
    let record = cluster.members[3].record();
    for replaces in [None, Some(cluster.members[(leader + 1) % 3].config.name.clone())] {
        let refused = node.add_member(record.clone(), replaces.as_deref()).await;
        let Err(ClusterError::Refused(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("versions 1 to 1") && why.contains("version 2"), "{why}");
    }
    assert_eq!(node.members().len(), 3, "nothing was changed");
    assert!(cluster.members[3].node().is_waiting(), "nor there");

    // For a build that supports the version, the list has what the build reports, not what the caller says.
    cluster.members[3].stop().await;
    cluster.members[3].config.versions = (1, 2);
    cluster.members[3].restart().await;
    node.add_member(record, None).await.expect("listed");
    let listed = node.members().into_iter().find(|(member, _)| member.name == "d").expect("it").0;
    assert_eq!((listed.version_min, listed.version_max), (1, 2));
}
