//! What services may read from the state: small copies, never references into it.
//!
//! *Invariant:* reading changes nothing, and takes time in proportion to what it returns.

pub use crate::batch::blocked_runs::Blocked;
use crate::batch::completion_webhook::WebhookState;
pub use crate::batch::failure_record::{DoneTry, FailedTry, FailureRecord, Ruling, Strikes};
use crate::batch::grant::Grant;
pub use crate::batch::incident::{EndKind, Incident, NamedSlot};
pub use crate::batch::item_view::{ItemPlace, ItemState, ItemView};
use crate::batch::run::Run;
pub use crate::batch::run::{Counts, RunState};
use crate::batch::run_gc::Sealed;
use crate::batch::spec::{RunSpec, SlotOffer};
pub use crate::fleet::pool_view::Pool;
pub use crate::fleet::size::Fleet;
use crate::fleet::slot::Slot;
use crate::fleet::worker::Worker;
pub use crate::fleet::worker::{Drain, WorkerState};
use crate::kernel::id::{Attempt, LedgerMs, RunNo, SegmentNo, SessionId, SlotRef};
use crate::kernel::limits;
use crate::kernel::reply::SegmentRef;
use crate::kernel::rows::Rows;
use crate::machine::command::{HeldRows, PartDecl};
use crate::machine::ledger::Ledger;
use std::collections::{BTreeMap, BTreeSet};

/// A run at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunView {
    /// Its number.
    pub run: RunNo,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: RunState,
    /// Why, when it is paused or cancelled.
    pub reason: String,
    /// Its spec.
    pub spec: RunSpec,
    /// The digest of that.
    pub spec_digest: [u8; 32],
    /// Rows so far.
    pub rows: u64,
    /// Rows that may be granted.
    pub pending: u64,
    /// The other counts.
    pub counts: Counts,
    /// Segments so far.
    pub segments: u32,
    /// The location of its rows, once they are no longer in the ledger.
    pub sealed: Option<Sealed>,
    /// Whether its input is closed.
    pub input_closed: bool,
    /// The canary rows that must end well before others are granted; 0 for none.
    pub canary_rows: u64,
    /// When it was created, wall time.
    pub created_wall_ms: u64,
    /// When it ended, wall time; 0 before.
    pub finished_wall_ms: u64,
    /// Workers that hold rows of it.
    pub workers: u32,
    /// The log index of its latest end; 0 before.
    pub ended_index: u64,
    /// The folder of its objects, within its namespace.
    pub folder: String,
    /// The state of its completion webhook.
    pub webhook: WebhookState,
}

/// A segment and the outcomes of its rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentView {
    /// The location of its input.
    pub segment: SegmentRef,
    /// For each row, the location of its result: an index into `parts`, and the row of that part.
    pub results: Vec<Option<(u32, u32)>>,
    /// The parts that hold them.
    pub parts: Vec<PartDecl>,
    /// Rows that failed for good, by row number.
    pub failures: Vec<(u64, FailureRecord)>,
}

/// A slot at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotView {
    /// Its offer.
    pub offer: SlotOffer,
    /// Rows that it holds.
    pub rows_held: u64,
    /// Rows that it has finished in this session.
    pub rows_done: u64,
    /// Deaths of its engine in this session; below cluster version 3 without those in trials.
    pub deaths: u64,
    /// Why it gets no work; `None` if it gets work.
    pub cordon: Option<String>,
    /// Whether it holds a trial, and so gets nothing else.
    pub in_trial: bool,
}

/// A worker at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerView {
    /// Its session.
    pub session: SessionId,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The process that it is.
    pub instance: u64,
    /// Its address, for people.
    pub address: String,
    /// Its state.
    pub state: WorkerState,
    /// Its drain, if it was asked to drain, suspect or not.
    pub drain: Option<Drain>,
    /// Its slots.
    pub slots: Vec<SlotView>,
    /// Versions of its parts.
    pub versions: BTreeMap<String, String>,
}

/// The rows of a run that are neither fresh nor decided: their holders, or what they wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlightView {
    /// Rows that came back, and are granted before fresh ones.
    pub returned: Rows,
    /// Attempts that hold rows, and the slots that they were granted to.
    pub live: Vec<(SlotRef, HeldRows)>,
    /// Second attempts of rows that others hold too.
    pub speculative: Vec<(SlotRef, HeldRows)>,
    /// Attempts whose lease has ended, with the returned rows for which a late result is accepted.
    pub lapsed: Vec<(SlotRef, HeldRows)>,
    /// Rows that wait after a failure, and until when.
    pub waiting: Vec<(u64, LedgerMs)>,
    /// Bisection groups: pending ones, waiting ones, and those that attempts hold.
    pub groups: Vec<BisectionGroupView>,
}

