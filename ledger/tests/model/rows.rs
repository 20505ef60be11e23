//! One row: its state, its leases, and what counts against it.

use rollout_ledger::id::{Attempt, SessionId, SlotNo, SlotRef};
use rollout_ledger::{FailureClass, HeldRows, RefusedRows, Rejection, Rows};

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
    /// Times that a process ended without a word while it may have run this.
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
    pub(crate) fn is_avoided(&self, avoids: &Option<(String, Option<SlotNo>)>) -> bool {
        let (Some((worker, slot)), Some((name, number))) = (self.excluded(), avoids) else {
            return false;
        };
        worker == name && number.is_none_or(|number| number == *slot)
    }

    /// The worker and slot that come after others for it.
    pub(crate) fn excluded(&self) -> Option<&(String, SlotNo)> {
        self.incident.as_ref().filter(|i| i.until.is_some()).map(|i| &i.at)
    }

    /// Its place among the rows for a slot from which others are kept: first rows that were granted before and have
    /// no open incident, then rows that failed elsewhere, then fresh ones.
    pub(crate) fn turn_beside_kept(&self) -> (u8, Option<(String, SlotNo)>) {
        match self.excluded() {
            Some(at) => (1, Some(at.clone())),
            None => (if self.granted { 0 } else { 2 }, None),
        }
    }

    /// It failed at a slot, or an engine died there: of it `alone`, or of others too.
    pub(crate) fn ended_at(&mut self, at: (String, SlotNo), now: u64, alone: bool) {
        let before = self.incident.take();
        let same = before.as_ref().filter(|before| before.at == at);
        let until = same.and_then(|before| before.until).or(Some(now + 600_000));
        let died_alone_at = match alone {
            true => Some(at.clone()),
            false => before.and_then(|before| before.died_alone_at),
        };
        self.incident = Some(Incident { at, until, died_alone_at });
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

    /// A worker that wanted to give it back, or fail it, in a lease that has lapsed is done with it.
    pub(crate) fn done_with(&mut self, attempt: Attempt, session: SessionId) {
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
