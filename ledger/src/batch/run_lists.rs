//! Runs by what they may give: those with bisection groups, those near their tails, and those that are paused.
//!
//! *Invariant:* the lists are those of the records whenever [`Ledger::refresh_active`] has seen the last change of each
//! run. So a pull looks at these runs only, and not at all runs.

use crate::batch::eligibility::{NeedNo, Turn};
use crate::batch::run::{Run, RunState};
use crate::kernel::id::RunNo;
use crate::machine::ledger::Ledger;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Lists of runs. Derived.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunLists {
    /// Runs that have a group to give.
    groups: BTreeSet<RunNo>,
    /// The same, by their needs.
    groups_of: BTreeMap<NeedNo, BTreeSet<RunNo>>,
    /// Runs at their tails, and runs that will be once a slot holds a row of them.
    tails: BTreeSet<RunNo>,
    paused: BTreeSet<RunNo>,
}

impl RunLists {
    /// The runs that have a group to give.
    pub(super) fn groups(&self) -> impl Iterator<Item = RunNo> {
        self.groups.iter().copied()
    }

    /// Those of them with this need.
    pub(super) fn groups_of(&self, need: NeedNo) -> impl Iterator<Item = RunNo> {
        self.groups_of.get(&need).into_iter().flatten().copied()
    }

    /// The runs at their tails, and those that will be once a slot holds a row of them.
    pub(super) fn tails(&self) -> impl Iterator<Item = RunNo> {
        self.tails.iter().copied()
    }

    /// The runs that are paused.
    pub(super) fn paused(&self) -> impl Iterator<Item = RunNo> {
        self.paused.iter().copied()
    }

    /// How many runs are paused.
    pub(crate) fn paused_count(&self) -> usize {
        self.paused.len()
    }

    /// Notes whether a run is paused. Returns whether it was.
    fn set_paused(&mut self, no: RunNo, paused: bool) -> bool {
        match paused {
            true => !self.paused.insert(no),
            false => self.paused.remove(&no),
        }
    }

    /// Notes whether a run with this need has a group to give.
    fn set_tries(&mut self, no: RunNo, need: Option<NeedNo>, tries: bool) {
        let changes = match tries {
            true => self.groups.insert(no),
            false => self.groups.remove(&no),
        };
        let Some(need) = need.filter(|_| changes) else { return };
        let runs = self.groups_of.entry(need).or_default();
        match tries {
            true => runs.insert(no),
            false => runs.remove(&no),
        };
        if runs.is_empty() {
            self.groups_of.remove(&need);
        }
    }

    /// Notes whether a run is near its tail.
    fn set_tail(&mut self, no: RunNo, is_near: bool) {
        match is_near {
            true => self.tails.insert(no),
            false => self.tails.remove(&no),
        };
    }

    /// Compares the lists with those of these runs. `need` is the need of a run that has not ended.
    pub(crate) fn check<'a>(
        &self,
        runs: impl Iterator<Item = &'a Run>,
        need: impl Fn(RunNo) -> Option<NeedNo>,
    ) -> Result<(), String> {
        let (mut tails, mut paused, mut groups) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let mut groups_of: BTreeMap<NeedNo, BTreeSet<RunNo>> = BTreeMap::new();
        for run in runs {
            if run.nears_tail() {
                tails.insert(run.no);
            }
            if run.head.state == RunState::Paused {
                paused.insert(run.no);
            }
            if run.gives() && run.ready_groups().next().is_some() {
                groups.insert(run.no);
                if let Some(need) = need(run.no) {
                    groups_of.entry(need).or_default().insert(run.no);
                }
            }
        }
        if tails != self.tails {
            return Err(format!("runs near their tails: {tails:?}, not {:?}", self.tails));
        }
        if paused != self.paused {
            return Err(format!("the paused runs are {paused:?}, not {:?}", self.paused));
        }
        if groups != self.groups {
            return Err(format!("runs with trials: {groups:?}, not {:?}", self.groups));
        }
        match groups_of == self.groups_of {
            true => Ok(()),
            false => Err(format!("trials by need: {groups_of:?}, not {:?}", self.groups_of)),
        }
    }
}

impl Ledger {
    /// Updates the index for one run: called whenever the rows that it may give have changed.
    pub(crate) fn refresh_active(&mut self, no: RunNo) {
        let before = self.index.turn(no).is_some();
        let need = self.index.need(no);
        let state = self.runs.get(&no).map(|run| run.head.state);
        let paused = state == Some(RunState::Paused);
        let open = paused || state == Some(RunState::Running);
        let was_paused = self.run_lists.set_paused(no, paused);
        if open != self.index.need(no).is_some() || paused != was_paused {
            self.reshape_with(no);
        }
        let run = self.runs.get(&no).filter(|run| !run.ended());
        let turn = run.filter(|run| run.gives()).map(|run| Turn {
            priority: Reverse(run.head.spec.priority),
            time: if self.is_fair() { run.head.service } else { 0 },
            run: no,
        });
        let tries = turn.is_some() && run.is_some_and(|run| run.ready_groups().next().is_some());
        match run {
            Some(run) => self.index.set_run(no, (&run.head.namespace, &run.head.spec), turn),
            None => self.index.remove_run(no),
        }
        self.run_lists.set_tries(no, self.index.need(no).or(need), tries);
        self.run_lists.set_tail(no, self.runs.get(&no).is_some_and(Run::nears_tail));
        self.turn_changes.set_gives(no, before, turn.is_some());
    }
}
