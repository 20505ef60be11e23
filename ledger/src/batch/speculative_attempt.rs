//! Speculative attempts: at the tail of a run that allows it, an idle slot runs a row that another worker also runs.
//!
//! *Invariant:* a *speculative* attempt is a second attempt of a row that is live under an older attempt, at another
//! worker. A row has at most one, and counts once. The attempt that commits first wins and supersedes the other. An
//! attempt that fails or is lost leaves the row to the other, without a strike. A row that has ever failed gets no
//! speculative attempt, nor does a row of a trial: running a row twice must not kill more engines.

use crate::batch::failure_record::FailedTry;
use crate::batch::grant::Grant;
use crate::batch::run::{Run, RunState};
use crate::kernel::id::{Attempt, LedgerMs, RunNo, SessionId, SlotRef};
use crate::kernel::limits;
use crate::kernel::reply::{GrantedRows, Rejection, Reply, Superseded};
use crate::kernel::rows::Rows;
use crate::machine::apply::Context;
use crate::machine::command::HeldRows;
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// Gives a slot rows that other slots already run, at the tail of a run that allows it: the first result wins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimSpeculatively {
    /// The pulling slot.
    pub slot: SlotRef,
    /// The process that pulls.
    pub instance: u64,
    /// The sequence number of the slot's pull.
    pub seq: u64,
    /// How many rows at most.
    pub rows_max: u32,
}

impl Operation for ClaimSpeculatively {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = true;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        true
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        ledger.subject_of_worker(self.slot.session)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.check_instance(self.slot.session, self.instance)?;
        ledger.claim_speculatively(ctx, self.slot, self.seq, self.rows_max)
    }
}

impl Run {
    /// The holder of an attempt, and all live rows under it: its own, and speculative ones.
    pub(crate) fn holding(&self, attempt: Attempt) -> Option<(SlotRef, Rows)> {
        let own = self.flight.grants.get(&attempt);
        let speculative = self.flight.speculative.get(&attempt);
        let slot = own.or(speculative)?.slot;
        let mut rows = own.map(|g| g.rows.clone()).unwrap_or_default();
        if let Some(speculative) = speculative {
            rows.unite(&speculative.rows);
        }
        Some((slot, rows))
    }

    /// Whether slots hold rows of the run, no row is pending, and the input is closed. Only then may a row get a
    /// speculative attempt.
    pub(crate) fn at_tail(&self) -> bool {
        self.nears_tail() && !self.flight.grants.is_empty()
    }

    /// The same, even if no slot holds a row of the run.
    pub(crate) fn nears_tail(&self) -> bool {
        self.head.spec.tail_duplicates
            && self.head.state == RunState::Running
            && self.head.input_closed
            && self.pending() == 0
    }

    /// Up to `want` rows held by workers other than that of `session`, with their slots, the longest-held first.
    pub(crate) fn rows_to_speculate_on(
        &self,
        session: Option<SessionId>,
        now: LedgerMs,
        want: u32,
    ) -> Vec<(SlotRef, Rows)> {
        let old = |g: &&Grant| {
            g.granted_at.0.saturating_add(limits::SPECULATE_AFTER_MS) <= now.0
                && Some(g.slot.session) != session
                && g.group.is_none()
        };
        let mut found = Vec::new();
        let mut left = want;
        for grant in self.flight.grants.values().filter(old) {
            let mut alone = self.flight.speculative.without(&grant.rows);
            let failed = alone.iter().filter(|row| self.failures.contains_key(row));
            let failed = Rows::from_ranges(failed.map(|row| (row, 1))).unwrap_or_default();
            alone.subtract(&failed);
            let rows = alone.take_first(left);
            left -= rows.len() as u32;
            if !rows.is_empty() {
                found.push((grant.slot, rows));
            }
            if left == 0 {
                break;
            }
        }
        found
    }
}

