//! Rows, one by one: the effect of a completion, a reused result, a failure and a return on each.

use crate::naive::{Model, Outcome};
use crate::rows::{Avoids, Lease, Row, RowState, kind, only, refuse};
use crate::speculative_attempts::grouped;
use crate::workers::Ended;
use rollout_ledger::id::{Attempt, RunNo, SegmentNo, SlotNo, SlotRef};
use rollout_ledger::view::RunState;
use rollout_ledger::{FailureClass, HeldRows, PartDecl, RefusedRows, Rejection, Reply, Rows};
use std::collections::{BTreeMap, BTreeSet};

/// The slot that has an attempt, live or late, if it is of the session that reports.
fn holder(rows: &[Row], attempt: Attempt, reports: SlotRef) -> SlotRef {
    let live = rows.iter().flat_map(Row::leases).find(|l| l.attempt == attempt);
    let late = rows.iter().filter_map(|row| match row.state {
        RowState::Pending { late } => late,
        _ => None,
    });
    let lease = live.or_else(|| late.into_iter().find(|l| l.attempt == attempt));
    lease.map(|l| l.slot).filter(|slot| slot.session == reports.session).unwrap_or(reports)
}

impl Model {
    pub(crate) fn complete(
        &mut self,
        slot: SlotRef,
        no: RunNo,
        part: &PartDecl,
        sets: &[HeldRows],
    ) -> Outcome {
        if self.is_foreign(slot.session, no) {
            let mut refused = Vec::new();
            for set in sets {
                let HeldRows { attempt, rows, .. } = set.clone();
                refused.push(RefusedRows { run: no, attempt, rows, why: Rejection::AttemptStale });
            }
            self.events.push("result of another namespace's worker".into());
            return Ok(Reply::Taken { refused });
        }
        let version = self.version;
        let run = self.run_of(no)?;
        if run.ended() && run.state != RunState::Finished {
            return Err(Rejection::RunEnded);
        }
        let digest = part.blob.digest;
        let mut events: Vec<&str> = Vec::new();
        let (mut refused, mut now) = (Vec::new(), Vec::new());
        let mut superseded: Vec<(Attempt, Lease, u64)> = Vec::new();
        let mut all_superseded = Vec::new();
        let mut at = 0;
        // Whose rows were done, and whether one was of a trial.
        let mut done_by: BTreeMap<SlotRef, bool> = BTreeMap::new();
        for set in sets {
            let by = if version < 3 { slot } else { holder(&run.rows, set.attempt, slot) };
            let of = |l: Lease| l.attempt == set.attempt && l.slot == by;
            let in_trial = run.rows.iter().any(|r| r.trial.is_some() && r.leases().any(of));
            let done_before = now.len();
            let (mut stale, mut decided) = (Vec::new(), Vec::new());
            for row in set.rows.iter() {
                let state = run.rows.get(row as usize).map(|r| r.state);
                let two = run.rows.get(row as usize).is_some_and(|r| r.speculative.is_some());
                let takes = match state {
                    Some(RowState::Running(_)) => {
                        run.rows[row as usize].live_for(set.attempt, slot.session)
                    }
                    Some(RowState::Pending { late: Some(l) }) => l.attempt == set.attempt,
                    _ => false,
                };
                match state {
                    _ if takes => {
                        if matches!(state, Some(RowState::Pending { .. })) {
                            let live = |r: &Row| r.live_for(set.attempt, slot.session);
                            events.push(match run.rows.iter().any(live) {
                                true => "late result beside a live lease",
                                false => "late result accepted",
                            });
                        }
                        let rivals = run.rows[row as usize].leases();
                        superseded.extend(
                            rivals
                                .filter(|l| l.attempt != set.attempt)
                                .map(|l| (set.attempt, l, row)),
                        );
                        if two {
                            let late = superseded.last().is_some_and(|o| o.1.attempt < set.attempt);
                            events.push(match late {
                                true => "duplicate won",
                                false => "duplicate lost",
                            });
                        }
                        run.rows[row as usize] =
                            Row { state: RowState::Done { digest, at }, ..Row::default() };
                        now.push(row);
                    }
                    Some(RowState::Done { digest: d, .. })
                        if d == digest && !now.contains(&row) =>
                    {
                        events.push("completion repeated");
                    }
                    Some(RowState::Done { .. } | RowState::Failed) => decided.push(row),
                    _ => stale.push(row),
                }
                at += 1;
            }
            let (stale, decided) = (
                only(&set.rows, |r| stale.contains(&r)),
                only(&set.rows, |r| decided.contains(&r)),
            );
            if now.len() > done_before {
                *done_by.entry(by).or_default() |= in_trial;
            }
            let set = HeldRows { run: no, ..set.clone() };
            all_superseded.extend(grouped(no, std::mem::take(&mut superseded)));
            refuse(&set, stale, Rejection::AttemptStale, &mut refused);
            refuse(&set, decided, Rejection::AlreadyDecided, &mut refused);
        }
        let finished_any = !now.is_empty();
        if finished_any {
            run.tokens += part.tokens_in;
            let canary = run.in_canary();
            run.finish_if_done();
            events.extend((run.state == RunState::Finished).then_some("run finished"));
            events.extend((canary && run.canary_over).then_some("canary passed"));
        }
        events.into_iter().for_each(|event| self.note(event));
        for (by, trial_row_done) in done_by {
            let worker = self.workers.get_mut(&by.session);
            if let Some(held) = worker.and_then(|w| w.slots.get_mut(usize::from(by.slot.0)))
                && (trial_row_done || !held.cordoned || held.cordoned_until.is_some())
            {
                held.incidents.clear();
                held.cordoned_until = None;
                let lifted = std::mem::take(&mut held.cordoned);
                if lifted {
                    self.note("cordon lifted by a trial");
                }
            }
            if by != slot {
                self.note("a result of another slot");
            }
        }
        Ok(match all_superseded.is_empty() {
            true => Reply::Taken { refused },
            false => Reply::Won { refused, superseded: all_superseded },
        })
    }

