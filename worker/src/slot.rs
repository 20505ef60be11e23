//! Owns: one slot: its queue, running rows, open parts, uploads and exchanges, all in one task.
//!
//! Invariant: a row is started at most once per attempt, and only while the fence is open. At most `concurrency` rows
//! run at a time, beside those that wait in the engine. Queued and running rows never exceed the credit that the slot
//! requested. A result is reported only when its part is durable.
//! Absent: streams and sessions. The session notifies the slot when it can send, and the slot sends by [`Uplink`].

mod concurrency;
mod deaths;
mod drain;
mod eligibility;
mod exchange;
mod exchange_timing;
mod failing_rows;
mod failure_report;
mod feed;
mod load;
mod refusals;
mod results;
mod row_durations;
mod rows;
mod shorten;
mod tokens;
mod uplink;
mod upload;
mod yield_rows;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rollout_proto::v1;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(crate) use self::uplink::Uplink;

use self::concurrency::ConcurrencyLimit;
use self::exchange::Exchanges;
use self::failing_rows::Failing;
use self::failure_report::ReportWithText;
use self::feed::Feed;
use self::load::{Loaded, Loader};
use self::refusals::Refusals;
use self::row_durations::RowDurations;
use self::tokens::Tokens;
use self::upload::{Uploaded, Uploader};
use crate::combiner::{Combiner, Member};
use crate::config::{EngineConfig, PartConfig};
use crate::engine::{Completion, Engine, EngineFailure, EngineRow, News};
use crate::fence::{Fence, Registration};
use crate::lease_table::LeaseTable;
use crate::leased_rows::{Lease, NamedRows};
use crate::part::OpenPart;
use crate::spool::SpoolHandle;

/// Commands that may wait for a slot.
pub(crate) const COMMANDS: usize = 256;
/// Events handled before the slot checks everything else again.
const EVENTS_AT_ONCE: usize = 256;

/// The session's commands to a slot.
#[derive(Debug)]
pub(crate) enum SlotCommand {
    /// A stream to a leader is open.
    Online(Uplink),
    /// The stream is gone.
    Offline,
    Answer(v1::ExchangeAnswer),
    /// Another slot is idle: give up unstarted rows.
    Yield(v1::Yield),
    /// The worker has registered; these rows were lost meanwhile.
    Registered {
        registration: Registration,
        dropped: Arc<NamedRows>,
    },
    /// Rows that no longer belong to this worker.
    Gone(Arc<NamedRows>),
    /// Request nothing, and signal when no exchange is unanswered.
    Quiesce(oneshot::Sender<()>),
    /// Take no more work, finish running rows by this time, report, end.
    Drain(Instant),
}

/// The parts that make up a slot.
pub(crate) struct SlotParts {
    pub(crate) index: u32,
    pub(crate) engine: Arc<dyn Engine>,
    /// The engine's block of the configuration.
    pub(crate) block: EngineConfig,
    pub(crate) concurrency: usize,
    /// Sequences that the engine runs at once if rows wait in it; else 0.
    pub(crate) seats: usize,
    /// Rows that it holds at most; else as many as keep its engine busy.
    pub(crate) credit: Option<usize>,
    /// Tokens that its rows may take at most; 0 derives the number from the engine's room.
    pub(crate) credit_tokens: u64,
    pub(crate) part: PartConfig,
    pub(crate) probe_every: Duration,
    /// How long a part that the store refuses is kept.
    pub(crate) store_refused: Duration,
    pub(crate) fence: Fence,
    /// Notified when the slot becomes able or unable to take work, or may have: the worker then registers again.
    pub(crate) eligibility: Arc<tokio::sync::Notify>,
    /// Notified when the slot has run out of rows to start.
    pub(crate) ran_dry: Arc<tokio::sync::Notify>,
    pub(crate) stores: Arc<crate::stores::Stores>,
    pub(crate) runs: Arc<crate::run::Runs>,
    pub(crate) segments: Arc<crate::segments::SegmentCache>,
    pub(crate) combiner: Arc<Combiner>,
    pub(crate) spool: SpoolHandle,
    /// Parts that an earlier process left behind, and a number above theirs.
    pub(crate) recovered: Vec<OpenPart>,
    pub(crate) next_part: u64,
}

/// The session's handle of a slot.
pub(crate) struct SlotHandle {
    pub(crate) commands: mpsc::Sender<SlotCommand>,
    pub(crate) lease_table: Arc<Mutex<LeaseTable>>,
    /// Why it cannot take work, if it cannot.
    pub(crate) ineligible: watch::Receiver<Option<String>>,
    /// Ends with the slot; true if the leader answered for everything.
    pub(crate) ended: tokio::task::JoinHandle<bool>,
}

