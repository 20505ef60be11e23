//! Compares the ledger's state with the model's, row by row.

use crate::bisection::Shown;
use crate::naive::Model;
use crate::rows::{Row, RowState};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use rollout_ledger::id::{Attempt, LedgerMs, RunNo, SegmentNo, SlotNo, SlotRef};
use rollout_ledger::view::{Drain, WorkerState};
use rollout_ledger::{JobName, Ledger};
use std::collections::{BTreeMap, BTreeSet};

/// A row as both can show it.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum RowView {
    Pending(Option<(Attempt, SlotRef)>),
    Running(Attempt, SlotRef, Option<(Attempt, SlotRef)>),
    Waiting(u64),
    Done([u8; 32], u32),
    Failed(u32),
}

fn stores(ledger: &Ledger, model: &Model) -> TestCaseResult {
    let names: Vec<_> = ledger.store_names().collect();
    prop_assert_eq!(names, model.stores.keys().collect::<Vec<_>>());
    for (name, store) in &model.stores {
        let view = ledger.store(name).expect("there");
        let values: BTreeMap<_, _> = view
            .keys()
            .map(|key| (key.to_vec(), view.get(key).unwrap_or_default().to_vec()))
            .collect();
        prop_assert_eq!(&values, &store.values, "values of {:?}", name);
        let queues: Vec<_> = view
            .queues()
            .map(|(queue, all)| (queue.to_vec(), all.iter().cloned().collect::<Vec<_>>()))
            .collect();
        let full = store.queues.iter().filter(|q| !q.1.is_empty());
        let full: Vec<_> = full.map(|(queue, all)| (queue.clone(), all.clone())).collect();
        prop_assert_eq!(queues, full, "queues of {:?}", name);
    }
    Ok(())
}

/// Checks submitted = pending + waiting + running + done + failed + dropped for every run, by its public counts.
pub(crate) fn conserved(ledger: &Ledger) -> TestCaseResult {
    for view in ledger.run_views("") {
        let c = view.counts;
        let sum = view.pending + c.waiting + c.running + c.done + c.failed + c.dropped;
        prop_assert_eq!(sum, view.rows, "rows of {} in {:?}", view.name, c);
    }
    Ok(())
}

/// Each job is listed once, whether participants, trainers or both use it.
fn overviews(ledger: &Ledger, model: &Model) -> TestCaseResult {
    let mut listed: Vec<&JobName> = ledger.job_overviews().map(|job| job.name).collect();
    listed.sort();
    let of_participants = ledger.all_jobs_after(JobName::default()).map(|job| job.name());
    let known: BTreeSet<&JobName> = of_participants.chain(model.trainings.jobs.keys()).collect();
    prop_assert_eq!(listed, known.into_iter().collect::<Vec<_>>());
    Ok(())
}

