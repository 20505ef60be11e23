//! Owns: an engine in its own process, as a slot sees it: rows go in while others run, each returns as it ends, and a
//! death is reported with the rows that it took.
//!
//! Invariant: every row that was taken returns once: finished, failed, lost with its engine, or never started. A row
//! counts as started only once it is sent to the process, and its time begins then. The process is restarted forever,
//! with growing waits if it dies before it has done anything.
//! Absent: which engine it is; any process that speaks `frame`'s protocol is one.

pub(crate) mod frame;
mod process;
pub(crate) mod process_totals;
mod stderr;
mod supervisor;

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rollout_engine_protocol::Loaded;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

pub(crate) use self::process::Program;
use self::process_totals::ProcessTotals;
use self::supervisor::Supervisor;
use super::evidence::DeathEvidence;
use super::xid::{Xid, Xids};
use super::{Completion, Engine, EngineFailure, EngineRow, News, RowEnd, timed_out};
use crate::leased_rows::Lease;

/// News that may wait for the slot.
const NEWS: usize = 16;
/// Longer than the kernel needs to end a process that can end.
pub(super) const KILL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the agent's start waits for an engine before it continues without.
const FIRST_PROBE: Duration = Duration::from_secs(5);

/// The GPUs of an engine.
pub(crate) struct Gpus {
    /// Their indices on the bus; empty if unknown, which means all of the host's.
    pub(crate) devices: Vec<u32>,
    pub(crate) xids: Arc<Xids>,
}

/// How to run an engine's process.
pub(crate) struct HostConfig {
    pub(crate) program: Program,
    /// The engine's block of the configuration, as JSON.
    pub(crate) options: String,
    /// The devices whose errors count as evidence of its death.
    pub(crate) gpus: Option<Gpus>,
    /// If rows run without progress for this long, it is killed.
    pub(crate) stall_timeout: Duration,
    /// How long it may take to become ready.
    pub(crate) start_timeout: Duration,
    /// A killed process is reported dead after this long, even if the kernel has not ended it.
    pub(crate) kill_timeout: Duration,
}

impl HostConfig {
    fn xids(&self) -> u64 {
        self.gpus.as_ref().map_or(0, |gpus| gpus.xids.mark())
    }

    fn xid_since(&self, mark: u64) -> Option<Xid> {
        self.gpus.as_ref().and_then(|gpus| gpus.xids.since(mark, &gpus.devices))
    }
}

/// The death of an engine's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Death {
    pub(crate) evidence: DeathEvidence,
    /// Its last output; may be empty.
    pub(crate) last_words: String,
    /// The human-readable text.
    pub(crate) message: String,
    /// Rows that were sent to it and had not ended.
    pub(crate) rows: Vec<(Lease, u64)>,
    /// Stopped rows that it may still have run: any of them may be the cause of its death.
    pub(crate) unwanted: usize,
    /// No process replaces it for now: it died before it was ready, or was killed and does not end.
    pub(crate) down: bool,
}

/// Whether rows can be run.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Starting,
    Ready,
    Down(String),
}

/// A row that the engine has taken.
struct Waiting {
    key: (Lease, u64),
    reply: oneshot::Sender<Result<Completion, EngineFailure>>,
    /// Notified when the row is sent to the process; gone from then on.
    begun: Option<oneshot::Sender<()>>,
}

impl Waiting {
    fn started(&self) -> bool {
        self.begun.is_none()
    }
}

#[derive(Default)]
struct Rows {
    last_ticket: u64,
    queue: VecDeque<(u64, EngineRow)>,
    waiting: HashMap<u64, Waiting>,
    /// Started rows that are no longer wanted; never more than were started.
    cancelled: Vec<u64>,
    /// These, and the rows whose stop was requested: the process may still run them.
    stopping: HashSet<u64>,
    /// Why there is no process for rows, until one is ready again: the slot may not know it yet.
    down: Option<String>,
}

/// State shared by the slot's side and the supervisor. The slot's concurrency bounds its size.
#[derive(Default)]
struct Shared {
    rows: Mutex<Rows>,
    changed: Notify,
    /// What the engine has done, over all of its lives.
    totals: Mutex<ProcessTotals>,
    progressed: Notify,
    /// What the latest ready process reported about itself.
    loaded: Mutex<Option<Loaded>>,
}