    pub(crate) fn reuse_results(
        &mut self,
        no: RunNo,
        (segment, segment_digest): (SegmentNo, [u8; 32]),
        part: &PartDecl,
        rows: &Rows,
    ) -> Outcome {
        let run = self.run_of(no)?;
        let stopped = matches!(run.state, RunState::Cancelled | RunState::DeadlineExceeded);
        if stopped || run.gone.is_some() {
            return Err(run.over());
        }
        let (number, have) = (segment.0, run.segments.len() as u32);
        match run.segments.get(number as usize) {
            Some(decl) if decl.blob.digest == segment_digest => {}
            _ => return Err(Rejection::SegmentConflict { number, have }),
        }
        let first: u64 = run.segments[..number as usize].iter().map(|s| u64::from(s.rows)).sum();
        let end = first + u64::from(run.segments[number as usize].rows);
        if rows.iter().any(|row| row < first || row >= end) {
            let why = "carried rows lie outside of their segment";
            return Err(Rejection::Invalid(why.into()));
        }
        let (digest, mut free) = (part.blob.digest, 0);
        let (mut stale, mut decided) = (Vec::new(), Vec::new());
        for (row, at) in rows.iter().zip(0..) {
            let of = &mut run.rows[row as usize];
            match of.state {
                RowState::Pending { late: None } if !of.granted => {
                    of.state = RowState::Done { digest, at };
                    of.reused = true;
                    free += 1;
                }
                RowState::Done { digest: d, .. } if d == digest => {}
                RowState::Done { .. } | RowState::Failed => decided.push(row),
                _ => stale.push(row),
            }
        }
        let mut refused = Vec::new();
        let held = HeldRows { run: no, attempt: Attempt(0), rows: rows.clone() };
        let (stale, decided) =
            (only(rows, |r| stale.contains(&r)), only(rows, |r| decided.contains(&r)));
        refuse(&held, stale, Rejection::AttemptStale, &mut refused);
        refuse(&held, decided, Rejection::AlreadyDecided, &mut refused);
        if free > 0 {
            run.tokens += part.tokens_in;
            run.finish_if_done();
            self.note("rows carried");
        }
        Ok(Reply::Taken { refused })
    }

