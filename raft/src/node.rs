//! Owns: the interface of this crate: one member, from waiting to be adopted to shutting down.
//!
//! Invariant: without an identity on disk there is no consensus in this process, so an emptied directory never votes.
//! Absent: openraft's types. They do not pass this interface.

mod adoption;
mod local_reads;
mod members;
mod peer_service;
mod proposals;
mod runtime;
mod start;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::RwLock;
use rollout_proto::v1::peer_server::PeerServer;
use rollout_storage::Space;
use tokio::runtime::Handle;
use tokio::sync::watch;

pub use self::peer_service::PeerService;
use self::runtime::OwnRuntime;
use self::start::start;
use crate::config::RaftConfig;
use crate::consensus::leadership::Leadership;
use crate::consensus::running::Running;
use crate::errors::{NotLeader, OpenError};
use crate::ops::disk_space::{DiskRoom, DiskSpace};
use crate::ops::status::NodeStatus;
use crate::peer::{Dialer, MESSAGE_BYTES_MAX};
use crate::state::identity::{Identity, contradiction};
use crate::state::log_store::LogStore;
use crate::state::machine::{APPLIED, MEMBERSHIP};
use crate::state::stores::{IMAGE_DIR, LOG_DIR, Stores};

/// One member of a cluster, or a process that waits to become one. Clones share it.
#[derive(Clone)]
pub struct Node {
    inner: Arc<Inner>,
}

struct Inner {
    config: RaftConfig,
    running: RwLock<Option<Arc<Running>>>,
    /// Whether, while it belonged to no cluster, a member sent it a message meant for a member.
    expected_by_cluster: AtomicBool,
    /// Held while the member is being adopted.
    adopting: tokio::sync::Mutex<Adopting>,
    leadership: watch::Sender<Leadership>,
    dialer: Arc<Dialer>,
    disk: Arc<DiskSpace>,
    // Last, so that everything that runs on it is dropped first.
    runtime: OwnRuntime,
}

/// Whether this process may still become part of a cluster.
#[derive(PartialEq, Eq)]
enum Adopting {
    Open,
    /// It is stopping.
    Over,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Its runtime is dropped next, and consensus with it, so mark the end as intended.
        if let Some(running) = self.running.get_mut() {
            running.closing.store(true, Ordering::Release);
        }
    }
}

impl Node {
    /// Opens the data directory. With an identity in it, loads the image, replays the log and takes part in
    /// consensus; without one, waits for [`adopt`](Self::adopt).
    ///
    /// Refuses a directory that contradicts the configuration or itself, naming both sides.
    pub async fn open(config: RaftConfig) -> Result<Self, OpenError> {
        config.validate()?;
        let dialer = Arc::new(Dialer::new(&config)?);
        let runtime = OwnRuntime::new(config.threads)?;
        let (low, reserve) = (config.disk_low_bytes, config.disk_reserve_bytes);
        let disk = DiskSpace::watch(&config.data_dir, low, reserve)?;
        let node = Self {
            inner: Arc::new(Inner {
                config,
                running: RwLock::new(None),
                expected_by_cluster: AtomicBool::new(false),
                adopting: tokio::sync::Mutex::new(Adopting::Open),
                leadership: watch::Sender::new(Leadership::Follower { leader: None, term: 0 }),
                dialer,
                disk,
                runtime,
            }),
        };
        let config = node.inner.config.clone();
        let found = node.blocking(move || {
            let identity = Identity::load(&config)?;
            match identity {
                Some(identity) => Ok(Some((identity, Stores::open(&config.data_dir)?))),
                None => refuse_orphans(&config).map(|()| None),
            }
        });
        match found.await? {
            Some((identity, stores)) => node.start(identity, stores).await?,
            None => {
                tracing::info!(name = node.inner.config.name, "waiting to be adopted by a cluster")
            }
        }
        Ok(node)
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, OpenError> + Send + 'static,
    ) -> Result<T, OpenError> {
        let ended = |error: tokio::task::JoinError| OpenError::Start(error.to_string());
        self.inner.runtime.handle().spawn_blocking(work).await.map_err(ended)?
    }

    async fn start(&self, identity: Identity, stores: Stores) -> Result<(), OpenError> {
        let (config, leadership) = (self.inner.config.clone(), self.inner.leadership.clone());
        let dialer = self.inner.dialer.clone();
        let starting = start(config, identity, stores, dialer, leadership);
        let ended = |error: tokio::task::JoinError| OpenError::Start(error.to_string());
        let running = self.inner.runtime.handle().spawn(starting).await.map_err(ended)??;
        let identity = &running.identity;
        tracing::info!(cluster = %identity.cluster_id, id = identity.member_id, "consensus has started");
        *self.inner.running.write() = Some(running);
        Ok(())
    }

    pub(crate) fn running(&self) -> Option<Arc<Running>> {
        self.inner.running.read().clone()
    }

