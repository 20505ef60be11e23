//! Which run is next at a slot.
//!
//! *Invariant:* only the turns decide the order, never the numbers of needs. A lookup takes time in proportion to
//! what it visits: a cohort of many needs lists their first turns at each priority, and a cohort of few needs does
//! not. A fleet whose hosts are pinned one by one has many small cohorts, and a run that fits all of them would
//! otherwise change every list whenever it is served.

use super::{CohortNo, Eligibility, Need, NeedNo, Turn};
use crate::kernel::id::RunNo;
use crate::kernel::visits::count_visit;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::ops::Bound::{Excluded, Included, Unbounded};

/// Needs that a cohort has without a list of their first turns.
pub(super) const FEW_NEEDS: usize = if cfg!(test) { 2 } else { 16 };

/// The first and the last turn that a priority may have.
fn bounds(priority: Reverse<u8>) -> (Turn, Turn) {
    let first = Turn { priority, time: 0, run: RunNo(0) };
    (first, Turn { time: u64::MAX, run: RunNo(u32::MAX), ..first })
}

impl Need {
    /// Its first turn of a priority.
    fn first_at(&self, priority: Reverse<u8>) -> Option<Turn> {
        count_visit();
        let (first, last) = bounds(priority);
        self.turns.range(first..=last).next().copied()
    }

    /// Its first turn of each priority that it has.
    pub(super) fn firsts(&self) -> impl Iterator<Item = Turn> {
        let later = |turn: &Turn| {
            let (_, last) = bounds(turn.priority);
            self.turns.range((Excluded(last), Unbounded)).next().copied()
        };
        std::iter::successors(self.turns.first().copied(), later)
    }
}

impl Eligibility {
    /// Changes the turn of one run of a need.
    pub(super) fn change_turn(&mut self, no: NeedNo, before: Option<Turn>, after: Option<Turn>) {
        let Some(need) = self.needs.get_mut(&no) else { return };
        let mut priorities = [before, after].map(|turn| turn.map(|turn| turn.priority));
        if priorities[0] == priorities[1] {
            priorities[1] = None;
        }
        let firsts = |need: &Need| {
            priorities.map(|priority| priority.and_then(|priority| need.first_at(priority)))
        };
        let was = firsts(need);
        if let Some(before) = before {
            need.turns.remove(&before);
        }
        need.turns.extend(after);
        let is = firsts(need);
        for (was, is) in was.into_iter().zip(is).filter(|(was, is)| was != is) {
            for cohort in &need.listed {
                let Some(cohort) = self.cohorts.get_mut(cohort) else { continue };
                let Some(firsts) = cohort.firsts.as_mut() else { continue };
                if let Some(was) = was {
                    firsts.remove(&was);
                }
                firsts.extend(is.map(|is| (is, no)));
            }
        }
    }

    /// Starts or drops the list of a cohort's first turns after its needs have changed. Adding or removing needs
    /// without turns does not change the list.
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
            firsts.extend(need.firsts().map(|turn| (turn, *no)));
        }
        cohort.firsts = lists.then_some(firsts);
    }

    /// The needs of a cohort whose runs have rows to give, each with its first turn, ordered by turn. Only those
    /// after a turn, if one is given.
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
        let is_first = |(turn, need): &(&Turn, &NeedNo)| {
            self.needs.get(*need).and_then(|need| need.turns.first()) == Some(*turn)
        };
        listed.filter(is_first).map(|(turn, need)| (*turn, *need)).chain(few)
    }

    /// The runs that slots of a cohort could serve, in turn order.
    pub(crate) fn turns_at(&self, cohort: CohortNo) -> impl Iterator<Item = Turn> {
        let last = Turn { priority: Reverse(0), time: u64::MAX, run: RunNo(u32::MAX) };
        self.merged(self.giving(cohort, None), last)
    }

    /// Those of one priority.
    pub(crate) fn turns_of_priority(
        &self,
        number: CohortNo,
        priority: u8,
    ) -> impl Iterator<Item = Turn> {
        let priority = Reverse(priority);
        let (first, last) = bounds(priority);
        let cohort = self.cohorts.get(&number);
        let listed = cohort.and_then(|cohort| cohort.firsts.as_ref());
        let mut few: Vec<(Turn, NeedNo)> = Vec::new();
        if let (Some(cohort), None) = (cohort, listed) {
            let first = |no: &NeedNo| Some((self.needs.get(no)?.first_at(priority)?, *no));
            few.extend(cohort.needs.iter().filter_map(first));
            few.sort_unstable();
        }
        let listed = listed.into_iter().flat_map(move |firsts| firsts.range(first..=last));
        self.merged(listed.map(|(turn, need)| (*turn, *need)).chain(few), last)
    }

    /// Merges the turns of needs, given the first turn of each, up to a last turn, in order.
    fn merged(
        &self,
        firsts: impl Iterator<Item = (Turn, NeedNo)>,
        last: Turn,
    ) -> impl Iterator<Item = Turn> {
        let mut firsts = firsts.peekable();
        // The next turn of each need from which one was taken.
        let mut nexts: BinaryHeap<Reverse<(Turn, NeedNo)>> = BinaryHeap::new();
        std::iter::from_fn(move || {
            let first = firsts.peek().map(|first| first.0);
            let again = nexts.peek().map(|next| next.0.0);
            let (turn, need) = match (first, again) {
                (Some(first), Some(again)) if first < again => firsts.next(),
                (_, Some(_)) => nexts.pop().map(|next| next.0),
                (_, None) => firsts.next(),
            }?;
            count_visit();
            let later = (Excluded(turn), Included(last));
            let next = self.needs.get(&need).and_then(|need| need.turns.range(later).next());
            nexts.extend(next.map(|next| Reverse((*next, need))));
            Some(turn)
        })
    }

    /// The runs of a need that have rows to give, in turn order.
    pub(crate) fn turns_of(&self, need: NeedNo) -> impl Iterator<Item = Turn> {
        self.needs.get(&need).into_iter().flat_map(|need| need.turns.iter().copied())
    }

    /// Those of one priority.
    pub(crate) fn turns(&self, need: NeedNo, priority: u8) -> impl Iterator<Item = Turn> {
        count_visit();
        let (first, last) = bounds(Reverse(priority));
        let need = self.needs.get(&need).into_iter();
        need.flat_map(move |need| need.turns.range(first..=last).copied())
    }
}