    pub(crate) fn fail(
        &mut self,
        slot: SlotRef,
        held: &HeldRows,
        class: FailureClass,
        _message: &str,
    ) -> Outcome {
        let time = (self.clock, self.version);
        let clock = self.clock;
        let mut refused = Vec::new();
        let fair = self.is_fair();
        let by = self.workers.get(&slot.session).map(|w| w.name.clone()).unwrap_or_default();
        let Ok(run) = self.run_of(held.run) else {
            refuse(held, held.rows.clone(), Rejection::AttemptStale, &mut refused);
            return Ok(Reply::Taken { refused });
        };
        let (mut taken, mut rest) = (Vec::new(), Vec::new());
        for row in held.rows.iter() {
            match run.rows.get_mut(row as usize) {
                Some(r) if r.live_for(held.attempt, slot.session) => taken.push(row),
                Some(r) => {
                    r.drop_lapsed_lease(held.attempt, slot.session);
                    rest.push(row);
                }
                None => rest.push(row),
            }
        }
        refuse(
            held,
            only(&held.rows, |r| rest.contains(&r)),
            Rejection::AttemptStale,
            &mut refused,
        );
        let (mut failed_now, mut spared) = (false, false);
        let mut own = Vec::new();
        for &number in &taken {
            let row = &mut run.rows[number as usize];
            row.failed_once = true;
            if row.release_shared_rows(held.attempt) {
                spared = true;
                continue;
            }
            row.state = RowState::Failed; // Until it is known what becomes of it.
            own.push(number);
        }
        let first = own.first().copied();
        let alone = matches!(class, FailureClass::EngineDied | FailureClass::OutOfMemory);
        let waits =
            |number: &&u64| alone && time.1 >= 4 && !self.conclude(slot, held.run.0, **number).0;
        let undecided: BTreeSet<u64> = own.iter().filter(waits).copied().collect();
        let run = &mut self.runs[held.run.0 as usize - 1];
        for &number in &own {
            let row = &mut run.rows[number as usize];
            if class == FailureClass::StoreRefused {
                row.state = RowState::Pending { late: None };
                run.returned += 1;
                continue;
            }
            row.trial = None;
            let strikes = &mut row.strikes[kind(class)];
            *strikes += u32::from(class != FailureClass::InvalidRow);
            let max = [run.spec.attempts_max, 3, 2, run.spec.attempts_max][kind(class)];
            if class == FailureClass::InvalidRow || *strikes >= max && !undecided.contains(&number)
            {
                row.state = RowState::Failed;
                failed_now = true;
            } else {
                let wait = (1000 << (*strikes - 1).min(6)).min(60_000);
                row.state = RowState::Waiting { until: clock + wait };
                if fair {
                    row.ended_at((by.clone(), slot.slot), time, alone);
                }
                run.retries += 1;
            }
        }
        let news = held.attempt.index() >= run.resumed_index;
        let of_store = class == FailureClass::StoreRefused && !taken.is_empty();
        if of_store {
            run.refused.push((held.attempt, by.clone()));
        }
        let store = match fair {
            true => of_store && news && self.store_refuses(slot, held.run),
            false => of_store && news,
        };
        let run = &mut self.runs[held.run.0 as usize - 1];
        let pauses = run.stops(store, failed_now);
        let running = run.state == RunState::Running;
        run.finish_if_done();
        let canary_failed = running && run.state == RunState::Paused;
        let gave_up = failed_now && class != FailureClass::InvalidRow;
        let events = [
            (pauses, "run hopeless"),
            (gave_up, "row gave up"),
            (canary_failed, "canary failed"),
            (spared, "one of two failed"),
        ];
        events.iter().filter(|e| e.0).for_each(|e| self.note(e.1));
        let counts = !matches!(class, FailureClass::InvalidRow | FailureClass::StoreRefused);
        if let Some(row) = first.filter(|_| fair && counts) {
            let rows = [(held.run.0, row)].into();
            let unreadable = class == FailureClass::InputUnreadable;
            self.count_incident(slot, Ended { by_death: false, unreadable, rows });
        }
        Ok(Reply::Taken { refused })
    }

