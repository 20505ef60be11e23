//! What must hold of runs, and of the slots that hold their rows, after every command.
//!
//! *Invariant:* each row is in exactly one place, the counts of a run are those of its rows, and runs and slots name
//! the same attempts. The first violation is described in words.
//! Absent: the indexes of runs by name and time (`runs.rs`), and derived sums (`settle.rs`).

use crate::batch::eligibility::Turn;
use crate::batch::incident::Incident;
use crate::batch::run::{InFlight, Run, RunState};
use crate::batch::segment::Outcome;
use crate::batch::store_access::StoreAccess;
use crate::kernel::id::{Attempt, RunNo};
use crate::kernel::rows::Rows;
use crate::machine::invariants::ensure;
use crate::machine::ledger::Ledger;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

impl Ledger {
    /// Checks each run by itself.
    pub(crate) fn check_runs(&self) -> Result<(), String> {
        for run in self.runs.values() {
            check_run(run, self.asks_a_second_slot())
                .map_err(|e| format!("run {}: {e}", run.no))?;
            let over = run.ended() && !run.flight.lapsed.is_empty();
            ensure!(!over, "run {} has ended and has lapsed attempts", run.no);
            let free = run.at_cordon_limit() && run.head.state != RunState::Paused;
            ensure!(!free, "run {} is at the limit of cordons and is not paused", run.no);
        }
        Ok(())
    }

    /// Compares the index of turns and slots with the runs and slots.
    pub(crate) fn check_index(&self) -> Result<(), String> {
        for run in self.runs.values() {
            let time = if self.is_fair() { run.head.service } else { 0 };
            let turn = Turn { priority: Reverse(run.head.spec.priority), time, run: run.no };
            let turn = run.gives().then_some(turn);
            ensure!(self.index.turn(run.no) == turn, "run {} has another turn: {turn:?}", run.no);
            ensure!(self.index.need(run.no).is_some() != run.ended(), "run {} has no need", run.no);
        }
        self.run_lists.check(self.runs.values(), |no| self.index.need(no))?;
        self.turn_changes.check()?;
        let mut needs = BTreeSet::new();
        for run in self
            .runs
            .values()
            .filter(|run| self.index.need(run.no).is_some_and(|n| needs.insert(n)))
        {
            let fitting = self.slots().filter(|(worker, _, slot)| {
                let stores = StoreAccess::new(worker.stores(), self.meta.version());
                run.head.namespace == worker.namespace()
                    && slot.offer().fits(&run.head.spec, &stores).is_ok()
            });
            let fitting: BTreeSet<_> = fitting.map(|(_, at, _)| at).collect();
            let listed: BTreeSet<_> = self.index.slots_for(run.no).collect();
            ensure!(listed == fitting, "slots for run {}: {listed:?}, not {fitting:?}", run.no);
            for (_, at, slot) in self.slots() {
                let fits = self.index.fits(slot.offer_no(), run.no);
                ensure!(fits == fitting.contains(&at), "{at:?} fits run {}: {fits}", run.no);
            }
        }
        Ok(())
    }

    /// Checks workers, and that each slot holds what the runs say.
    pub(crate) fn check_slots(&self) -> Result<(), String> {
        self.workers.check()?;
        let mut held = BTreeMap::new();
        for (_, at, slot) in self.slots() {
            let mut rows = 0;
            for &(no, attempt) in slot.held() {
                let grant = self.runs.get(&no).and_then(|r| r.holding(attempt));
                ensure!(grant.as_ref().is_some_and(|g| g.0 == at), "{at:?} lists {no}/{attempt}");
                rows += grant.map_or(0, |g| g.1.len());
                ensure!(held.insert((no, attempt), at).is_none(), "{no}/{attempt} held twice");
            }
            ensure!(
                rows == slot.rows_held(),
                "{at:?} holds {rows} rows, says {}",
                slot.rows_held()
            );
            let trial = |held: &&(RunNo, Attempt)| {
                self.runs.get(&held.0).is_some_and(|run| run.is_trial(held.1))
            };
            let trial = slot.held().iter().find(trial).copied();
            ensure!(slot.trial() == trial, "{at:?} is in trial {trial:?}, says {:?}", slot.trial());
            let alone = trial.is_none() || slot.held().len() == 1;
            ensure!(alone, "{at:?} holds something beside trial {trial:?}");
        }
        for run in self.runs.values() {
            for attempt in run.flight.grants.keys().chain(run.flight.speculative.keys()) {
                ensure!(held.contains_key(&(run.no, *attempt)), "{}/{attempt} is orphaned", run.no);
            }
        }
        Ok(())
    }
}

