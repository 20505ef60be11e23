//! Which runs a slot's pull is served from.
//!
//! Strictly by priority; within one, weighted deficit round robin (Shreedhar and Varghese, 1995)
//! counted in rows. *Invariant:* who is served depends on the log alone: turns and deficits are
//! state, and a run that has nothing for a slot does not lose its turn to save up.

use crate::id::{RunNo, SlotRef};
use crate::ledger::Ledger;
use crate::limits;
use std::cmp::Reverse;

/// A run that could serve a pull.
struct Candidate {
    run: RunNo,
    rows: u64,
    weight: u64,
}

impl Ledger {
    /// How many rows of which runs a pull for `want` rows gets.
    pub(crate) fn share(&mut self, slot: SlotRef, want: u32) -> Vec<(RunNo, u32)> {
        // Runs of one pull share a namespace, since a worker serves one: its room is theirs
        // together, over all priorities.
        let Some(worker) = self.workers.get(&slot.session) else { return Vec::new() };
        let mut left = u64::from(want).min(self.namespace_room(&worker.namespace));
        let mut shares = Vec::new();
        for priority in (0..=limits::PRIORITY_MAX).rev() {
            if left == 0 || self.active.is_empty() {
                break;
            }
            let candidates = self.candidates(slot, priority);
            let served = match &candidates[..] {
                [] => continue,
                [only] => vec![(only.run, only.rows.min(left))],
                _ => self.round_robin(priority, candidates, left),
            };
            left -= served.iter().map(|s| s.1).sum::<u64>();
            shares.extend(served.into_iter().map(|(run, rows)| (run, rows as u32)));
        }
        shares
    }

    fn candidates(&self, slot: SlotRef, priority: u8) -> Vec<Candidate> {
        let Some(worker) = self.workers.get(&slot.session) else { return Vec::new() };
        let Some(pulls) = worker.slots.get(slot.slot.0 as usize) else { return Vec::new() };
        let class = (Reverse(priority), RunNo(0))..=(Reverse(priority), RunNo(u32::MAX));
        let mut candidates = Vec::new();
        for &(_, no) in self.active.range(class) {
            let run = &self.runs[&no];
            let fits = run.head.namespace == worker.namespace
                && pulls.offer.fits(&run.head.spec, &worker.stores).is_ok();
            if !fits {
                continue;
            }
            let rows = run.pending().min(run.room());
            if rows > 0 {
                candidates.push(Candidate { run: no, rows, weight: run.head.spec.weight.into() });
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
            let take = left.min(head.deficit).min(candidate.rows);
            head.deficit -= take;
            candidate.rows -= take;
            left -= take;
            match shares.iter_mut().find(|s| s.0 == candidate.run) {
                Some(share) => share.1 += take,
                None => shares.push((candidate.run, take)),
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
