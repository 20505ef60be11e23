//! Owns: members in one process, each with its own directory, port, certificate and threads.
//!
//! Invariant: they talk over TCP with mTLS and share nothing else; a stopped member closes its sockets.
//! Absent: fixed waits. Everything waits for a condition, with a generous limit.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rollout_ledger::id::{Attempt, CoordEpoch, LedgerMs, RunNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::{
    Body, Command, Evidence, FailureClass, HeldRows, Op, OpKind, Reply, Rows, op,
};
use rollout_proto::pki::{IssueRequest, init_ca, issue};
use rollout_proto::{DialMap, Role, Security, ServerTls};
use rollout_raft::{ClusterId, Joins, Leadership, MemberRecord, Node, RaftConfig};
use tokio::runtime::Runtime;

/// The longest that anything may take here.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Polls until `found` finds something.
pub(crate) async fn eventually<T>(what: &str, mut found: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = found().await {
            return found;
        }
        assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Certificates for members called `names`, reached over loopback.
pub(crate) fn certificates(dir: &Path, names: &[&str]) -> Vec<Security> {
    let ca = dir.join("ca");
    init_ca(&ca, "test").expect("an authority");
    let certificate = |name: &&str| {
        let request = IssueRequest {
            role: Role::Member,
            name: (*name).to_owned(),
            namespaces: vec![],
            dns_names: vec![],
            ip_addrs: vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
            days: 1,
        };
        Security::Mtls(issue(&ca, &request, &dir.join(name)).expect("a certificate"))
    };
    names.iter().map(certificate).collect()
}

/// A free port on loopback. Another process could take it before it is used; none of these tests does.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}

pub(crate) fn config(dir: PathBuf, name: &str, security: Security) -> RaftConfig {
    RaftConfig::new(dir, name, DialMap::default(), security)
}

/// One member, running or stopped.
pub(crate) struct Member {
    pub(crate) config: RaftConfig,
    pub(crate) port: u16,
    node: Option<Node>,
    server: Option<Runtime>,
}

impl Member {
    pub(crate) async fn start(config: RaftConfig, port: u16) -> Self {
        let mut member = Self { config, port, node: None, server: None };
        member.restart().await;
        member
    }

    pub(crate) fn node(&self) -> &Node {
        self.node.as_ref().expect("running")
    }

    pub(crate) fn is_running(&self) -> bool {
        self.node.is_some()
    }

    pub(crate) fn record(&self) -> MemberRecord {
        MemberRecord {
            id: 0,
            name: self.config.name.clone(),
            peer_addr: format!("127.0.0.1:{}", self.port),
            client_addr: format!("127.0.0.1:{}", self.port + 1),
            zone: format!("zone-{}", self.config.name),
            version_min: 1,
            version_max: 3,
            joins: Joins::default(),
            adopted: false,
        }
    }

    /// Opens the directory and serves the peer port.
    pub(crate) async fn restart(&mut self) {
        let node = Node::open(self.config.clone()).await.expect("opens");
        let server = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("peer-port")
            .enable_all()
            .build()
            .expect("a runtime");
        let (service, port) = (node.peer_service(), self.port);
        let tls = ServerTls::load(&self.config.security).expect("certificates");
        // Bind before reporting that the member runs.
        let listener = eventually("the port is free", async || {
            std::net::TcpListener::bind(("127.0.0.1", port)).ok()
        })
        .await;
        listener.set_nonblocking(true).expect("a socket option");
        server.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(tls.incoming(listener))
                .await
                .expect("the peer port is served");
        });
        self.node = Some(node);
        self.server = Some(server);
    }

    /// Ends the member without warning the others.
    pub(crate) async fn stop(&mut self) {
        self.close();
        let node = self.node.take().expect("running");
        node.stop().await;
    }

    fn close(&mut self) {
        if let Some(server) = self.server.take() {
            // On another thread, because waiting is not allowed here; its resources must be released before the
            // process ends.
            let ended = std::thread::spawn(move || server.shutdown_timeout(Duration::from_secs(2)));
            ended.join().expect("it ends");
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.close();
    }
}

/// A formed cluster.
pub(crate) struct Cluster {
    pub(crate) members: Vec<Member>,
    pub(crate) id: ClusterId,
    pub(crate) dir: tempfile::TempDir,
}

/// Members that wait to be adopted.
pub(crate) async fn waiting(
    dir: &Path,
    names: &[&str],
    adjust: impl Fn(&mut RaftConfig),
) -> Vec<Member> {
    let securities = certificates(dir, names);
    let mut members = Vec::new();
    for (name, security) in names.iter().zip(securities) {
        let mut config = config(dir.join(format!("data-{name}")), name, security);
        adjust(&mut config);
        members.push(Member::start(config, free_port()).await);
    }
    members
}

