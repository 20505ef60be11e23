//! Owns: how many rows a slot runs at once: its engine's configured number, or fewer after memory ran out.
//!
//! Invariant: the number is between 1 and the configured one. Rows that were started before the last halving cause no
//! further halving: they ran out of the same memory.
//! Absent: which rows run.

/// Rows that must finish before one more may run at once.
const RECOVER_AFTER: usize = 32;

#[derive(Debug)]
pub(super) struct ConcurrencyLimit {
    max: usize,
    now: usize,
    finished: usize,
    generation: u64,
}

impl ConcurrencyLimit {
    pub(super) fn new(max: usize) -> Self {
        Self { max: max.max(1), now: max.max(1), finished: 0, generation: 0 }
    }

    /// Rows that may run at once.
    pub(super) fn limit(&self) -> usize {
        self.now
    }

    /// Whether memory allows the configured number.
    pub(super) fn is_full(&self) -> bool {
        self.now == self.max
    }

    /// Counts the halvings; a row belongs to the generation in which it started.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Memory ran out with rows of that generation.
    pub(super) fn out_of_memory(&mut self, generation: u64) {
        if generation == self.generation {
            self.generation += 1;
            self.now = (self.now / 2).max(1);
            self.finished = 0;
        }
    }

    pub(super) fn finished(&mut self) {
        self.finished += 1;
        if self.finished >= RECOVER_AFTER {
            self.finished = 0;
            self.now = (self.now + 1).min(self.max);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhausted_memory_halves_the_concurrency_once_and_it_recovers_slowly() {
        let mut limit = ConcurrencyLimit::new(8);
        let before = limit.generation();
        (0..8).for_each(|_| limit.out_of_memory(before));
        assert_eq!(limit.limit(), 4);
        (0..9).for_each(|_| limit.out_of_memory(limit.generation()));
        assert_eq!(limit.limit(), 1);
        (0..RECOVER_AFTER).for_each(|_| limit.finished());
        assert_eq!(limit.limit(), 2);
        (0..100 * RECOVER_AFTER).for_each(|_| limit.finished());
        assert_eq!(limit.limit(), 8);
    }
}