/// Rows that run apart from all others, because an engine died under some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BisectionGroupView {
    /// Its number within the run.
    pub number: u32,
    /// Its rows that no slot has.
    pub rows: Rows,
    /// Until when these wait, if they do.
    pub not_before: Option<LedgerMs>,
    /// The slot that empties itself for it.
    pub emptying: Option<SlotRef>,
    /// The slot whose engine died of its rows, and until when other slots come first.
    pub excluded_slot: Option<(SlotRef, LedgerMs)>,
    /// The attempts that have its other rows, or had them last.
    pub attempts: Vec<Attempt>,
}

impl Ledger {
    /// The holders of a run's rows. For inspection; takes time in proportion to what it returns.
    pub fn flight_view(&self, no: RunNo) -> Option<FlightView> {
        let run = self.runs.get(&no)?;
        let held = |grants: &BTreeMap<Attempt, Grant>| {
            let rows = |(&attempt, g): (&Attempt, &Grant)| {
                (g.slot, HeldRows { run: no, attempt, rows: g.rows.clone() })
            };
            grants.iter().map(rows).collect()
        };
        Some(FlightView {
            returned: run.flight.returned.to_rows(),
            live: held(&run.flight.grants),
            speculative: held(&run.flight.speculative),
            lapsed: held(&run.flight.lapsed),
            waiting: run.failures.iter().filter_map(|(r, t)| Some((*r, t.not_before?))).collect(),
            groups: self.group_views(run),
        })
    }

    /// The run of that name.
    pub fn find_run(&self, namespace: &str, name: &str) -> Option<RunNo> {
        self.runs.by_name(&(namespace.to_owned(), name.to_owned()))
    }

    /// Namespace and name of a run. They never change.
    pub fn run_name(&self, no: RunNo) -> Option<(String, String)> {
        self.runs.get(&no).map(|r| (r.head.namespace.clone(), r.head.name.clone()))
    }

    /// Namespace of a run. It never changes.
    pub fn run_namespace(&self, no: RunNo) -> Option<&str> {
        self.runs.get(&no).map(|r| r.head.namespace.as_str())
    }

    /// Namespace of a run, and the folder of its objects within it. They never change.
    pub fn run_folder(&self, no: RunNo) -> Option<(String, String)> {
        self.runs.get(&no).map(|r| (r.head.namespace.clone(), r.head.folder.clone()))
    }

    /// Whether a run of a namespace has that folder.
    pub fn has_folder(&self, namespace: &str, folder: &str) -> bool {
        let Some((name, _)) = folder.split_once('/') else { return false };
        let run = self.find_run(namespace, name).and_then(|no| self.runs.get(&no));
        run.is_some_and(|run| run.head.folder == folder)
    }

    /// How many runs are running, paused, and ended. Takes the same time for any number of runs.
    pub fn run_states(&self) -> (u32, u32, u32) {
        let (live, paused) = (self.tally.live_runs(), self.run_lists.paused_count());
        let ended = self.runs.len() - live - self.tally.deleting_runs();
        ((live - paused) as u32, paused as u32, ended as u32)
    }

    /// The holder of a client session, as `role/name`; `None` if there is no such session.
    pub fn client_holder(&self, session: SessionId) -> Option<&str> {
        self.clients.holder(session)
    }

    /// Rows done over all runs.
    pub fn rows_done(&self) -> u64 {
        self.runs.values().map(|r| r.head.counts.done).sum()
    }

    /// One run.
    pub fn run_view(&self, no: RunNo) -> Option<RunView> {
        self.runs.get(&no).map(view_of)
    }

    /// All runs of a namespace, or of all when it is empty, in the order of creation.
    pub fn run_views(&self, namespace: &str) -> Vec<RunView> {
        let mine = |r: &&Run| namespace.is_empty() || r.head.namespace == namespace;
        self.runs.values().filter(mine).map(view_of).collect()
    }

    /// The first rows that failed for good, at most `max`.
    pub fn failures(&self, no: RunNo, max: usize) -> Vec<(u64, FailureRecord)> {
        let failures = self.runs.get(&no).into_iter().flat_map(|r| &r.failures);
        failures.filter(|t| t.1.failed).take(max).map(|(row, t)| (*row, t.clone())).collect()
    }