pub(crate) fn same(ledger: &Ledger, model: &Model) -> TestCaseResult {
    prop_assert_eq!(ledger.clock(), LedgerMs(model.clock));
    prop_assert_eq!(ledger.version(), model.version);
    let known = model.runs.iter().filter(|r| !r.forgotten).count();
    prop_assert_eq!(ledger.run_views("").len(), known);
    for (no, run) in (1..).zip(&model.runs).filter(|r| !r.1.forgotten) {
        let view = ledger.run_view(RunNo(no)).expect("there");
        prop_assert_eq!(view.state, run.state);
        prop_assert_eq!(view.counts, run.counts(), "counts of run {}", no);
        prop_assert_eq!(view.pending, run.pending());
        prop_assert_eq!(view.input_closed, run.closed);
        prop_assert_eq!(view.webhook, run.webhook, "of run {}", no);
        prop_assert_eq!(view.spec.weight, run.weight, "weight of run {}", no);
        if run.ended() {
            prop_assert_eq!(view.ended_index, run.ended_index, "end of run {}", no);
            let swept = view.sealed.as_ref().is_some_and(|sealed| sealed.swept);
            prop_assert_eq!(swept, run.swept, "run {}", no);
        }
        if let Some(gone) = run.gone {
            prop_assert_eq!((view.rows, view.sealed.is_some()), (gone.rows, gone.sealed));
            continue;
        }
        let expected: Vec<RowView> = run.rows.iter().map(seen_in_model).collect();
        prop_assert_eq!(seen_in_ledger(ledger, RunNo(no)), expected, "rows of run {}", no);
        prop_assert_eq!(
            groups_in_ledger(ledger, RunNo(no)),
            model.trials(no),
            "trials of run {}",
            no
        );
    }
    stores(ledger, model)?;
    let jobs = crate::jobs::difference(ledger, &model.jobs);
    prop_assert_eq!(jobs, None);
    model.trainings.same(ledger)?;
    overviews(ledger, model)?;
    prop_assert_eq!(ledger.token_views(), model.token_views());
    crate::files::same(ledger, model)?;
    crate::batches::same(ledger, model)?;
    prop_assert_eq!(crate::api_keys::listed(ledger), model.valid_api_keys());
    prop_assert_eq!(crate::revocations::listed(ledger), model.revocations());
    prop_assert_eq!(crate::members::listed(ledger), model.members.listed());
    prop_assert_eq!(ledger.settings().cordon_after() as usize, model.cordon_after);
    let sessions: Vec<_> = model.workers.keys().copied().collect();
    prop_assert_eq!(ledger.worker_sessions(), sessions);
    for (session, worker) in &model.workers {
        let state = match worker.suspect {
            Some((until, grace_ms)) => WorkerState::Suspect { until: LedgerMs(until), grace_ms },
            None if worker.draining => WorkerState::Draining,
            None => WorkerState::Ready,
        };
        prop_assert_eq!(ledger.worker_state(*session), Some(state));
        let drain = worker.draining.then(|| Drain { until: worker.gone_by.map(LedgerMs) });
        prop_assert_eq!(ledger.worker_drain(*session), drain);
        for (number, slot) in (0..).zip(ledger.worker_view(*session).expect("there").slots) {
            let at = SlotRef { session: *session, slot: SlotNo(number) };
            prop_assert_eq!(slot.rows_held, model.held_at(at).count() as u64);
            prop_assert_eq!(slot.in_trial, model.trial_at(at), "trial at {:?}", at);
            prop_assert_eq!(slot.cordon.is_some(), model.cordoned(at), "cordon of {:?}", at);
            let work = ledger.has_work_for(at);
            prop_assert!(
                !work || model.takes_work(at) || model.takes_only_trials(at),
                "work for {:?}",
                at
            );
        }
    }
    Ok(())
}

fn seen_in_model(row: &Row) -> RowView {
    match row.state {
        RowState::Pending { late } => RowView::Pending(late.map(|l| (l.attempt, l.slot))),
        RowState::Running(lease) => {
            let speculative = row.speculative.map(|l| (l.attempt, l.slot));
            RowView::Running(lease.attempt, lease.slot, speculative)
        }
        RowState::Waiting { until } => RowView::Waiting(until),
        RowState::Done { digest, at } => RowView::Done(digest, at),
        RowState::Failed => RowView::Failed(row.strikes.iter().sum()),
    }
}

fn groups_in_ledger(ledger: &Ledger, no: RunNo) -> BTreeMap<u32, Shown> {
    let groups = ledger.flight_view(no).expect("there").groups.into_iter();
    groups
        .filter(|t| !t.rows.is_empty())
        .map(|t| (t.number, (t.rows.iter().collect(), t.not_before, t.emptying, t.excluded_slot)))
        .collect()
}

fn seen_in_ledger(ledger: &Ledger, no: RunNo) -> Vec<RowView> {
    let (view, flight) = (ledger.run_view(no).unwrap(), ledger.flight_view(no).unwrap());
    let mut rows = vec![RowView::Pending(None); view.rows as usize];
    for (slot, held) in &flight.lapsed {
        held.rows
            .iter()
            .for_each(|r| rows[r as usize] = RowView::Pending(Some((held.attempt, *slot))));
    }
    for (slot, held) in &flight.live {
        held.rows
            .iter()
            .for_each(|r| rows[r as usize] = RowView::Running(held.attempt, *slot, None));
    }
    for (slot, held) in &flight.speculative {
        for row in held.rows.iter() {
            if let RowView::Running(_, _, speculative) = &mut rows[row as usize] {
                *speculative = Some((held.attempt, *slot));
            }
        }
    }
    for &(row, until) in &flight.waiting {
        rows[row as usize] = RowView::Waiting(until.0);
    }
    for number in 0..view.segments {
        let segment = ledger.segment_view(no, SegmentNo(number)).unwrap();
        for (row, result) in (segment.segment.first_row..).zip(&segment.results) {
            if let Some((part, at)) = *result {
                rows[row as usize] = RowView::Done(segment.parts[part as usize].blob.digest, at);
            }
        }
        for (row, record) in &segment.failures {
            rows[*row as usize] = RowView::Failed(record.strikes.total());
        }
    }
    rows
}
