//! What a member is and has while it leads: an open epoch, a way into the log, its workers.
//!
//! A term becomes an epoch in this order: a read barrier, so that everything committed before is
//! applied; a committed `OpenEpoch`, so that the ledger refuses every other leader; in a new cluster its version; then
//! dispatch.
//!
//! *Invariant:* a [`Leading`] exists for at most one epoch at a time, and ends before the next.

#[cfg(test)]
pub(crate) mod alone;
mod suspicion;

use crate::cluster_version;
use crate::config::{Retention, Workers};
use crate::dispatch;
use crate::fence::Fence;
use crate::forgetting;
use crate::forgetting_checkpoints;
use crate::forgetting_orphans;
use crate::full_disk;
use crate::heartbeat_pace;
use crate::leader_clock::LeaderClock;
use crate::ledger_read::ReadLedger;
use crate::liveness::Liveness;
use crate::parked::Parked;
use crate::participants::{Participants, Silent};
use crate::proposer::{Proposer, propose};
use crate::run_stores::RunStores;
use crate::stealing::{Ask, Stealing};
use crate::webhooks::{self, Webhooks};
use crate::worker_stream::WorkerStream;
use parking_lot::{Mutex, RwLock};
use rollout_ledger::id::{CoordEpoch, LedgerMs, RunNo, SessionId, SlotNo, SlotRef};
#[cfg(feature = "seeded-bugs")]
use rollout_ledger::seeded::{Bug, seeded};
use rollout_ledger::{Body, CohortNo, HeldRows, Ledger, Op, OpKind, Reply, limits};
use rollout_proto::v1;
use rollout_raft::{DiskRoom, Leadership, Node};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

/// The way to a worker: answers and control, in order.
pub(crate) type Outbox = mpsc::Sender<Result<v1::LeaderMessage, tonic::Status>>;

/// How often deadlines are looked at.
const TICK: Duration = Duration::from_millis(50);
/// How often workers' silence is looked at, in ticks.
const LIVENESS_TICKS: u32 = 5;
/// How often it is looked whether a quorum answers, by which ledger time goes on.
const HOLD_EVERY: Duration = Duration::from_millis(25);
/// Ledger time is moved at least this often, so that it never falls a refused step behind.
const TICK_AT_LEAST: Duration = Duration::from_secs(15);
/// Rows of one run that are offered to idle slots at one look, while others run them.
const DUPLICATES_MAX: u32 = 1024;
/// How long the leader waits between two looks for rows that idle slots may steal.
const STEAL_LOOK_EVERY: Duration = Duration::from_millis(25);
/// How often parked pulls are looked at when nothing says that there is work.
const PUMP_AT_LEAST: Duration = Duration::from_millis(250);

/// One epoch of leadership.
pub(crate) struct Leading {
    pub(crate) epoch: u64,
    pub(crate) node: Node,
    pub(crate) proposer: Proposer,
    pub(crate) liveness: Liveness,
    /// When participants of training jobs were last heard.
    pub(crate) participants: Participants,
    pub(crate) parked: Parked,
    pub(crate) stealing: Stealing,
    pub(crate) streams: Mutex<HashMap<SessionId, Arc<WorkerStream>>>,
    pub(crate) ended: CancellationToken,
    /// Something was applied that may have made work for a parked pull.
    changed: Arc<Notify>,
    clock: Arc<LeaderClock>,
    workers: Workers,
    /// In every answer; formatted once.
    pub(crate) cluster_id: String,
    folders: RwLock<HashMap<RunNo, Arc<(String, String)>>>,
}

/// Where the current epoch is found, if this member leads.
pub(crate) type Current = Arc<RwLock<Option<Arc<Leading>>>>;