    /// One segment with the outcomes of its rows.
    pub fn segment_view(&self, no: RunNo, SegmentNo(number): SegmentNo) -> Option<SegmentView> {
        let run = self.runs.get(&no)?;
        let segment = run.segments.get(number as usize)?;
        let mut table: BTreeMap<u32, u32> = BTreeMap::new();
        let mut parts = Vec::new();
        let results = (segment.first_row..segment.end())
            .map(|row| {
                let (part, part_row) = segment.outcome(row).part()?;
                let at = *table.entry(part.0).or_insert_with(|| {
                    parts.push(run.parts[part.0 as usize].clone());
                    parts.len() as u32 - 1
                });
                Some((at, part_row))
            })
            .collect();
        let failures = run.failures.range(segment.first_row..segment.end());
        Some(SegmentView {
            segment: SegmentRef {
                number: SegmentNo(number),
                first_row: segment.first_row,
                rows: segment.rows,
                blob: segment.blob.clone(),
            },
            results,
            parts,
            failures: failures.filter(|t| t.1.failed).map(|(r, t)| (*r, t.clone())).collect(),
        })
    }

    /// The location of one segment of a run's input.
    pub fn segment_ref(&self, no: RunNo, SegmentNo(number): SegmentNo) -> Option<SegmentRef> {
        let segment = self.runs.get(&no)?.segments.get(number as usize)?;
        Some(SegmentRef {
            number: SegmentNo(number),
            first_row: segment.first_row,
            rows: segment.rows,
            blob: segment.blob.clone(),
        })
    }

    /// One worker.
    pub fn worker_view(&self, session: SessionId) -> Option<WorkerView> {
        let worker = self.workers.get(&session)?;
        Some(WorkerView {
            session,
            namespace: worker.namespace().to_owned(),
            name: worker.name().to_owned(),
            instance: worker.instance(),
            address: worker.address().to_owned(),
            state: worker.state(),
            drain: worker.drain(),
            slots: worker
                .slots()
                .iter()
                .enumerate()
                .map(|(i, s)| SlotView {
                    offer: s.offer().clone(),
                    rows_held: s.rows_held(),
                    rows_done: s.rows_done(),
                    deaths: s.deaths(),
                    cordon: self.cordon_of(worker, i).map(str::to_owned),
                    in_trial: s.trial().is_some(),
                })
                .collect(),
            versions: worker.versions().clone(),
        })
    }

    /// Counts of workers by state, and of their slots. Takes the same time for any fleet.
    pub fn fleet(&self) -> Fleet {
        self.workers.size()
    }

    /// The state of a worker.
    pub fn worker_state(&self, session: SessionId) -> Option<WorkerState> {
        self.workers.get(&session).map(Worker::state)
    }

    /// A worker's drain, with its deadline.
    pub fn worker_drain(&self, session: SessionId) -> Option<Drain> {
        self.workers.get(&session)?.drain()
    }

    /// The process that registered a session last.
    pub fn worker_instance(&self, session: SessionId) -> Option<u64> {
        self.workers.get(&session).map(Worker::instance)
    }

    /// Namespace and name of a worker.
    pub fn worker_name(&self, session: SessionId) -> Option<(&str, &str)> {
        self.workers.get(&session).map(|w| (w.namespace(), w.name()))
    }

    /// Whether a pull of a ready worker has its answer already: claiming under that number gives it again, or says that a
    /// newer one was answered.
    pub fn has_answered(&self, slot: SlotRef, seq: u64) -> bool {
        let worker = self.workers.get(&slot.session).filter(|w| w.is_ready());
        let held = worker.and_then(|w| w.slots().get(slot.slot.0 as usize));
        held.is_some_and(|held| held.last_pull() >= seq)
    }

    /// Whether proposing this pull would get an answer: rows, its earlier rows, or that its session is gone.
    pub fn answers_pull(&self, slot: SlotRef, seq: u64) -> bool {
        match self.workers.get(&slot.session).map(|w| w.slots().get(slot.slot.0 as usize)) {
            Some(Some(pulls)) => pulls.last_pull() >= seq || self.has_work_for(slot),
            Some(None) | None => true,
        }
    }

    /// Every session, in the order of registration.
    pub fn worker_sessions(&self) -> Vec<SessionId> {
        self.workers.sessions()
    }

    /// The session of the worker of that name.
    pub fn find_worker(&self, namespace: &str, name: &str) -> Option<SessionId> {
        self.workers.by_name(&(namespace.to_owned(), name.to_owned()))
    }

    /// Everything that a session holds.
    pub fn held_rows(&self, session: SessionId) -> Vec<HeldRows> {
        self.queues(session).into_iter().flatten().collect()
    }

