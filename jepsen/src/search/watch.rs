//! The clock of a search, and how much work passes between two clock reads.
//!
//! *Invariant:* the work counter grows with the time spent, whatever a single step does. A deadline that has passed
//! stays passed.

use std::time::Instant;

/// Work between two clock reads: operations visited and words compared, each a few to some tens of nanoseconds.
const WORK_PER_LOOK: usize = 1 << 18;

#[derive(Default)]
pub(super) struct Watch {
    deadline: Option<Instant>,
    work: usize,
    late: bool,
}

impl Watch {
    /// Sets the deadline, and reads the clock at once.
    pub(super) fn start(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
        self.look();
    }

    fn look(&mut self) {
        self.work = 0;
        self.late |= self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
    }

    /// Counts work that was done, or is about to be.
    pub(super) fn spend(&mut self, work: usize) {
        self.work = self.work.saturating_add(work);
        if self.work >= WORK_PER_LOOK {
            self.look();
        }
    }

    /// Whether the deadline had passed at the last clock read.
    pub(super) fn late(&self) -> bool {
        self.late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_passes_is_seen_after_so_much_work_and_stays_passed() {
        let mut watch = Watch::default();
        watch.spend(usize::MAX);
        assert!(!watch.late(), "there is none");
        watch.deadline = Some(Instant::now());
        watch.spend(WORK_PER_LOOK - 1);
        assert!(!watch.late());
        watch.spend(1);
        assert!(watch.late());
        watch.start(None);
        assert!(watch.late());
    }
}
