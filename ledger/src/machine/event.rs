//! Events for users and programs that follow the ledger, each named after the log position that caused it.
//!
//! *Invariant:* an event is computed while its command is applied and is no part of the state: no image and no digest
//! contains it, and nothing in the ledger depends on it. Every member makes the same events in the same order. Rows
//! come as ranges, never as one event per row.
//!
//! Absent: what a process does to itself (a member that fences itself says so locally), and how long
//! events are kept.

use crate::identity::member::LeaderCause;
use crate::kernel::id::{Attempt, CoordEpoch, RunNo, SessionId, SlotRef};
use crate::kernel::rows::Rows;
use crate::machine::apply::Context;
use crate::machine::command::{FailureClass, HeldRows};
use crate::machine::ledger::Ledger;
use crate::training::job::JobName;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The log entry.
    pub index: u64,
    /// Its position among the events of its entry, from 0.
    pub position: u32,
    /// Wall time at the leader, informational only.
    pub wall_ms: u64,
    /// The event.
    pub kind: EventKind,
}

/// The kinds of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A leader opened dispatch.
    EpochOpened {
        /// Its epoch.
        epoch: CoordEpoch,
    },
    /// Another member leads, or the same one again. It comes after the [`EventKind::EpochOpened`] of its epoch.
    LeaderChanged {
        /// The epoch.
        epoch: CoordEpoch,
        /// The leader's name.
        leader: String,
        /// The former leader's name; empty if unknown.
        former: String,
        /// Why.
        cause: LeaderCause,
    },
    /// A member's process started or stopped, or the leader lost or regained contact with it.
    MemberChanged {
        /// The member's name.
        member: String,
        /// `started`, `stopped`, `unreachable`, `reachable`.
        to: &'static str,
        /// How a process came to start: `first`, `after_stop`, or `without_notice` of the previous one's end;
        /// otherwise empty.
        cause: &'static str,
    },
    /// An operator changed a setting of the cluster.
    SettingChanged {
        /// The setting's name.
        setting: &'static str,
        /// The value before.
        from: u32,
        /// The value now.
        to: u32,
    },
    /// A worker registered, with a new session or resuming its own.
    WorkerRegistered {
        /// Its session.
        session: SessionId,
        /// Whether it had it before.
        resumed: bool,
    },
    /// A worker fell silent.
    WorkerSuspect {
        /// Its session.
        session: SessionId,
    },
    /// A silent worker is heard again.
    WorkerBack {
        /// Its session.
        session: SessionId,
    },
    /// A worker was asked to drain.
    WorkerDraining {
        /// Its session.
        session: SessionId,
    },
    /// A worker left after draining.
    WorkerDrained {
        /// Its session.
        session: SessionId,
        /// Its namespace and name, because the session is gone.
        name: (String, String),
    },
    /// A worker's session ended without a request of the worker.
    WorkerLost {
        /// Its session.
        session: SessionId,
        /// Its namespace and name, because the session is gone.
        name: (String, String),
    },
    /// A worker, or one of its slots, was cordoned or uncordoned.
    WorkerCordoned {
        /// The slot; with `whole`, all slots of the worker.
        slot: SlotRef,
        /// Whether it applies to all slots.
        whole: bool,
        /// Cordoned, or uncordoned.
        cordoned: bool,
        /// Why.
        reason: String,
    },
    /// A run was created.
    RunCreated {
        /// The run.
        run: RunNo,
    },
    /// A run was paused, resumed, cancelled, sealed or deleted, it finished, its deadline passed, or
    /// its canary did.
    RunChanged {
        /// The run.
        run: RunNo,
        /// `paused`, `resumed`, `cancelled`, `finished`, `sealed`, `deleted`, `canary_passed`,
        /// `deadline_exceeded`, `notified`, `notice_given_up`.
        to: &'static str,
        /// Why.
        reason: String,
    },
    /// Rows were granted.
    Granted {
        /// The slot that gets the rows.
        slot: SlotRef,
        /// The rows.
        held: HeldRows,
        /// `claim`, `trial`, `duplicate`, or `back`: rows that had lapsed while their
        /// holder was silent, and that no other slot got, return to the holder.
        how: &'static str,
    },
    /// Rows went from one slot to another.
    Stolen {
        /// The slot that loses the rows.
        victim: SlotRef,
        /// The slot that gets them.
        idle_slot: SlotRef,
        /// The attempt that lost them.
        lost: Attempt,
        /// The rows, under their new attempt.
        held: HeldRows,
    },
    /// Rows have a result.
    Completed {
        /// The slot that reported it.
        slot: SlotRef,
        /// Which, under which attempt.
        held: HeldRows,
    },
    /// Rows failed.
    Failed {
        /// The reporting slot.
        slot: SlotRef,
        /// Which, under which attempt.
        held: HeldRows,
        /// Why.
        class: FailureClass,
        /// Machine-readable reason.
        code: String,
        /// Of these, the rows that failed for good.
        for_good: Rows,
    },
    /// Rows came back unfinished: yielded, revoked, timed out or lost with their worker. Rows that another slot runs
    /// too continue there.
    Returned {
        /// The slot that had them.
        slot: SlotRef,
        /// Which, under which attempt.
        held: HeldRows,
        /// `nacked`, `silent`, `lost`, `timed_out`, `resumed`, `cancelled`, `deadline`, `store_refused`: the store refuses
        /// its worker, or `outrun`: another slot that ran them too was faster.
        why: &'static str,
    },
    /// Failed rows were made pending again by their user.
    Retried {
        /// The run.
        run: RunNo,
        /// Which.
        rows: Rows,
    },
    /// A training job changed.
    Job {
        /// The job.
        job: JobName,
        /// `participant_lost`, `participant_left`, `rendezvous_completed`, `rendezvous_ended`,
        /// `rendezvous_closed`, `barrier_opened`, `barrier_failed`.
        what: &'static str,
        /// The participant or the barrier, if it is about one.
        subject: String,
        /// The round, or the barrier's generation; 0 if it is about neither.
        round: u64,
        /// The reason, human-readable.
        reason: String,
    },
    /// A training job changed.
    TrainingChanged {
        /// The job.
        job: JobName,
        /// `lineage_begun`, `trainer_lost`, `torn`, `checkpoint_complete`, `checkpoint_goes`, `deleted`.
        to: &'static str,
        /// Human-readable details.
        detail: String,
    },
}

