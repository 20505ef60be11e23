//! The clock of a search, and how much work passes between two looks at it.
//!
//! *Invariant:* what is counted grows with the time that it takes, whatever one step goes through. A deadline that has
//! passed stays so.

use std::time::Instant;

/// Work between two looks: operations looked at, and words compared, of some nanoseconds to some tens each.
const WORK_PER_LOOK: usize = 1 << 18;

#[derive(Default)]
pub(super) struct Watch {
    deadline: Option<Instant>,
    work: usize,
    late: bool,
}

impl Watch {
    /// Looks at once, and from now on at this deadline.
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

    /// Whether the deadline had passed at the last look.
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
