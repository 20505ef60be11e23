//! A leader of a one-member cluster, for tests. It has everything that a leader has, except callers.

use super::{LeaderState, open};
use rollout_config::coordinator::Workers;
use rollout_ledger::id::SessionId;
use rollout_ledger::{OpKind, Registration, Reply, SlotOffer};
use rollout_proto::{DialMap, Security};
use rollout_raft::{Leadership, MemberRecord, Node, RaftConfig};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// The longest that any step may take here.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The only member of a cluster, which leads.
pub(crate) struct TestLeader {
    pub(crate) state: Arc<LeaderState>,
    node: Node,
    _dir: TempDir,
}

impl TestLeader {
    /// Forms a cluster of version 1, and opens its first epoch.
    pub(crate) async fn start(workers: Workers) -> Self {
        Self::start_version(1, workers).await
    }

    /// The same, of this version, which is the newest that the member supports.
    pub(crate) async fn start_version(version: u32, workers: Workers) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("data");
        let mut config =
            RaftConfig::new(path, "c1", DialMap::default(), Security::InsecurePlaintext);
        // Disable the disk thresholds: a slow or full disk of the test host must not end this process.
        (config.disk_low_bytes, config.disk_reserve_bytes) = (0, 0);
        (config.stall_transfer_ms, config.stall_exit_ms) = (3_600_000, 7_200_000);
        config.versions = (1, version);
        let node = Node::open(config).await.expect("it opens");
        let record = MemberRecord {
            name: "c1".into(),
            peer_addr: "127.0.0.1:1".into(),
            client_addr: "127.0.0.1:2".into(),
            version_min: 1,
            version_max: version,
            ..MemberRecord::default()
        };
        node.bootstrap(vec![record]).await.expect("a cluster");
        let opened = async {
            let mut leadership = node.leadership();
            loop {
                let now = leadership.borrow_and_update().clone();
                if let Leadership::Leader { term } = now
                    && let Some(leader) = open(&node, term, &workers).await
                {
                    return leader;
                }
                leadership.changed().await.expect("it runs");
            }
        };
        let state = tokio::time::timeout(PATIENCE, opened).await.expect("it leads");
        Self { state, node, _dir: dir }
    }

    /// Applies an operation, which must not be rejected.
    pub(crate) async fn op(&self, kind: OpKind) -> Reply {
        match self.state.proposer.op(kind).await {
            Ok(Reply::Rejected(why)) => panic!("{why:?}"),
            reply => reply.expect("it is applied"),
        }
    }

    /// Registers a worker with this many slots, each for the model `m`.
    pub(crate) async fn register(&self, name: &str, slots: usize) -> SessionId {
        let offer = SlotOffer { models: vec!["m".into()], ..SlotOffer::default() };
        let registration = Registration {
            namespace: "default".into(),
            name: name.into(),
            instance: 1,
            slots: vec![offer; slots],
            ..Registration::default()
        };
        match self.op(OpKind::Register(Box::new(registration))).await {
            Reply::Registered { session, .. } => session,
            reply => panic!("{reply:?}"),
        }
    }

    /// Ends the epoch and the member.
    pub(crate) async fn end(self) {
        self.state.ended.cancel();
        self.node.stop().await;
    }
}