/// The result of one of the slot's tasks.
enum Event {
    Loaded(Loaded),
    Ran { lease: Lease, row: u64, outcome: Option<Result<Completion, EngineFailure>> },
    Uploaded(Uploaded),
    Probed(Result<(), String>),
    Checked { row: EngineRow, outcome: Result<(), EngineFailure> },
    Engine(News),
    Progressed,
    TextWritten(ReportWithText),
}

/// A row that an engine runs.
struct Running {
    cancel: CancellationToken,
    since: Instant,
    /// See [`ConcurrencyLimit::generation`].
    generation: u64,
    row: EngineRow,
}

struct Slot {
    index: u32,
    engine: Arc<dyn Engine>,
    block: EngineConfig,
    /// What the engine has loaded, as last reported to the slot.
    loaded: Option<rollout_engine_protocol::Loaded>,
    /// Whether its process is up, as last reported to the slot.
    engine_up: bool,
    concurrency: ConcurrencyLimit,
    feed: Feed,
    tokens: Tokens,
    row_durations: RowDurations,
    failing: Failing,
    credit: Option<usize>,
    part: PartConfig,
    probe_every: Duration,
    store_refused: Duration,
    fence: Fence,
    loader: Loader,
    uploader: Uploader,
    lease_table: Arc<Mutex<LeaseTable>>,
    queue: VecDeque<EngineRow>,
    running: HashMap<(Lease, u64), Running>,
    /// Leases of trials: rows of other leases never run beside theirs.
    alone: BTreeSet<Lease>,
    /// When each lease with rows here was granted, for runs with an attempt timeout.
    granted: HashMap<Lease, Instant>,
    /// Combines its finished rows with those of the other slots.
    combiner: Arc<Combiner>,
    spool: SpoolHandle,
    /// Notified when another slot has changed something about this one's results.
    changed: Arc<Notify>,
    /// Parts of an earlier process, until the first registration.
    recovered: Vec<OpenPart>,
    refusals: Refusals,
    exchanges: Exchanges,
    /// Uploads of parts that this slot closed, in flight or to be retried.
    uploads: usize,
    /// Reports whose texts are being written to the store.
    waiting_reports: usize,
    /// When the newest exchange was made, and since when a report has been waiting.
    last_exchange_at: Option<Instant>,
    report_since: Option<Instant>,
    uplink: Option<Uplink>,
    /// Requests nothing until the next stream, and signals here when no exchange is unanswered.
    quiet: bool,
    quiesce: Option<oneshot::Sender<()>>,
    drain: Option<Instant>,
    ineligible: watch::Sender<Option<String>>,
    eligibility: Arc<tokio::sync::Notify>,
    ran_dry: Arc<tokio::sync::Notify>,
    /// Whether no row was waiting to start at the last check.
    dry: bool,
    /// Steps of the engine at the last log line about feeding.
    logged_steps: u64,
    tasks: JoinSet<Event>,
}

pub(crate) fn start(parts: SlotParts, ineligible: Option<String>) -> SlotHandle {
    let (sender, receiver) = mpsc::channel(COMMANDS);
    let (reason, watched) = watch::channel(ineligible);
    let lease_table = Arc::new(Mutex::new(LeaseTable::new(parts.concurrency)));
    let slot = Slot::new(parts, lease_table.clone(), reason);
    let ended = tokio::spawn(slot.work(receiver));
    SlotHandle { commands: sender, lease_table, ineligible: watched, ended }
}

/// Makes the slot a member of the combiner. Returns what is notified when another slot has changed something about the
/// results of this one.
fn join(parts: &SlotParts, lease_table: &Arc<Mutex<LeaseTable>>) -> Arc<Notify> {
    let changed = Arc::new(Notify::new());
    let member = Member {
        lease_table: lease_table.clone(),
        spool: parts.spool.clone(),
        changed: changed.clone(),
    };
    parts.combiner.join(parts.index, member, parts.next_part);
    changed
}

impl Slot {
    fn new(
        parts: SlotParts,
        lease_table: Arc<Mutex<LeaseTable>>,
        ineligible: watch::Sender<Option<String>>,
    ) -> Self {
        let changed = join(&parts, &lease_table);
        let loader = Loader {
            stores: parts.stores.clone(),
            runs: parts.runs.clone(),
            segments: parts.segments,
            lease_table: lease_table.clone(),
        };
        let uploader = Uploader {
            stores: parts.stores,
            runs: parts.runs,
            combiner: parts.combiner.clone(),
            permits: Arc::new(tokio::sync::Semaphore::new(4)),
        };
        let mut slot = Self {
            index: parts.index,
            engine_up: parts.engine.is_up(),
            block: parts.block,
            loaded: parts.engine.loaded(),
            engine: parts.engine,
            concurrency: ConcurrencyLimit::new(parts.concurrency),
            feed: Feed::new(parts.seats),
            tokens: Tokens::new(parts.credit_tokens),
            row_durations: RowDurations::default(),
            failing: Failing::new(parts.concurrency),
            credit: parts.credit,
            part: parts.part,
            probe_every: parts.probe_every,
            store_refused: parts.store_refused,
            fence: parts.fence,
            loader,
            uploader,
            lease_table,
            queue: VecDeque::new(),
            running: HashMap::new(),
            alone: BTreeSet::new(),
            granted: HashMap::new(),
            combiner: parts.combiner,
            spool: parts.spool,
            changed,
            recovered: Vec::new(),
            refusals: Refusals::default(),
            exchanges: Exchanges::new(parts.index),
            waiting_reports: 0,
            uploads: 0,
            last_exchange_at: None,
            report_since: None,
            uplink: None,
            quiet: false,
            quiesce: None,
            drain: None,
            ineligible,
            eligibility: parts.eligibility,
            ran_dry: parts.ran_dry,
            dry: true,
            logged_steps: 0,
            tasks: JoinSet::new(),
        };
        slot.recover(parts.recovered);
        slot
    }

