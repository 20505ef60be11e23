//! Which runs a slot's pull is served from.
//!
//! Strictly by priority; within one, weighted deficit round robin (Shreedhar and Varghese, 1995)
//! counted in rows. *Invariant:* who is served depends on the log alone: turns and deficits are
//! state, and a run that has nothing for a slot does not lose its turn to save up. A run whose turn
//! it is gives its trials before its other rows; they cost it as many rows of its turn.

use crate::id::{RunNo, SlotRef};
use crate::ledger::Ledger;
use crate::limits;
use crate::trial::{Offered, TrialNo};
use std::cmp::Reverse;

/// A run that could serve a pull.
struct Candidate {
    run: RunNo,
    /// Rows beside its trials.
    rows: u64,
    trial: Option<Offered>,
    weight: u64,
}

impl Candidate {
    /// The trial that comes before its other rows, for a slot that got rows of others or did not.
    fn trial(&self, got: bool) -> Option<(RunNo, TrialNo)> {
        self.trial.filter(|t| t.free || !got).map(|t| (self.run, t.trial))
    }
}

/// What a pull gets.
#[derive(Default)]
pub(crate) struct Share {
    /// How many rows of which runs.
    pub(crate) rows: Vec<(RunNo, u32)>,
    /// A trial whose turn it is: at once, if the slot holds nothing and got nothing else.
    pub(crate) trial: Option<(RunNo, TrialNo)>,
}

impl Ledger {
    /// What a pull for `want` rows gets, of a slot that is empty or is not.
    pub(crate) fn share(&mut self, slot: SlotRef, want: u32, empty: bool) -> Share {
        // Runs of one pull share a namespace, since a worker serves one: its room is theirs
        // together, over all priorities.
        let mut share = Share::default();
        let Some(worker) = self.workers.get(&slot.session) else { return share };
        let mut left = u64::from(want).min(self.namespace_room(&worker.namespace));
        for priority in (0..=limits::PRIORITY_MAX).rev() {
            if left == 0 || share.trial.is_some() || self.active.is_empty() {
                break;
            }
            let candidates = self.candidates(slot, priority, empty && share.rows.is_empty());
            let served = match &candidates[..] {
                [] => continue,
                [only] => {
                    share.trial = only.trial(false);
                    let rows = if share.trial.is_some() { 0 } else { only.rows.min(left) };
                    vec![(only.run, rows)]
                }
                _ => self.round_robin(priority, candidates, left, &mut share.trial),
            };
            left -= served.iter().map(|s| s.1).sum::<u64>();
            let served = served.into_iter().filter(|s| s.1 > 0);
            share.rows.extend(served.map(|(run, rows)| (run, rows as u32)));
        }
        share
    }

    fn candidates(&self, slot: SlotRef, priority: u8, empty: bool) -> Vec<Candidate> {
        let Some(worker) = self.workers.get(&slot.session) else { return Vec::new() };
        let Some(pulls) = worker.slots.get(slot.slot.0 as usize) else { return Vec::new() };
        let class = (Reverse(priority), RunNo(0))..=(Reverse(priority), RunNo(u32::MAX));
        let mut candidates = Vec::new();
        for &(_, no) in self.active.range(class) {
            let run = &self.runs[&no];
            if !self.serves(run, worker, pulls) {
                continue;
            }
            let rows = match pulls.cordon {
                None => run.grantable_beside_trials().min(run.room()),
                Some(_) => 0, // It is here for trials.
            };
            let trial = self.offered_trial(run, slot, empty);
            if rows > 0 || trial.is_some() {
                let weight = run.head.spec.weight.into();
                candidates.push(Candidate { run: no, rows, trial, weight });
            }
        }
        candidates
    }

    /// Rows that a namespace's runs together may still be granted.
    pub(crate) fn namespace_room(&self, name: &str) -> u64 {
        match self.namespaces.get(name) {
            Some(n) if n.running_rows_max > 0 => n.running_rows_max.saturating_sub(n.running),
            _ => u64::MAX,
        }
    }

    fn round_robin(
        &mut self,
        priority: u8,
        mut candidates: Vec<Candidate>,
        mut left: u64,
        trial: &mut Option<(RunNo, TrialNo)>,
    ) -> Vec<(RunNo, u64)> {
        let mut shares: Vec<(RunNo, u64)> = Vec::new();
        let turn = self.meta.turns.get(&priority).copied().unwrap_or_default();
        let mut at = candidates.iter().position(|c| c.run >= turn).unwrap_or(0);
        while left > 0 && !candidates.is_empty() {
            at %= candidates.len();
            let candidate = &mut candidates[at];
            // invariant: candidates are runs that exist.
            let Some(run) = self.runs.get_mut(&candidate.run) else { break };
            let head = &mut run.head;
            if head.deficit == 0 {
                head.deficit = candidate.weight * u64::from(limits::QUANTUM_ROWS);
            }
            *trial = candidate.trial(!shares.is_empty());
            if let Some((_, no)) = *trial {
                let rows = run.flight.trials.get(&no).map_or(0, |t| t.rows.len());
                head.deficit = head.deficit.saturating_sub(rows);
                at += usize::from(head.deficit == 0);
                self.dirty.runs.insert(candidate.run);
                break;
            }
            let take = left.min(head.deficit).min(candidate.rows);
            head.deficit -= take;
            candidate.rows -= take;
            left -= take;
            match shares.iter_mut().find(|s| s.0 == candidate.run) {
                Some(share) => share.1 += take,
                None if take > 0 => shares.push((candidate.run, take)),
                None => {}
            }
            self.dirty.runs.insert(candidate.run);
            if candidate.rows == 0 {
                head.deficit = 0;
                candidates.remove(at);
            } else if head.deficit == 0 {
                at += 1;
            }
        }
        if !candidates.is_empty() {
            let next = candidates[at % candidates.len()].run;
            self.meta.turns.insert(priority, next);
        }
        shares
    }
}
