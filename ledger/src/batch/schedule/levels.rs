//! Keeps the virtual times of runs comparable while runs come and slots go.
//!
//! Times are compared at slots, so they are meaningful only among runs that share slots, directly or through other
//! runs: a *group*. Two groups may have been served at very different rates, and neither owes the other anything.
//!
//! *Invariant:* every move of times here keeps the order of the runs of a group. A run that joins two groups merges
//! them: the group behind is first moved up as a whole, so that it has no claim to what the other was served before.
//! When slots go, or the open runs or their weights change, other shares are fair from then on. How far a run was
//! behind until then is forgotten except for [`AHEAD_MAX`].
//!
//! A run joins whenever it has something to give again; a run at its cap does so after each completion. That costs
//! one lookup per cohort of the run, and in a cohort with few needs one per need. Runs that join together are not
//! listed until it is their turn, so none of them scans past the others. Groups are computed only if levels are more
//! than [`AHEAD_MAX`] apart. Gaps are closed when a run opens, ends, is paused or resumed or gets another weight, and
//! when a session ends, however many do in one `Tick`. Either costs the cohorts and the needs of the namespace, but not
//! each pair of these ([`eligibility`](crate::batch::eligibility)); closing gaps also costs a sort of its turns.

use super::fair::AHEAD_MAX;
use crate::batch::eligibility::{CohortNo, NeedNo, Turn};
use crate::kernel::id::RunNo;
use crate::machine::ledger::Ledger;
use std::collections::{BTreeMap, BTreeSet};

/// Runs of one priority that share slots, directly or through others.
#[derive(Default)]
struct Group {
    needs: Vec<NeedNo>,
    /// The time at which a run joins it: that of the run served next, at the slots where that time is latest.
    level: Option<u64>,
}

impl Ledger {
    /// Gives the runs that joined in this operation their times.
    pub(crate) fn settle_turns(&mut self) {
        let (joining, namespaces) = self.turn_changes.take();
        if !self.is_fair() || joining.is_empty() && namespaces.is_empty() {
            return;
        }
        let turns: Vec<Turn> = joining.iter().filter_map(|no| self.index.turn(*no)).collect();
        // If several join, each would have to skip all others, so they are listed as they join. A single one is
        // cheaper to skip than to remove.
        let several = turns.len() > 1;
        let joining = if several { BTreeSet::new() } else { joining };
        if several {
            turns.iter().for_each(|turn| self.list(turn.run, None));
        }
        for namespace in namespaces {
            self.close_gaps(&namespace, &joining);
        }
        // Each joining run counts for the later ones.
        for turn in turns {
            let time = self.time_to_join(turn, &joining);
            match several {
                true => self.list_at(turn, time),
                false => self.set_time(turn.run, time),
            }
        }
    }

    /// Changes only the turn of a run.
    fn list(&mut self, no: RunNo, turn: Option<Turn>) {
        if let Some(run) = self.runs.get(&no) {
            self.index.set_run(no, (&run.head.namespace, &run.head.spec), turn);
        }
    }

    /// Lists an unlisted run at this time.
    fn list_at(&mut self, turn: Turn, time: u64) {
        if let Some(run) = self.runs.get_mut(&turn.run).filter(|run| run.head.service != time) {
            run.head.service = time;
            self.runs.mark(turn.run);
        }
        self.list(turn.run, Some(Turn { time, ..turn }));
    }

    /// A run was created, ended, paused or resumed, or got another weight: the fair shares in its namespace may have
    /// changed.
    pub(crate) fn reshape_with(&mut self, no: RunNo) {
        if let Some(run) = self.runs.get(&no) {
            self.turn_changes.reshape(&run.head.namespace);
        }
    }

    /// The time of a run that joins the runs with rows to give, ignoring `joining`.
    fn time_to_join(&mut self, turn: Turn, joining: &BTreeSet<RunNo>) -> u64 {
        let priority = turn.priority.0;
        let level = |cohort: CohortNo| {
            let mut turns = self.index.turns_of_priority(cohort, priority);
            turns.find(|turn| !joining.contains(&turn.run)).map(|turn| turn.time)
        };
        let cohorts = self.index.cohorts(turn.run).map(|cohort| (cohort, level(cohort)));
        let cohorts: BTreeMap<CohortNo, Option<u64>> = cohorts.collect();
        let levels = || cohorts.values().flatten().copied();
        let (Some(first), Some(last)) = (levels().min(), levels().max()) else { return turn.time };
        // Within this, times are comparable whether or not these are one group.
        if last - first > AHEAD_MAX {
            let groups = self.groups(&cohorts, priority, joining);
            self.align(&groups, last, priority, joining);
        }
        turn.time.clamp(last, last.saturating_add(AHEAD_MAX))
    }

