//! Owns: the worker's registration: the store's probe, the session, and one stream at a time to the current leader.
//!
//! Invariant: the session's number and the highest epoch are on disk before they are used. A leader that is gone is
//! left within milliseconds; rows keep running meanwhile.
//! Absent: work. Slots learn from here when they can reach a leader.

mod register;
mod stream;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rollout_proto::trace::{self, Span, SpanKind};
use rollout_proto::v1::ClusterHeader;
use rollout_proto::{Client, ClientError, ErrorCode, MemberRef, RpcError};
use tokio::sync::{Notify, mpsc, watch};
use tracing::Instrument;

use self::stream::StreamEnd;
use crate::agent_error::AgentError;
use crate::backoff::{Backoff, spread};
use crate::config::{Config, EngineConfig};
use crate::disk::{DataDir, WorkerState};
use crate::drain::Drains;
use crate::engine::Engine;
use crate::fence::FenceKeeper;
use crate::lease_table::LeaseTable;
use crate::slot::SlotCommand;
use crate::stores::Stores;

/// The session's handle of a slot.
pub(crate) struct SlotLink {
    pub(crate) block: EngineConfig,
    pub(crate) engine: Arc<dyn Engine>,
    /// The versions installed for its engine.
    pub(crate) versions: BTreeMap<String, String>,
    pub(crate) commands: mpsc::Sender<SlotCommand>,
    pub(crate) lease_table: Arc<Mutex<LeaseTable>>,
    pub(crate) ineligible: watch::Receiver<Option<String>>,
}

pub(crate) struct Session {
    pub(crate) config: Arc<Config>,
    pub(crate) client: Client,
    pub(crate) disk: Arc<DataDir>,
    pub(crate) state: WorkerState,
    /// Drawn when the process started.
    pub(crate) instance: u64,
    /// Versions of this program, its engines and the driver, by name.
    pub(crate) versions: BTreeMap<String, String>,
    pub(crate) slots: Vec<SlotLink>,
    pub(crate) stores: Arc<Stores>,
    pub(crate) fence: FenceKeeper,
    /// Notified when a slot becomes able or unable to take work.
    pub(crate) eligibility: Arc<Notify>,
    /// Notified when a slot has run out of rows to start.
    pub(crate) ran_dry: Arc<Notify>,
    /// Combines the leader's drain request with those of others.
    pub(crate) drains: Drains,
    /// The session's number, for the code that ends it; 0: none.
    pub(crate) current: Arc<AtomicU64>,
    pub(crate) link: Link,
}

/// Time between heartbeats unless the leader sets it.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// The shortest interval that a leader can set.
const HEARTBEAT_MIN_MS: u64 = 10;

/// What the leader decided at registration, or since.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    registered: bool,
    heartbeat: Duration,
    self_fence: Duration,
    /// Why the cluster's store cannot be used.
    store_reason: Option<String>,
    /// Whether each slot was registered as able.
    eligible: Vec<bool>,
}

impl Link {
    pub(crate) fn new() -> Self {
        Self {
            registered: false,
            heartbeat: HEARTBEAT,
            self_fence: Duration::ZERO,
            store_reason: None,
            eligible: Vec::new(),
        }
    }

    /// Sets the interval that the leader asks for, but keeps at least two heartbeats before this worker fences itself;
    /// 0 changes nothing.
    fn set_heartbeat(&mut self, ms: u32) {
        if ms > 0 {
            let requested = Duration::from_millis(u64::from(ms).max(HEARTBEAT_MIN_MS));
            self.heartbeat = requested.min(self.self_fence / 2);
        }
    }
}

/// How long to wait before the next connection.
struct Pauses {
    backoff: Backoff,
    /// For refusals that need an operator.
    denied: Backoff,
    /// The present connection followed a broken one without a pause.
    at_once: bool,
}

/// The wait before the next connection.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// None: a single connection broke, and its leader is tried again.
    AtOnce,
    /// A random part of the fleet's reconnect time, and the backoff after a failed try.
    Spread,
    /// The backoff after a failed try.
    Usual,
}

/// How a stream went.
struct StreamSummary {
    broke: bool,
    /// The worker itself wanted to register again.
    wanted: bool,
    /// A heartbeat was answered on it.
    served: bool,
    lasted: Duration,
    /// No other leader and no later epoch is known.
    same_leader: bool,
}

impl Pauses {
    fn new() -> Self {
        Self {
            backoff: Backoff::of_many(Duration::from_millis(10), WAIT_MAX),
            denied: Backoff::of_many(Duration::from_millis(10), Duration::from_secs(5)),
            at_once: false,
        }
    }

    /// After a stream breaks, the worker reconnects at once. A dead leader refuses that connection, at no cost for the
    /// members that are electing another, and only then do workers wait. A worker that waited after every reset would
    /// become suspect, and lose rows, because of one lost packet.
    fn next(&mut self, ended: &StreamSummary) -> Next {
        let failed = std::mem::take(&mut self.at_once) && !ended.served;
        if ended.served {
            self.backoff.reset();
            self.denied.reset();
        }
        self.at_once =
            ended.broke && ended.served && ended.same_leader && ended.lasted >= STEADY_AFTER;
        match self.at_once {
            true => Next::AtOnce,
            false if (ended.served || failed) && !ended.wanted => Next::Spread,
            false => Next::Usual,
        }
    }
}