    fn leading(&self) -> Result<Arc<Running>, NotLeader> {
        self.running().ok_or(NotLeader { leader: None })
    }

    /// The configuration that this member was opened with.
    pub fn config(&self) -> &RaftConfig {
        &self.inner.config
    }

    /// The runtime of consensus. Serving the peer port on it keeps heartbeats apart from other load.
    pub fn runtime(&self) -> Handle {
        self.inner.runtime.handle().clone()
    }

    /// The state of this member's disk, at most half a second old.
    pub fn disk_room(&self) -> DiskRoom {
        self.inner.disk.room()
    }

    /// The room of its data's file system, measured at that time.
    pub fn disk_space(&self) -> Space {
        self.inner.disk.space()
    }

    /// This member's identity; `None` while it waits to be adopted.
    pub fn identity(&self) -> Option<Identity> {
        self.running().map(|running| running.identity.clone())
    }

    /// True while this member belongs to no cluster.
    pub fn is_waiting(&self) -> bool {
        self.running().is_none()
    }

    /// True while this member belongs to no cluster and members of a cluster send it messages for a member: a member
    /// was at its address, and its data is gone. A member that is being added gets such messages too, until it is
    /// adopted a moment later.
    pub fn awaits_replacement(&self) -> bool {
        self.is_waiting() && self.inner.expected_by_cluster.load(Ordering::Relaxed)
    }

    /// Records that a member of a cluster sent a message that only a member can answer.
    pub(crate) fn record_expected(&self) {
        if !self.inner.expected_by_cluster.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                name = self.inner.config.name,
                "a cluster expects a member at this address, but the data directory is empty: replace this member"
            );
        }
    }

    /// The leader, as far as this member knows, as it changes.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.inner.leadership.subscribe()
    }

    /// This member's view of its own consensus.
    pub fn status(&self) -> NodeStatus {
        self.running().map_or_else(NodeStatus::waiting, |running| NodeStatus::of(&running))
    }

    /// Hands leadership over where possible, then ends consensus and closes the stores. Other clones see a stopped
    /// member.
    pub async fn shutdown(&self) {
        if let Err(error) = self.leave_to_stop().await {
            tracing::debug!(%error, "leadership was not transferred before the end");
        }
        self.announce_stop().await;
        self.stop().await;
    }

    /// Ends consensus and closes the stores without handing leadership over. An adoption in progress finishes first,
    /// so that the stores it opened are closed too; later adoptions are refused.
    pub async fn stop(&self) {
        let mut adopting = self.inner.adopting.lock().await;
        *adopting = Adopting::Over;
        let Some(running) = self.inner.running.write().take() else { return };
        let open = running.open.clone();
        let stopping = async move { running.stop().await };
        if let Err(error) = self.inner.runtime.handle().spawn(stopping).await {
            tracing::warn!(%error, "this member did not stop cleanly");
        }
        self.inner.leadership.send_replace(Leadership::Stopped);
        let since = std::time::Instant::now();
        while open.strong_count() > 0 && since.elapsed() < CLOSE_LIMIT {
            tokio::time::sleep(CLOSE_POLL).await;
        }
        if open.strong_count() > 0 {
            tracing::warn!("the stores are still in use, they close when the process ends");
        }
    }

    /// The service to mount on the peer port. The caller checks that the other side is a member.
    pub fn peer_service(&self) -> PeerServer<PeerService> {
        PeerServer::new(PeerService::new(self.clone()))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }
}

/// How long the stores may take to close.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// How often the member checks that the stores are released. The last holder of a store gives no notice.
const CLOSE_POLL: Duration = Duration::from_millis(2);

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("name", &self.inner.config.name).finish_non_exhaustive()
    }
}

/// Refuses a directory that has a log with entries, or an image, but no identity: its identity was lost. Blocks.
fn refuse_orphans(config: &RaftConfig) -> Result<(), OpenError> {
    let dir = &config.data_dir;
    if !dir.join(LOG_DIR).is_dir() && !dir.join(IMAGE_DIR).is_dir() {
        return Ok(());
    }
    // An adoption that died before its last step leaves empty stores behind.
    let stores = Stores::open(dir)?;
    if stores.image.get(APPLIED)?.is_some() || stores.image.get(MEMBERSHIP)?.is_some() {
        let what = "it has an image of the ledger, but no file IDENTITY; restore that file, or replace this member \
                    under a new id with an empty directory";
        return Err(contradiction(dir, what.to_owned()));
    }
    let store = LogStore::new(stores.log, stores.open, config.log_keep_bytes)
        .map_err(|error| OpenError::Start(error.to_string()))?;
    if store.is_pristine() {
        return Ok(());
    }
    let what = "it has a log with votes or entries, but no file IDENTITY; restore that file, or replace this \
                member under a new id with an empty directory";
    Err(contradiction(dir, what.to_owned()))
}
