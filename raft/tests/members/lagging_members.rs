//! Members that lack much of the log: none of them gets leadership, and none is counted on when another is removed.

use std::time::Duration;

use crate::cluster::{Cluster, Member, eventually, logging, open_clients, refused, waiting};
use rollout_proto::DialMap;
use rollout_raft::{ClusterError, Node, NotLeader};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What passes to a member on one connection in a second: heartbeats, and one or two of the entries written here.
const BYTES_PER_S: f64 = 65_536.0;
/// The number of entries written: more than a member that keeps up may lack.
const ENTRIES: usize = 320;

/// Operations of an entry, of some hundred bytes each.
const OPS: usize = 450;

/// A slow way to a member; its port.
async fn slow(to: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("its address").port();
    tokio::spawn(async move {
        while let Ok((inbound, _)) = listener.accept().await {
            tokio::spawn(pass(inbound, to));
        }
    });
    port
}

async fn pass(inbound: TcpStream, to: u16) {
    let Ok(outbound) = TcpStream::connect(("127.0.0.1", to)).await else { return };
    let (mut asks, mut told) = inbound.into_split();
    let (mut answers, mut asked) = outbound.into_split();
    let there = async {
        let mut bytes = vec![0; 4096];
        while let Ok(read @ 1..) = asks.read(&mut bytes).await {
            if asked.write_all(&bytes[..read]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_secs_f64(read as f64 / BYTES_PER_S)).await;
        }
    };
    tokio::select! {
        () = there => {}
        _ = tokio::io::copy(&mut answers, &mut told) => {}
    }
}

/// A cluster of a, b and c, in which entries hardly come to c, and not under c.
async fn with_one_that_lags() -> (Cluster, usize, u64) {
    logging();
    let dir = tempfile::tempdir().expect("a directory");
    let mut members = waiting(dir.path(), &["a", "b", "c"], |_| {}).await;
    let port = slow(members[2].port).await;
    for member in &mut members[..2] {
        member.stop().await;
        let entry = format!("c=127.0.0.1:{port}");
        member.config.dial_map = DialMap::from_entries([entry]).expect("an entry");
        member.restart().await;
    }
    let records = members.iter().map(Member::record).collect();
    let id = members[0].node().bootstrap(records).await.expect("a cluster");
    let cluster = Cluster { members, id, dir };
    let (leader, epoch) = eventually("c does not lead", async || {
        let (leader, epoch) = cluster.open().await;
        if leader < 2 {
            return Some((leader, epoch));
        }
        // Try again if leadership has not moved.
        drop(cluster.members[2].node().transfer_leader(Some("a")).await);
        None
    })
    .await;
    (cluster, leader, epoch)
}

/// Writes so much that a member that gets little of it lacks too much.
async fn write(node: &Node, epoch: u64) {
    for _ in 0..ENTRIES {
        node.propose(epoch, refused(epoch, OPS)).await.expect("applied");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_lacks_much_gets_no_leadership_and_is_not_counted_on() {
    let (cluster, leader, epoch) = with_one_that_lags().await;
    let node = cluster.members[leader].node();
    let other = cluster.members[1 - leader].config.name.clone();
    write(node, epoch).await;
    let refused = node.transfer_leader(Some("c")).await;
    let Err(ClusterError::Unsafe(why)) = refused else { panic!("{refused:?}") };
    assert!(why.starts_with("c "), "{why}");
    // Both that would be left answer, and the two of them could write nothing.
    let refused = node.remove_member(&other).await;
    let Err(ClusterError::Unsafe(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains(" c ") && why.contains("256"), "{why}");
    assert_eq!(node.members().len(), 3, "nothing was changed");
    let write = open_clients(epoch, &["after".to_owned()]);
    node.propose(epoch, write).await.expect("it leads as before, and takes writes");
    // A member that keeps up is preferred, and c may go.
    node.remove_member("c").await.expect("removed");
    node.transfer_leader(None).await.expect("handed over");
    let (next, _) = cluster.open().await;
    assert_eq!(next, 1 - leader);
}

/// More than the two leases for which a voter counts as answering, and less than the four after which a leader
/// without answers steps down.
const HEARD_LATELY: Duration = Duration::from_millis(600);

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_does_not_answer_gets_no_leadership_and_writes_continue() {
    let mut cluster = Cluster::form(|_| {}).await;
    let (leader, epoch) = cluster.open().await;
    let (silent, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let name = cluster.members[silent].config.name.clone();
    cluster.members[silent].stop().await;
    let node = cluster.members[leader].node().clone();
    write(&node, epoch).await;
    let refused = node.transfer_leader(Some(&name)).await;
    let Err(ClusterError::Unsafe(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains(&name) && why.contains("does not answer"), "{why}");
    let write = open_clients(epoch, &["after".to_owned()]);
    node.propose(epoch, write).await.expect("it leads as before, and takes writes");

    // With both others gone there is no successor.
    cluster.members[other].stop().await;
    // It was heard just before: it counts as answering for that long.
    tokio::time::sleep(HEARD_LATELY).await;
    let refused = node.transfer_leader(None).await;
    // On a busy machine it may have stepped down by now.
    let nobody = matches!(
        refused,
        Err(ClusterError::Unsafe(_) | ClusterError::NotLeader(NotLeader { leader: None }))
    );
    assert!(nobody, "{refused:?}");
    drop(node);
    cluster.members[other].restart().await;
    cluster.members[silent].restart().await;
    eventually("it has caught up and leads", async || {
        let (leader, _) = cluster.leader().await;
        let node = cluster.members[leader].node();
        (leader == silent || node.transfer_leader(Some(&name)).await.is_ok()).then_some(())
    })
    .await;
}
