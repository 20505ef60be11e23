//! Groups the needs that the same cohorts meet.
//!
//! A *family* is a group of needs that the same cohorts meet. Thousands of runs that are each pinned to a host create
//! a cohort for each of these hosts, and all of these cohorts meet the needs of hundreds of other runs. A walk over
//! the cohorts by families visits each cohort and each need once, not each pair of them.
//!
//! *Invariant:* the needs of a family have the same cohorts. Two families may have the same cohorts too, which costs
//! lookups and nothing else. A family is found by a sum over its cohorts, which is only a hint: the cohorts
//! themselves are compared.

use super::{CohortNo, Eligibility, NeedNo};
use crate::kernel::visits::count_visit;
use std::collections::{BTreeMap, BTreeSet};

/// A family's number. It means nothing outside one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FamilyNo(u64);

#[derive(Clone, Debug, Default)]
pub(super) struct Family {
    pub(super) needs: BTreeSet<NeedNo>,
    pub(super) cohorts: BTreeSet<CohortNo>,
    /// The sum of the marks of the cohorts.
    mark: u64,
}

/// A pseudorandom number (the finalizer of SplitMix64).
fn mark(cohort: CohortNo) -> u64 {
    let mut mixed = cohort.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Eligibility {
    /// The families of a cohort's needs.
    pub(crate) fn families(&self, cohort: CohortNo) -> impl Iterator<Item = FamilyNo> {
        count_visit();
        self.cohorts.get(&cohort).into_iter().flat_map(|cohort| cohort.families.iter().copied())
    }

    pub(crate) fn needs_in(&self, family: FamilyNo) -> impl Iterator<Item = NeedNo> {
        self.families.get(&family).into_iter().flat_map(|family| family.needs.iter().copied())
    }

    /// The cohorts whose slots meet the needs of a family.
    pub(crate) fn cohorts_with(&self, family: FamilyNo) -> impl Iterator<Item = CohortNo> {
        self.families.get(&family).into_iter().flat_map(|family| family.cohorts.iter().copied())
    }

    pub(super) fn family_of(&self, need: NeedNo) -> Option<&Family> {
        self.families.get(&self.needs.get(&need)?.family)
    }

    /// The family of a need that no cohort meets yet.
    pub(super) fn add_family(&mut self, need: NeedNo) -> FamilyNo {
        let number = FamilyNo(self.number());
        let family = Family { needs: BTreeSet::from([need]), ..Family::default() };
        self.families.insert(number, family);
        number
    }

    /// A need is gone. Returns the cohorts that met it.
    pub(super) fn leave_family(&mut self, number: FamilyNo, need: NeedNo) -> BTreeSet<CohortNo> {
        let Some(family) = self.families.get_mut(&number) else { return BTreeSet::new() };
        family.needs.remove(&need);
        if !family.needs.is_empty() {
            return family.cohorts.clone();
        }
        let Family { cohorts, mark, .. } = std::mem::take(family);
        self.families.remove(&number);
        self.unmark(number, mark);
        self.unlist(number, &cohorts);
        cohorts
    }

    /// The families of exactly these needs. Families with other members too are split.
    pub(super) fn families_of(&mut self, needs: &BTreeSet<NeedNo>) -> BTreeSet<FamilyNo> {
        let mut members: BTreeMap<FamilyNo, BTreeSet<NeedNo>> = BTreeMap::new();
        for no in needs {
            if let Some(need) = self.needs.get(no) {
                members.entry(need.family).or_default().insert(*no);
            }
        }
        members.into_iter().map(|(family, own)| self.split(family, own)).collect()
    }

    /// Makes a family of some members of a family. All of its members already form one.
    fn split(&mut self, number: FamilyNo, own: BTreeSet<NeedNo>) -> FamilyNo {
        let Some(family) = self.families.get_mut(&number) else { return number };
        if own.len() == family.needs.len() {
            return number;
        }
        for need in &own {
            family.needs.remove(need);
        }
        let (cohorts, mark) = (family.cohorts.clone(), family.mark);
        let new = FamilyNo(self.number());
        for cohort in &cohorts {
            if let Some(cohort) = self.cohorts.get_mut(cohort) {
                cohort.families.insert(new);
            }
        }
        self.take_in(new, &own);
        self.families.insert(new, Family { needs: own, cohorts, mark });
        new
    }

    /// A cohort meets the needs of a family from now on.
    pub(super) fn add_cohort_to(&mut self, number: FamilyNo, cohort: CohortNo) {
        let Some(family) = self.families.get_mut(&number) else { return };
        if !family.cohorts.insert(cohort) {
            return;
        }
        let before = family.mark;
        family.mark = before.wrapping_add(mark(cohort));
        let after = family.mark;
        self.unmark(number, before);
        self.marks.entry(after).or_insert(number);
    }

    /// A cohort is gone.
    pub(super) fn remove_cohort_from(&mut self, families: &BTreeSet<FamilyNo>, cohort: CohortNo) {
        for number in families {
            let Some(family) = self.families.get_mut(number) else { continue };
            if family.cohorts.remove(&cohort) {
                let before = family.mark;
                family.mark = before.wrapping_sub(mark(cohort));
                self.unmark(*number, before);
            }
        }
        for number in families {
            self.join_equal(*number);
        }
    }

    /// Merges a family with another one with the same cohorts, if such a family is found.
    pub(super) fn join_equal(&mut self, number: FamilyNo) {
        let Some(family) = self.families.get(&number) else { return };
        let other = *self.marks.entry(family.mark).or_insert(number);
        let Some(others) = self.families.get(&other).filter(|_| other != number) else { return };
        if others.cohorts != family.cohorts {
            return;
        }
        let (kept, gone) = match family.needs.len() > others.needs.len() {
            true => (number, other),
            false => (other, number),
        };
        let Some(Family { needs, cohorts, mark }) = self.families.remove(&gone) else { return };
        self.unlist(gone, &cohorts);
        self.take_in(kept, &needs);
        self.marks.insert(mark, kept);
        if let Some(kept) = self.families.get_mut(&kept) {
            kept.needs.extend(needs);
        }
    }

    /// Moves needs to this family.
    fn take_in(&mut self, family: FamilyNo, needs: &BTreeSet<NeedNo>) {
        for no in needs {
            if let Some(need) = self.needs.get_mut(no) {
                need.family = family;
            }
        }
    }

    fn unlist(&mut self, family: FamilyNo, cohorts: &BTreeSet<CohortNo>) {
        for cohort in cohorts {
            if let Some(cohort) = self.cohorts.get_mut(cohort) {
                cohort.families.remove(&family);
            }
        }
    }

    fn unmark(&mut self, family: FamilyNo, mark: u64) {
        if self.marks.get(&mark) == Some(&family) {
            self.marks.remove(&mark);
        }
    }

    /// Checks that everything kept twice is the same in both places.
    #[cfg(test)]
    pub(super) fn check_families(&self) {
        for (number, family) in &self.families {
            assert!(!family.needs.is_empty());
            assert!(family.needs.iter().all(|need| self.needs[need].family == *number));
            for cohort in &family.cohorts {
                let cohort = &self.cohorts[cohort];
                assert!(cohort.families.contains(number));
                assert!(family.needs.is_subset(&cohort.needs));
            }
            let sum = family.cohorts.iter().fold(0_u64, |sum, no| sum.wrapping_add(mark(*no)));
            assert_eq!(family.mark, sum);
        }
        for cohort in self.cohorts.values() {
            let of_needs: BTreeSet<FamilyNo> =
                cohort.needs.iter().map(|need| self.needs[need].family).collect();
            assert_eq!(cohort.families, of_needs);
        }
        let members = self.families.values().map(|family| family.needs.len());
        assert_eq!(members.sum::<usize>(), self.needs.len());
        assert!(self.needs.values().all(|need| self.families.contains_key(&need.family)));
        for (mark, family) in &self.marks {
            assert_eq!(self.families.get(family).map(|family| family.mark), Some(*mark));
        }
    }
}