    /// Whether a store that refuses a worker pauses the run; if not, the worker's rows are for others.
    fn store_refuses(&mut self, slot: SlotRef, no: RunNo) -> bool {
        let run = &self.runs[no.0 as usize - 1];
        let recent = run.refused.iter().filter(|refusal| refusal.0.index() >= run.resumed_index);
        let workers: BTreeSet<&String> = recent.map(|refusal| &refusal.1).collect();
        if workers.len() > 1
            || !self.another_worker_fits(slot, no.0)
            || run.state != RunState::Running
        {
            return true;
        }
        let run = &mut self.runs[no.0 as usize - 1];
        for row in &mut run.rows {
            let mine: Vec<Lease> =
                row.leases().filter(|l| l.slot.session == slot.session).collect();
            for lease in mine {
                if !row.release_shared_rows(lease.attempt) {
                    row.state = RowState::Pending { late: None };
                    run.returned += 1;
                }
            }
        }
        self.note("store refuses one worker");
        false
    }

    /// Whether a slot of another worker could have rows of a run.
    pub(crate) fn another_worker_fits(&self, slot: SlotRef, no: u32) -> bool {
        let run = &self.runs[no as usize - 1];
        self.slots().into_iter().filter(|other| other.session != slot.session).any(|other| {
            let worker = &self.workers[&other.session];
            let of = &worker.slots[usize::from(other.slot.0)];
            let offers =
                of.offer.models.contains(&run.spec.engine.model) && self.has_store(run, worker);
            worker.ready() && worker.namespace == run.namespace && offers && !self.cordoned(other)
        })
    }

    /// Which failed rows of a run are not for a slot.
    pub(crate) fn avoids(&self, slot: SlotRef, no: u32) -> Avoids {
        let run = &self.runs[no as usize - 1];
        let named = |at: &SlotRef| (self.workers[&at.session].name.clone(), at.slot);
        let fits = |at: &SlotRef| {
            let worker = &self.workers[&at.session];
            let of = &worker.slots[usize::from(at.slot.0)];
            let offers =
                of.offer.models.contains(&run.spec.engine.model) && self.has_store(run, worker);
            worker.ready() && worker.namespace == run.namespace && offers && !self.cordoned(*at)
        };
        let fitting = self.slots().iter().filter(|at| fits(at)).map(named).collect();
        Avoids { own: named(&slot), fitting, latest: self.avoids_latest(slot, no) }
    }

    /// Of the rows that one slot failed: those of its worker, or its own where no other worker fits.
    fn avoids_latest(&self, slot: SlotRef, no: u32) -> Option<(String, Option<SlotNo>)> {
        let name = self.workers[&slot.session].name.clone();
        if !self.is_fair() {
            return None;
        }
        if self.another_worker_fits(slot, no) {
            return Some((name, None));
        }
        let run = &self.runs[no as usize - 1];
        let own = |other: &SlotRef| other.session == slot.session && *other != slot;
        let fits = self.slots().into_iter().filter(own).any(|other| {
            let worker = &self.workers[&other.session];
            let of = &worker.slots[usize::from(other.slot.0)];
            let offers =
                of.offer.models.contains(&run.spec.engine.model) && self.has_store(run, worker);
            worker.ready() && worker.namespace == run.namespace && offers && !self.cordoned(other)
        });
        fits.then_some((name, Some(slot.slot)))
    }

    pub(crate) fn nack(&mut self, slot: SlotRef, held: &[HeldRows]) -> Reply {
        let mut refused = Vec::new();
        for set in held {
            let mut rest = Vec::new();
            for row in set.rows.iter() {
                let run = self.run_of(set.run).ok();
                let found =
                    run.and_then(|run| Some((run.rows.get_mut(row as usize)?, &mut run.returned)));
                match found {
                    Some((r, returned)) if r.live_for(set.attempt, slot.session) => {
                        if !r.release_shared_rows(set.attempt) {
                            r.state = RowState::Pending { late: None };
                            *returned += 1;
                        }
                    }
                    Some((r, _)) => {
                        r.drop_lapsed_lease(set.attempt, slot.session);
                        rest.push(row);
                    }
                    None => rest.push(row),
                }
            }
            refuse(
                set,
                only(&set.rows, |r| rest.contains(&r)),
                Rejection::AttemptStale,
                &mut refused,
            );
        }
        Reply::Taken { refused }
    }
}
