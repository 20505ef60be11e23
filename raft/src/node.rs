//! Owns: the interface of this crate: one member, from waiting to be adopted to shutting down.
//!
//! Invariant: without an identity on disk there is no consensus in this process, so an emptied directory never
//! votes.
//! Absent: openraft's types. They end here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, ForwardReason};
use openraft::impls::ProgressResponder;
use parking_lot::RwLock;
use rollout_ledger::seeded::{Bug, seeded};
use rollout_ledger::{Ledger, Reply};
use rollout_proto::v1::peer_server::PeerServer;
use rollout_storage::Space;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::backup::{Backup, BackupError};
use crate::config::RaftConfig;
use crate::digest::Digests;
use crate::disk_space::{DiskRoom, DiskSpace};
use crate::errors::{ClusterError, NotLeader, OpenError, ProposeError};
use crate::event_ring::{Compacted, EventPage, EventPosition};
use crate::identity::{Identity, contradiction};
use crate::leadership::Leadership;
use crate::log_store::LogStore;
use crate::machine::{APPLIED, MEMBERSHIP, blocking};
use crate::member::MemberRecord;
use crate::peer::{Dialer, MESSAGE_BYTES_MAX, PeerService};
use crate::quorum::{self, LEASES_AWAITED, Missed, since_quorum};
use crate::reads;
use crate::running::{IMAGE_DIR, LOG_DIR, Running, Stores};
use crate::runtime::OwnRuntime;
use crate::status::NodeStatus;
use crate::types::Command;
use crate::{backup, cluster, membership, successor, transfer};

mod adoption;

/// One member of a cluster, or a process that waits to become one. Clones share it.
#[derive(Clone)]
pub struct Node {
    inner: Arc<Inner>,
}

struct Inner {
    config: RaftConfig,
    running: RwLock<Option<Arc<Running>>>,
    /// Whether a member sent it, while it belonged to no cluster, what is for a member of one.
    sought: AtomicBool,
    /// Held while the member is being adopted.
    adopting: tokio::sync::Mutex<Adopting>,
    leadership: watch::Sender<Leadership>,
    dialer: Arc<Dialer>,
    disk: Arc<DiskSpace>,
    // Last: what runs on it is dropped before it.
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
        // Its runtime goes next, and consensus with it: intended, as far as that can be known.
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
                sought: AtomicBool::new(false),
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
        let (config, told) = (self.inner.config.clone(), self.inner.leadership.clone());
        let dialer = self.inner.dialer.clone();
        let starting = Running::start(config, identity, stores, dialer, told);
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

    /// The runtime on which consensus lives. Serving the peer port on it keeps heartbeats apart from other load.
    pub fn runtime(&self) -> Handle {
        self.inner.runtime.handle().clone()
    }

    /// How this member's disk stood half a second ago at most.
    pub fn disk_room(&self) -> DiskRoom {
        self.inner.disk.room()
    }

    /// The room of the file system of its data, as of then.
    pub fn disk_space(&self) -> Space {
        self.inner.disk.space()
    }

    /// Who this member is; `None` while it waits to be adopted.
    pub fn identity(&self) -> Option<Identity> {
        self.running().map(|running| running.identity.clone())
    }

    /// True while this member belongs to no cluster.
    pub fn is_waiting(&self) -> bool {
        self.running().is_none()
    }

    /// True while this member belongs to no cluster and members of one send it what is for a member: one was at its
    /// address, and its data is gone. A member that is being added is sought so too, until it is adopted a moment later.
    pub fn awaits_replacement(&self) -> bool {
        self.is_waiting() && self.inner.sought.load(Ordering::Relaxed)
    }

