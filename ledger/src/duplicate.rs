//! Duplicates: at the tail of a run that allows it, an idle slot runs what another worker runs too.
//!
//! *Invariant:* a *shadow* is a second attempt of a row that is live under an older one, at another
//! worker; a row has at most one, and counts once. Whichever attempt commits first wins, and the
//! other ends with it. An attempt that fails or is lost leaves the row to the other, without a
//! strike. A row that has ever failed gets no shadow, and a trial's neither: what kills engines
//! kills no more of them for being run twice.

use crate::apply::Context;
use crate::command::HeldRows;
use crate::event::EventKind;
use crate::grant::Grant;
use crate::id::{Attempt, LedgerMs, RunNo, SessionId, SlotRef};
use crate::ledger::Ledger;
use crate::limits;
use crate::reply::{GrantedRows, Outrun, Rejection, Reply};
use crate::rows::Rows;
use crate::run::{Run, RunState};
use crate::trouble::FailedTry;
use std::cmp::Reverse;

impl Run {
    /// Who holds an attempt, and all that is live under it: rows of its own, and shadows.
    pub(crate) fn holding(&self, attempt: Attempt) -> Option<(SlotRef, Rows)> {
        let own = self.flight.grants.get(&attempt);
        let shadow = self.flight.shadows.get(&attempt);
        let slot = own.or(shadow)?.slot;
        let mut rows = own.map(|g| g.rows.clone()).unwrap_or_default();
        if let Some(shadow) = shadow {
            rows.unite(&shadow.rows);
        }
        Some((slot, rows))
    }

    /// Every attempt that holds rows, with those that it shares.
    pub(crate) fn all_held(&self) -> impl Iterator<Item = (SlotRef, HeldRows)> {
        let all = self.flight.grants.iter().chain(&self.flight.shadows);
        all.map(|(&attempt, g)| (g.slot, HeldRows { run: self.no, attempt, rows: g.rows.clone() }))
    }

    /// Nothing of it is pending or will come: whoever is idle has nothing to expect of it.
    fn at_tail(&self) -> bool {
        self.head.spec.tail_duplicates
            && self.head.state == RunState::Running
            && self.head.input_closed
            && !self.flight.grants.is_empty()
            && self.pending() == 0
    }

    /// Up to `want` rows that others hold, those that they hold for longest first.
    fn duplicable(&self, session: SessionId, now: LedgerMs, want: u32) -> Rows {
        let mut shadowed = Rows::default();
        self.flight.shadows.values().for_each(|shadow| shadowed.unite(&shadow.rows));
        let old = |g: &&Grant| {
            g.granted_at.0.saturating_add(limits::DUPLICATE_AFTER_MS) <= now.0
                && g.slot.session != session
                && g.trial.is_none()
        };
        let mut rows = Rows::default();
        for grant in self.flight.grants.values().filter(old) {
            let mut alone = grant.rows.clone();
            alone.subtract(&shadowed);
            let failed = alone.iter().filter(|row| self.troubles.contains_key(row));
            let failed = Rows::from_ranges(failed.map(|row| (row, 1))).unwrap_or_default();
            alone.subtract(&failed);
            rows.unite(&alone.take_first(want - rows.len() as u32));
            if rows.len() == u64::from(want) {
                break;
            }
        }
        rows
    }
}

impl Ledger {
    /// Answers a pull as a claim does, or, when that finds nothing, with rows that others run.
    pub(crate) fn duplicate(
        &mut self,
        ctx: &mut Context,
        slot: SlotRef,
        seq: u64,
        rows_max: u32,
    ) -> Result<Reply, Rejection> {
        let answered = self.pull_slot(slot)?.last_pull >= seq;
        let reply = self.claim(ctx, slot, seq, rows_max)?;
        if answered || reply != Reply::Granted(Vec::new()) {
            return Ok(reply);
        }
        let granted = self.grant_shadows(ctx, slot, rows_max);
        self.remember_answer(slot, seq, &granted)?;
        Ok(Reply::Granted(granted))
    }

    /// Which of these slots, for which nothing is pending, could run what others run.
    pub fn duplicators(&self, slots: &[SlotRef], now: LedgerMs) -> Vec<SlotRef> {
        let tails = self.tails();
        let finds = |slot: &SlotRef, no: &RunNo| {
            self.may_steal(*slot, *no) && !self.runs[no].duplicable(slot.session, now, 1).is_empty()
        };
        let idle = slots.iter().filter(|slot| self.takes_shadows(**slot));
        idle.filter(|slot| tails.iter().any(|no| finds(slot, no))).copied().collect()
    }

    /// The runs of which rows may be duplicated, in the order in which they are served.
    fn tails(&self) -> Vec<RunNo> {
        let tails = self.runs.values().filter(|run| run.at_tail());
        let mut tails: Vec<_> =
            tails.map(|run| (Reverse(run.head.spec.priority), run.no)).collect();
        tails.sort_unstable();
        tails.into_iter().map(|tail| tail.1).collect()
    }

    fn takes_shadows(&self, slot: SlotRef) -> bool {
        let worker = self.workers.get(&slot.session);
        worker.is_some_and(|w| self.takes_work(w, slot.slot.0 as usize))
            && self.own_trial(slot).is_none()
    }