/// The events since the last call of [`Ledger::take_events`]. Only an [`Emitter`] adds one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events(Vec<Event>);

impl Events {
    /// Drops all of them.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Where a domain emits the events of an operation.
pub(crate) struct Emitter<'a> {
    pub(crate) ctx: &'a Context,
    events: &'a mut Events,
}

impl<'a> Emitter<'a> {
    pub(crate) fn new(ctx: &'a Context, events: &'a mut Events) -> Self {
        Self { ctx, events }
    }

    /// Notes that something happened.
    pub(crate) fn emit(&mut self, kind: EventKind) {
        let (index, wall_ms) = (self.ctx.index(), self.ctx.wall_ms);
        let position = match self.events.0.last() {
            Some(last) if last.index == index => last.position + 1,
            _ => 0,
        };
        self.events.0.push(Event { index, position, wall_ms, kind });
    }
}

impl Ledger {
    /// Notes that something happened.
    pub(crate) fn emit(&mut self, ctx: &Context, kind: EventKind) {
        Emitter::new(ctx, &mut self.events).emit(kind);
    }

    /// Notes that rows came back unfinished.
    pub(crate) fn emit_returned(
        &mut self,
        ctx: &Context,
        slot: SlotRef,
        (run, attempt): (RunNo, Attempt),
        rows: &Rows,
        why: &'static str,
    ) {
        if !rows.is_empty() {
            let held = HeldRows { run, attempt, rows: rows.clone() };
            self.emit(ctx, EventKind::Returned { slot, held, why });
        }
    }

    /// Emits an event about a change of a run.
    pub(crate) fn emit_run(&mut self, ctx: &Context, run: RunNo, to: &'static str, reason: &str) {
        self.emit(ctx, EventKind::RunChanged { run, to, reason: reason.to_owned() });
    }

    /// Takes the events of the entries applied since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events.0)
    }
}
