//! Owns: a member that belongs to a cluster: its storage, its consensus, and its background tasks, until they end.
//!
//! Invariant: it exists only if the data directory has an identity, and only one exists at a time in a process.
//! Absent: the state before that, and the start; see `node`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use openraft::Raft;
use openraft::async_runtime::WatchReceiver;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::config::RaftConfig;
use crate::consensus::lease::{Promise, ReadLease};
use crate::consensus::progress::Progress;
use crate::consensus::reachability::ReachabilityTable;
use crate::consensus::reads::ReadQueue;
use crate::consensus::rtt::Samples;
use crate::member::MemberRecord;
use crate::peer::{PeerContext, Presence};
use crate::state::identity::Identity;
use crate::state::log_store::LogStore;
use crate::state::machine::Machine;
use crate::state::state_machine::StateMachine;
use crate::state::stores::StoresOpen;
use crate::types::Types;

/// A member that takes part in a cluster.
pub(crate) struct Running {
    pub(crate) identity: Identity,
    pub(crate) config: RaftConfig,
    pub(crate) context: Arc<PeerContext>,
    pub(crate) raft: Raft<Types, StateMachine>,
    pub(crate) store: LogStore,
    pub(crate) machine: Machine,
    pub(crate) presence: Presence,
    pub(crate) progress: Progress,
    pub(crate) reads: ReadQueue,
    pub(crate) promise: Promise,
    pub(crate) read_lease: ReadLease,
    /// To the other members.
    pub(crate) round_trips: Samples,
    /// With the other members' processes.
    pub(crate) reachability: ReachabilityTable,
    /// When this process of the member started, in milliseconds since 1970: names it to the others.
    pub(crate) started_ms: u64,
    /// Tells when the stores are closed.
    pub(crate) open: Weak<StoresOpen>,
    /// Set before an intended end, so that the end of consensus is not taken for a failure.
    pub(crate) closing: AtomicBool,
    /// Bytes of the image on disk, as last measured.
    pub(crate) image_bytes: AtomicU64,
    /// Held while the membership is changed: two changes at a time would give out one id twice.
    pub(crate) changing: tokio::sync::Mutex<()>,
    pub(crate) tasks: Mutex<Tasks>,
}

/// The background tasks of a member.
#[derive(Default)]
pub(crate) struct Tasks {
    /// End by themselves when consensus has.
    pub(crate) finite: Vec<JoinHandle<()>>,
    /// Wait for messages that may never come; nothing is lost when they are cut off.
    pub(crate) endless: Vec<JoinHandle<()>>,
}

impl Running {
    /// The other members, without one.
    pub(crate) fn peers_except(&self, other: u64) -> Vec<MemberRecord> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let nodes = metrics.membership_config.nodes();
        nodes
            .filter(|(id, _)| **id != self.context.me && **id != other)
            .map(|(_, member)| member.clone())
            .collect()
    }

    /// Ends consensus, writes the image a last time and closes the log.
    pub(crate) async fn stop(&self) {
        if self.closing.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "consensus did not end cleanly");
        }
        let tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.endless.iter().for_each(JoinHandle::abort);
        for task in tasks.finite {
            if tokio::time::timeout(TASK_END_LIMIT, task).await.is_err() {
                tracing::warn!("a task of consensus did not end in time");
            }
        }
        self.machine.flush().await;
        self.machine.image().stop_reclaiming();
        let log = self.store.log().clone();
        if let Err(error) = tokio::task::spawn_blocking(move || log.close()).await {
            tracing::warn!(%error, "the log did not close cleanly");
        }
    }
}

/// How long one task may take to notice that consensus has ended.
const TASK_END_LIMIT: Duration = Duration::from_secs(5);