/// The longest wait between two tries in a small fleet.
const WAIT_MAX: Duration = Duration::from_millis(250);
/// The heartbeat interval of a small fleet. In a larger fleet the leader sets a longer one.
const HEARTBEAT_OF_FEW: Duration = Duration::from_millis(500);
/// A fleet reconnects over this multiple of the interval's excess over that of a small fleet.
const SPREAD_FACTOR: u32 = 3;
/// The longest reconnect time.
const SPREAD_MAX: Duration = Duration::from_secs(6);
/// A stream that breaks sooner may break again and again: do not reconnect at once to an overloaded leader each time.
const STEADY_AFTER: Duration = SPREAD_MAX;
/// The client learns only a moment later that a broken stream's connection is gone.
const GONE_AFTER: Duration = Duration::from_millis(10);

/// How long the workers of a fleet with this heartbeat interval take to reconnect after they all lose their leader at
/// once: the new leader must serve each a TLS handshake, beside its election. A small fleet reconnects at once. The
/// workers of `rolloutctl bench fleet` follow the same rules.
fn reconnect_spread(heartbeat: Duration) -> Duration {
    (heartbeat.saturating_sub(HEARTBEAT_OF_FEW) * SPREAD_FACTOR).min(SPREAD_MAX)
}

impl Session {
    /// Keeps the worker registered and connected; returns only with an error that no retry can fix.
    pub(crate) async fn run(mut self) -> AgentError {
        let mut pauses = Pauses::new();
        loop {
            let whole = Span::first(SpanKind::Internal, "connection");
            let traced = whole.context();
            let span = tracing::info_span!("connection", trace_id = traced.trace_id());
            let once = Box::pin(self.connect(&mut pauses).instrument(span));
            match trace::within(traced, once).await {
                Ok(()) => whole.done(),
                Err(error) => {
                    whole.failed(|| error.to_string());
                    return error;
                }
            }
        }
    }

    /// Registers if necessary, and serves one stream to its end. In one trace, here and at the leader.
    async fn connect(&mut self, pauses: &mut Pauses) -> Result<(), AgentError> {
        if !self.link.registered
            && let Err(error) = self.register().await
        {
            return Err(self.ended(error).await);
        }
        let (member, channel) = match self.client.leader_channel().await {
            Ok(found) => found,
            Err(error) => {
                if let Some(fatal) = fatal(&error) {
                    return Err(self.ended(fatal).await);
                }
                tracing::warn!(%error, "no leader");
                pauses.backoff.sleep().await;
                return Ok(());
            }
        };
        let begun = Instant::now();
        let client = self.client.clone();
        let stream = tokio::select! {
            stream = self.stream(&member, channel) => stream,
            never = client.keep_standby_connections() => match never {},
        };
        for slot in &self.slots {
            // A slot that has ended needs no message.
            let _ = slot.commands.send(SlotCommand::Offline).await;
        }
        metrics::counter!("rollout_worker_streams_ended_total").increment(1);
        let (end, served) = stream?;
        let fleet = reconnect_spread(self.link.heartbeat);
        pauses.backoff.at_most(WAIT_MAX + fleet);
        let ended = StreamSummary {
            broke: matches!(end, StreamEnd::Broken(_)),
            wanted: matches!(end, StreamEnd::Reregister),
            served,
            lasted: begun.elapsed(),
            same_leader: self.client.leader().is_some_and(|leader| leader == member)
                && self.client.coord_epoch() == self.state.coord_epoch,
        };
        match pauses.next(&ended) {
            Next::AtOnce => {
                tracing::warn!(?end, leader = %member, "the stream broke, connecting again");
                // A member with a standby connection knows whether it still leads.
                self.client.leader_failed(&member.addr);
                tokio::time::sleep(GONE_AFTER).await;
                return Ok(());
            }
            // Usually the leader died, and all workers reconnect at once.
            Next::Spread => tokio::time::sleep(spread(fleet)).await,
            Next::Usual => {}
        }
        self.leave(&member, end, pauses).await;
        Ok(())
    }

    /// Leaves a leader whose stream has ended, if need be, and waits before the next try.
    async fn leave(&mut self, member: &MemberRef, end: StreamEnd, pauses: &mut Pauses) {
        match end {
            StreamEnd::Other(leader) => {
                tracing::info!(old = %member, new = %leader, "another member leads");
                self.client.leader_failed(&member.addr);
            }
            StreamEnd::Reregister => self.link.registered = false,
            StreamEnd::Refused(error) => {
                tracing::warn!(%error, leader = %member, "the leader ended the stream");
                self.refused(&error, &member.addr);
                if !error.code.retryable() {
                    pauses.denied.sleep().await;
                }
                pauses.backoff.sleep().await;
            }
            StreamEnd::Broken(reason) | StreamEnd::Silent(reason) => {
                tracing::warn!(reason, leader = %member, "the stream broke");
                self.client.leader_failed(&member.addr);
                pauses.backoff.sleep().await;
            }
        }
    }