    /// The same by slot: the rows granted to each, the oldest first.
    pub fn queues(&self, session: SessionId) -> Vec<Vec<HeldRows>> {
        let queue = |slot: &Slot| {
            let mut held: Vec<(Attempt, RunNo)> = slot.held().iter().map(|h| (h.1, h.0)).collect();
            held.sort_unstable();
            let rows = |(attempt, run)| {
                let (_, rows) = self.runs.get(&run)?.holding(attempt)?;
                Some(HeldRows { run, attempt, rows })
            };
            held.into_iter().filter_map(rows).collect()
        };
        let slots = self.workers.get(&session).map_or(&[][..], |w| w.slots());
        slots.iter().map(queue).collect()
    }

    /// Whether a pull of this slot would get anything. The leader checks this before it proposes.
    pub fn has_work_for(&self, slot: SlotRef) -> bool {
        let Some((worker, pulls)) = self.pulling(slot) else { return false };
        self.turns_for(pulls).filter_map(|turn| self.runs.get(&turn.run)).any(|run| {
            let rows = pulls.cordon().is_none() && self.grantable_to(run, worker, slot.slot) > 0;
            rows || self.offered_group(run, slot, pulls.rows_held() == 0).is_some()
        })
    }

    /// A slot that may be given something, and its worker.
    pub(crate) fn pulling(&self, slot: SlotRef) -> Option<(&Worker, &Slot)> {
        let worker = self.workers.get(&slot.session)?;
        let at = slot.slot.0 as usize;
        let pulls = worker.slots().get(at)?;
        let takes = self.takes_work(worker, at) || self.takes_only_groups(worker, at);
        let full = pulls.rows_held() >= u64::from(limits::SLOT_ROWS_MAX)
            || self.namespace_room(worker.namespace()) == 0;
        // A slot that will get a group empties itself first.
        let waits = || pulls.rows_held() > 0 && self.own_group(slot).is_some();
        (takes && !full && !waits()).then_some((worker, pulls))
    }

    fn group_views(&self, run: &Run) -> Vec<BisectionGroupView> {
        let mut views: BTreeMap<u32, BisectionGroupView> = BTreeMap::new();
        for (&number, group) in &run.flight.groups {
            let view = BisectionGroupView {
                number,
                rows: group.rows.clone(),
                not_before: group.not_before,
                emptying: group.emptying,
                excluded_slot: self.excluded_slot(run, number),
                attempts: Vec::new(),
            };
            views.insert(number, view);
        }
        let attempts = run.flight.grants.iter().chain(&run.flight.lapsed);
        for (attempt, number) in attempts.filter_map(|(a, g)| Some((*a, g.group?))) {
            let view = views.entry(number).or_default();
            view.number = number;
            if !view.attempts.contains(&attempt) {
                view.attempts.push(attempt);
            }
        }
        views.into_values().collect()
    }

    /// The runs of which `victim` holds rows that `idle_slot` may get.
    pub fn stealable(&self, victim: SlotRef, idle_slot: SlotRef) -> Vec<RunNo> {
        let (Some(holder), Some(held)) = (self.workers.get(&victim.session), self.slot(victim))
        else {
            return Vec::new();
        };
        // A silent worker answers no steal.
        if holder.is_suspect() || held.trial().is_some() || !self.takes_others_rows(idle_slot) {
            return Vec::new();
        }
        let mut runs: Vec<RunNo> = held.held().iter().map(|h| h.0).collect();
        runs.dedup();
        runs.retain(|no| self.may_steal(idle_slot, *no));
        runs
    }
}

fn view_of(run: &Run) -> RunView {
    let holders = run.flight.grants.values().chain(run.flight.speculative.values());
    let workers: BTreeSet<SessionId> = holders.map(|grant| grant.slot.session).collect();
    RunView {
        run: run.no,
        namespace: run.head.namespace.clone(),
        name: run.head.name.clone(),
        state: run.head.state,
        reason: run.head.reason.clone(),
        spec: run.head.spec.clone(),
        spec_digest: run.head.spec_digest,
        rows: run.head.rows,
        pending: run.pending(),
        canary_rows: if run.in_canary() { run.head.spec.canary_rows } else { 0 },
        counts: run.head.counts,
        segments: run.segment_count(),
        sealed: run.head.sealed.clone(),
        input_closed: run.head.input_closed,
        created_wall_ms: run.head.created_wall_ms,
        finished_wall_ms: run.head.finished_wall_ms,
        webhook: run.head.webhook,
        workers: workers.len() as u32,
        ended_index: run.head.ended_index,
        folder: run.head.folder.clone(),
    }
}
