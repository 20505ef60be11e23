//! Completions: the rows of a durable part become done.
//!
//! *Invariant:* a row gets at most one result, from its last attempt or, if it runs twice, from the faster of the
//! two. A completion is final when it wins, a no-op when it is repeated with the same part, and refused when the row
//! was meanwhile granted again or decided otherwise. Only the attempt decides, not the epoch that granted it, and not
//! whether its lease has lapsed since. A worker reports the results of all its slots as one part, through any of
//! them: each row is credited to the slot that holds it.

use crate::batch::failure_record::DoneTry;
use crate::batch::run::{Run, RunState};
use crate::batch::segment::Outcome;
use crate::kernel::id::{Attempt, RunNo, SlotRef};
use crate::kernel::limits;
use crate::kernel::reply::{RefusedRows, Rejection, Reply, Superseded};
use crate::kernel::rows::Rows;
use crate::machine::apply::Context;
use crate::machine::command::{HeldRows, PartDecl};
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;
use crate::machine::namespace_rule::refuse_foreign;
use crate::machine::operation::{Cost, Operation, Subject, rows_of};
use crate::machine::seeded::{Bug, seeded};
use crate::machine::version_gate::ROWS_OF_SEVERAL_SLOTS;
use serde::{Deserialize, Serialize};

/// Rows are done: their results are in a durable part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Complete {
    /// The reporting slot.
    pub slot: SlotRef,
    /// The run.
    pub run: RunNo,
    /// The part.
    pub part: PartDecl,
    /// Its rows in its order.
    pub sets: Vec<HeldRows>,
}

impl Operation for Complete {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = true;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        false
    }

    fn rows(&self) -> u64 {
        rows_of(&self.sets)
    }

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        // Not of the worker: its session may have ended before this, and then it has no namespace here.
        ledger.subject_of_run(self.run)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.complete(ctx, self.slot, self.run, self.part, &self.sets)
    }
}

/// The details of a completion's reply.
#[derive(Default)]
struct ReplyDetails {
    refused: Vec<RefusedRows>,
    superseded: Vec<Superseded>,
}

impl Ledger {
    pub(crate) fn complete(
        &mut self,
        ctx: &Context,
        slot: SlotRef,
        no: RunNo,
        part: PartDecl,
        sets: &[HeldRows],
    ) -> Result<Reply, Rejection> {
        if sets.iter().map(|s| s.rows.len()).sum::<u64>() > limits::PART_ROWS_MAX {
            let max = limits::PART_ROWS_MAX;
            return Err(Rejection::Limit { what: "rows in a part".into(), max });
        }
        if self.is_foreign(slot.session, no) {
            return Ok(Reply::Taken { refused: refuse_foreign(no, sets) });
        }
        let run = self.run_mut(no)?;
        // A finished run accepts repeats.
        if run.ended() && run.head.state != RunState::Finished {
            return Err(Rejection::RunEnded);
        }
        let mut details = ReplyDetails::default();
        let mut accepted_any = false;
        let mut part_row = 0;
        for set in sets {
            let accepted = self.accept_set(ctx, slot, (no, set), part_row, &part, &mut details);
            accepted_any |= accepted;
            part_row += set.rows.len() as u32;
        }
        if accepted_any {
            self.runs.add_part(no, part);
            self.refresh_active(no);
            self.finish_if_done(ctx, no);
        }
        let ReplyDetails { refused, superseded } = details;
        Ok(match superseded.is_empty() {
            true => Reply::Taken { refused },
            false => Reply::Won { refused, superseded },
        })
    }

    /// Accepts the rows that this attempt may decide; reports why the others are refused.
    fn accept_set(
        &mut self,
        ctx: &Context,
        slot: SlotRef,
        (no, set): (RunNo, &HeldRows),
        first_part_row: u32,
        part: &PartDecl,
        details: &mut ReplyDetails,
    ) -> bool {
        let Some(run) = self.runs.get(&no) else { return false };
        let (accepted, rest) = run.decidable(slot, set);
        #[cfg(feature = "seeded-bugs")]
        let (accepted, rest) = self.misjudge((no, set), (accepted, rest));
        #[cfg(feature = "seeded-bugs")]
        let Some(run) = self.runs.get(&no) else { return false };
        run.refuse_rest(set.attempt, &rest, part, &mut details.refused);
        if accepted.is_empty() {
            return false;
        }
        let slot = self.credited(slot, run, set.attempt);
        let in_trial = self.slot(slot).is_some_and(|s| s.trial() == Some((no, set.attempt)));
        details.superseded.extend(self.supersede(ctx, no, set.attempt, &accepted));
        self.settle_failures_of(ctx, slot, (no, set.attempt), &accepted);
        self.release(no, set.attempt, &accepted);
        let mut position = PartPosition::new(&set.rows, first_part_row);
        self.runs.finish(no, &accepted, |row| position.of(row));
        if let Some(held) = self.slot_mut(slot) {
            held.add_done(accepted.len());
        }
        let held = HeldRows { run: no, attempt: set.attempt, rows: accepted };
        self.emit(ctx, EventKind::Completed { slot, held });
        self.row_finished(ctx, slot, in_trial);
        true
    }

