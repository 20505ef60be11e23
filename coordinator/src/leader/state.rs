//! The state of a member while it leads: an open epoch, a way into the log, its workers.
//!
//! A term becomes an epoch in this order: a read barrier, so that everything committed before is applied; a committed
//! `OpenEpoch`, so that the ledger refuses every other leader; in a new cluster, its version; then dispatch.
//!
//! *Invariant:* a [`LeaderState`] exists for at most one epoch at a time, and ends before the next.

mod idle_slots;
mod job_silence;
mod members;
mod suspicion;
#[cfg(test)]
pub(crate) mod test_leader;
#[cfg(test)]
mod tests;

use crate::leader::batch_owners;
use crate::leader::cluster_version;
use crate::leader::dispatch;
use crate::leader::fence::Fence;
use crate::leader::full_disk;
use crate::leader::heartbeat_pace;
use crate::leader::job_liveness::KeepAlives;
use crate::leader::leader_clock::LeaderClock;
use crate::leader::ledger_read::ReadLedger;
use crate::leader::parked_pulls::ParkedPulls;
use crate::leader::proposer::{Proposer, propose};
use crate::leader::stealing::Stealing;
use crate::leader::webhooks::{self, Webhooks};
use crate::leader::worker_liveness::Liveness;
use crate::leader::worker_stream::WorkerStream;
use parking_lot::{Mutex, RwLock};
use rollout_config::coordinator::Workers;
use rollout_ledger::id::{CoordEpoch, LedgerMs, RunNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::{Body, HeldRows, LeaderCause, OpKind, Reply};
use rollout_proto::{RpcError, v1};
use rollout_raft::{DiskRoom, Leadership, Node};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

/// The way to a worker: answers and control, in order. An error ends its stream.
pub(crate) type Outbox = mpsc::Sender<Result<v1::LeaderMessage, RpcError>>;

/// How often the leader checks deadlines.
const TICK: Duration = Duration::from_millis(50);
/// How often the leader checks workers for silence, in ticks.
const LIVENESS_TICKS: u32 = 5;
/// How often the leader checks whether a quorum answers. Ledger time advances only while one does.
const HOLD_EVERY: Duration = Duration::from_millis(25);
/// Ledger time advances at least this often, so that it never falls so far behind that the ledger refuses the step.
const TICK_AT_LEAST: Duration = Duration::from_secs(15);
/// How long the leader waits between two searches for rows that idle slots may steal.
const STEAL_LOOK_EVERY: Duration = Duration::from_millis(25);
/// How often the leader checks parked pulls without a notification of new work.
const PUMP_AT_LEAST: Duration = Duration::from_millis(250);

/// One epoch of leadership.
pub(crate) struct LeaderState {
    pub(crate) epoch: u64,
    pub(crate) node: Node,
    pub(crate) proposer: Proposer,
    pub(crate) liveness: Liveness,
    /// When processes of training jobs were last heard.
    pub(crate) keep_alives: KeepAlives,
    pub(crate) parked_pulls: ParkedPulls,
    pub(crate) stealing: Stealing,
    pub(crate) streams: Mutex<HashMap<SessionId, Arc<WorkerStream>>>,
    pub(crate) ended: CancellationToken,
    /// A command was applied that may have made work for a parked pull.
    changed: Arc<Notify>,
    clock: Arc<LeaderClock>,
    workers: Workers,
    /// In every answer; formatted once.
    pub(crate) cluster_id: String,
    folders: RwLock<HashMap<RunNo, Arc<(String, String)>>>,
}

/// Where the current epoch is found, if this member leads.
pub(crate) type Current = Arc<RwLock<Option<Arc<LeaderState>>>>;

/// Follows leadership for as long as the process lives. Calls `on_open` with each epoch that it opens.
pub(crate) async fn follow(
    node: Node,
    workers: Workers,
    current: Current,
    fence: Fence,
    (hooks, on_open): (Option<Arc<Webhooks>>, impl Fn(&Arc<LeaderState>)),
) {
    let mut leadership = node.leadership();
    loop {
        let now = leadership.borrow_and_update().clone();
        match now {
            Leadership::Leader { term } => {
                let opened = tokio::select! {
                    leader = open(&node, term, &workers) => leader,
                    _ = leadership.changed() => continue,
                };
                if let Some(leader) = opened {
                    on_open(&leader);
                    let telling = webhooks::deliver(leader.clone(), hooks.clone());
                    tokio::spawn(leader.clone().until_ended(telling));
                    let owners = batch_owners::assign(leader.clone());
                    tokio::spawn(leader.clone().until_ended(owners));
                    fence.leads();
                    *current.write() = Some(leader.clone());
                    tracing::info!(epoch = leader.epoch, "dispatch is open");
                    wait_until_deposed(&mut leadership, leader.epoch).await;
                    let now = leadership.borrow().clone();
                    depose(leader, &current, &fence, &now).await;
                }
            }
            Leadership::Follower { .. } => {
                if leadership.changed().await.is_err() {
                    return;
                }
            }
            Leadership::Stopped => return,
        }
    }
}

async fn wait_until_deposed(leadership: &mut tokio::sync::watch::Receiver<Leadership>, epoch: u64) {
    while *leadership.borrow_and_update() == (Leadership::Leader { term: epoch }) {
        if leadership.changed().await.is_err() {
            return;
        }
    }
}

/// Opens the epoch of `term`, for as long as this member leads.
async fn open(node: &Node, term: u64, workers: &Workers) -> Option<Arc<LeaderState>> {
    let mut before = OpeningContext::default();
    loop {
        let still = *node.leadership().borrow() == (Leadership::Leader { term });
        if !still {
            return None;
        }
        match try_open(node, term, workers, &mut before).await {
            Ok(leader) => return Some(leader),
            Err(why) => {
                tracing::debug!(term, %why, "the epoch is not open yet");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

/// What a leader determines before it opens its epoch. Opening it changes both: a new cluster no longer counts as new,
/// and the ledger no longer has the epoch of the former leader.
#[derive(Default)]
struct OpeningContext {
    begins_with: Option<u32>,
    cause: Option<LeaderCause>,
}

async fn try_open(
    node: &Node,
    term: u64,
    workers: &Workers,
    before: &mut OpeningContext,
) -> Result<Arc<LeaderState>, String> {
    let leads = node.barrier().await.map_err(|e| e.to_string())?;
    if leads != term {
        return Err(format!("term {leads} has come"));
    }
    if node.ledger(cluster_version::is_new) {
        before.begins_with = cluster_version::of_new_cluster(node).await;
    }
    let cause = *before.cause.get_or_insert_with(|| members::cause(node));
    let base = node.ledger(|l| l.clock());
    let clock = Arc::new(LeaderClock::new(base));
    let propose = async |body| {
        let applied = propose(node, CoordEpoch(term), &clock, body).await;
        applied.map(|(_, replies)| replies).map_err(|error| error.to_string())
    };
    let replies = propose(Body::OpenEpoch).await?;
    let Some(Reply::EpochOpened { .. }) = replies.first() else {
        return Err(format!("the ledger answered {:?}", replies.first()));
    };
    if let Some(version) = before.begins_with {
        match propose(Body::SetVersion(version)).await?.first() {
            Some(Reply::Ok) => {
                tracing::info!(version, "the new cluster begins with its members' newest version");
            }
            other => return Err(format!("the ledger answered {other:?}")),
        }
    }
    let leader = LeaderState::start(node, term, clock, workers);
    tokio::spawn(leader.clone().until_ended(leader.clone().report_members(cause)));
    Ok(leader)
}

/// Ends an epoch: stops dispatch and closes every stream.
async fn depose(leader: Arc<LeaderState>, current: &Current, fence: &Fence, now: &Leadership) {
    fence.begin();
    *current.write() = None;
    leader.ended.cancel();
    match now {
        Leadership::Leader { term: observed } | Leadership::Follower { term: observed, .. } => {
            let stale = leader.epoch;
            tracing::warn!(event = "coordinator_fenced", stale, observed, "deposed");
            metrics::counter!("rollout_coordinator_fenced_total").increment(1);
        }
        // No other member took the epoch; this member is shutting down.
        Leadership::Stopped => {}
    }
    while !leader.streams.lock().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    fence.done();
}

impl LeaderState {
    fn start(node: &Node, epoch: u64, clock: Arc<LeaderClock>, workers: &Workers) -> Arc<Self> {
        let changed = Arc::new(Notify::new());
        let notify = changed.clone();
        let proposer =
            Proposer::start(node.clone(), epoch, clock.clone(), move || notify.notify_one());
        let leader = Arc::new(Self {
            epoch,
            node: node.clone(),
            proposer,
            liveness: Liveness::new(clock.now()),
            keep_alives: KeepAlives::default(),
            parked_pulls: ParkedPulls::default(),
            stealing: Stealing::default(),
            streams: Mutex::default(),
            ended: CancellationToken::new(),
            changed,
            clock,
            workers: workers.clone(),
            cluster_id: node.identity().map(|i| i.cluster_id.to_string()).unwrap_or_default(),
            folders: RwLock::default(),
        });
        tokio::spawn(leader.clone().until_ended(leader.clone().keep_time()));
        tokio::spawn(leader.clone().until_ended(leader.clone().hold_time()));
        tokio::spawn(leader.clone().until_ended(leader.clone().pump()));
        leader
    }

    pub(crate) async fn until_ended(self: Arc<Self>, work: impl Future<Output = ()>) {
        tokio::select! {
            () = self.ended.cancelled() => {}
            () = work => {}
        }
    }

    /// Applies an operation of the leader's own, or says why that failed.
    pub(crate) async fn applied(&self, kind: OpKind) -> Result<(), String> {
        match self.proposer.op(kind).await {
            Ok(Reply::Rejected(why)) => Err(why.to_string()),
            Ok(_) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The namespace of a run and the folder of its objects in that namespace. Both never change.
    pub(crate) fn run_folder(&self, no: RunNo) -> Option<Arc<(String, String)>> {
        if let Some(folder) = self.folders.read().get(&no) {
            return Some(folder.clone());
        }
        let folder = Arc::new(self.node.ledger(|l| l.run_folder(no))?);
        self.folders.write().insert(no, folder.clone());
        Some(folder)
    }

    /// The heartbeat interval for a fleet of this many workers.
    pub(crate) fn heartbeat_ms(&self, workers: usize) -> u32 {
        heartbeat_pace::interval_ms(&self.workers, workers)
    }

    /// Ledger time as this leader counts it.
    pub(crate) fn now(&self) -> LedgerMs {
        self.clock.now()
    }

    /// Forgets the folder of a deleted run.
    pub(crate) fn remove_folder(&self, no: RunNo) {
        self.folders.write().remove(&no);
    }

    /// The outbox of a connected worker.
    pub(crate) fn outbox(&self, session: SessionId) -> Option<Outbox> {
        self.streams.lock().get(&session).map(|stream| stream.out.clone())
    }

    /// What a worker's engines ran when it was last heard, and what it may have started since.
    pub(crate) fn maybe_started(&self, session: SessionId) -> Vec<HeldRows> {
        let Some((mut started, _)) = self.liveness.started_at(session) else {
            return Vec::new(); // unknown
        };
        started.extend(self.unreported_starts(session));
        started
    }

    /// Rows that a worker may have started since its last heartbeat: all rows granted since, and of those that were
    /// queued then as many as its engines run at once.
    fn unreported_starts(&self, session: SessionId) -> Vec<HeldRows> {
        let (started, index) = self.liveness.started_at(session).unwrap_or_default();
        let queues = self.node.ledger(|l| l.queues(session)).into_iter().zip(0..);
        let concurrency =
            |number| self.stealing.concurrency(SlotRef { session, slot: SlotNo(number) });
        let queues = queues.map(|(queue, number)| (queue, concurrency(number)));
        queues.flat_map(|(queue, next)| not_reported(queue, &started, index, next)).collect()
    }

    /// Wakes the pump: new rows may have become grantable.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Proposes commands that are due by time or because of silence.
    async fn keep_time(self: Arc<Self>) {
        let mut interval = tokio::time::interval(TICK);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut last_tick = Instant::now();
        let mut round = 0u32;
        let mut handed_over = Instant::now();
        loop {
            interval.tick().await;
            round = round.wrapping_add(1);
            let due = self.node.ledger(|l| l.next_deadline());
            let now = self.clock.now();
            if due.is_some_and(|at| at <= now) || last_tick.elapsed() > TICK_AT_LEAST {
                last_tick = Instant::now();
                match self.proposer.command(Body::Tick).await {
                    Ok((index, _)) => self.revoke_taken(index, "the time limit is over"),
                    Err(error) => tracing::debug!(%error, "the tick was not applied"),
                }
                self.wake();
            }
            if round.is_multiple_of(LIVENESS_TICKS) {
                self.look_at_workers().await;
                self.look_at_jobs().await;
                self.parked_pulls.sweep();
                self.offer_speculative_attempts();
                full_disk::hand_over(&self, &mut handed_over);
            }
        }
    }

    /// Holds ledger time, which also measures silence, while no quorum answers. This task is separate from
    /// [`Self::keep_time`] because that one waits for commands.
    async fn hold_time(self: Arc<Self>) {
        let mut interval = tokio::time::interval(HOLD_EVERY);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            match self.node.lease_valid() {
                true => {
                    self.clock.go_on();
                    // Reads the clock, so that a later `hold` stops it here.
                    self.clock.now();
                }
                false => self.clock.hold(),
            }
        }
    }

    /// Records the load of a worker's slots. Returns true if one of them has an empty queue.
    pub(crate) fn record_loads(&self, session: SessionId, slots: &[v1::SlotLoad]) -> bool {
        self.node.ledger(|l| self.stealing.record_loads(session, slots, |slot| l.held_needs(slot)))
    }

    /// Serves parked pulls when there is something to give.
    async fn pump(self: Arc<Self>) {
        let mut looked = Instant::now();
        loop {
            let until_look = STEAL_LOOK_EVERY.saturating_sub(looked.elapsed());
            let looks = self.stealing.is_due() && !self.parked_pulls.is_empty();
            let wait = if looks { until_look } else { PUMP_AT_LEAST };
            let _ = tokio::time::timeout(wait, self.changed.notified()).await;
            if self.parked_pulls.is_empty() {
                continue;
            }
            let full = self.node.disk_room() == DiskRoom::Full;
            let ready = self.node.ledger(|l| self.parked_pulls.take_ready(l, !full));
            for pull in ready {
                tokio::spawn(dispatch::serve_parked(self.clone(), pull));
            }
            // Each scan takes a step for each parked slot of the cohorts that may steal.
            if looked.elapsed() >= STEAL_LOOK_EVERY && self.stealing.take_due() {
                looked = Instant::now();
                self.send_steal_requests();
            }
        }
    }
}

/// The rows of a slot's queue, oldest first, that it may have started and that are not in `started`: all rows granted
/// after `index`, and the `next` rows before that.
fn not_reported(
    queue: Vec<HeldRows>,
    started: &[HeldRows],
    index: u64,
    mut next: u32,
) -> Vec<HeldRows> {
    let mut unreported_starts = Vec::new();
    for mut held in queue {
        let is_reported = |set: &&HeldRows| set.run == held.run && set.attempt == held.attempt;
        let reported: Vec<&HeldRows> = started.iter().filter(is_reported).collect();
        reported.into_iter().for_each(|set| held.rows.subtract(&set.rows));
        if held.attempt.index() <= index {
            held.rows = held.rows.take_first(next);
            next -= held.rows.len() as u32;
        }
        if !held.rows.is_empty() {
            unreported_starts.push(held);
        }
    }
    unreported_starts
}