    fn refused(&mut self, error: &RpcError, addr: &str) {
        match error.code {
            ErrorCode::SessionUnknown | ErrorCode::WorkerNotEligible => {
                self.link.registered = false;
            }
            _ => self.client.leader_failed(addr),
        }
    }

    /// Checks an answer by its header, and saves a new epoch to disk before the answer is used.
    async fn observe(&mut self, header: Option<&ClusterHeader>) -> Result<(), Observed> {
        if let Some(header) = header {
            self.client.observe(header).map_err(Observed::Refused)?;
        }
        let (epoch, cluster_id) = (self.client.coord_epoch(), self.client.cluster_id());
        if epoch <= self.state.coord_epoch && cluster_id == self.state.cluster_id {
            return Ok(());
        }
        tracing::info!(coord_epoch = epoch, "a new epoch");
        metrics::gauge!("rollout_worker_coord_epoch").set(epoch as f64);
        self.state.coord_epoch = epoch;
        self.state.cluster_id = cluster_id;
        self.save().await.map_err(Observed::Fatal)
    }

    /// If the cluster was restored to a state that does not know this worker, forgets everything except the name: the
    /// next process in this directory begins as a new worker.
    async fn ended(&mut self, error: AgentError) -> AgentError {
        if !matches!(error, AgentError::Restored(_)) {
            return error;
        }
        self.set_session(0);
        let disk = self.disk.clone();
        match tokio::task::spawn_blocking(move || disk.clear_cluster()).await {
            Ok(Ok(())) => error,
            Ok(Err(failed)) => AgentError::Disk(failed.to_string()),
            Err(failed) => AgentError::Disk(failed.to_string()),
        }
    }

    /// Sets the heartbeat interval that the leader asks for, which indicates the fleet's size.
    fn set_heartbeat(&mut self, ms: u32) {
        self.link.set_heartbeat(ms);
        self.client.wait_at_most(WAIT_MAX + reconnect_spread(self.link.heartbeat));
    }

    async fn save(&self) -> Result<(), AgentError> {
        let (disk, state) = (self.disk.clone(), self.state.clone());
        let saved = tokio::task::spawn_blocking(move || disk.save(&state)).await;
        match saved {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(AgentError::Disk(error.to_string())),
            Err(error) => Err(AgentError::Disk(error.to_string())),
        }
    }

    fn set_session(&mut self, session: u64) {
        self.state.session = session;
        self.current.store(session, Ordering::Release);
    }
}

/// Why an answer is not used.
enum Observed {
    Refused(RpcError),
    Fatal(AgentError),
}

/// An error that needs an operator; the process ends with it.
fn fatal(error: &ClientError) -> Option<AgentError> {
    match error.code() {
        Some(ErrorCode::ClusterRestored) => Some(AgentError::Restored(error.to_string())),
        Some(ErrorCode::OtherCluster | ErrorCode::UnsupportedVersion) => {
            Some(AgentError::Cluster(error.to_string()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_fleet_comes_back_over_seconds_and_a_small_one_at_once() {
        let spread = |ms| reconnect_spread(Duration::from_millis(ms)).as_millis();
        assert_eq!([50, 500, 1000, 2000, 10_000].map(spread), [0, 0, 1500, 4500, 6000]);
    }

    fn broke(served: bool, lasted: Duration) -> StreamSummary {
        StreamSummary { broke: true, wanted: false, served, lasted, same_leader: true }
    }

    #[test]
    fn a_worker_whose_connection_was_reset_comes_back_at_once() {
        let mut pauses = Pauses::new();
        let long = Duration::from_secs(60);
        assert_eq!(pauses.next(&broke(true, long)), Next::AtOnce);
        assert_eq!(pauses.next(&broke(true, long)), Next::AtOnce, "and so it does the next time");
        assert_eq!(pauses.next(&broke(true, STEADY_AFTER / 2)), Next::Spread, "not all the time");
        assert_eq!(pauses.next(&broke(true, long)), Next::AtOnce);
        let wanted = StreamSummary { broke: false, wanted: true, ..broke(true, long) };
        assert_eq!(pauses.next(&wanted), Next::Usual);
    }

    #[test]
    fn workers_whose_leader_is_gone_come_back_spread_over_the_fleets_time() {
        let mut pauses = Pauses::new();
        let long = Duration::from_secs(60);
        assert_eq!(pauses.next(&broke(true, long)), Next::AtOnce);
        assert_eq!(pauses.next(&broke(false, Duration::ZERO)), Next::Spread, "no member answers");
        assert_eq!(pauses.next(&broke(false, Duration::ZERO)), Next::Usual, "once");
        let refused = StreamSummary { broke: false, ..broke(true, long) };
        assert_eq!(pauses.next(&refused), Next::Spread, "it says that it leads no more");
        let another = StreamSummary { same_leader: false, ..broke(true, long) };
        assert_eq!(pauses.next(&another), Next::Spread, "another one leads");
    }
}