impl Ledger {
    /// Answers a pull as a claim does, or, if that finds nothing, with rows that other slots run.
    pub(crate) fn claim_speculatively(
        &mut self,
        ctx: &mut Context,
        slot: SlotRef,
        seq: u64,
        rows_max: u32,
    ) -> Result<Reply, Rejection> {
        let answered = self.pull_slot(slot)?.last_pull() >= seq;
        let reply = self.claim(ctx, slot, seq, rows_max)?;
        if answered || reply != Reply::Granted(Vec::new()) {
            return Ok(reply);
        }
        let granted = self.grant_speculative(ctx, slot, rows_max);
        self.remember_answer(slot, seq, &granted)?;
        Ok(Reply::Granted(granted))
    }

    /// The runs at their tails that a slot fits, in the order in which they are served.
    fn tails_for(&self, slot: SlotRef) -> Vec<RunNo> {
        let tails = self.run_lists.tails().filter_map(|no| self.runs.get(&no));
        let tails = tails.filter(|run| run.at_tail() && self.may_steal(slot, run.no));
        let mut tails: Vec<_> =
            tails.map(|run| (Reverse(run.head.spec.priority), run.no)).collect();
        tails.sort_unstable();
        tails.into_iter().map(|tail| tail.1).collect()
    }

    fn grant_speculative(
        &mut self,
        ctx: &mut Context,
        slot: SlotRef,
        rows_max: u32,
    ) -> Vec<GrantedRows> {
        let mut granted = Vec::new();
        if !self.takes_others_rows(slot) {
            return granted;
        }
        let held = self.pull_slot(slot).map_or(0, |held| held.rows_held() as u32);
        let room = limits::SLOT_ROWS_MAX.saturating_sub(held);
        let mut want = rows_max.min(room).min(limits::CLAIM_ROWS_MAX);
        for no in self.tails_for(slot) {
            if want == 0 {
                break;
            }
            let Some(run) = self.runs.get(&no) else { continue };
            let found = run.rows_to_speculate_on(Some(slot.session), self.meta.clock(), want);
            let mut ranges: Vec<(u64, u32)> =
                found.iter().flat_map(|held| held.1.ranges()).copied().collect();
            ranges.sort_unstable();
            let rows = Rows::from_ranges(ranges).unwrap_or_default();
            if rows.is_empty() {
                continue;
            }
            let Some(attempt) = ctx.attempt() else { break };
            want -= rows.len() as u32;
            granted.extend(self.add_speculative(ctx, slot, HeldRows { run: no, attempt, rows }));
        }
        granted
    }

    fn add_speculative(
        &mut self,
        ctx: &Context,
        slot: SlotRef,
        held: HeldRows,
    ) -> Option<GrantedRows> {
        let granted_at = self.meta.clock();
        let run = self.runs.change(&held.run)?;
        let grant = Grant { slot, rows: held.rows.clone(), granted_at, group: None };
        run.flight.speculative.insert(held.attempt, grant);
        run.head.counts.speculative_rows += held.rows.len();
        let segments = run.segments_of(&held.rows);
        if let Some(pulls) = self.slot_mut(slot) {
            pulls.hold((held.run, held.attempt), held.rows.len());
        }
        self.emit(ctx, EventKind::Granted { slot, held: held.clone(), how: "duplicate" });
        Some(GrantedRows { held, segments, alone: false })
    }

