//! Owns: what an engine's successive processes have done, and its metrics.
//!
//! Invariant: the sums only grow, whatever a process reports.
//! Absent: whether an engine with free seats could have been full; its slot knows that.

use rollout_engine_protocol::Counters;

/// What was done over all lives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ProcessTotals {
    pub(crate) steps: u64,
    pub(crate) steps_not_full: u64,
    pub(crate) steps_hungry: u64,
    pub(crate) tokens: u64,
}

impl ProcessTotals {
    /// Adds what a life did between two of its messages.
    pub(super) fn add(&mut self, before: Counters, now: Counters) {
        let grown = |of: fn(&Counters) -> u64| of(&now).saturating_sub(of(&before));
        self.steps += grown(|c| c.steps);
        self.steps_not_full += grown(|c| c.steps_not_full);
        self.steps_hungry += grown(|c| c.steps_hungry);
        self.tokens += grown(|c| c.tokens);
        let count = |name, more| metrics::counter!(name).increment(more);
        count("rollout_worker_engine_tokens_total", grown(|c| c.tokens));
        count("rollout_worker_engine_admitted_total", grown(|c| c.admitted));
        count("rollout_worker_engine_admitted_beside_total", grown(|c| c.admitted_beside));
        count("rollout_worker_engine_aborted_total", grown(|c| c.aborted));
        count("rollout_worker_engine_tokens_after_abort_total", grown(|c| c.tokens_after_abort));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_life_begins_at_nothing_and_the_sums_go_on() {
        let mut totals = ProcessTotals::default();
        let at = |steps| Counters { steps, ..Counters::default() };
        totals.add(Counters::default(), at(5));
        totals.add(at(5), at(9));
        totals.add(Counters::default(), at(3));
        assert_eq!(totals.steps, 12);
        totals.add(at(3), at(1));
        assert_eq!(totals.steps, 12, "a process that counts backward");
    }
}