impl Cluster {
    /// Three members, formed.
    pub(crate) async fn form(adjust: impl Fn(&mut RaftConfig)) -> Self {
        logging();
        let dir = tempfile::tempdir().expect("a directory");
        let members = waiting(dir.path(), &["a", "b", "c"], adjust).await;
        let records = members.iter().map(Member::record).collect();
        let id = members[0].node().bootstrap(records).await.expect("a cluster");
        Self { members, id, dir }
    }

    pub(crate) fn running(&self) -> impl Iterator<Item = (usize, &Node)> {
        let running = self.members.iter().enumerate().filter(|(_, member)| member.is_running());
        running.map(|(at, member)| (at, member.node()))
    }

    /// The member that leads and has confirmed it with a quorum, and its term.
    pub(crate) async fn leader(&self) -> (usize, u64) {
        eventually("a leader", async || {
            for (at, node) in self.running() {
                let leads = matches!(*node.leadership().borrow(), Leadership::Leader { .. });
                if leads && let Ok(term) = node.barrier().await {
                    return Some((at, term));
                }
            }
            None
        })
        .await
    }

    /// A leader that has opened dispatch, and its epoch.
    pub(crate) async fn open(&self) -> (usize, u64) {
        eventually("an open epoch", async || {
            let (at, epoch) = self.leader().await;
            self.members[at].node().propose(epoch, open_epoch(epoch)).await.ok()?;
            Some((at, epoch))
        })
        .await
    }

    /// Waits until every running member has applied `index`.
    pub(crate) async fn all_applied(&self, index: u64) {
        for (at, node) in self.running() {
            assert!(node.applied(index, LIMIT).await, "member {at} has not applied {index}");
        }
    }
}

/// Prints what the members say when a test fails; `RUST_LOG` chooses.
pub(crate) fn logging() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    drop(tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init());
}

fn command(epoch: u64, body: Body) -> Vec<u8> {
    Command { epoch: CoordEpoch(epoch), at: LedgerMs(0), wall_ms: 0, body }.encode()
}

pub(crate) fn open_epoch(epoch: u64) -> Vec<u8> {
    command(epoch, Body::OpenEpoch)
}

pub(crate) fn set_version(epoch: u64, version: u32) -> Vec<u8> {
    command(epoch, Body::SetVersion(version))
}

pub(crate) fn digest_at(epoch: u64) -> Vec<u8> {
    command(epoch, Body::DigestAt)
}

/// A command that opens client sessions with these names.
pub(crate) fn open_clients(epoch: u64, names: &[String]) -> Vec<u8> {
    let open = |name: &String| {
        Op::from(OpKind::OpenClient(op::OpenClient { name: name.clone(), holder: String::new() }))
    };
    command(epoch, Body::Ops(names.iter().map(open).collect()))
}

/// A command of about `ops * 120` bytes.
pub(crate) fn bulk(epoch: u64, ops: usize, tag: usize) -> Vec<u8> {
    let names: Vec<String> = (0..ops).map(|op| format!("{tag:0>40}-{op:0>60}")).collect();
    open_clients(epoch, &names)
}

/// A command of about `ops * 110` bytes whose operations are all refused.
pub(crate) fn refused(epoch: u64, ops: usize) -> Vec<u8> {
    let slot = SlotRef { session: SessionId(1), slot: SlotNo(0) };
    let fail = |_| {
        Op::from(OpKind::Fail(op::Fail {
            slot,
            held: HeldRows { run: RunNo(1), attempt: Attempt(1), rows: Rows::default() },
            class: FailureClass::Transient,
            code: "none".to_owned(),
            message: "x".repeat(90),
            evidence: Evidence::default(),
        }))
    };
    command(epoch, Body::Ops((0..ops).map(fail).collect()))
}

/// The sessions that the replies opened.
pub(crate) fn sessions(replies: &[Reply]) -> Vec<SessionId> {
    let session = |reply: &Reply| match reply {
        Reply::ClientOpened { session } => Some(*session),
        _ => None,
    };
    replies.iter().filter_map(session).collect()
}

/// How many of the replies opened a session.
pub(crate) fn opened(replies: &[Reply]) -> usize {
    sessions(replies).len()
}

pub(crate) fn chain_and_digest(node: &Node) -> ([u8; 32], [u8; 32]) {
    node.with_ledger(|ledger| (ledger.chain(), ledger.state_digest())).expect("a member")
}