/// `incidents`: rows have incidents, and groups exclude no slots.
fn check_run(run: &Run, incidents: bool) -> Result<(), String> {
    let (head, flight) = (&run.head, &run.flight);
    let c = head.counts;
    if !run.has_rows() {
        return check_forgotten(run);
    }
    ensure!(c.dropped == 0, "{} rows dropped of a run that has them", c.dropped);
    let mut taken = Rows::default();
    let mut total = 0;
    let mut claim = |rows: &Rows| {
        total += rows.len();
        taken.unite(rows);
        taken.len() == total
    };
    let returned = flight.returned.to_rows();
    ensure!(returned.len() == flight.returned.len(), "returned rows are miscounted");
    let mut derived = run.clone();
    derived.derive_avoided();
    let (now, then) = (&flight.avoided, &derived.flight.avoided);
    ensure!(now == then, "rows that workers failed are {now:?}, not {then:?}");
    ensure!(claim(&returned), "returned rows overlap");
    let mut running = 0;
    run.failures.values().filter_map(|t| t.incident.as_ref()).try_for_each(Incident::check)?;
    check_groups(run, incidents)?;
    for (no, group) in flight.groups.iter().filter(|(_, group)| group.not_before.is_none()) {
        ensure!(claim(&group.rows), "a row of trial {no} is somewhere else");
    }
    for (attempt, grant) in &flight.grants {
        ensure!(!grant.rows.is_empty(), "attempt {attempt} is empty");
        ensure!(claim(&grant.rows), "attempt {attempt} holds a row that another attempt has");
        running += grant.rows.len();
    }
    check_speculative(run)?;
    let waiting: Vec<_> =
        run.failures.iter().filter(|t| t.1.not_before.is_some()).map(|t| (*t.0, 1)).collect();
    let waiting = Rows::from_ranges(waiting).unwrap_or_default();
    ensure!(claim(&waiting), "a waiting row is held or pending");
    let (done, failed, decided) = check_segments(run)?;
    let given = Rows::range(0, head.next_fresh as u32);
    let (decided, reused) = decided.partition(&given);
    let ahead = head.reused_ahead;
    ensure!(reused.len() == ahead, "{} reused results are ahead, says {ahead}", reused.len());
    ensure!(head.counts.reused >= ahead, "more reused results are ahead than at all");
    ensure!(head.counts.reused <= done, "more results are reused than rows are done");
    ensure!(claim(&decided), "a decided row is still somewhere else");
    ensure!(taken.end() <= head.next_fresh, "a fresh row is taken");
    ensure!(total == head.next_fresh, "{} rows are nowhere", head.next_fresh - total);
    ensure!(head.next_fresh <= head.rows, "more rows given than there are");
    let ahead = run.in_canary() && head.next_fresh > head.spec.canary_rows;
    ensure!(!ahead, "{} rows given in a canary of {}", head.next_fresh, head.spec.canary_rows);
    let counted = (c.running, c.waiting, c.done, c.failed);
    let found = (running, waiting.len(), done, failed);
    ensure!(counted == found, "counts (running, waiting, done, failed) {counted:?} != {found:?}");
    check_lapsed(flight, &returned)?;
    let all = done + failed == head.rows && head.input_closed;
    ensure!(
        matches!(head.state, RunState::Cancelled | RunState::DeadlineExceeded)
            || (head.state == RunState::Finished) == all,
        "finished: {all}"
    );
    Ok(())
}

/// The rows of a run have left the ledger, and their counts stay.
fn check_forgotten(run: &Run) -> Result<(), String> {
    let c = run.head.counts;
    ensure!(run.segments.is_empty() && run.parts.is_empty(), "a forgotten run has rows");
    ensure!(run.flight == InFlight::default(), "a forgotten run has rows in flight");
    ensure!(c.done + c.failed + c.dropped == run.head.rows, "a forgotten run lost count: {c:?}");
    ensure!((c.running, c.waiting, run.pending()) == (0, 0, 0), "{c:?} of a forgotten run");
    Ok(())
}

