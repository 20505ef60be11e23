//! Keeps the virtual times of runs comparable while runs come and slots go.
//!
//! Times are compared at slots, so they mean something only among runs that share slots, directly or through other runs:
//! a *group*. Two groups may have been served at very different rates, and neither owes the other anything.
//!
//! *Invariant:* whatever moves times here keeps the order of the runs of a group. A run that joins two groups makes them
//! one: the group behind is moved up first, as a whole, so that it has no claim to what the other was served before.
//! When slots go, or the set of open runs changes, other shares are fair from then on. What a run was behind until then
//! is forgotten but for [`AHEAD_MAX`].
//!
//! A run joins whenever it has something to give again, which one at its cap does after each completion. That costs a look
//! at each cohort of the run. Of a cohort with few needs it costs a look at each of them, and of one with many the first
//! turns of those that join too. Groups are looked for only where levels are more than [`AHEAD_MAX`] apart. Gaps are closed
//! when a run opens, ends, is paused or resumed, and when a session ends, however many do in one `Tick`. That costs the
//! needs of each cohort of the namespace, and a sort of its turns.

use super::fair::AHEAD_MAX;
use crate::eligibility::{CohortNo, NeedNo, Turn};
use crate::id::RunNo;
use crate::ledger::Ledger;
use std::collections::BTreeSet;

/// Runs of one priority that share slots, directly or through others.
#[derive(Default)]
struct Group {
    needs: BTreeSet<NeedNo>,
    /// Where a run joins it: with the run that is served next, at the slots where that one is latest.
    level: Option<u64>,
}

impl Ledger {
    /// Gives the runs that joined in this operation their times.
    pub(crate) fn settle_turns(&mut self) {
        self.resting.clear();
        if self.joining.is_empty() && self.reshaped.is_empty() {
            return;
        }
        let namespaces = std::mem::take(&mut self.reshaped);
        let joining = std::mem::take(&mut self.joining);
        if !self.is_fair() {
            return;
        }
        for namespace in namespaces {
            self.close_gaps(&namespace, &joining);
        }
        // Each one counts for those behind it.
        let mut others = joining.clone();
        for no in joining {
            self.join_turns(no, &others);
            others.remove(&no);
        }
    }

    /// A run has come, ended, or was paused or resumed: what was fair in its namespace may be so no more.
    pub(crate) fn reshape_with(&mut self, no: RunNo) {
        if let Some(run) = self.runs.get(&no) {
            self.reshaped.insert(run.head.namespace.clone());
        }
    }

    /// Gives a run its time among those that have something to give, but for `joining`.
    fn join_turns(&mut self, no: RunNo, joining: &BTreeSet<RunNo>) {
        let Some(Turn { priority, .. }) = self.index.turn(no) else { return };
        let level = |cohort: &CohortNo| {
            let mut turns = self.index.turns_of_priority(*cohort, priority.0);
            turns.find(|turn| !joining.contains(&turn.run)).map(|turn| turn.time)
        };
        let cohorts: Vec<CohortNo> = self.index.cohorts(no).collect();
        let levels: Vec<u64> = cohorts.iter().filter_map(level).collect();
        let (Some(&first), Some(&last)) = (levels.iter().min(), levels.iter().max()) else {
            return;
        };
        // Within this, times are comparable whether or not these are one group.
        if last - first > AHEAD_MAX {
            let groups = self.groups(&cohorts, priority.0, joining);
            self.align(&groups, last, priority.0, joining);
        }
        let Some(run) = self.runs.get(&no) else { return };
        let time = run.head.service.clamp(last, last.saturating_add(AHEAD_MAX));
        self.set_time(no, time);
    }

    /// The time of the run of a need that is served next, but for `joining`.
    fn first_time(&self, need: NeedNo, priority: u8, joining: &BTreeSet<RunNo>) -> Option<u64> {
        let mut turns = self.index.turns(need, priority);
        turns.find(|turn| !joining.contains(&turn.run)).map(|turn| turn.time)
    }

    /// The groups to which these cohorts belong.
    fn groups(&self, cohorts: &[CohortNo], priority: u8, joining: &BTreeSet<RunNo>) -> Vec<Group> {
        let asked: BTreeSet<CohortNo> = cohorts.iter().copied().collect();
        let (mut seen, mut groups) = (BTreeSet::new(), Vec::new());
        for cohort in cohorts {
            if !seen.insert(*cohort) {
                continue;
            }
            let (mut group, mut left) = (Group::default(), vec![*cohort]);
            while let Some(cohort) = left.pop() {
                let mut first: Option<u64> = None;
                for need in self.index.needs(cohort) {
                    let Some(time) = self.first_time(need, priority, joining) else { continue };
                    first = Some(first.map_or(time, |first| first.min(time)));
                    if group.needs.insert(need) {
                        let more = self.index.cohorts_of(need);
                        left.extend(more.filter(|cohort| seen.insert(*cohort)));
                    }
                }
                if asked.contains(&cohort) {
                    group.level = group.level.max(first);
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

    /// Slots of a namespace have gone, or its open runs are others: a run that was behind because it had fewer slots for
    /// itself may share with those ahead of it from now on, and would keep them waiting until it has caught up. Within
    /// each group, runs that are further behind the next one than [`AHEAD_MAX`] are moved up.
    fn close_gaps(&mut self, namespace: &str, joining: &BTreeSet<RunNo>) {
        let mut moved = Vec::new();
        for priority in self.index.priorities(namespace) {
            let cohorts: Vec<CohortNo> = self.index.cohorts_in(namespace).collect();
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
