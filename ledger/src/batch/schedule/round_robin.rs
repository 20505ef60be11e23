//! Sharing below cluster version [`SCHEDULING_VERSION`](crate::machine::version_gate::SCHEDULING_VERSION): weighted
//! deficit round robin (Shreedhar and Varghese, 1995), counted in rows.
//!
//! One cursor for each priority goes around the runs. Slots that fit different runs share it, which is not fair to
//! all of them: `fair` replaces it. It stays as long as a cluster of such a version may be taken over.

use super::{Candidate, Share};
use crate::batch::bisection::GroupNo;
use crate::kernel::id::{RunNo, SlotRef};
use crate::kernel::limits;
use crate::machine::ledger::Ledger;

impl Ledger {
    pub(super) fn share_in_turns(&mut self, slot: SlotRef, mut left: u64, empty: bool) -> Share {
        let mut share = Share::default();
        for priority in (0..=limits::PRIORITY_MAX).rev() {
            if left == 0 || share.group.is_some() {
                break;
            }
            let candidates = self.candidates(slot, priority, empty && share.rows.is_empty());
            let served = match &candidates[..] {
                [] => continue,
                [only] => {
                    share.group = only.group(false);
                    let rows = if share.group.is_some() { 0 } else { only.rows.min(left) };
                    vec![(only.run, rows)]
                }
                _ => self.round_robin(priority, candidates, left, &mut share.group),
            };
            left -= served.iter().map(|s| s.1).sum::<u64>();
            for (run, rows) in served {
                share.add(run, rows);
            }
        }
        share
    }

    fn candidates(&self, slot: SlotRef, priority: u8, empty: bool) -> Vec<Candidate> {
        let Some(pulls) = self.slot(slot) else { return Vec::new() };
        let turns = self.turns_for(pulls).skip_while(|turn| turn.priority.0 > priority);
        let turns = turns.take_while(|turn| turn.priority.0 == priority);
        turns.filter_map(|turn| self.candidate(turn.run, slot, pulls, empty)).collect()
    }

    fn round_robin(
        &mut self,
        priority: u8,
        mut candidates: Vec<Candidate>,
        mut left: u64,
        group: &mut Option<(RunNo, GroupNo)>,
    ) -> Vec<(RunNo, u64)> {
        let mut shares: Vec<(RunNo, u64)> = Vec::new();
        let turn = self.meta.turn_of(priority);
        let mut at = candidates.iter().position(|c| c.run >= turn).unwrap_or(0);
        while left > 0 && !candidates.is_empty() {
            at %= candidates.len();
            let candidate = &mut candidates[at];
            // invariant: candidates are runs that exist.
            let Some(run) = self.runs.change(&candidate.run) else { break };
            let head = &mut run.head;
            if head.service == 0 {
                head.service = candidate.weight * u64::from(limits::QUANTUM_ROWS);
            }
            *group = candidate.group(!shares.is_empty());
            if let Some((_, no)) = *group {
                let rows = run.flight.groups.get(&no).map_or(0, |t| t.rows.len());
                head.service = head.service.saturating_sub(rows);
                at += usize::from(head.service == 0);
                break;
            }
            let take = left.min(head.service).min(candidate.rows);
            head.service -= take;
            candidate.rows -= take;
            left -= take;
            match shares.iter_mut().find(|s| s.0 == candidate.run) {
                Some(share) => share.1 += take,
                None if take > 0 => shares.push((candidate.run, take)),
                None => {}
            }
            if candidate.rows == 0 {
                head.service = 0;
                candidates.remove(at);
            } else if head.service == 0 {
                at += 1;
            }
        }
        if !candidates.is_empty() {
            let next = candidates[at % candidates.len()].run;
            self.meta.set_turn(priority, next);
        }
        shares
    }
}