/// The rows of a group wait together. See [`check_run`] for `incidents`.
fn check_groups(run: &Run, incidents: bool) -> Result<(), String> {
    let flight = &run.flight;
    for (no, group) in &flight.groups {
        ensure!(!group.rows.is_empty(), "trial {no} is empty");
        let wait = |row| run.failures.get(&row).and_then(|t| t.not_before);
        let same = group.rows.iter().all(|row| wait(row) == group.not_before);
        ensure!(same, "rows of trial {no} wait otherwise than it does");
        ensure!(*no <= flight.groups_made, "trial {no} was never made");
        let sole = !flight.excluded.contains_key(no) || group.rows.len() == 1;
        ensure!(sole, "trial {no} excludes a slot that no row of it was alone at");
    }
    let made = flight.excluded.keys().all(|no| *no <= flight.groups_made);
    ensure!(made, "a trial that was never made excludes a slot");
    ensure!(!incidents || flight.excluded.is_empty(), "trials exclude slots beside incidents");
    Ok(())
}

/// The rows of a lapsed attempt are pending, among `returned` or in a group, and each has one such attempt.
fn check_lapsed(flight: &InFlight, returned: &Rows) -> Result<(), String> {
    ensure!(flight.lapsed.is_indexed(), "the indexes of lapsed attempts differ from them");
    let mut lapsed = Rows::default();
    for (attempt, grant) in &flight.lapsed {
        let own = grant.group.and_then(|no| flight.groups.get(&no));
        let group = own.filter(|t| t.not_before.is_none()).map(|t| &t.rows);
        let pending = if grant.group.is_some() { group } else { Some(returned) };
        let (pending, lost) = grant.rows.partition(pending.unwrap_or(&Rows::default()));
        ensure!(lost.is_empty(), "lapsed attempt {attempt} has rows that are not pending");
        let before = lapsed.len();
        lapsed.unite(&pending);
        ensure!(lapsed.len() == before + pending.len(), "two lapsed attempts share a row");
    }
    Ok(())
}

/// Another slot holds the rows of a second attempt. They have no third attempt and never failed.
fn check_speculative(run: &Run) -> Result<(), String> {
    let (mut all, mut total) = (Rows::default(), 0);
    for (attempt, speculative) in &run.flight.speculative {
        ensure!(!speculative.rows.is_empty(), "speculative attempt {attempt} is empty");
        ensure!(speculative.group.is_none(), "speculative attempt {attempt} is a trial");
        all.unite(&speculative.rows);
        total += speculative.rows.len();
        let mut alone = speculative.rows.clone();
        for (first, grant) in &run.flight.grants {
            let shared = speculative.rows.partition(&grant.rows).0;
            let apart = first < attempt && grant.slot.session != speculative.slot.session;
            ensure!(
                shared.is_empty() || apart,
                "speculative attempt {attempt} of {first} is the same worker's"
            );
            ensure!(shared.is_empty() || grant.group.is_none(), "trial {first} has a shadow");
            alone.subtract(&shared);
        }
        ensure!(
            alone.is_empty(),
            "speculative attempt {attempt} has rows that no other attempt holds"
        );
        let failed = speculative.rows.iter().find(|row| run.failures.contains_key(row));
        ensure!(
            failed.is_none(),
            "speculative attempt {attempt} has row {failed:?}, which has failed"
        );
    }
    ensure!(all.len() == total, "a row has two shadows");
    ensure!(
        run.flight.speculative.is_indexed(),
        "the indexes of speculative attempts differ from them"
    );
    Ok(())
}

/// How many rows are done and failed, and which these are.
fn check_segments(run: &Run) -> Result<(u64, u64, Rows), String> {
    let (mut next, mut done, mut failed) = (0, 0, 0);
    let mut all = Rows::default();
    let mut places = BTreeSet::new();
    for (number, segment) in run.segments.iter().enumerate() {
        ensure!(segment.first_row == next, "segment {number} begins at {}", segment.first_row);
        next = segment.end();
        let mut decided = 0;
        for (i, outcome) in segment.outcomes.iter().enumerate() {
            let row = segment.first_row + i as u64;
            if *outcome == Outcome::NONE {
                continue;
            }
            decided += 1;
            all.push(row, 1);
            match outcome.part() {
                Some(place) => {
                    done += 1;
                    ensure!((place.0.0 as usize) < run.parts.len(), "row {row} is in no part");
                    ensure!(places.insert(place), "two rows share {place:?}");
                }
                None => {
                    failed += 1;
                    let has_history = run.failures.get(&row).is_some_and(|t| t.failed);
                    ensure!(has_history, "row {row} failed and has no history");
                }
            }
        }
        ensure!(decided == segment.decided, "segment {number} counts {}", segment.decided);
    }
    ensure!(next == run.head.rows, "segments end at {next}, not {}", run.head.rows);
    let histories = run.failures.values().filter(|t| t.done.is_some()).count() as u64;
    ensure!(histories == run.head.done_histories, "{histories} rows that are done have a history");
    Ok((done, failed, all))
}
