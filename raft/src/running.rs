//! Owns: a member that belongs to a cluster: its storage, its consensus, and its background tasks.
//!
//! Invariant: it exists only if the data directory has an identity, and only one exists at a time in a process.
//! Absent: the state before that; see `node`.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use openraft::Raft;
use openraft::async_runtime::WatchReceiver;
use parking_lot::{Mutex, RwLock};
use rollout_ledger::seeded::{Bug, seeded};
use rollout_storage::{ImageStore, LogOptions, RaftLog};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::RaftConfig;
use crate::errors::OpenError;
use crate::identity::Identity;
use crate::leadership::{self, Leadership};
use crate::lease::{self, Followers, Promise, ReadLease};
use crate::log_store::LogStore;
use crate::machine::Machine;
use crate::member::MemberRecord;
use crate::peer::{Dialer, PeerContext, PeerLinks, Presence};
use crate::progress::Progress;
use crate::reachability::ReachabilityTable;
use crate::reads::ReadQueue;
use crate::rtt::{self, Samples};
use crate::state_machine::StateMachine;
use crate::transfer::Handovers;
use crate::types::Types;
use crate::{compaction, elector, heartbeats, joining, quorum, reclaim, watchdog};

/// The name of the log's directory below the data directory.
pub(crate) const LOG_DIR: &str = "log";
/// The name of the image's directory below the data directory.
pub(crate) const IMAGE_DIR: &str = "image";

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
    tasks: Mutex<Tasks>,
}

#[derive(Default)]
struct Tasks {
    /// End by themselves when consensus has.
    finite: Vec<JoinHandle<()>>,
    /// Wait for messages that may never come; nothing is lost when they are cut off.
    endless: Vec<JoinHandle<()>>,
}

/// The durable parts of a member, open. Clones share them.
#[derive(Clone)]
pub(crate) struct Stores {
    pub(crate) log: RaftLog,
    pub(crate) image: ImageStore,
    /// Held, and dropped last, by whatever holds a store: gone when both are closed.
    pub(crate) open: Arc<StoresOpen>,
}

/// A guard for the open stores of a member.
pub(crate) struct StoresOpen;

impl Stores {
    /// Opens, or creates, both stores. Blocks.
    pub(crate) fn open(dir: &Path) -> Result<Self, OpenError> {
        let log = RaftLog::open(
            &dir.join(LOG_DIR),
            LogOptions { unsafe_no_fsync: seeded(Bug::AckBeforeFsync), ..LogOptions::default() },
        )?;
        let image = ImageStore::open(&dir.join(IMAGE_DIR))?;
        Ok(Self { log, image, open: Arc::new(StoresOpen) })
    }
}

impl Running {
    /// Starts consensus on open stores. Must run on the runtime of consensus.
    pub(crate) async fn start(
        config: RaftConfig,
        identity: Identity,
        stores: Stores,
        dialer: Arc<Dialer>,
        leadership: watch::Sender<Leadership>,
    ) -> Result<Arc<Self>, OpenError> {
        let failed = |error: &dyn std::fmt::Display| OpenError::Start(error.to_string());
        let cluster = identity.cluster_id;
        let open = Arc::downgrade(&stores.open);
        let (loaded, settings) = (stores.clone(), config.clone());
        let machine =
            tokio::task::spawn_blocking(move || Machine::load(cluster, loaded, &settings))
                .await
                .map_err(|error| failed(&error))?
                .map_err(|error| failed(&error))?;
        let store = LogStore::new(stores.log, stores.open, config.log_keep_bytes)
            .map_err(|error| failed(&error))?;
        check_reach(&store, &machine)?;
        machine.check_version().map_err(OpenError::Start)?;

        let promise =
            Promise::make(&store, config.lease()).await.map_err(|error| failed(&error))?;
        let cluster_text = cluster.to_string();
        let openraft = openraft::Config {
            enable_elect: promise.kept_until().is_none(),
            ..config.openraft(&cluster_text).map_err(|error| failed(&error))?
        };
        let context = Arc::new(PeerContext {
            cluster_text,
            me: identity.member_id,
            dialer,
            member_records: RwLock::default(),
            promise_ms: promise.announced_ms(),
            followers: Followers::default(),
            handovers: Handovers::default(),
        });
        let raft = Raft::new(
            identity.member_id,
            Arc::new(openraft),
            PeerLinks(context.clone()),
            store.clone(),
            StateMachine::new(machine.clone()),
        )
        .await
        .map_err(|error| failed(&error))?;

        let (presence, lost) = Presence::new();
        let read_lease = ReadLease::new(config.lease());
        let progress = Progress::new(config.silence_max());
        let running = Arc::new(Self {
            identity,
            config,
            context,
            raft,
            store,
            machine,
            presence,
            progress,
            reads: ReadQueue::new(),
            promise,
            read_lease,
            round_trips: Samples::default(),
            reachability: ReachabilityTable::default(),
            started_ms: since_1970_ms(),
            open,
            closing: AtomicBool::new(false),
            image_bytes: AtomicU64::new(0),
            changing: tokio::sync::Mutex::default(),
            tasks: Mutex::default(),
        });
        *running.tasks.lock() = Tasks {
            finite: vec![
                tokio::spawn(leadership::watch(running.clone(), leadership)),
                tokio::spawn(compaction::run(running.clone())),
            ],
            endless: vec![
                tokio::spawn(elector::watch(running.clone(), lost)),
                tokio::spawn(heartbeats::send(running.clone())),
                tokio::spawn(joining::watch(running.clone())),
                tokio::spawn(lease::outlast(running.clone())),
                tokio::spawn(quorum::watch(running.clone())),
                tokio::spawn(rtt::watch(running.clone())),
                tokio::spawn(reclaim::run(running.clone())),
            ],
        };
        watchdog::start(&running, Handle::current());
        Ok(running)
    }

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

fn since_1970_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The log must reach back to the image: entries in between would be lost silently.
fn check_reach(store: &LogStore, machine: &Machine) -> Result<(), OpenError> {
    let (purged, _) = store.state().map_err(|error| OpenError::Start(error.to_string()))?;
    let applied = machine.read(|state| state.applied);
    if purged.map(|id| id.index()) > applied.map(|id| id.index()) {
        let text = |id: Option<crate::types::LogId>| {
            id.map_or_else(|| "nothing".to_owned(), |id| format!("index {}", id.index()))
        };
        return Err(OpenError::Start(format!(
            "the log was purged up to {}, but the image of the ledger holds {}: the image was lost or replaced; \
             this member must be replaced under a new id",
            text(purged),
            text(applied)
        )));
    }
    Ok(())
}