    /// A member of a cluster sent what only a member can answer.
    pub(crate) fn was_sought(&self) {
        if !self.inner.sought.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                name = self.inner.config.name,
                "a cluster seeks a member here, and the data directory is empty: it is to be replaced"
            );
        }
    }

    /// Lists an empty, waiting member, with the versions that it says it can run, as one that joins, in the place of the voter `replace` if one is named (it may have
    /// the same name: its disk was lost), and returns its id. This member must lead. What [`MemberRecord::joins`] says is
    /// done afterwards, by whoever leads then; asking again changes nothing.
    pub async fn add_member(
        &self,
        member: MemberRecord,
        replace: Option<&str>,
    ) -> Result<u64, ClusterError> {
        membership::add_member(&*self.leading()?, member, replace).await
    }

    /// Has a learner get a vote once it has caught up. This member must lead.
    pub async fn promote_member(&self, name: &str) -> Result<(), ClusterError> {
        membership::promote_member(&*self.leading()?, name).await
    }

    /// Records new addresses, zone or versions of the member with the record's id, whose name stays. This member must
    /// lead.
    pub async fn update_member(&self, member: MemberRecord) -> Result<(), ClusterError> {
        membership::update_member(&*self.leading()?, member).await
    }

    /// Which cluster versions each member supports, by its own word of just now.
    pub async fn supported_versions(
        &self,
    ) -> Vec<(MemberRecord, Result<(u32, u32), ClusterError>)> {
        let (own, dialer) = (&self.inner.config, &*self.inner.dialer);
        // By its id: another, that is to take its place, may have its name.
        let me = self.identity().map(|identity| identity.member_id);
        let asked = self.members().into_iter().map(|(member, _)| async move {
            if Some(member.id) == me {
                return (member, Ok(own.versions));
            }
            let answer = cluster::hello(dialer, &member).await;
            (member, answer.map(|answer| (answer.version_min, answer.version_max)))
        });
        futures::future::join_all(asked).await
    }

    /// Takes a member out of the cluster. This member must lead; one that names itself hands leadership over, and says
    /// who is to be asked. Begun, it goes on to its end, whatever becomes of who asked for it.
    pub async fn remove_member(&self, name: &str) -> Result<(), ClusterError> {
        let (running, name) = (self.leading()?, name.to_owned());
        let removing = async move { membership::remove_member(&running, &name).await };
        let ended = |error: tokio::task::JoinError| ClusterError::Unfinished(error.to_string());
        self.inner.runtime.handle().spawn(removing).await.map_err(ended)?
    }

    /// Proposes a command, if this member still leads in term `epoch`, and waits until it is applied here. Returns
    /// its log index and the ledger's replies.
    ///
    /// A leader whose lease has lapsed, on a machine that is busy for a moment, is waited for, two leases at most.
    /// Concurrent proposals are applied in any order.
    pub async fn propose(
        &self,
        epoch: u64,
        command: Vec<u8>,
    ) -> Result<(u64, Vec<Reply>), ProposeError> {
        let max = self.inner.config.command_bytes_max;
        if command.len() > max {
            return Err(ProposeError::TooLarge { bytes: command.len(), max });
        }
        let Some(running) = self.running() else {
            return Err(match *self.inner.leadership.borrow() {
                Leadership::Stopped => ProposeError::Stopped,
                _ => ProposeError::NotLeader { leader: None },
            });
        };
        let command = Command(Bytes::from(command));
        let lease = running.config.lease();
        let give_up = std::time::Instant::now() + LEASES_AWAITED * lease;
        loop {
            let (responder, answer) = ProgressResponder::complete_only();
            let write = running.raft.write(command.clone());
            let write = if seeded(Bug::EpochUnchecked) { write } else { write.with_leader(epoch) };
            let write = write.responder(responder);
            if write.await.is_err() {
                return Err(ProposeError::Stopped);
            }
            match answer.await {
                Ok(Ok(response)) => return Ok((response.log_id.index(), response.data.0)),
                // Refused before it was appended: it may be proposed again without doubt.
                Ok(Err(ClientWriteError::ForwardToLeader(forward))) => {
                    let late = std::time::Instant::now() >= give_up;
                    if forward.reason != ForwardReason::LeaseExpired || late {
                        return Err(ProposeError::NotLeader { leader: forward.leader_node });
                    }
                    tokio::time::sleep(lease / 10).await;
                }
                // Discarded, superseded by a snapshot, or consensus ended: others may have committed it.
                Ok(Err(_)) | Err(_) => return Err(ProposeError::Unknown),
            }
        }
    }

    /// Confirms with a quorum that this member leads, waits until it has applied everything committed before, and
    /// returns the term in which it leads.
    pub async fn barrier(&self) -> Result<u64, NotLeader> {
        Ok(reads::confirm(&*self.leading()?).await?.0)
    }

    /// For a linearizable read: returns once this member has applied everything that was acknowledged before the
    /// call, with the index up to which that is. Concurrent callers share one round of the quorum.
    pub async fn read_index(&self) -> Result<u64, NotLeader> {
        let running = self.leading()?;
        running.reads.read(&running).await
    }

    /// True while a quorum has acknowledged this leader within the lease, so that nobody else can have been elected.
    /// Cheap enough to ask for every message.
    pub fn lease_valid(&self) -> bool {
        self.running().is_some_and(|running| quorum::lease_valid(&running))
    }

    /// Returns once this leader has gone without a quorum for so long that what it has under way must be taken as in
    /// doubt: two leases beyond its own. Time in which this process stood still counts once at most. Never returns at
    /// a leader that is well.
    pub async fn quorum_lost(&self) {
        let Some(running) = self.running() else { return };
        let mut missed = Missed::new(&running);
        while !missed.for_leases(LEASES_AWAITED, || !quorum::lease_valid(&running)).await {}
    }

    /// Reads the ledger as of now. Do not block or call this crate from `f`: applying waits meanwhile. `None` while
    /// this member belongs to no cluster.
    pub fn with_ledger<R>(&self, f: impl FnOnce(&Ledger) -> R) -> Option<R> {
        self.running().map(|running| running.machine.read(|state| f(&state.ledger)))
    }

    /// Up to `max` events of the ledger at or after `from`, from what this member has applied. A place ahead of that
    /// is waited for with [`Self::events_told`].
    pub fn events(&self, from: EventPosition, max: usize) -> Result<EventPage, Compacted> {
        match self.running() {
            Some(running) => running.machine.events(from, max),
            None => Ok(EventPage { records: Vec::new(), next: from, more: false }),
        }
    }

    /// The oldest index whose events are all held here, and the one after the last applied.
    pub fn event_bounds(&self) -> (u64, u64) {
        self.running().map_or((0, 0), |running| running.machine.event_bounds())
    }

    /// Changes when this member has new events; `None` while it belongs to no cluster.
    pub fn events_told(&self) -> Option<watch::Receiver<u64>> {
        self.running().map(|running| running.machine.events_told())
    }

    /// Changes with every entry that this member has applied; `None` while it belongs to no cluster.
    pub fn applied_told(&self) -> Option<watch::Receiver<u64>> {
        self.running().map(|running| running.machine.applied_next())
    }

    /// Waits until this member has applied `index`; false after `wait`.
    pub async fn applied(&self, index: u64, wait: Duration) -> bool {
        let Some(running) = self.running() else { return false };
        let mut applied = running.machine.applied_next();
        let reached = applied.wait_for(|next| *next > index);
        matches!(tokio::time::timeout(wait, reached).await, Ok(Ok(_)))
    }

    /// The leader, this member included, where it was heard lately; of itself, as leader, where a quorum was. `None` at one
    /// that is cut off or left over, for which [`leader`](Self::leader) names the last leader for ever, and at one that was
    /// removed: nobody sends to it any more.
    ///
    /// Lately is four leases and two seconds: longer than two elections, and than a busy machine stands still. A leader with
    /// a valid lease is always heard.
    pub fn heard_leader(&self) -> Option<MemberRecord> {
        let running = self.running()?;
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        let leader = metrics.current_leader?;
        let silence = if leader == running.context.me {
            since_quorum(&metrics)
        } else {
            running.presence.of(leader).0.map(|heard| heard.elapsed())
        };
        silence.filter(|silence| *silence < running.config.silence_max())?;
        metrics.membership_config.get_node(&leader).cloned()
    }

    /// Who leads, as far as this member knows, as it changes.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.inner.leadership.subscribe()
    }

    /// The members, with whether each has a vote, in the order of their ids.
    pub fn members(&self) -> Vec<(MemberRecord, bool)> {
        let Some(running) = self.running() else { return Vec::new() };
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        let config = &metrics.membership_config;
        let voters: Vec<u64> = config.voter_ids().collect();
        config.nodes().map(|(id, member)| (member.clone(), voters.contains(id))).collect()
    }

    /// The log index of the list of members; it grows with every change.
    pub fn membership_index(&self) -> u64 {
        let Some(running) = self.running() else { return 0 };
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.log_id().map_or(0, |id| id.index())
    }

    /// Who is to be asked for what a leader does: the last leader that is known, this member included. Whether it still
    /// is one, [`heard_leader`](Self::heard_leader) says.
    pub fn leader(&self) -> Option<MemberRecord> {
        let running = self.running()?;
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        let id = metrics.current_leader?;
        metrics.membership_config.get_node(&id).cloned()
    }

    /// This member's view of its own consensus.
    pub fn status(&self) -> NodeStatus {
        self.running().map_or_else(NodeStatus::waiting, |running| NodeStatus::of(&running))
    }

    /// This member's digests at `index`, an entry that asked for digests; `None` if they are not known after `wait`.
    pub async fn digests(&self, index: u64, wait: Duration) -> Option<Digests> {
        let running = self.running()?;
        running.machine.digests().at(index, wait).await
    }

    /// The ledger as this member has it now, everything applied so far included, to be written to a snapshot file. `None`
    /// while it belongs to no cluster. `program` and `wall_ms` go into the file's header.
    pub async fn backup(&self, program: &str, wall_ms: u64) -> Result<Option<Backup>, BackupError> {
        let Some(running) = self.running() else { return Ok(None) };
        let cluster_version = running.machine.read(|state| state.ledger.version());
        let checkpoint = running.machine.checkpoint().await?;
        let mut header = backup::header(&running.identity, program, wall_ms);
        header.cluster_version = cluster_version;
        let bytes = running.image_bytes.load(Ordering::Relaxed);
        blocking(move || Backup::new(checkpoint, header, bytes)).await.map(Some)
    }

    /// Hands leadership to the named member, or to the most advanced one, and waits until it has left. Refused where that one
    /// does not answer or has not nearly all of the log, and does not within a second: writes would wait for it.
    pub async fn transfer_leader(&self, to: Option<&str>) -> Result<(), ClusterError> {
        transfer::transfer_leader(&*self.leading()?, to).await
    }

    /// Hands leadership to the voter that keeps up and whose disk has most room, and waits until it has left; false where all
    /// are full.
    pub async fn leave_full_disk(&self) -> Result<bool, ClusterError> {
        successor::to_one_with_room(&*self.leading()?).await
    }

    /// Hands leadership over where possible, then ends consensus and closes the stores. Other clones see a stopped
    /// member.
    pub async fn shutdown(&self) {
        if let Some(running) = self.running()
            && let Err(error) = transfer::transfer_leader(&running, None).await
        {
            tracing::debug!(%error, "leadership was not handed over before the end");
        }
        self.stop().await;
    }

    /// Ends consensus and closes the stores without handing leadership over. An adoption that is under way ends before, so
    /// that what it has opened is closed too; later ones are refused.
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
/// How often that is looked at. Whoever holds a store last says nothing when it lets go.
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