    /// The slot to credit for the rows of an attempt: its holder, in the session that reports them.
    fn credited(&self, reports: SlotRef, run: &Run, attempt: Attempt) -> SlotRef {
        if self.meta.version() < ROWS_OF_SEVERAL_SLOTS {
            return reports;
        }
        let live = run.holding(attempt).map(|(slot, _)| slot);
        let lapsed = || run.flight.lapsed.get(&attempt).map(|grant| grant.slot);
        let holds = live.or_else(lapsed).filter(|slot| slot.session == reports.session);
        holds.unwrap_or(reports)
    }

    /// Records in each row's failure history which slot completed it. The history no longer affects the row.
    fn settle_failures_of(
        &mut self,
        ctx: &Context,
        slot: SlotRef,
        (no, attempt): (RunNo, Attempt),
        rows: &Rows,
    ) {
        let worker = self.workers.get(&slot.session).map_or("", |w| w.name()).to_owned();
        self.runs.settle_failures(no, rows, &DoneTry { attempt, worker, wall_ms: ctx.wall_ms });
    }
}

impl Run {
    /// Splits a set into the rows that its attempt may still decide if `slot` reports it, and the
    /// others. Only the session that holds a live row may complete it. Any slot that names the attempt may complete a
    /// lapsed row, because its session may have ended. One attempt may have both: rows that a silent worker had started
    /// stay live, and the rest of its grant has lapsed.
    fn decidable(&self, slot: SlotRef, set: &HeldRows) -> (Rows, Rows) {
        let live = self.holding(set.attempt);
        let (mut inside, mut rest) = match live.filter(|(at, _)| at.session == slot.session) {
            Some((_, rows)) => set.rows.partition(&rows),
            None => (Rows::default(), set.rows.clone()),
        };
        if !rest.is_empty()
            && let Some(lapsed) = self.flight.lapsed.get(&set.attempt)
        {
            let (late, others) = rest.partition(&lapsed.rows);
            inside.unite(&late);
            rest = others;
        }
        (inside, rest)
    }

    fn refuse_rest(
        &self,
        attempt: Attempt,
        rest: &Rows,
        part: &PartDecl,
        refused: &mut Vec<RefusedRows>,
    ) {
        let (mut stale, mut decided) = (Rows::default(), Rows::default());
        for row in rest.iter() {
            let outcome = self.outcome(row);
            let same = outcome
                .part()
                .and_then(|(no, _)| self.parts.get(no.0 as usize))
                .is_some_and(|p| p.blob.digest == part.blob.digest);
            if same {
                continue; // A repeat: it was accepted before, and still is.
            }
            match outcome == Outcome::NONE {
                true => stale.push(row, 1),
                false => decided.push(row, 1),
            }
        }
        for (rows, why) in [(stale, Rejection::AttemptStale), (decided, Rejection::AlreadyDecided)]
        {
            if !rows.is_empty() {
                refused.push(RefusedRows { run: self.no, attempt, rows, why });
            }
        }
    }
}

/// Where in a part the rows of one set are, asked in ascending order.
struct PartPosition<'a> {
    ranges: &'a [(u64, u32)],
    before: u32,
}

impl<'a> PartPosition<'a> {
    fn new(rows: &'a Rows, first: u32) -> Self {
        Self { ranges: rows.ranges(), before: first }
    }

    fn of(&mut self, row: u64) -> u32 {
        while let Some((&(start, len), rest)) = self.ranges.split_first() {
            if row < start + u64::from(len) {
                if seeded(Bug::ResultOfAnotherRow) {
                    return self.before + ((row - start) as u32 + 1) % len;
                }
                return self.before + (row - start) as u32;
            }
            self.before += len;
            self.ranges = rest;
        }
        debug_assert!(false, "only rows of the set are asked for");
        self.before
    }
}
