//! Members of different builds in one cluster: who supports what, and who may not be started any more.

mod trio;

use rollout_ledger::{Body, Command};
use rollout_raft::{Node, OpenError, RaftConfig};
use trio::{Cluster, eventually, open_clients};

fn set_version(epoch: u64, version: u32) -> Vec<u8> {
    let epoch = rollout_ledger::id::CoordEpoch(epoch);
    let at = rollout_ledger::id::LedgerMs(0);
    Command { epoch, at, wall_ms: 0, body: Body::SetVersion(version) }.encode()
}

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

    // What all support is raised, and all of them go on.
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
