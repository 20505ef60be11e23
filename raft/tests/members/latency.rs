//! Members at a distance, up to the limits of each profile: heartbeats alone keep the lease, and a leader whose
//! answers come too late steps down.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, Member, eventually, logging, open_clients, waiting};
use rollout_config::coordinator::Profile;
use rollout_proto::DialMap;
use rollout_raft::{Leadership, RaftConfig, Role};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// Far longer than any lease.
const IDLE: Duration = Duration::from_secs(8);

/// The way to a member, which may change while connections are open.
#[derive(Clone, Default)]
struct Distance {
    /// Half of a round trip, in microseconds.
    one_way: Arc<AtomicU64>,
    /// Changes when all connections are cut.
    cuts: Arc<watch::Sender<u64>>,
}

impl Distance {
    fn set_rtt(&self, rtt: Duration) {
        self.one_way.store(rtt.as_micros() as u64 / 2, Ordering::Relaxed);
    }

    fn one_way(&self) -> Duration {
        Duration::from_micros(self.one_way.load(Ordering::Relaxed))
    }

    /// A longer way to a member; its port.
    async fn to(&self, to: u16) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let distance = self.clone();
        tokio::spawn(async move {
            while let Ok((inbound, _)) = listener.accept().await {
                let Ok(outbound) = TcpStream::connect(("127.0.0.1", to)).await else { continue };
                inbound.set_nodelay(true).expect("a socket option");
                outbound.set_nodelay(true).expect("a socket option");
                // The handshake of TCP is a round trip.
                let connected = Instant::now() + 2 * distance.one_way();
                let ((asks, told), (answers, asked)) =
                    (inbound.into_split(), outbound.into_split());
                let there = carry(asks, asked, distance.clone(), connected);
                let back = carry(answers, told, distance.clone(), Instant::now());
                let mut cut = distance.cuts.subscribe();
                tokio::spawn(async move {
                    tokio::select! {
                        _ = async { tokio::join!(there, back) } => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        port
    }
}

/// Carries bytes that arrive later; those on their way hold up nothing behind them.
async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    distance: Distance,
    connected: Instant,
) {
    let (line, mut arriving) = mpsc::channel::<(Instant, Vec<u8>)>(4096);
    let reading = async move {
        let mut bytes = vec![0; 16 << 10];
        let mut last = connected;
        loop {
            let read = from.read(&mut bytes).await.unwrap_or(0);
            last = last.max(Instant::now().max(connected) + distance.one_way());
            if line.send((last, bytes[..read].to_vec())).await.is_err() || read == 0 {
                return;
            }
        }
    };
    let writing = async move {
        while let Some((due, bytes)) = arriving.recv().await {
            tokio::time::sleep_until(due.into()).await;
            if bytes.is_empty() || to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(reading, writing);
}

/// How far each member of a cluster is for the others.
struct Distances([Distance; 3]);

impl Distances {
    fn set_rtt(&self, rtt: Duration) {
        self.0.iter().for_each(|distance| distance.set_rtt(rtt));
    }

    /// Closes all connections at once. New ones may be made.
    fn cut(&self) {
        self.0.iter().for_each(|distance| distance.cuts.send_modify(|cuts| *cuts += 1));
    }
}

/// A cluster of three, each at this distance from the others.
async fn across(adjust: impl Fn(RaftConfig) -> RaftConfig, rtt: Duration) -> (Cluster, Distances) {
    logging();
    let dir = tempfile::tempdir().expect("a directory");
    let distances = Distances(Default::default());
    distances.set_rtt(rtt);
    let mut members = waiting(dir.path(), &["a", "b", "c"], |config| {
        *config = adjust(config.clone());
    })
    .await;
    let mut entries = Vec::new();
    for (member, distance) in members.iter().zip(&distances.0) {
        entries.push(format!(
            "{}=127.0.0.1:{}",
            member.config.name,
            distance.to(member.port).await
        ));
    }
    for member in &mut members {
        member.stop().await;
        member.config.dial_map = DialMap::from_entries(entries.clone()).expect("entries");
        member.restart().await;
    }
    let records = members.iter().map(Member::record).collect();
    let id = members[0].node().bootstrap(records).await.expect("a cluster");
    (Cluster { members, id, dir }, distances)
}

fn profile(profile: Profile) -> impl Fn(RaftConfig) -> RaftConfig {
    move |config| match profile {
        Profile::Near => config,
        Profile::FarZones => config.far_zones(),
    }
}

async fn the_lease_holds_without_writes_and_another_is_elected(of: Profile) {
    let (mut cluster, _distances) = across(profile(of), of.rtt_max()).await;
    let (leader, epoch) = cluster.open().await;
    let node = cluster.members[leader].node();
    let begun = Instant::now();
    let (mut looks, mut lapses) = (0, 0);
    while begun.elapsed() < IDLE {
        tokio::time::sleep(Duration::from_millis(10)).await;
        looks += 1;
        lapses += u32::from(!node.lease_valid());
    }
    assert_eq!(*node.leadership().borrow(), Leadership::Leader { term: epoch });
    assert!(lapses * 20 <= looks, "{lapses} of {looks} looks found no lease");
    node.read_index().await.expect("it reads");
    node.propose(epoch, open_clients(epoch, &["after".into()])).await.expect("it writes");
    let trips = node.status().round_trips;
    assert_eq!(trips.len(), 2, "{trips:?}");
    for trip in trips {
        assert!(trip.samples > 0 && trip.min >= of.rtt_max(), "{trip:?}");
        assert!(trip.min < 3 * of.rtt_max(), "{trip:?}");
    }

    cluster.members[leader].stop().await;
    let (next, term) = cluster.open().await;
    assert!(next != leader && term > epoch);
}

#[tokio::test(flavor = "multi_thread")]
async fn near_members_hold_a_lease_and_fail_over_at_their_limit() {
    the_lease_holds_without_writes_and_another_is_elected(Profile::Near).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_in_far_zones_hold_a_lease_and_fail_over_at_their_limit() {
    the_lease_holds_without_writes_and_another_is_elected(Profile::FarZones).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_answered_too_late_gives_up_and_one_is_elected_once_answers_are_in_time() {
    let short = Duration::from_millis(1);
    let (cluster, distances) = across(profile(Profile::Near), short).await;
    let (leader, epoch) = cluster.open().await;
    distances.set_rtt(Duration::from_millis(500));
    let node = cluster.members[leader].node();
    eventually("the leader has given up", async || {
        (node.status().role != Role::Leader).then_some(())
    })
    .await;
    assert!(!node.lease_valid());
    assert!(matches!(*node.leadership().borrow(), Leadership::Follower { .. }));
    distances.set_rtt(short);
    let healed = Instant::now();
    let (_, term) = cluster.open().await;
    assert!(term > epoch);
    assert!(healed.elapsed() < Duration::from_secs(10), "{:?}", healed.elapsed());
}

/// The highest term that any of them has seen.
fn term(cluster: &Cluster) -> u64 {
    cluster.members.iter().map(|member| member.node().status().term).max().expect("members")
}

#[tokio::test(flavor = "multi_thread")]
async fn no_member_is_elected_if_votes_are_in_time_and_heartbeat_answers_are_not() {
    let (cluster, distances) = across(profile(Profile::Near), Duration::from_millis(1)).await;
    let (leader, _) = cluster.open().await;
    // Votes may take 150 ms by openraft's setting, answers to heartbeats 125 ms.
    distances.set_rtt(Duration::from_millis(130));
    let node = cluster.members[leader].node();
    eventually("the leader has given up", async || {
        (node.status().role != Role::Leader).then_some(())
    })
    .await;
    let given_up = term(&cluster);
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(5) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(term(&cluster), given_up, "after {:?}", since.elapsed());
    }
    distances.set_rtt(Duration::from_millis(1));
    cluster.open().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_does_not_answer_holds_up_no_measurement_of_another() {
    let (cluster, distances) = across(profile(Profile::Near), Duration::from_millis(1)).await;
    let (leader, _) = cluster.open().await;
    let (far, near) = ((leader + 1) % 3, (leader + 2) % 3);
    let samples = |of: usize| {
        let name = &cluster.members[of].config.name;
        let trips = cluster.members[leader].node().status().round_trips;
        trips.iter().find(|trips| trips.name == *name).map_or(0, |trips| trips.samples)
    };
    eventually("both answered", async || (samples(far) > 1 && samples(near) > 1).then_some(()))
        .await;
    distances.0[far].set_rtt(Duration::from_secs(600));
    let before = samples(near);
    tokio::time::sleep(Duration::from_secs(8)).await;
    // One each second; one in three seconds if each waited for the slowest.
    let after = samples(near);
    assert!(after >= before + 5, "{before} became {after}");
    eventually("what the other one answered is too old", async || {
        (samples(far) == 0).then_some(())
    })
    .await;
}

/// Longer than a follower in far zones waits before it asks for votes early: its leader's lease, and each follower's turn.
const GUESSED: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_connections_are_cut_and_made_again_keeps_its_term() {
    let (cluster, distances) = across(profile(Profile::FarZones), Duration::from_millis(1)).await;
    let (leader, epoch) = cluster.open().await;
    let node = cluster.members[leader].node();
    let led = term(&cluster);
    for round in 0..10 {
        distances.cut();
        let since = Instant::now();
        // Every other time nothing is written, and heartbeats alone make the connections again.
        if round % 2 == 0 {
            let write = open_clients(epoch, &[format!("{round}")]);
            node.propose(epoch, write).await.expect("it leads, and takes writes");
        }
        while since.elapsed() < GUESSED {
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert_eq!(term(&cluster), led, "cut {round}, after {:?}", since.elapsed());
        }
        assert!(node.lease_valid(), "after cut {round}");
    }
    assert_eq!(*node.leadership().borrow(), Leadership::Leader { term: epoch });
}
