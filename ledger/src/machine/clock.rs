//! Ledger time: how it advances, and what is due.
//!
//! *Invariant:* time never goes back and advances at most [`limits::CLOCK_STEP_MAX_MS`] in one command. It has
//! effects only in a `Tick`, which the leader proposes when [`Ledger::next_deadline`] has come. No member expires
//! anything on its own.

use crate::fleet::worker::{SessionEnd, Worker};
use crate::kernel::id::{CoordEpoch, LedgerMs, RunNo, SessionId};
use crate::kernel::limits;
use crate::kernel::reply::Reply;
use crate::kernel::rows::Rows;
use crate::machine::apply::Context;
use crate::machine::event::Emitter;
use crate::machine::ledger::Ledger;
use crate::machine::version_gate::{SCHEDULING_VERSION, SILENT_TRAINERS_VERSION};
use std::collections::{BTreeMap, BTreeSet};

/// What one `Tick` may still do of the work that grows with the number of workers lost at once. It bounds how long a
/// member holds its lock.
struct Budget {
    attempts: usize,
    rows: u64,
}

impl Budget {
    fn of_version(version: u32) -> Self {
        match version < SCHEDULING_VERSION {
            true => Self { attempts: usize::MAX, rows: u64::MAX },
            false => Self { attempts: limits::TICK_ATTEMPTS_MAX, rows: limits::TICK_ROWS_MAX },
        }
    }

    fn is_spent(&self) -> bool {
        self.attempts == 0 || self.rows == 0
    }

    fn spend(&mut self, attempts: usize, rows: u64) {
        self.attempts = self.attempts.saturating_sub(attempts);
        self.rows = self.rows.saturating_sub(rows);
    }
}

impl Ledger {
    /// Opens the epoch of a new leader. Every suspect session gets its full grace time again, because no leader listened
    /// meanwhile. So does every trainer whose silence the ledger measures.
    pub(crate) fn open_epoch(&mut self, epoch: CoordEpoch) -> Reply {
        self.meta.epoch = epoch;
        let now = self.meta.clock;
        self.workers.listen_anew(now);
        if self.ends_silent_trainers() {
            self.jobs.listen_anew(now);
        }
        Reply::EpochOpened { at: now }
    }

    /// The earliest ledger time at which a `Tick` has something to do. Takes the same time for any number of runs, workers
    /// and rows.
    pub fn next_deadline(&self) -> Option<LedgerMs> {
        let rows = self.runs.first_wait().map(|wait| wait.0);
        let incidents = self.runs.first_incident_end();
        let cordons = self.cordon_ends.first();
        let clients = self.clients.next_end();
        let stores = self.stores.next_end();
        let jobs = self.jobs.next_time();
        let trainers = self.jobs.next_end().filter(|_| self.ends_silent_trainers());
        rows.into_iter()
            .chain(incidents)
            .chain(cordons)
            .chain(clients)
            .chain(stores)
            .chain(jobs)
            .chain(trainers)
            .chain(self.tokens.next_end())
            .chain(self.api_keys.next_end())
            .chain(self.api_files.next_end())
            .chain(self.batches.next_end())
            .chain(self.deadlines.first())
            .min()
    }

    /// Does what is due. The rows of many lost workers may take several ticks; the rest stays due.
    pub(crate) fn tick(&mut self, ctx: &Context) {
        let mut budget = Budget::of_version(self.meta.version);
        self.end_overdue_runs(ctx);
        self.end_waits(&mut budget);
        self.end_exclusions();
        self.end_incidents();
        self.end_failure_cordons(ctx);
        self.end_sessions(ctx, &mut budget);
        self.end_attempts(ctx, &mut budget);
        self.clients.forget_unused(self.meta.clock);
        self.stores.forget_unused(self.meta.clock);
        self.tick_jobs(ctx);
        if self.ends_silent_trainers() {
            let out = &mut Emitter::new(ctx, &mut self.events);
            self.jobs.lose_silent(self.meta.clock, out);
        }
        self.tokens.forget_expired(self.meta.clock);
        self.api_keys.forget_expired(self.meta.clock, ctx.index());
        self.api_files.end_due(self.meta.clock);
        self.batches.forget_ended(self.meta.clock);
    }

    /// Whether a `Tick` loses silent trainers. In later versions the leader reports them.
    fn ends_silent_trainers(&self) -> bool {
        self.meta.version < SILENT_TRAINERS_VERSION
    }

    fn end_waits(&mut self, budget: &mut Budget) {
        let now = self.meta.clock;
        // The due rows of each run, and the time until which the last of them waited.
        let mut due: BTreeMap<RunNo, (LedgerMs, BTreeSet<u64>)> = BTreeMap::new();
        let mut last = None;
        while let Some((at, no, row)) = self.runs.first_wait().filter(|wait| wait.0 <= now) {
            // Rows of one group wait until the same time, and come back together.
            if budget.is_spent() && last != Some((at, no)) {
                break;
            }
            last = Some((at, no));
            budget.spend(0, 1);
            self.runs.end_first_wait();
            let (until, rows) = due.entry(no).or_default();
            *until = at;
            rows.insert(row);
        }
        for (no, (until, due)) in due {
            let Some(run) = self.runs.change(&no) else { continue };
            let mut rows = Rows::default();
            due.into_iter().for_each(|row| rows.push(row, 1));
            // Groups that keep waiting still have their rows among the waiting ones: the budget may have ended before
            // them.
            run.end_group_waits(until, &mut rows);
            run.bring_back(&rows);
            self.refresh_active(no);
        }
    }

    fn end_exclusions(&mut self) {
        let now = self.meta.clock;
        for no in self.deadlines.ended_exclusions(now) {
            if self.runs.get_mut(&no).is_some_and(|run| run.end_exclusions(now)) {
                self.runs.mark(no);
            }
        }
    }

    fn end_sessions(&mut self, ctx: &Context, budget: &mut Budget) {
        let now = self.meta.clock;
        let due = self.deadlines.ended_sessions(now);
        let due = due.iter().filter_map(|session| self.workers.get(session));
        let due = due.filter(|worker| worker.ends().is_some_and(|end| end <= now));
        let due: Vec<SessionId> = due
            .take_while(|worker| {
                let goes_on = !budget.is_spent();
                let rows: u64 = worker.slots().iter().map(|slot| slot.rows_held()).sum();
                // A session that holds nothing counts too.
                budget.spend(
                    worker.slots().iter().map(|slot| slot.held().len()).sum::<usize>() + 1,
                    rows,
                );
                goes_on
            })
            .map(Worker::id)
            .collect();
        for session in due {
            self.worker_crashed(ctx, session, &[], &[]);
            self.end_session(ctx, session, SessionEnd::Lost);
        }
    }

    fn end_attempts(&mut self, ctx: &Context, budget: &mut Budget) {
        let now = self.meta.clock;
        for no in self.deadlines.runs_with_timeouts(now) {
            while let Some((attempt, rows)) = self.runs.get(&no).and_then(|run| run.timed_out(now))
            {
                if budget.is_spent() {
                    return;
                }
                budget.spend(1, rows);
                self.lapse(ctx, no, attempt, "timed_out");
            }
        }
    }
}