/// Follows leadership for as long as the process lives.
pub(crate) async fn follow(
    node: Node,
    workers: Workers,
    current: Current,
    fence: Fence,
    (stores, retention, hooks): (RunStores, Retention, Option<Arc<Webhooks>>),
) {
    let mut leadership = node.leadership();
    loop {
        let now = leadership.borrow_and_update().clone();
        match now {
            Leadership::Leader { term } => {
                let opened = tokio::select! {
                    leading = open(&node, term, &workers) => leading,
                    _ = leadership.changed() => continue,
                };
                if let Some(leading) = opened {
                    let forgetting =
                        forgetting::forget_runs(leading.clone(), stores.clone(), retention);
                    tokio::spawn(leading.clone().until_ended(forgetting));
                    let checkpoints = forgetting_checkpoints::forget_checkpoints(
                        leading.clone(),
                        stores.cluster().clone(),
                    );
                    tokio::spawn(leading.clone().until_ended(checkpoints));
                    let orphans = forgetting_orphans::sweep_orphans(
                        leading.clone(),
                        stores.cluster().clone(),
                        retention,
                    );
                    tokio::spawn(leading.clone().until_ended(orphans));
                    let telling = webhooks::deliver(leading.clone(), hooks.clone());
                    tokio::spawn(leading.clone().until_ended(telling));
                    fence.leads();
                    *current.write() = Some(leading.clone());
                    tracing::info!(epoch = leading.epoch, "dispatch is open");
                    wait_until_deposed(&mut leadership, leading.epoch).await;
                    let now = leadership.borrow().clone();
                    depose(leading, &current, &fence, &now).await;
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
async fn open(node: &Node, term: u64, workers: &Workers) -> Option<Arc<Leading>> {
    // What a new cluster begins with is decided once: after the epoch is open, it is new no more.
    let mut begins_with = None;
    loop {
        let still = *node.leadership().borrow() == (Leadership::Leader { term });
        if !still {
            return None;
        }
        match try_open(node, term, workers, &mut begins_with).await {
            Ok(leading) => return Some(leading),
            Err(why) => {
                tracing::debug!(term, %why, "the epoch is not open yet");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

async fn try_open(
    node: &Node,
    term: u64,
    workers: &Workers,
    begins_with: &mut Option<u32>,
) -> Result<Arc<Leading>, String> {
    let leads = node.barrier().await.map_err(|e| e.to_string())?;
    if leads != term {
        return Err(format!("term {leads} has come"));
    }
    if node.ledger(cluster_version::is_new) {
        *begins_with = cluster_version::of_new_cluster(node).await;
    }
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
    if let Some(version) = *begins_with {
        match propose(Body::SetVersion(version)).await?.first() {
            Some(Reply::Ok) => {
                tracing::info!(version, "the new cluster begins with its members' newest version");
            }
            other => return Err(format!("the ledger answered {other:?}")),
        }
    }
    Ok(Leading::start(node, term, clock, workers))
}

/// Ends an epoch: nothing is dispatched any more, and every stream is closed.
async fn depose(leading: Arc<Leading>, current: &Current, fence: &Fence, now: &Leadership) {
    fence.begin();
    *current.write() = None;
    leading.ended.cancel();
    match now {
        Leadership::Leader { term: observed } | Leadership::Follower { term: observed, .. } => {
            let stale = leading.epoch;
            tracing::warn!(event = "coordinator_fenced", stale, observed, "deposed");
            metrics::counter!("rollout_coordinator_fenced_total").increment(1);
        }
        // Nobody took the epoch: this member ends.
        Leadership::Stopped => {}
    }
    while !leading.streams.lock().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    fence.done();
}

impl Leading {
    fn start(node: &Node, epoch: u64, clock: Arc<LeaderClock>, workers: &Workers) -> Arc<Self> {
        let changed = Arc::new(Notify::new());
        let notify = changed.clone();
        let proposer =
            Proposer::start(node.clone(), epoch, clock.clone(), move || notify.notify_one());
        let leading = Arc::new(Self {
            epoch,
            node: node.clone(),
            proposer,
            liveness: Liveness::new(clock.now()),
            participants: Participants::default(),
            parked: Parked::default(),
            stealing: Stealing::default(),
            streams: Mutex::default(),
            ended: CancellationToken::new(),
            changed,
            clock,
            workers: workers.clone(),
            cluster_id: node.identity().map(|i| i.cluster_id.to_string()).unwrap_or_default(),
            folders: RwLock::default(),
        });
        tokio::spawn(leading.clone().until_ended(leading.clone().keep_time()));
        tokio::spawn(leading.clone().until_ended(leading.clone().hold_time()));
        tokio::spawn(leading.clone().until_ended(leading.clone().pump()));
        leading
    }

    pub(crate) async fn until_ended(self: Arc<Self>, work: impl Future<Output = ()>) {
        tokio::select! {
            () = self.ended.cancelled() => {}
            () = work => {}
        }
    }

    /// Namespace of a run and the folder of its objects within it, which never change.
    pub(crate) fn run_folder(&self, no: RunNo) -> Option<Arc<(String, String)>> {
        if let Some(folder) = self.folders.read().get(&no) {
            return Some(folder.clone());
        }
        let folder = Arc::new(self.node.ledger(|l| l.run_folder(no))?);
        self.folders.write().insert(no, folder.clone());
        Some(folder)
    }

    /// How often each of so many workers is to send a heartbeat.
    pub(crate) fn heartbeat_ms(&self, workers: usize) -> u32 {
        heartbeat_pace::interval_ms(&self.workers, workers)
    }

    /// Ledger time as this leader counts it.
    pub(crate) fn now(&self) -> LedgerMs {
        self.clock.now()
    }

    /// A run is gone.
    pub(crate) fn forget_folder(&self, no: RunNo) {
        self.folders.write().remove(&no);
    }

    /// The way to a worker that is connected.
    pub(crate) fn outbox(&self, session: SessionId) -> Option<Outbox> {
        self.streams.lock().get(&session).map(|stream| stream.out.clone())
    }

    /// What a worker's engines ran when it was last heard, and what it may have started since.
    pub(crate) fn maybe_started(&self, session: SessionId) -> Vec<HeldRows> {
        let Some((mut started, _)) = self.liveness.started_at(session) else {
            return Vec::new(); // Nobody knows.
        };
        started.extend(self.unheard(session));
        started
    }

    /// What a worker may have started since it was last heard: what it was given since, and of what waited then as many
    /// rows as its engines run at once.
    fn unheard(&self, session: SessionId) -> Vec<HeldRows> {
        let (started, index) = self.liveness.started_at(session).unwrap_or_default();
        let queues = self.node.ledger(|l| l.queues(session)).into_iter().zip(0..);
        let concurrency =
            |number| self.stealing.concurrency(SlotRef { session, slot: SlotNo(number) });
        let queues = queues.map(|(queue, number)| (queue, concurrency(number)));
        queues.flat_map(|(queue, next)| not_heard_of(queue, &started, index, next)).collect()
    }

    /// Something may have become grantable.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Proposes what is due by time, and what follows from silence.
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
                    Ok((index, _)) => self.revoke_taken(index, "their time is over"),
                    Err(error) => tracing::debug!(%error, "the tick was not applied"),
                }
                self.wake();
            }
            if round.is_multiple_of(LIVENESS_TICKS) {
                self.look_at_workers().await;
                self.look_at_participants().await;
                self.parked.sweep();
                self.offer_duplicates();
                full_disk::hand_over(&self, &mut handed_over);
            }
        }
    }

    /// Ledger time, by which silence is counted too, stands still while no quorum answers. Apart from [`Self::keep_time`],
    /// which waits for commands.
    async fn hold_time(self: Arc<Self>) {
        let mut interval = tokio::time::interval(HOLD_EVERY);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interval.tick().await;
            match self.node.lease_valid() {
                true => {
                    self.clock.go_on();
                    // So that it stands still from here on, if it does next.
                    self.clock.now();
                }
                false => self.clock.hold(),
            }
        }
    }

    /// Participants of training jobs that were silent for too long are lost.
    async fn look_at_participants(&self) {
        let all: Vec<(SessionId, u64)> = self.node.ledger(|l| l.keep_alives().collect());
        let silent = self.participants.silent(&all, self.now());
        for lost in silent.chunks(limits::OPS_PER_COMMAND_MAX) {
            let ops: Vec<Op> = lost
                .iter()
                .map(|&Silent { ticket, silent_ms }| {
                    tracing::warn!(%ticket, "a participant of a job is silent: lost");
                    OpKind::LoseParticipant { ticket, silent_ms }.into()
                })
                .collect();
            if let Err(error) = self.proposer.command(Body::Ops(ops)).await {
                tracing::debug!(%error, "the loss of participants was not applied");
            }
        }
    }

    /// Asks busy slots for rows, for those whose pulls still wait.
    fn ask_victims(self: &Arc<Self>) {
        let cohorts = self.parked.cohorts();
        let waiting = |cohort| self.parked.slots(cohort);
        let choose = |l: &Ledger| self.stealing.choose(Instant::now(), &cohorts, waiting, l);
        for ask in self.node.ledger(choose) {
            let Ask { victim, id, rows_max, runs } = ask;
            tracing::debug!(session = %victim.session, slot = %victim.slot, id, rows_max, "asking for rows");
            #[cfg(feature = "seeded-bugs")]
            if seeded(Bug::StealUnasked) {
                let held = self.node.ledger(|l| l.last_held(victim, rows_max));
                tokio::spawn(dispatch::take_unasked(self.clone(), victim, id, held));
                continue;
            }
            let runs = runs.iter().map(|no| no.0).collect();
            let asked = v1::Yield { slot: victim.slot.0.into(), id, rows_max, runs };
            let kind = Some(v1::leader_message::Kind::Yield(asked));
            let message = v1::LeaderMessage { header: Some(self.header()), kind };
            let out = self.outbox(victim.session);
            metrics::counter!("rollout_steal_asks_total").increment(1);
            if out.is_none_or(|out| out.try_send(Ok(message)).is_err()) {
                self.stealing.unasked(victim);
            }
        }
    }

    /// Gives slots that could start more what others run already, where a run's tail allows it and
    /// nobody has anything for them that was not started.
    fn offer_duplicates(self: &Arc<Self>) {
        if self.node.disk_room() == DiskRoom::Full {
            return;
        }
        let now = self.now();
        for (slot, room) in self.node.ledger(|l| self.duplicators(l, now)) {
            if let Some(pull) = self.parked.take(slot) {
                tokio::spawn(dispatch::duplicate_for(self.clone(), pull, room));
            }
        }
    }

    /// Slots that could run what others run, with how many rows.
    fn duplicators(&self, ledger: &Ledger, now: LedgerMs) -> Vec<(SlotRef, u32)> {
        let waiting: BTreeSet<CohortNo> = self.parked.cohorts().into_iter().collect();
        let mut chosen: BTreeMap<SlotRef, u32> = BTreeMap::new();
        if waiting.is_empty() {
            return Vec::new();
        }
        // Looked for once for each cohort, however many runs are at their tails.
        let mut idle: BTreeMap<CohortNo, Vec<(SlotRef, u32)>> = BTreeMap::new();
        let idle_of = |cohort| {
            let slots = self.parked.slots(cohort);
            let mut idle = self.stealing.idle((cohort, &slots), DUPLICATES_MAX as usize, ledger);
            idle.retain(|(slot, _)| ledger.takes_others_rows(*slot));
            idle
        };
        for tail in ledger.tails(now, DUPLICATES_MAX) {
            let mut left: u32 = tail.rows.iter().map(|held| held.1).sum();
            // A worker is of no use for what it runs itself.
            let others =
                |slot: &SlotRef| tail.rows.iter().any(|held| held.0.session != slot.session);
            for cohort in ledger.cohorts_for(tail.run) {
                if left == 0 || !waiting.contains(&cohort) {
                    continue;
                }
                let idle = idle.entry(cohort).or_insert_with(|| idle_of(cohort));
                idle.retain(|(slot, room)| {
                    if left == 0 || !others(slot) {
                        return true;
                    }
                    left = left.saturating_sub(*room);
                    chosen.insert(*slot, *room);
                    false
                });
            }
        }
        chosen.into_iter().collect()
    }

    /// Takes note of what a worker's slots have to do. True where one of them has nothing.
    pub(crate) fn heard_loads(&self, session: SessionId, slots: &[v1::SlotLoad]) -> bool {
        self.node.ledger(|l| self.stealing.heard(session, slots, |slot| l.held_needs(slot)))
    }

    /// Serves parked pulls when there is something to give.
    async fn pump(self: Arc<Self>) {
        let mut looked = Instant::now();
        loop {
            let until_look = STEAL_LOOK_EVERY.saturating_sub(looked.elapsed());
            let looks = self.stealing.is_due() && !self.parked.is_empty();
            let wait = if looks { until_look } else { PUMP_AT_LEAST };
            let _ = tokio::time::timeout(wait, self.changed.notified()).await;
            if self.parked.is_empty() {
                continue;
            }
            let full = self.node.disk_room() == DiskRoom::Full;
            let ready = self.node.ledger(|l| self.parked.take_ready(l, !full));
            for pull in ready {
                tokio::spawn(dispatch::serve_parked(self.clone(), pull));
            }
            // Each look costs a step for each parked slot of the cohorts that may steal.
            if looked.elapsed() >= STEAL_LOOK_EVERY && self.stealing.take_due() {
                looked = Instant::now();
                self.ask_victims();
            }
        }
    }
}

/// Of a slot's queue, the oldest first, what may have been started and is not among `started`: all that was granted after
/// `index`, and the `next` rows before that.
fn not_heard_of(
    queue: Vec<HeldRows>,
    started: &[HeldRows],
    index: u64,
    mut next: u32,
) -> Vec<HeldRows> {
    let mut unheard = Vec::new();
    for mut held in queue {
        let heard = |set: &&HeldRows| set.run == held.run && set.attempt == held.attempt;
        let heard: Vec<&HeldRows> = started.iter().filter(heard).collect();
        heard.into_iter().for_each(|set| held.rows.subtract(&set.rows));
        if held.attempt.index() <= index {
            held.rows = held.rows.take_first(next);
            next -= held.rows.len() as u32;
        }
        if !held.rows.is_empty() {
            unheard.push(held);
        }
    }
    unheard
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leading::alone::{Alone, PATIENCE};
    use crate::parked::Pull;
    use rollout_ledger::id::{Attempt, SegmentNo};
    use rollout_ledger::{BlobRef, EngineSpec, Rows, RunSpec, SegmentDecl};

    fn held(index: u64, first: u64, rows: u32) -> HeldRows {
        HeldRows { run: RunNo(1), attempt: Attempt::at(index, 0), rows: Rows::range(first, rows) }
    }

    #[test]
    fn what_was_given_since_and_what_was_next_may_have_been_started() {
        let queue = || vec![held(5, 0, 8), held(7, 8, 8), held(12, 16, 4)];
        let started = [held(5, 0, 6), held(7, 0, 8)];
        let unheard = not_heard_of(queue(), &started, 10, 4);
        assert_eq!(unheard, [held(5, 6, 2), held(7, 8, 2), held(12, 16, 4)]);
        assert_eq!(not_heard_of(queue(), &started, 10, 0), [held(12, 16, 4)]);
        // Of a worker that has not sent a heartbeat: anything.
        assert_eq!(not_heard_of(queue(), &[], 0, 0), queue());
    }

    #[tokio::test]
    async fn a_row_makes_one_claim_however_many_pulls_wait_for_it() {
        let silent_after = Workers { failure_ms: 3_600_000, ..Workers::default() };
        let alone = Alone::leading(silent_after).await;
        let leading = &alone.leading;
        let session = alone.register("w", limits::SLOTS_MAX).await;
        let (out, mut answers) = mpsc::channel(limits::SLOTS_MAX);
        for slot in
            (0..limits::SLOTS_MAX as u16).map(|slot| SlotRef { session, slot: SlotNo(slot) })
        {
            // Each claim is as much as one command carries, so that the log counts them.
            let rows_max = limits::CLAIM_ROWS_MAX;
            let pull = Pull { slot, instance: 1, seq: 1, rows_max, out: out.clone() };
            leading.node.ledger(|l| leading.parked.park(pull, l));
        }
        let engine = EngineSpec { model: "m".into(), ..EngineSpec::default() };
        let spec = RunSpec { engine, weight: 1, attempts_max: 1, ..RunSpec::default() };
        let (namespace, name, folder) = ("default".to_owned(), "r".to_owned(), "r/own".to_owned());
        let create = OpKind::CreateRun { namespace, name, spec: Box::new(spec), folder };
        let Reply::Run { run, .. } = alone.op(create).await else { panic!("no run") };
        let before = leading.node.ledger(|l| l.applied().index);
        let segment = SegmentDecl { number: SegmentNo(0), rows: 1, blob: BlobRef::default() };
        alone.op(OpKind::AddSegments { run, segments: vec![segment] }).await;
        let granted = tokio::time::timeout(PATIENCE, answers.recv()).await.expect("a grant");
        let Some(Ok(v1::LeaderMessage { kind: Some(kind), .. })) = granted else {
            panic!("{granted:?}")
        };
        let v1::leader_message::Kind::Exchange(answer) = kind else { panic!("{kind:?}") };
        assert_eq!(answer.grants.len(), 1);
        // Whatever was proposed for the row is applied before this.
        alone.op(OpKind::SetNamespace { name: "after".into(), running_rows_max: 0 }).await;
        let claims = leading.node.ledger(|l| l.applied().index) - before - 2;
        // The leader's own commands may be among them, such as the time.
        assert!((1..=3).contains(&claims), "{claims}");
        let waiting: Vec<_> =
            leading.parked.cohorts().into_iter().flat_map(|c| leading.parked.slots(c)).collect();
        assert_eq!(waiting.len(), limits::SLOTS_MAX - 1);
        alone.end().await;
    }
}
