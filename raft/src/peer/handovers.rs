//! Owns: why leaders hand over, and how a leader stopped leading.
//!
//! Invariant: a cause keeps its number, which members of other builds read.
//! Absent: handing over; see `transfer`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Why a leader hands over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handover {
    Requested,
    Stopping,
    /// Its disk stalls.
    SlowDisk,
    /// Its disk is full.
    FullDisk,
    /// It is losing its vote.
    Removal,
}

const REASONS: [Handover; 5] = [
    Handover::Requested,
    Handover::Stopping,
    Handover::SlowDisk,
    Handover::FullDisk,
    Handover::Removal,
];

impl Handover {
    /// The number that members send each other; an older build sends 0.
    fn number(self) -> u32 {
        (1..)
            .zip(REASONS)
            .find_map(|(number, reason)| (reason == self).then_some(number))
            .unwrap_or(0)
    }

    /// The most likely cause if a build sends no cause or an unknown one.
    fn of_number(number: u32) -> Self {
        let reason = (1..).zip(REASONS).find(|(reason, _)| *reason == number);
        reason.map_or(Self::Requested, |(_, reason)| reason)
    }
}

/// How a leader stopped leading, as far as another member can know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaderLeft {
    HandedOver(Handover),
    /// Its connections to this member are closed.
    ConnectionsLost,
    /// It is connected, and was silent for the election timeout.
    Silent,
}

/// Why leadership is handed over: by this member, and lately to it or past it.
#[derive(Default)]
pub(crate) struct Handovers {
    own: AtomicU32,
    /// The term of the leader that handed over last, the cause, and when this was heard.
    announced: Mutex<Option<(u64, Handover, Instant)>>,
}

impl Handovers {
    /// The cause of the present handover, as this member reports it.
    pub(crate) fn cause_number(&self) -> u32 {
        self.own.load(Ordering::Acquire)
    }

    /// This member hands over.
    pub(crate) fn hands_over(&self, why: Handover) {
        self.own.store(why.number(), Ordering::Release);
    }

    /// The leader of `term` hands over.
    pub(crate) fn record(&self, term: u64, number: u32) {
        *self.announced.lock() = Some((term, Handover::of_number(number), Instant::now()));
    }

    /// Why the leader of `term` handed over, if it did so within this time. A leader that kept leading after all may
    /// be lost much later.
    pub(crate) fn of(&self, term: u64, within: Duration) -> Option<Handover> {
        let (of, why, announced) = (*self.announced.lock())?;
        (of == term && announced.elapsed() < within).then_some(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(3);

    #[test]
    fn a_handover_is_identified_by_its_number_and_belongs_to_its_term() {
        let handovers = Handovers::default();
        let of = |term| handovers.of(term, WITHIN);
        assert_eq!((handovers.cause_number(), of(0)), (0, None));
        for why in REASONS {
            handovers.record(7, why.number());
            assert_eq!(of(7), Some(why));
        }
        handovers.record(8, 0);
        assert_eq!((of(8), of(7)), (Some(Handover::Requested), None));
        assert_eq!(handovers.of(8, Duration::ZERO), None, "it went on to lead");
    }
}