    /// The time of the next run of a need, ignoring `joining`.
    fn first_time(&self, need: NeedNo, priority: u8, joining: &BTreeSet<RunNo>) -> Option<u64> {
        let mut turns = self.index.turns(need, priority);
        turns.find(|turn| !joining.contains(&turn.run)).map(|turn| turn.time)
    }

    /// The groups to which these cohorts belong, given the levels at which a run joins them.
    fn groups(
        &self,
        cohorts: &BTreeMap<CohortNo, Option<u64>>,
        priority: u8,
        joining: &BTreeSet<RunNo>,
    ) -> Vec<Group> {
        let gives = |need: &NeedNo| self.first_time(*need, priority, joining).is_some();
        let (mut seen, mut seen_families, mut groups) =
            (BTreeSet::new(), BTreeSet::new(), Vec::new());
        for cohort in cohorts.keys() {
            if !seen.insert(*cohort) {
                continue;
            }
            let (mut group, mut left) = (Group::default(), vec![*cohort]);
            while let Some(cohort) = left.pop() {
                group.level = group.level.max(cohorts.get(&cohort).copied().flatten());
                for family in
                    self.index.families(cohort).filter(|family| seen_families.insert(*family))
                {
                    let before = group.needs.len();
                    group.needs.extend(self.index.needs_in(family).filter(gives));
                    if group.needs.len() > before {
                        let more = self.index.cohorts_with(family);
                        left.extend(more.filter(|cohort| seen.insert(*cohort)));
                    }
                }
            }
            groups.push(group);
        }
        groups
    }

    /// Moves groups up to a level, each as a whole.
    fn align(&mut self, groups: &[Group], level: u64, priority: u8, joining: &BTreeSet<RunNo>) {
        let mut moved = Vec::new();
        for group in groups {
            let behind = group.level.map_or(0, |own| level.saturating_sub(own));
            if behind > 0 {
                moved.extend(
                    self.turns_of(group, priority, joining).map(|t| (t.run, t.time + behind)),
                );
            }
        }
        for (no, time) in moved {
            self.set_time(no, time);
        }
    }

    fn turns_of<'a>(
        &'a self,
        group: &'a Group,
        priority: u8,
        joining: &'a BTreeSet<RunNo>,
    ) -> impl Iterator<Item = Turn> + 'a {
        let turns = group.needs.iter().flat_map(move |need| self.index.turns(*need, priority));
        turns.filter(|turn| !joining.contains(&turn.run))
    }

    /// Slots of a namespace have gone, or its open runs or their weights have changed: a run that was behind because it
    /// had fewer slots for itself may share with those ahead of it from now on, and would keep them waiting until it has
    /// caught up. Within each group, runs that are further behind the next one than [`AHEAD_MAX`] are moved up.
    fn close_gaps(&mut self, namespace: &str, joining: &BTreeSet<RunNo>) {
        let mut moved = Vec::new();
        for priority in self.index.priorities(namespace) {
            let cohorts = self.index.cohorts_in(namespace).map(|cohort| (cohort, None)).collect();
            for group in self.groups(&cohorts, priority, joining) {
                let mut turns: Vec<Turn> = self.turns_of(&group, priority, joining).collect();
                turns.sort_unstable();
                let (mut next, mut up) = (None, 0);
                for turn in turns.iter().rev() {
                    let gap = next.map_or(0, |next: u64| next - turn.time);
                    up += gap.saturating_sub(AHEAD_MAX);
                    next = Some(turn.time);
                    if up > 0 {
                        moved.push((turn.run, turn.time + up));
                    }
                }
            }
        }
        for (no, time) in moved {
            self.set_time(no, time);
        }
    }
}

#[cfg(test)]
mod tests;