    fn grant_shadows(
        &mut self,
        ctx: &mut Context,
        slot: SlotRef,
        rows_max: u32,
    ) -> Vec<GrantedRows> {
        let mut granted = Vec::new();
        if !self.takes_shadows(slot) {
            return granted;
        }
        let held = self.pull_slot(slot).map_or(0, |held| held.rows_held as u32);
        let room = limits::SLOT_ROWS_MAX.saturating_sub(held);
        let mut want = rows_max.min(room).min(limits::CLAIM_ROWS_MAX);
        for no in self.tails() {
            if want == 0 || !self.may_steal(slot, no) {
                continue;
            }
            let rows = self.runs[&no].duplicable(slot.session, self.meta.clock, want);
            if rows.is_empty() {
                continue;
            }
            let Some(attempt) = ctx.attempt() else { break };
            want -= rows.len() as u32;
            granted.extend(self.add_shadow(ctx, slot, HeldRows { run: no, attempt, rows }));
        }
        granted
    }

    fn add_shadow(&mut self, ctx: &Context, slot: SlotRef, held: HeldRows) -> Option<GrantedRows> {
        let granted_at = self.meta.clock;
        let run = self.runs.get_mut(&held.run)?;
        let grant = Grant { slot, rows: held.rows.clone(), granted_at, trial: None };
        run.flight.shadows.insert(held.attempt, grant);
        run.head.counts.duplicated += held.rows.len();
        let segments = run.segments_of(&held.rows);
        if let Some(pulls) = self.slot_mut(slot) {
            pulls.held.insert((held.run, held.attempt));
            pulls.rows_held += held.rows.len();
        }
        self.dirty.runs.insert(held.run);
        self.emit(ctx, EventKind::Granted { slot, held: held.clone(), how: "duplicate" });
        Some(GrantedRows { held, segments, alone: false })
    }

    /// Ends an attempt's hold on those of `rows` that another attempt runs too, which is then the
    /// only one. Returns these rows; whatever else happens to them happens to the other attempt.
    pub(crate) fn step_aside(&mut self, no: RunNo, attempt: Attempt, rows: &Rows) -> Rows {
        let mut aside = Rows::default();
        let Some(run) = self.runs.get_mut(&no) else { return aside };
        if run.flight.shadows.is_empty() {
            return aside;
        }
        let Some((slot, _)) = run.holding(attempt) else { return aside };
        let flight = &mut run.flight;
        if let Some(shadow) = flight.shadows.get_mut(&attempt) {
            aside = rows.partition(&shadow.rows).0;
            shadow.rows.subtract(&aside);
        }
        if let Some(own) = flight.grants.get_mut(&attempt) {
            let own_rows = rows.partition(&own.rows).0;
            let mut heirs = Vec::new();
            for (&heir, shadow) in &mut flight.shadows {
                let (moved, _) = own_rows.partition(&shadow.rows);
                if !moved.is_empty() {
                    shadow.rows.subtract(&moved);
                    own.rows.subtract(&moved);
                    aside.unite(&moved);
                    heirs.push((heir, Grant { rows: moved, ..shadow.clone() }));
                }
            }
            for (heir, moved) in heirs {
                match flight.grants.get_mut(&heir) {
                    Some(grant) => grant.rows.unite(&moved.rows),
                    None => drop(flight.grants.insert(heir, moved)),
                }
            }
        }
        flight.shadows.retain(|_, shadow| !shadow.rows.is_empty());
        flight.grants.retain(|_, grant| !grant.rows.is_empty());
        let ended = run.holding(attempt).is_none();
        if let Some(held) = self.slot_mut(slot).filter(|_| !aside.is_empty()) {
            held.rows_held -= aside.len();
            if ended {
                held.held.remove(&(no, attempt));
            }
        }
        self.dirty.runs.insert(no);
        aside
    }

    /// Ends the other attempts of rows that `winner` has a result of.
    pub(crate) fn outrun(
        &mut self,
        ctx: &Context,
        no: RunNo,
        winner: Attempt,
        rows: &Rows,
    ) -> Vec<Outrun> {
        let Some(run) = self.runs.get(&no) else { return Vec::new() };
        let flight = &run.flight;
        if flight.shadows.is_empty() {
            return Vec::new();
        }
        let shared = flight.shadows.get(&winner).map(|own| rows.partition(&own.rows).0);
        let shared = shared.unwrap_or_default();
        let shadows = flight.shadows.iter().map(|(attempt, grant)| (attempt, grant, rows));
        let first = flight.grants.iter().map(|(attempt, grant)| (attempt, grant, &shared));
        let mut outrun = Vec::new();
        for (&attempt, grant, won) in shadows.chain(first).filter(|rival| *rival.0 != winner) {
            let lost = won.partition(&grant.rows).0;
            if !lost.is_empty() {
                let held = HeldRows { run: no, attempt, rows: lost };
                outrun.push(Outrun { slot: grant.slot, held });
            }
        }
        for Outrun { slot, held } in &outrun {
            self.step_aside(no, held.attempt, &held.rows);
            self.emit_returned(ctx, *slot, (no, held.attempt), &held.rows, "outrun");
        }
        outrun
    }

    /// Ends all second attempts of a run.
    pub(crate) fn end_shadows(&mut self, ctx: &Context, no: RunNo, why: &'static str) {
        let Some(run) = self.runs.get(&no) else { return };
        let shadows = run.flight.shadows.clone();
        for (attempt, shadow) in shadows {
            self.step_aside(no, attempt, &shadow.rows);
            self.emit_returned(ctx, shadow.slot, (no, attempt), &shadow.rows, why);
        }
    }

    /// Remembers of rows that an attempt failed while another goes on: no strike, but no second
    /// attempt from now on either.
    pub(crate) fn excuse(&mut self, no: RunNo, rows: &Rows, failed: &FailedTry) {
        let Some(run) = self.runs.get_mut(&no) else { return };
        for row in rows.iter() {
            run.troubles.entry(row).or_default().excuse(failed.clone());
            self.dirty.troubles.insert((no, row));
        }
    }
}
