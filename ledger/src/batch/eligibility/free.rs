//! Slots that take work, counted by offer and by cohort.
//!
//! *Invariant:* the counts match the slots' own records (`settle.rs`). A cohort's count is the sum over its offers,
//! also after offers have moved to another cohort.
//! Absent: which slots these are.

use super::{Eligibility, OfferNo};
use crate::kernel::id::RunNo;
use crate::kernel::visits::count_visit;
use std::collections::BTreeMap;

impl Eligibility {
    /// Counts a slot of an offer that starts or stops taking work.
    pub(crate) fn count_free(&mut self, number: OfferNo, was: bool, is: bool) {
        let Some(offer) = self.offers.get_mut(&number).filter(|_| was != is) else { return };
        let Some(cohort) = self.cohorts.get_mut(&offer.cohort) else { return };
        for free in [&mut offer.free, &mut cohort.free] {
            match is {
                true => *free += 1,
                false => *free -= 1,
            }
        }
    }

    /// Whether more than `count` of the slots that meet a run's need take work. Costs the cohorts that meet it,
    /// however many slots they have.
    pub(crate) fn has_more_free(&self, no: RunNo, count: usize) -> bool {
        let mut free = 0;
        self.cohorts(no).any(|number| {
            count_visit();
            free += self.cohorts.get(&number).map_or(0, |cohort| cohort.free);
            free > count
        })
    }

    /// Compares the counts with those of the slots themselves, by offer.
    pub(crate) fn check_free(&self, slots: &BTreeMap<OfferNo, usize>) -> Result<(), String> {
        for (number, offer) in &self.offers {
            let free = slots.get(number).copied().unwrap_or(0);
            if offer.free != free {
                return Err(format!("{number:?} has {} free slots, not {free}", offer.free));
            }
        }
        for (number, cohort) in &self.cohorts {
            let offers = cohort.offers.values().flatten();
            let offers = offers.filter_map(|offer| self.offers.get(offer));
            let free: usize = offers.map(|offer| offer.free).sum();
            if cohort.free != free {
                return Err(format!("{number:?} has {} free slots, not {free}", cohort.free));
            }
        }
        Ok(())
    }
}