    /// Removes from the attempt the rows that another attempt also runs. The other attempt keeps them. Returns these
    /// rows.
    pub(crate) fn release_shared_rows(&mut self, no: RunNo, attempt: Attempt, rows: &Rows) -> Rows {
        let mut aside = Rows::default();
        let Some(run) = self.runs.get_mut(&no) else { return aside };
        if run.flight.speculative.is_empty() {
            return aside;
        }
        let Some((slot, _)) = run.holding(attempt) else { return aside };
        let flight = &mut run.flight;
        if let Some(speculative) = flight.speculative.get(&attempt) {
            aside = rows.partition(&speculative.rows).0;
            flight.speculative.take(&attempt, &aside);
        }
        if let Some(own) = flight.grants.get_mut(&attempt) {
            let own_rows = rows.partition(&own.rows).0;
            let mut heirs = Vec::new();
            for heir in flight.speculative.of_rows(&own_rows) {
                let Some(speculative) = flight.speculative.get(&heir) else { continue };
                let (moved, _) = own_rows.partition(&speculative.rows);
                own.rows.subtract(&moved);
                aside.unite(&moved);
                heirs.push((heir, Grant { rows: moved, ..*speculative }));
            }
            for (heir, moved) in heirs {
                flight.speculative.take(&heir, &moved.rows);
                match flight.grants.get_mut(&heir) {
                    Some(grant) => grant.rows.unite(&moved.rows),
                    None => flight.grants.insert(heir, moved),
                }
            }
        }
        flight.grants.drop_empty(&attempt);
        let ended = run.holding(attempt).is_none();
        if let Some(held) = self.slot_mut(slot).filter(|_| !aside.is_empty()) {
            held.release((no, attempt), aside.len(), ended);
        }
        self.runs.mark(no);
        aside
    }

    /// Ends the other attempts of rows that `winner` has a result of.
    pub(crate) fn supersede(
        &mut self,
        ctx: &Context,
        no: RunNo,
        winner: Attempt,
        rows: &Rows,
    ) -> Vec<Superseded> {
        let Some(run) = self.runs.get(&no) else { return Vec::new() };
        let flight = &run.flight;
        if flight.speculative.is_empty() {
            return Vec::new();
        }
        let shared = flight.speculative.get(&winner).map(|own| rows.partition(&own.rows).0);
        let shared = shared.unwrap_or_default();
        let second = flight.speculative.of_rows(rows);
        let second = second.iter().filter_map(|attempt| flight.speculative.get_key_value(attempt));
        let second = second.map(|(attempt, grant)| (attempt, grant, rows));
        // Most results are for rows that no other attempt has: then no other attempt is visited.
        let grants = (!shared.is_empty()).then_some(&flight.grants);
        let first = grants.into_iter().flat_map(|grants| grants.iter());
        let first = first.map(|(attempt, grant)| (attempt, grant, &shared));
        let mut superseded = Vec::new();
        for (&attempt, grant, won) in second.chain(first).filter(|rival| *rival.0 != winner) {
            let lost = won.partition(&grant.rows).0;
            if !lost.is_empty() {
                let held = HeldRows { run: no, attempt, rows: lost };
                superseded.push(Superseded { slot: grant.slot, held });
            }
        }
        for Superseded { slot, held } in &superseded {
            self.release_shared_rows(no, held.attempt, &held.rows);
            self.emit_returned(ctx, *slot, (no, held.attempt), &held.rows, "outrun");
        }
        superseded
    }

    /// Ends all speculative attempts of a run.
    pub(crate) fn end_speculative(&mut self, ctx: &Context, no: RunNo, why: &'static str) {
        let Some(run) = self.runs.get(&no) else { return };
        let speculative: Vec<(Attempt, Grant)> = run
            .flight
            .speculative
            .iter()
            .map(|(attempt, speculative)| (*attempt, speculative.clone()))
            .collect();
        for (attempt, speculative) in speculative {
            self.release_shared_rows(no, attempt, &speculative.rows);
            self.emit_returned(ctx, speculative.slot, (no, attempt), &speculative.rows, why);
        }
    }

    /// Records that an attempt failed these rows while another continues: no strike, but no speculative attempt from
    /// now on either.
    pub(crate) fn excuse(&mut self, no: RunNo, rows: &Rows, failed: &FailedTry) {
        let Some(run) = self.runs.get_mut(&no) else { return };
        for row in rows.iter() {
            run.failures.entry(row).or_default().excuse(failed.clone());
        }
        self.runs.mark_failures(no, rows.iter());
    }
}