pub(super) struct HostEngine {
    shared: Arc<Shared>,
    news: tokio::sync::Mutex<mpsc::Receiver<News>>,
    state: watch::Receiver<State>,
    /// Ends the process when the engine is dropped.
    _stop: DropGuard,
}

impl HostEngine {
    /// Starts the process, and a task that keeps it running.
    pub(super) fn start(config: HostConfig) -> Self {
        let shared = Arc::new(Shared::default());
        let (news, receiver) = mpsc::channel(NEWS);
        let (state, watched) = watch::channel(State::Starting);
        let stop = CancellationToken::new();
        let supervisor =
            Supervisor { config, shared: shared.clone(), news, state, stop: stop.clone() };
        tokio::spawn(supervisor.run());
        let news = tokio::sync::Mutex::new(receiver);
        Self { shared, news, state: watched, _stop: stop.drop_guard() }
    }

    /// Resolves when a row's time is over: the time to start, or the time of its run.
    async fn too_late(
        &self,
        ticket: u64,
        limit: Option<Duration>,
        begins: oneshot::Receiver<()>,
    ) -> EngineFailure {
        let Some(limit) = limit else { return std::future::pending().await };
        let waited = tokio::time::timeout(limit, begins).await;
        // A row that starts at this very moment gets its full time too.
        if waited.is_err() && self.shared.rows.lock().take_back(ticket) {
            return not_started(&format!("the engine did not take the row within {limit:?}"));
        }
        tokio::time::sleep(limit).await;
        timed_out(limit)
    }
}

impl Engine for HostEngine {
    fn run(&self, row: EngineRow) -> BoxFuture<'_, Result<Completion, EngineFailure>> {
        async move {
            let limit = row.run.attempt_timeout;
            let (reply, outcome) = oneshot::channel();
            let (begun, begins) = oneshot::channel();
            let ticket = self.shared.rows.lock().add(row, reply, begun);
            let _forget = Forget { shared: &self.shared, ticket };
            self.shared.changed.notify_one();
            tokio::select! {
                biased;
                outcome = outcome => {
                    outcome.unwrap_or_else(|_| Err(not_started("the engine is stopped")))
                }
                failure = self.too_late(ticket, limit, begins) => Err(failure),
            }
        }
        .boxed()
    }

    fn probe(&self) -> BoxFuture<'_, Result<(), String>> {
        let mut state = self.state.clone();
        async move {
            let started = state.wait_for(|state| *state != State::Starting);
            match tokio::time::timeout(FIRST_PROBE, started).await {
                Ok(Ok(state)) => match &*state {
                    State::Ready => Ok(()),
                    State::Starting => Err("the engine is starting".to_owned()),
                    State::Down(reason) => Err(reason.clone()),
                },
                Ok(Err(_)) => Err("the engine is stopped".to_owned()),
                Err(_) => Err("the engine is starting".to_owned()),
            }
        }
        .boxed()
    }

    fn is_up(&self) -> bool {
        *self.state.borrow() == State::Ready
    }

    fn process_totals(&self) -> Option<ProcessTotals> {
        Some(*self.shared.totals.lock())
    }

    fn loaded(&self) -> Option<Loaded> {
        self.shared.loaded.lock().clone()
    }

    fn progressed(&self) -> BoxFuture<'_, ()> {
        self.shared.progressed.notified().boxed()
    }

    fn news(&self) -> BoxFuture<'_, News> {
        async move {
            match self.news.lock().await.recv().await {
                Some(news) => news,
                None => std::future::pending().await,
            }
        }
        .boxed()
    }
}

/// Takes a row back when its caller no longer waits for it.
struct Forget<'a> {
    shared: &'a Shared,
    ticket: u64,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        let mut rows = self.shared.rows.lock();
        if rows.take_back(self.ticket) {
            return;
        }
        // Already answered for, or started.
        if rows.waiting.remove(&self.ticket).is_some() {
            rows.cancelled.push(self.ticket);
            rows.stopping.insert(self.ticket);
            self.shared.changed.notify_one();
        }
    }
}

