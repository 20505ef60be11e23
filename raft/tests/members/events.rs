//! What followers of events get from the members: the same events everywhere, complete, or an error that says what is
//! missing.

use crate::cluster::{Cluster, eventually};
use rollout_ledger::id::{CoordEpoch, LedgerMs};
use rollout_ledger::{Body, Command, EngineSpec, OpKind, RunSpec, op};
use rollout_raft::{EventPosition, Node};

/// A command that makes `count` runs and as many events.
fn runs(epoch: u64, count: usize, tag: usize) -> Vec<u8> {
    let create = |n| {
        OpKind::CreateRun(op::CreateRun {
            namespace: "default".into(),
            name: format!("run-{tag}-{n}"),
            spec: Box::new(RunSpec {
                engine: EngineSpec { model: "m".into(), ..EngineSpec::default() },
                weight: 1,
                attempts_max: 1,
                ..RunSpec::default()
            }),
            folder: format!("run-{tag}-{n}/1"),
        })
    };
    let ops = (0..count).map(|n| create(n).into()).collect();
    Command { epoch: CoordEpoch(epoch), at: LedgerMs(0), wall_ms: 7, body: Body::Ops(ops) }.encode()
}

/// Everything from `from` on, in small pages: places, kinds and names.
fn all(node: &Node, mut from: EventPosition) -> Vec<String> {
    let mut seen = Vec::new();
    loop {
        let page = node.events(from, 3).expect("held");
        seen.extend(page.records.iter().map(|r| {
            format!("{}:{} {:?} {:?}", r.event.index, r.event.position, r.event.kind, r.run)
        }));
        from = page.next;
        if !page.more {
            return seen;
        }
    }
}

fn start(index: u64) -> EventPosition {
    EventPosition { index, position: 0 }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_members_have_the_same_events_and_a_follower_of_one_may_go_on_at_another() {
    let cluster = Cluster::form(|_| {}).await;
    let (leader, epoch) = cluster.open().await;
    let node = cluster.members[leader].node();
    let mut told = cluster.members[(leader + 1) % 3].node().watch_events().expect("in a cluster");
    let mut last = 0;
    for tag in 0..4 {
        last = node.propose(epoch, runs(epoch, 5, tag)).await.expect("applied").0;
    }
    cluster.all_applied(last).await;
    told.wait_for(|index| *index == last).await.expect("followers are woken");
    let expected = all(node, start(0));
    assert!(expected.len() > 20, "an epoch and twenty runs: {expected:?}");
    assert!(expected.iter().any(|e| e.contains("run-3-4")), "names are resolved: {expected:?}");
    for (_, other) in cluster.running() {
        assert_eq!(all(other, start(0)), expected);
    }
    let page = node.events(start(0), 9).expect("held");
    let mut spliced: Vec<String> = all(node, start(0)).into_iter().take(9).collect();
    spliced.extend(all(cluster.members[(leader + 2) % 3].node(), page.next));
    assert_eq!(spliced, expected, "no gap and no repeat");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_member_begins_where_its_image_ended_and_says_so() {
    let mut cluster = Cluster::form(|config| config.image_interval_ms = 20).await;
    let (leader, epoch) = cluster.open().await;
    let node = cluster.members[leader].node();
    let (first, _) = node.propose(epoch, runs(epoch, 5, 0)).await.expect("applied");
    cluster.all_applied(first).await;
    let at = (leader + 1) % 3;
    let follower = cluster.members[at].node().clone();
    let imaged = || async { follower.status().image_index.filter(|index| *index >= first) };
    eventually("the image holds the runs", imaged).await;
    drop(follower);
    cluster.members[at].stop().await;
    cluster.members[at].restart().await;
    let node = cluster.members[leader].node();
    let (last, _) = node.propose(epoch, runs(epoch, 5, 1)).await.expect("applied");
    cluster.all_applied(last).await;
    let restarted = cluster.members[at].node();
    let (oldest, next) = restarted.event_bounds();
    assert!(oldest > first && oldest <= last && next > last, "{oldest} {next}");
    let refused = restarted.events(start(first), 9).expect_err("from before its image");
    assert_eq!(refused.oldest, oldest);
    assert_eq!(all(restarted, start(last)), all(node, start(last)), "what it has is whole");
}
