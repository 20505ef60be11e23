//! One row: its state, its leases, and what counts against it.

use rollout_ledger::id::{Attempt, SessionId, SlotNo, SlotRef};
use rollout_ledger::{FailureClass, HeldRows, RefusedRows, Rejection, Rows, limits};
use std::collections::BTreeSet;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) attempt: Attempt,
    pub(crate) slot: SlotRef,
    pub(crate) granted_at: u64,
}

impl Default for RowState {
    fn default() -> Self {
        RowState::Pending { late: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowState {
    /// With the lapsed lease, until another slot gets the row.
    Pending {
        late: Option<Lease>,
    },
    Running(Lease),
    Waiting {
        until: u64,
    },
    Done {
        digest: [u8; 32],
        at: u32,
    },
    Failed,
}

/// The worker and slot where a row last failed or killed an engine, and until when others come first.
#[derive(Clone, Debug)]
pub(crate) struct Incident {
    pub(crate) at: (String, SlotNo),
    pub(crate) until: Option<u64>,
    /// Where an engine last died of it alone.
    pub(crate) died_alone_at: Option<(String, SlotNo)>,
    /// The other slots that failed it while the incidents before this one were open, oldest first.
    pub(crate) earlier: Vec<(String, SlotNo)>,
}

/// What decides which failed rows of a run a slot does not get.
#[derive(Clone, Debug)]
pub(crate) struct Avoids {
    pub(crate) own: (String, SlotNo),
    /// The slots that take work and fit the run.
    pub(crate) fitting: BTreeSet<(String, SlotNo)>,
    /// The worker whose rows are for others, or its only slot whose rows are.
    pub(crate) latest: Option<(String, Option<SlotNo>)>,
}

/// Which slots do not get a row that several slots failed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SetRule {
    /// Those of all workers that failed it: a slot of another worker fits.
    OfWorkers,
    /// Those that failed it: another slot fits.
    OfSlots,
    /// Those that do not get it where only its latest failure counts: no other slot fits.
    Latest,
}

impl SetRule {
    pub(crate) fn event(self) -> &'static str {
        match self {
            Self::OfWorkers => "another worker fits a row that several slots failed",
            Self::OfSlots => "another slot fits a row that several slots failed",
            Self::Latest => "no other slot fits a row that several slots failed",
        }
    }
}

impl Avoids {
    /// Which rule applies to a row that these slots failed.
    pub(crate) fn rule(&self, failed: &BTreeSet<(String, SlotNo)>) -> SetRule {
        let has_worker = |at: &(String, SlotNo)| failed.iter().any(|other| other.0 == at.0);
        if failed.len() > 1 && self.fitting.iter().any(|at| !has_worker(at)) {
            SetRule::OfWorkers
        } else if failed.len() > 1 && self.fitting.iter().any(|at| !failed.contains(at)) {
            SetRule::OfSlots
        } else {
            SetRule::Latest
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub(crate) state: RowState,
    /// By class: transient, memory, engine, input.
    pub(crate) strikes: [u32; 4],
    /// The trial that it is in, pending, waiting or running.
    pub(crate) trial: Option<u32>,
    /// Whether it was ever granted.
    pub(crate) granted: bool,
    /// Whether its result is reused.
    pub(crate) reused: bool,
    /// The second lease under which it also runs.
    pub(crate) speculative: Option<Lease>,
    /// Where it last failed or killed an engine.
    pub(crate) incident: Option<Incident>,
    /// Whether it ever failed, since it was submitted.
    pub(crate) failed_once: bool,
    /// Worker crashes while this row may have been running.
    pub(crate) crashes: u32,
}

/// Which strikes a class counts in.
pub(crate) fn kind(class: FailureClass) -> usize {
    match class {
        FailureClass::Transient | FailureClass::InvalidRow | FailureClass::StoreRefused => 0,
        FailureClass::OutOfMemory => 1,
        FailureClass::EngineDied => 2,
        FailureClass::InputUnreadable => 3,
    }
}

impl Row {
    /// Whether a slot does not get it, because it is among the rows that the slot avoids.
    pub(crate) fn is_avoided(&self, avoids: &Avoids) -> bool {
        let Some((worker, slot)) = self.excluded() else { return false };
        let failed = self.failed_at();
        match avoids.rule(&failed) {
            SetRule::OfWorkers => failed.iter().any(|at| at.0 == avoids.own.0),
            SetRule::OfSlots => failed.contains(&avoids.own),
            SetRule::Latest => {
                let Some((name, number)) = &avoids.latest else { return false };
                worker == name && number.is_none_or(|number| number == *slot)
            }
        }
    }

    /// The slots that failed it while it waits for another one.
    pub(crate) fn failed_at(&self) -> BTreeSet<(String, SlotNo)> {
        let open = self.incident.iter().filter(|incident| incident.until.is_some());
        open.flat_map(|incident| incident.earlier.iter().chain([&incident.at])).cloned().collect()
    }

    /// The worker and slot that come after others for it.
    pub(crate) fn excluded(&self) -> Option<&(String, SlotNo)> {
        self.incident.as_ref().filter(|i| i.until.is_some()).map(|i| &i.at)
    }

    /// Its place among the rows for a slot that avoids some rows: first rows that were granted before and have no open
    /// incident, then rows that failed at one other slot, then at several, then fresh ones.
    pub(crate) fn order_for_avoiding_slot(&self) -> (u8, Vec<(String, SlotNo)>) {
        let open = self.incident.as_ref().filter(|incident| incident.until.is_some());
        let Some(incident) = open else { return (if self.granted { 0 } else { 3 }, Vec::new()) };
        let place = if incident.earlier.is_empty() { 1 } else { 2 };
        let mut earlier = incident.earlier.clone();
        earlier.sort_unstable();
        (place, std::iter::once(incident.at.clone()).chain(earlier).collect())
    }

    /// It failed at a slot, or an engine died there: of it `alone`, or of others too.
    pub(crate) fn ended_at(
        &mut self,
        at: (String, SlotNo),
        (now, version): (u64, u32),
        alone: bool,
    ) {
        let before = self.incident.take();
        let mut earlier = Vec::new();
        if let Some(open) = before.as_ref().filter(|b| b.until.is_some() && version >= 4) {
            earlier.extend(open.earlier.iter().chain([&open.at]).cloned());
            earlier.retain(|other| *other != at);
        }
        while earlier.len() >= limits::HISTORY_MAX {
            earlier.remove(0);
        }
        let same = before.as_ref().filter(|before| before.at == at);
        let until = same.and_then(|before| before.until).or(Some(now + 600_000));
        let died_alone_at = match alone {
            true => Some(at.clone()),
            false => before.and_then(|before| before.died_alone_at),
        };
        self.incident = Some(Incident { at, until, died_alone_at, earlier });
    }

    pub(crate) fn result(&self) -> Option<([u8; 32], u32)> {
        match self.state {
            RowState::Done { digest, at } => Some((digest, at)),
            _ => None,
        }
    }

    pub(crate) fn leases(&self) -> impl Iterator<Item = Lease> + use<> {
        let first = match self.state {
            RowState::Running(lease) => Some(lease),
            _ => None,
        };
        first.into_iter().chain(self.speculative)
    }

    pub(crate) fn live_for(&self, attempt: Attempt, session: SessionId) -> bool {
        self.leases().any(|l| l.attempt == attempt && l.slot.session == session)
    }

    /// Forgets the lapsed lease of a worker that returned or failed the row: it does not get the row back under that
    /// lease, and no late result of the lease counts.
    pub(crate) fn drop_lapsed_lease(&mut self, attempt: Attempt, session: SessionId) {
        if let RowState::Pending { late } = &mut self.state {
            *late = late.filter(|lease| (lease.attempt, lease.slot.session) != (attempt, session));
        }
    }

    /// Leaves the row to its other lease, if it has two.
    pub(crate) fn release_shared_rows(&mut self, attempt: Attempt) -> bool {
        let Some(speculative) = self.speculative.take() else { return false };
        if speculative.attempt != attempt {
            self.state = RowState::Running(speculative);
        }
        true
    }
}

/// Rows picked out of a set, as a set.
pub(crate) fn only(rows: &Rows, mut is: impl FnMut(u64) -> bool) -> Rows {
    Rows::from_ranges(rows.iter().filter(|r| is(*r)).map(|r| (r, 1))).expect("ascending")
}

pub(crate) fn refuse(held: &HeldRows, rows: Rows, why: Rejection, refused: &mut Vec<RefusedRows>) {
    if !rows.is_empty() {
        refused.push(RefusedRows { run: held.run, attempt: held.attempt, rows, why });
    }
}
