//! Owns: one slot: its queue, the rows that run, open parts, uploads and exchanges, all in one task.
//!
//! Invariant: a row is started at most once per attempt, only while the fence is open, and at most `concurrency`
//! run at a time; queued and running rows never exceed the credit that was asked for. A result is reported only
//! when its part is durable.
//! Absent: streams and sessions. The slot is told when it can send, and sends by [`Uplink`].

mod book;
mod drain;
mod exchange;
mod load;
mod results;
mod uplink;
mod upload;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use parking_lot::Mutex;
use rollout_proto::v1::{self, FailureClass};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(crate) use self::book::{Book, to_wire};
pub(crate) use self::uplink::Uplink;

use self::exchange::Exchanges;
use self::load::{Loaded, Loader};
use self::upload::{Uploaded, Uploader};
use crate::config::PartConfig;
use crate::engine::{Completion, Engine, EngineFailure, EngineRow};
use crate::fence::Fence;
use crate::held::{Held, Lease, Named, listed};
use crate::part::{OpenPart, PartId};

/// Commands that may wait for a slot.
pub(crate) const COMMANDS: usize = 256;
/// Closed parts without an answer, in number and bytes, above which a slot starts nothing more.
const BACKLOG_PARTS: usize = 32;
const BACKLOG_BYTES: usize = 128 << 20;
/// Events taken up before the slot looks at everything else again.
const EVENTS_AT_ONCE: usize = 256;
/// Results wait so long behind an unanswered pull, so that many go together.
const BEHIND_PULL: Duration = Duration::from_millis(15);
/// Failures wait so long for others.
const FAILURES_LINGER: Duration = Duration::from_millis(20);
const NEVER: Duration = Duration::from_secs(3600);

/// What the session tells a slot.
#[derive(Debug)]
pub(crate) enum SlotCommand {
    /// A stream to a leader is there.
    Online(Uplink),
    /// It is gone.
    Offline,
    Answer(v1::ExchangeAnswer),
    /// Rows that are no longer this worker's.
    Gone(Arc<Named>),
    /// Ask for nothing and say when nothing is unanswered.
    Quiesce(oneshot::Sender<()>),
    /// Take no more work, finish what runs by then, report, end.
    Drain(Instant),
}

/// What a slot is made of.
pub(crate) struct SlotParts {
    pub(crate) index: u32,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) concurrency: usize,
    pub(crate) credit: usize,
    pub(crate) part: PartConfig,
    pub(crate) probe_every: Duration,
    pub(crate) fence: Fence,
    /// Told when the slot becomes able, or unable, to take work.
    pub(crate) eligibility: Arc<tokio::sync::Notify>,
    pub(crate) stores: Arc<crate::stores::Stores>,
    pub(crate) runs: Arc<crate::run::Runs>,
    pub(crate) segments: Arc<crate::segments::SegmentCache>,
    pub(crate) spool: crate::spool::SpoolHandle,
    /// Parts that an earlier process left behind, and a number above theirs.
    pub(crate) recovered: Vec<OpenPart>,
    pub(crate) next_part: u64,
}

/// How the session sees a slot.
pub(crate) struct SlotHandle {
    pub(crate) commands: mpsc::Sender<SlotCommand>,
    pub(crate) book: Arc<Mutex<Book>>,
    /// Why it can take no work.
    pub(crate) ineligible: watch::Receiver<Option<String>>,
    /// Ends with the slot; true where everything was answered for.
    pub(crate) ended: tokio::task::JoinHandle<bool>,
}

/// Something that a task of the slot has finished.
enum Event {
    Loaded(Loaded),
    Ran { lease: Lease, row: u64, outcome: Option<Result<Completion, EngineFailure>> },
    Uploaded(Uploaded),
    Probed(Result<(), String>),
}

