//! Whose turn it is at a slot.
//!
//! *Invariant:* the order is that of the turns alone, whatever the numbers of needs. Looking takes time in proportion to
//! what is looked at: a cohort of many needs lists their first turns. One of few does not. A fleet whose hosts are pinned
//! one by one has many such cohorts, and a run that fits all of them would have to change every list whenever it is served.

use super::{CohortNo, Eligibility, NeedNo, Turn};
use crate::id::RunNo;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Bound::{Excluded, Unbounded};

/// Needs that a cohort has without a list of their first turns.
pub(super) const FEW_NEEDS: usize = if cfg!(test) { 2 } else { 16 };

impl Eligibility {
    /// Changes the turn of one run of a need.
    pub(super) fn change_turn(&mut self, no: NeedNo, before: Option<Turn>, after: Option<Turn>) {
        let Some(need) = self.needs.get_mut(&no) else { return };
        let first = need.turns.first().copied();
        if let Some(before) = before {
            need.turns.remove(&before);
        }
        need.turns.extend(after);
        let next = need.turns.first().copied();
        if first == next {
            return;
        }
        for cohort in &need.listed {
            let Some(cohort) = self.cohorts.get_mut(cohort) else { continue };
            let Some(firsts) = cohort.firsts.as_mut() else { continue };
            if let Some(first) = first {
                firsts.remove(&first);
            }
            firsts.extend(next.map(|next| (next, no)));
        }
    }

    /// Begins or ends the list of a cohort's first turns, after its needs have changed. Needs that have none yet, and needs
    /// without turns that are gone, change nothing in it.
    pub(super) fn relist(&mut self, number: CohortNo) {
        let Some(cohort) = self.cohorts.get_mut(&number) else { return };
        let lists = cohort.needs.len() > FEW_NEEDS;
        if lists == cohort.firsts.is_some() {
            return;
        }
        let mut firsts = BTreeMap::new();
        for no in &cohort.needs {
            let Some(need) = self.needs.get_mut(no) else { continue };
            match lists {
                true => need.listed.insert(number),
                false => need.listed.remove(&number),
            };
            firsts.extend(need.turns.first().map(|turn| (*turn, *no)));
        }
        cohort.firsts = lists.then_some(firsts);
    }

    /// The needs of a cohort of which runs have something to give, each with its first turn, in the order of these. Only
    /// those after a turn, if one is given.
    pub(crate) fn giving(
        &self,
        cohort: CohortNo,
        after: Option<Turn>,
    ) -> impl Iterator<Item = (Turn, NeedNo)> {
        let cohort = self.cohorts.get(&cohort);
        let listed = cohort.and_then(|cohort| cohort.firsts.as_ref());
        let mut few: Vec<(Turn, NeedNo)> = Vec::new();
        if let (Some(cohort), None) = (cohort, listed) {
            let first = |no: &NeedNo| Some((*self.needs.get(no)?.turns.first()?, *no));
            let firsts = cohort.needs.iter().filter_map(first);
            few.extend(firsts.filter(|(turn, _)| after.is_none_or(|after| *turn > after)));
            few.sort_unstable();
        }
        let after = after.map_or(Unbounded, Excluded);
        let listed = listed.into_iter().flat_map(move |firsts| firsts.range((after, Unbounded)));
        listed.map(|(turn, need)| (*turn, *need)).chain(few)
    }

    /// The runs that slots of a cohort could serve, in their turns.
    pub(crate) fn turns_at(&self, cohort: CohortNo) -> impl Iterator<Item = Turn> {
        let mut firsts = self.giving(cohort, None).peekable();
        // The next turn of each need of which one was taken.
        let mut nexts: BinaryHeap<Reverse<(Turn, NeedNo)>> = BinaryHeap::new();
        std::iter::from_fn(move || {
            let first = firsts.peek().map(|first| first.0);
            let again = nexts.peek().map(|next| next.0.0);
            let (turn, need) = match (first, again) {
                (Some(first), Some(again)) if first < again => firsts.next(),
                (_, Some(_)) => nexts.pop().map(|next| next.0),
                (_, None) => firsts.next(),
            }?;
            let later = (Excluded(turn), Unbounded);
            let next = self.needs.get(&need).and_then(|need| need.turns.range(later).next());
            nexts.extend(next.map(|next| Reverse((*next, need))));
            Some(turn)
        })
    }

    /// The runs of a need that have something to give, in their turns.
    pub(crate) fn turns_of(&self, need: NeedNo) -> impl Iterator<Item = Turn> {
        self.needs.get(&need).into_iter().flat_map(|need| need.turns.iter().copied())
    }

    /// Of these, the ones of a priority.
    pub(crate) fn turns(&self, need: NeedNo, priority: u8) -> impl Iterator<Item = Turn> {
        let priority = Reverse(priority);
        let first = Turn { priority, time: 0, run: RunNo(0) };
        let last = Turn { priority, time: u64::MAX, run: RunNo(u32::MAX) };
        let need = self.needs.get(&need).into_iter();
        need.flat_map(move |need| need.turns.range(first..=last).copied())
    }
}
