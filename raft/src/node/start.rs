//! Owns: the start of a member that belongs to a cluster: its storage, its consensus, and its background tasks.
//!
//! Invariant: a member starts only if its log reaches back to its image, and this build can run the cluster's version.
//! Absent: what each task does, and the end; see `running`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{SystemTime, UNIX_EPOCH};

use openraft::Raft;
use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use crate::config::RaftConfig;
use crate::consensus::leadership::{self, Leadership};
use crate::consensus::lease::{self, Promise, ReadLease};
use crate::consensus::progress::Progress;
use crate::consensus::reachability::ReachabilityTable;
use crate::consensus::reads::ReadQueue;
use crate::consensus::rtt::{self, Samples};
use crate::consensus::running::{Running, Tasks};
use crate::consensus::{elector, heartbeats, quorum};
use crate::errors::OpenError;
use crate::member::ClusterId;
use crate::membership::joining;
use crate::ops::{compaction, reclaim, watchdog};
use crate::peer::followers::Followers;
use crate::peer::handovers::Handovers;
use crate::peer::{Dialer, PeerContext, PeerLinks, Presence};
use crate::state::identity::Identity;
use crate::state::log_store::LogStore;
use crate::state::machine::Machine;
use crate::state::state_machine::StateMachine;
use crate::state::stores::Stores;

/// Starts consensus on open stores. Must run on the runtime of consensus.
pub(super) async fn start(
    config: RaftConfig,
    identity: Identity,
    stores: Stores,
    dialer: Arc<Dialer>,
    leadership: watch::Sender<Leadership>,
) -> Result<Arc<Running>, OpenError> {
    let failed = |error: &dyn std::fmt::Display| OpenError::Start(error.to_string());
    let open = Arc::downgrade(&stores.open);
    let (machine, store) = load(identity.cluster_id, stores, &config).await?;
    let promise = Promise::make(&store, config.lease()).await.map_err(|error| failed(&error))?;
    let cluster_text = identity.cluster_id.to_string();
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
    let running = Arc::new(Running {
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
    *running.tasks.lock() = start_tasks(&running, leadership, lost);
    watchdog::start(&running, Handle::current());
    Ok(running)
}

/// Loads the state machine from the image and the log, and opens the log for consensus.
async fn load(
    cluster: ClusterId,
    stores: Stores,
    config: &RaftConfig,
) -> Result<(Machine, LogStore), OpenError> {
    let failed = |error: &dyn std::fmt::Display| OpenError::Start(error.to_string());
    let (loaded, settings) = (stores.clone(), config.clone());
    let machine = tokio::task::spawn_blocking(move || Machine::load(cluster, loaded, &settings))
        .await
        .map_err(|error| failed(&error))?
        .map_err(|error| failed(&error))?;
    let store = LogStore::new(stores.log, stores.open, config.log_keep_bytes)
        .map_err(|error| failed(&error))?;
    check_reach(&store, &machine)?;
    Ok((machine, store))
}

/// Starts the background tasks. `lost` receives the members whose connections broke.
fn start_tasks(
    running: &Arc<Running>,
    leadership: watch::Sender<Leadership>,
    lost: mpsc::Receiver<u64>,
) -> Tasks {
    let finite = vec![
        tokio::spawn(leadership::watch(running.clone(), leadership)),
        tokio::spawn(compaction::run(running.clone())),
    ];
    let endless = vec![
        tokio::spawn(elector::watch(running.clone(), lost)),
        tokio::spawn(heartbeats::send(running.clone())),
        tokio::spawn(joining::watch(running.clone())),
        tokio::spawn(lease::outlast(running.clone())),
        tokio::spawn(quorum::watch(running.clone())),
        tokio::spawn(rtt::watch(running.clone())),
        tokio::spawn(reclaim::run(running.clone())),
    ];
    Tasks { finite, endless }
}

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