struct Slot {
    index: u32,
    engine: Arc<dyn Engine>,
    concurrency: usize,
    credit: usize,
    part: PartConfig,
    probe_every: Duration,
    fence: Fence,
    loader: Loader,
    uploader: Uploader,
    book: Arc<Mutex<Book>>,
    queue: VecDeque<EngineRow>,
    running: HashMap<(Lease, u64), CancellationToken>,
    open: BTreeMap<u32, OpenPart>,
    next_part: u64,
    /// Parts of an earlier process, until the first registration.
    recovered: Vec<OpenPart>,
    /// Closed parts that the leader has not answered for, with their rows.
    closed: BTreeMap<PartId, Held>,
    closed_bytes: BTreeMap<PartId, usize>,
    /// When a run's store was last reported to refuse.
    refused: BTreeMap<u32, Instant>,
    exchanges: Exchanges,
    /// When the newest exchange was made, and since when something waits to be reported.
    asked: Option<Instant>,
    report_since: Option<Instant>,
    uplink: Option<Uplink>,
    /// Asks for nothing until the next stream, and says here when nothing is unanswered.
    quiet: bool,
    quiesce: Option<oneshot::Sender<()>>,
    drain: Option<Instant>,
    ineligible: watch::Sender<Option<String>>,
    eligibility: Arc<tokio::sync::Notify>,
    tasks: JoinSet<Event>,
}

/// Starts a slot.
pub(crate) fn start(parts: SlotParts, ineligible: Option<String>) -> SlotHandle {
    let (sender, receiver) = mpsc::channel(COMMANDS);
    let (reason, watched) = watch::channel(ineligible);
    let book = Arc::new(Mutex::new(Book::default()));
    let slot = Slot::new(parts, book.clone(), reason);
    let ended = tokio::spawn(slot.work(receiver));
    SlotHandle { commands: sender, book, ineligible: watched, ended }
}

impl Slot {
    fn new(
        parts: SlotParts,
        book: Arc<Mutex<Book>>,
        ineligible: watch::Sender<Option<String>>,
    ) -> Self {
        let loader = Loader {
            stores: parts.stores.clone(),
            runs: parts.runs.clone(),
            segments: parts.segments,
        };
        let uploader = Uploader {
            stores: parts.stores,
            runs: parts.runs,
            spool: parts.spool,
            permits: Arc::new(tokio::sync::Semaphore::new(4)),
        };
        let mut slot = Self {
            index: parts.index,
            engine: parts.engine,
            concurrency: parts.concurrency,
            credit: parts.credit,
            part: parts.part,
            probe_every: parts.probe_every,
            fence: parts.fence,
            loader,
            uploader,
            book,
            queue: VecDeque::new(),
            running: HashMap::new(),
            open: BTreeMap::new(),
            next_part: parts.next_part,
            recovered: Vec::new(),
            closed: BTreeMap::new(),
            closed_bytes: BTreeMap::new(),
            refused: BTreeMap::new(),
            exchanges: Exchanges::new(parts.index),
            asked: None,
            report_since: None,
            uplink: None,
            quiet: false,
            quiesce: None,
            drain: None,
            ineligible,
            eligibility: parts.eligibility,
            tasks: JoinSet::new(),
        };
        for part in parts.recovered {
            let mut book = slot.book.lock();
            part.rows.iter().for_each(|row| book.end((part.id.run, row.attempt), row.row));
            drop(book);
            // Held back until the leader has said which rows count.
            slot.open_recovered(part);
        }
        slot
    }

