//! Compares the ledger's jobs with the model's.

use super::{Job, ParticipantPhase};
use rollout_ledger::id::LedgerMs;
use rollout_ledger::{BarrierEnd, BarrierFailure, JobName, Ledger, ParticipantState};
use std::collections::BTreeMap;

fn phase(state: ParticipantState) -> ParticipantPhase {
    match state {
        ParticipantState::Apart => ParticipantPhase::Apart,
        ParticipantState::Joining { until } => ParticipantPhase::Joining(until.0),
        ParticipantState::Late { until } => ParticipantPhase::Late(until.0),
        ParticipantState::Redundant => ParticipantPhase::Redundant,
        ParticipantState::Member { rank } => ParticipantPhase::Member(rank),
        ParticipantState::TimedOut => ParticipantPhase::TimedOut,
        ParticipantState::Dismissed { redundant } => ParticipantPhase::Dismissed(redundant),
    }
}

fn end(end: &BarrierEnd) -> &'static str {
    match end {
        BarrierEnd::Open => "open",
        BarrierEnd::Failed(BarrierFailure::TimedOut) => "timed out",
        BarrierEnd::Failed(BarrierFailure::Aborted { .. }) => "aborted",
        BarrierEnd::Failed(BarrierFailure::Gone(gone)) => gone.why.name(),
    }
}

/// What differs between the ledger's jobs and the model's, in words.
pub(crate) fn difference(ledger: &Ledger, jobs: &BTreeMap<JobName, Job>) -> Option<String> {
    for (name, job) in jobs {
        let Some(view) = ledger.job(name) else {
            if job.who.is_empty() && job.config.is_none() && !job.closed {
                continue;
            }
            return Some(format!("{name:?} is not there"));
        };
        let mut who: Vec<_> =
            job.who.iter().map(|w| (w.name.clone(), w.incarnation, w.phase)).collect();
        who.sort_by(|a, b| a.0.cmp(&b.0));
        let seen: Vec<_> = view
            .participants()
            .map(|p| (p.decl.name.clone(), p.incarnation, phase(p.state)))
            .collect();
        if who != seen {
            return Some(format!("{name:?}: {seen:?}, not {who:?}"));
        }
        let r = view.rendezvous();
        let roster: Vec<_> = r.roster.iter().map(|m| m.decl.name.clone()).collect();
        let seen = (r.round, r.complete, r.closed, r.last_call, roster);
        let called = job.last_call.map(LedgerMs);
        let told = (job.rounds_over + 1, job.complete, job.closed, called, job.roster.clone());
        if seen != told {
            return Some(format!("{name:?}: {seen:?}, not {told:?}"));
        }
        for (barrier, gens) in &job.barriers {
            let told: Vec<_> = gens
                .iter()
                .map(|g| {
                    let arrived = g.arrived.iter().map(|a| a.0.clone()).collect::<Vec<_>>();
                    (g.number, arrived, g.expected(), g.end)
                })
                .collect();
            let seen: Vec<_> = view
                .generations(barrier)
                .map(|g| {
                    let arrived = g.in_order().into_iter().map(str::to_owned).collect();
                    (g.number, arrived, g.expected as usize, g.end.as_ref().map(end))
                })
                .collect();
            if seen != told {
                return Some(format!("{name:?} {barrier}: {seen:?}, not {told:?}"));
            }
        }
    }
    None
}