impl Rows {
    /// Takes a row, or answers at once that it is not started because there is no process for it.
    fn add(
        &mut self,
        row: EngineRow,
        reply: oneshot::Sender<Result<Completion, EngineFailure>>,
        begun: oneshot::Sender<()>,
    ) -> u64 {
        self.last_ticket += 1;
        if let Some(reason) = &self.down {
            // If the caller has gone, the row is no longer wanted.
            let _ = reply.send(Err(not_started(reason)));
            return self.last_ticket;
        }
        let key = ((row.run.number, row.attempt), row.row);
        self.waiting.insert(self.last_ticket, Waiting { key, reply, begun: Some(begun) });
        self.queue.push_back((self.last_ticket, row));
        self.last_ticket
    }

    /// Takes a row back before it is sent to the process; false if it was sent or is answered for.
    fn take_back(&mut self, ticket: u64) -> bool {
        if self.waiting.get(&ticket).is_none_or(Waiting::started) {
            return false;
        }
        self.waiting.remove(&ticket);
        self.queue.retain(|(queued, _)| *queued != ticket);
        true
    }

    /// Rows that were sent to the process.
    fn started(&self) -> usize {
        self.waiting.values().filter(|waiting| waiting.started()).count()
    }

    /// Whether the process has rows to run, wanted or not.
    fn runs(&self) -> bool {
        self.started() > 0 || !self.stopping.is_empty()
    }

    /// The next row for the process; it counts as started from here on.
    fn next(&mut self) -> Option<(u64, EngineRow)> {
        let (ticket, row) = self.queue.pop_front()?;
        if let Some(begun) = self.waiting.get_mut(&ticket).and_then(|waiting| waiting.begun.take())
        {
            // If the caller has gone, the row is no longer wanted.
            let _ = begun.send(());
        }
        Some((ticket, row))
    }

    fn end(&mut self, ticket: u64, outcome: Result<Completion, EngineFailure>) {
        self.stopping.remove(&ticket);
        if let Some(waiting) = self.waiting.remove(&ticket) {
            // If the caller has gone, the row is no longer wanted.
            let _ = waiting.reply.send(outcome);
        }
    }

    /// Ends the rows of the dead process, and returns them with the number of unwanted rows that it may have run
    /// besides.
    fn bury(&mut self) -> (Vec<(Lease, u64)>, usize) {
        self.cancelled.clear();
        let unwanted = std::mem::take(&mut self.stopping).len();
        let started = self.waiting.extract_if(|_, waiting| waiting.started());
        let mut rows = Vec::new();
        for (_, waiting) in started {
            rows.push(waiting.key);
            let died = EngineFailure { end: RowEnd::Died, ..not_started("the engine died") };
            let _ = waiting.reply.send(Err(died));
        }
        rows.sort_unstable();
        (rows, unwanted)
    }

    /// Gives back the rows that wait for a process that will not come, and rows added until one is ready.
    fn give_back(&mut self, reason: &str) {
        self.down = Some(reason.to_owned());
        self.queue.clear();
        for (_, waiting) in self.waiting.drain() {
            let _ = waiting.reply.send(Err(not_started(reason)));
        }
    }
}

fn not_started(reason: &str) -> EngineFailure {
    let class = rollout_proto::v1::FailureClass::EngineDied;
    EngineFailure { end: RowEnd::NotStarted, ..EngineFailure::new(class, "ENGINE_DIED", reason) }
}

/// The path of the crash file of a slot's engine process.
pub(super) fn crash_file(dir: &std::path::Path, slot: u32) -> PathBuf {
    dir.join(format!("slot-{slot}.crash.json"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::test_row;
    use crate::run::RunInfo;

    #[test]
    fn a_stopped_row_counts_as_running_until_the_process_answers_for_it() {
        let shared = Shared::default();
        let start = || {
            let (reply, _) = oneshot::channel();
            let mut rows = shared.rows.lock();
            rows.add(test_row(RunInfo::for_test(1), 0, "{}"), reply, oneshot::channel().0);
            rows.next().map(|(ticket, _)| ticket).expect("a row waits")
        };
        let (one, two, three) = (start(), start(), start());
        for ticket in [one, two] {
            drop(Forget { shared: &shared, ticket });
        }
        let mut rows = shared.rows.lock();
        // One has ended normally; the other has not been reported.
        rows.end(one, Err(not_started("")));
        assert_eq!(rows.waiting.keys().collect::<Vec<_>>(), [&three]);
        let (started, unwanted) = rows.bury();
        assert_eq!((started.len(), unwanted), (1, 1));
        assert_eq!(rows.bury(), (Vec::new(), 0), "the next process ran neither");
    }
}