    async fn work(mut self, mut commands: mpsc::Receiver<SlotCommand>) -> bool {
        if self.ineligible.borrow().is_some() {
            self.probe_later();
        }
        loop {
            self.start_rows();
            self.close_parts();
            self.exchange();
            if self.drain.is_some() && self.is_idle() {
                return true;
            }
            let wake = self.next_wake();
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
                () = tokio::time::sleep_until(wake.into()) => self.on_time(),
            }
        }
    }

    async fn command(&mut self, command: SlotCommand) {
        match command {
            SlotCommand::Online(uplink) => {
                self.exchanges.stream_broke();
                self.uplink = Some(uplink);
                self.quiet = false;
                self.release_recovered().await;
            }
            SlotCommand::Offline => {
                self.uplink = None;
                self.exchanges.stream_broke();
            }
            SlotCommand::Answer(answer) => self.answer(answer).await,
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
            // Rows' panics are caught where they run; what is left is a defect of ours.
            Err(error) => tracing::error!(%error, slot = self.index, "a task of the slot failed"),
        }
    }

    /// Rows that an answer grants, and the end of what it answers for.
    async fn answer(&mut self, answer: v1::ExchangeAnswer) {
        let Some(settled) = self.exchanges.answered(answer.seq) else {
            tracing::debug!(slot = self.index, seq = answer.seq, "an answer to nothing");
            return;
        };
        for refused in &answer.refused {
            metrics::counter!("rollout_worker_rows_refused_total").increment(
                refused.rows.as_ref().map_or(0, |r| r.lens.iter().map(|l| u64::from(*l)).sum()),
            );
            tracing::info!(
                slot = self.index,
                run = refused.run,
                attempt = refused.attempt,
                code = refused.code,
                "rows were refused, somebody else has them"
            );
        }
        self.book.lock().settle(&settled.rows);
        for part in settled.parts {
            self.settle_part(part).await;
        }
        for grant in answer.grants {
            self.granted(grant);
        }
    }

    fn granted(&mut self, mut grant: v1::Grant) {
        let lease = (grant.run, grant.attempt);
        let Some(rows) = grant.rows.as_ref().and_then(listed) else {
            tracing::error!(
                run = grant.run,
                attempt = grant.attempt,
                "an impossible grant, ignored"
            );
            return;
        };
        let new: Vec<u64> = {
            let mut book = self.book.lock();
            rows.into_iter().filter(|row| book.queue(lease, *row)).collect()
        };
        if new.is_empty() {
            return;
        }
        metrics::counter!("rollout_worker_rows_granted_total").increment(new.len() as u64);
        if self.drain.is_some() || self.ineligible.borrow().is_some() {
            self.give_back(lease, new);
            return;
        }
        grant.rows = Some(crate::held::ranges(new.into_iter()));
        let loader = self.loader.clone();
        self.tasks.spawn(loader.load(grant).map(Event::Loaded));
    }

    fn loaded(&mut self, loaded: Loaded) {
        let lease = loaded.lease;
        for row in loaded.ready {
            // Taken away, or given back, while it was loaded?
            if self.book.lock().is_queued(lease, row.row) {
                self.queue.push_back(row);
            }
        }
        let held = |slot: &Self, rows: Vec<u64>| -> Vec<u64> {
            let book = slot.book.lock();
            rows.into_iter().filter(|row| book.is_queued(lease, *row)).collect()
        };
        for (rows, failure) in loaded.failed {
            let rows = held(self, rows);
            self.fail(lease, rows, &failure);
        }
        let rows = held(self, loaded.give_back);
        self.give_back(lease, rows);
    }

    fn start_rows(&mut self) {
        while self.running.len() < self.concurrency
            && !self.queue.is_empty()
            && self.drain.is_none()
            && !self.backlogged()
            && self.fence.open()
        {
            let Some(row) = self.queue.pop_front() else { break };
            let (lease, number) = ((row.run.number, row.attempt), row.row);
            let cancel = CancellationToken::new();
            self.book.lock().start(lease, number);
            self.running.insert((lease, number), cancel.clone());
            let engine = self.engine.clone();
            self.tasks.spawn(async move {
                let run = std::panic::AssertUnwindSafe(engine.run(row)).catch_unwind();
                let outcome = tokio::select! {
                    () = cancel.cancelled() => None,
                    outcome = run => Some(outcome.unwrap_or_else(|_| {
                        let message = "the engine panicked";
                        Err(EngineFailure::new(FailureClass::EngineDied, "ENGINE_PANIC", message))
                    })),
                };
                Event::Ran { lease, row: number, outcome }
            });
        }
    }

    /// Sends what may be sent now.
    fn exchange(&mut self) {
        let now = Instant::now();
        if self.exchanges.has_report() {
            self.report_since.get_or_insert(now);
        } else {
            self.report_since = None;
        }
        if self.uplink.is_none() {
            return;
        }
        let flush = self.quiet || self.drain.is_some();
        let credit = if flush { 0 } else { self.wanted() };
        let report = self.report_since.is_some_and(|since| match self.exchanges.unanswered() {
            0 => {
                self.exchanges.has_parts() || now >= since + FAILURES_LINGER || credit > 0 || flush
            }
            _ => self.asked.is_none_or(|asked| now >= asked + BEHIND_PULL),
        });
        let unpark = flush && self.exchanges.may_be_parked();
        let pull = credit > 0 && self.exchanges.unanswered() == 0;
        if (report || unpark || pull) && self.exchanges.make(credit) {
            self.asked = Some(now);
            self.report_since = self.exchanges.has_report().then_some(now);
        }
        while let (Some(uplink), Some(message)) = (&self.uplink, self.exchanges.to_send()) {
            if !uplink.send(message.clone()) {
                break;
            }
            self.exchanges.was_sent();
        }
        if self.exchanges.unanswered() == 0
            && let Some(done) = self.quiesce.take()
        {
            // The session may have stopped waiting.
            let _ = done.send(());
        }
    }

    /// Rows to ask for: none while a good part of the credit is still in use.
    fn wanted(&self) -> u32 {
        let busy = self.book.lock().busy();
        let free = self.credit.saturating_sub(busy);
        let enough = free * 4 >= self.credit || self.queue.is_empty();
        let eligible = self.ineligible.borrow().is_none()
            && self.uplink.as_ref().is_some_and(|uplink| uplink.eligible);
        let able = eligible && self.fence.open() && !self.backlogged();
        if free > 0 && enough && able { free as u32 } else { 0 }
    }

    /// The next moment at which something is due without any event.
    fn next_wake(&self) -> Instant {
        let now = Instant::now();
        let linger = self.linger();
        let parts = self.open.values().map(|part| part.opened + linger);
        let report = self.report_since.map(|since| match self.exchanges.unanswered() {
            0 => since + FAILURES_LINGER,
            1 if self.exchanges.may_be_parked() => {
                self.asked.map_or(since, |asked| asked + BEHIND_PULL)
            }
            _ => now + NEVER,
        });
        let unsent = self.exchanges.to_send().map(|_| now + Duration::from_millis(20));
        let online = self.uplink.is_some();
        let timers = report.into_iter().chain(unsent).filter(|_| online);
        let drain = self.drain.filter(|_| !self.running.is_empty());
        parts.chain(timers).chain(drain).min().unwrap_or(now + NEVER)
    }

    fn on_time(&mut self) {
        if self.drain.is_some_and(|deadline| Instant::now() >= deadline) {
            self.stop_running();
        }
    }

    fn probe_later(&mut self) {
        let (engine, wait) = (self.engine.clone(), self.probe_every);
        self.tasks.spawn(async move {
            tokio::time::sleep(wait).await;
            Event::Probed(engine.probe().await)
        });
    }

    fn probed(&mut self, result: Result<(), String>) {
        let reason = result.err();
        if reason.is_some() {
            self.probe_later();
        }
        self.set_ineligible(reason);
    }

    fn set_ineligible(&mut self, reason: Option<String>) {
        let changed = self.ineligible.send_if_modified(|old| {
            let changed = *old != reason;
            if changed {
                match &reason {
                    Some(reason) => {
                        tracing::warn!(slot = self.index, reason, "the slot takes no work")
                    }
                    None => tracing::info!(slot = self.index, "the slot takes work again"),
                }
                *old = reason;
            }
            changed
        });
        if changed {
            self.eligibility.notify_one();
        }
    }

    fn is_idle(&self) -> bool {
        self.running.is_empty()
            && self.queue.is_empty()
            && self.open.is_empty()
            && self.closed.is_empty()
            && !self.exchanges.has_report()
            && self.exchanges.unanswered() == 0
            && self.book.lock().busy() == 0
    }
}