    fn recover(&mut self, parts: Vec<OpenPart>) {
        for part in parts {
            let mut lease_table = self.lease_table.lock();
            part.rows.iter().for_each(|row| lease_table.end((part.id.run, row.attempt), row.row));
            drop(lease_table);
            // Held back until the leader says which rows count.
            self.recovered.push(self.combiner.recovered(self.index, part));
        }
    }

    async fn work(mut self, mut commands: mpsc::Receiver<SlotCommand>) -> bool {
        self.listen();
        self.watch_progress();
        if self.ineligible.borrow().is_some() {
            self.probe_later();
        }
        loop {
            let now = Instant::now();
            self.start_rows(now);
            self.notice_dry();
            self.notice_idle();
            self.close_parts();
            self.exchange();
            if self.drain.is_some() && self.is_idle() {
                return true;
            }
            let wake = self.next_wake(now);
            let wait_for_fence = !self.fence.open();
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.command(command).await,
                    None => return self.is_idle(),
                },
                Some(event) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    self.event(event).await;
                    for _ in 0..EVENTS_AT_ONCE {
                        let Some(event) = self.tasks.try_join_next() else { break };
                        self.event(event).await;
                    }
                }
                () = self.fence.changed(), if wait_for_fence => {}
                () = self.changed.notified() => {}
                () = tokio::time::sleep_until(wake.into()) => self.on_time(),
            }
        }
    }

    async fn command(&mut self, command: SlotCommand) {
        match command {
            SlotCommand::Online(uplink) => {
                self.exchanges.stream_broke();
                if !uplink.eligible {
                    // Other workers can run them. The slot itself may be able, and the worker's store refuse.
                    self.give_back_queued();
                }
                self.uplink = Some(uplink);
                self.quiet = false;
                self.release_recovered();
            }
            SlotCommand::Offline => {
                self.uplink = None;
                self.exchanges.stream_broke();
            }
            SlotCommand::Answer(answer) => self.answer(answer).await,
            SlotCommand::Yield(request) => self.give_up(&request),
            SlotCommand::Registered { registration, dropped } => {
                self.take_away(&dropped);
                self.fence.rows_dropped(registration);
            }
            SlotCommand::Gone(named) => self.take_away(&named),
            SlotCommand::Quiesce(done) => {
                self.quiet = true;
                self.quiesce = Some(done);
            }
            SlotCommand::Drain(deadline) => self.begin_drain(deadline),
        }
    }

    async fn event(&mut self, event: Result<Event, tokio::task::JoinError>) {
        match event {
            Ok(Event::Loaded(loaded)) => self.loaded(loaded),
            Ok(Event::Ran { lease, row, outcome }) => self.ran(lease, row, outcome).await,
            Ok(Event::Uploaded(uploaded)) => self.uploaded(uploaded).await,
            Ok(Event::Probed(result)) => self.probed(result),
            Ok(Event::Checked { row, outcome }) => self.checked(row, outcome),
            Ok(Event::Engine(news)) => self.news(news),
            Ok(Event::Progressed) => self.engine_progressed(),
            Ok(Event::TextWritten(report)) => self.text_written(report),
            // A row's panic is caught where it runs, so any other panic is a bug in this program.
            Err(error) => tracing::error!(%error, slot = self.index, "a task of the slot failed"),
        }
    }

    fn on_time(&mut self) {
        if self.drain.is_some_and(|deadline| Instant::now() >= deadline) {
            self.stop_running();
        }
    }

    fn is_idle(&self) -> bool {
        self.running.is_empty()
            && self.queue.is_empty()
            && !self.combiner.holds(self.index)
            // Of parts that this slot closed, even if only other slots wrote to them: no other slot uploads them.
            && self.uploads == 0
            && self.waiting_reports == 0
            && !self.exchanges.has_report()
            && self.exchanges.unanswered() == 0
            && self.lease_table.lock().busy() == 0
    }
}
