//! How needs and offers enter and leave cohorts.
//!
//! *Invariant:* no two cohorts of a namespace have the same needs, and none is without offers. A cohort keeps its
//! number when its needs change, so what is sorted by cohort stays sorted.

use super::{Cohort, CohortKey, CohortNo, Eligibility, Need, NeedKey, NeedNo, OfferNo};
use super::{Offers, Shape, ShapeNo};
use crate::batch::spec::ROUTES_PROPERTY;
use crate::batch::store_access::StoreAccess;
use std::collections::{BTreeMap, BTreeSet};

/// Which offers of a shape in a cohort meet a need.
enum MatchingOffers {
    All,
    Some(BTreeSet<OfferNo>),
}

fn count(offers: &Offers) -> usize {
    offers.values().map(BTreeSet::len).sum()
}

impl Need {
    /// Its verdict on all offers of a shape, if it is the same for all.
    fn judges(&self, shape: &Shape) -> Option<bool> {
        let mut spec = self.spec.clone();
        let (selector, require) = (&mut spec.selector, &mut spec.require);
        let routes_only = require.keys().all(|name| name == ROUTES_PROPERTY);
        let asks = !(selector.is_empty() && routes_only && spec.store_url.is_empty());
        selector.clear();
        require.retain(|name, _| name == ROUTES_PROPERTY);
        spec.store_url.clear();
        match shape.key.1.fits(&spec, &StoreAccess::default()) {
            Err(_) => Some(false),
            Ok(()) => (!asks).then_some(true),
        }
    }
}

impl Eligibility {
    pub(super) fn add_need(&mut self, key: NeedKey) -> NeedNo {
        let number = NeedNo(self.number());
        let family = self.add_family(number);
        let need = Need {
            key: key.clone(),
            spec: key.spec(),
            runs: 0,
            turns: BTreeSet::new(),
            family,
            listed: BTreeSet::new(),
        };
        let first = (key.namespace.clone(), BTreeSet::new());
        let cohorts = self.cohort_numbers.range(first..);
        let cohorts = cohorts.take_while(|(cohort, _)| cohort.0 == key.namespace);
        let cohorts: Vec<CohortNo> = cohorts.map(|(_, number)| *number).collect();
        self.needs.insert(number, need);
        self.need_numbers.insert(key, number);
        let mut judged = BTreeMap::new();
        for cohort in cohorts {
            self.add_need_to(cohort, number, &mut judged);
        }
        // Only once it is in all of its cohorts.
        self.join_equal(family);
        number
    }

    pub(super) fn remove_need(&mut self, number: NeedNo) {
        let Some(need) = self.needs.remove(&number) else { return };
        self.need_numbers.remove(&need.key);
        for cohort in self.leave_family(need.family, number) {
            self.remove_need_of(cohort, number);
        }
    }

    /// Adds a need that no other cohort has yet to a cohort, or splits off the offers that meet it into another
    /// cohort.
    fn add_need_to(
        &mut self,
        number: CohortNo,
        need: NeedNo,
        judged: &mut BTreeMap<ShapeNo, Option<bool>>,
    ) {
        let Some(cohort) = self.cohorts.get(&number) else { return };
        let all = count(&cohort.offers);
        let mut met: BTreeMap<ShapeNo, MatchingOffers> = BTreeMap::new();
        let mut met_count = 0;
        for (shape, offers) in &cohort.offers {
            let meets = self.meets(need, (*shape, offers), judged);
            met_count += match &meets {
                None => continue,
                Some(MatchingOffers::All) => offers.len(),
                Some(MatchingOffers::Some(some)) => some.len(),
            };
            met.extend(meets.map(|meets| (*shape, meets)));
        }
        #[cfg(test)]
        {
            let alike = |shape| judged.get(shape).is_some_and(|judged| judged.is_some());
            let compared = cohort.offers.iter().filter(|(shape, _)| !alike(shape));
            self.work.compared += compared.map(|(_, offers)| offers.len()).sum::<usize>();
        }
        if met_count == 0 {
            return;
        }
        if met_count == all {
            return self.insert_need(number, need);
        }
        let Some(cohort) = self.cohorts.get_mut(&number) else { return };
        let mut key: CohortKey = (cohort.namespace.clone(), cohort.needs.clone());
        let taken = take_met(&mut cohort.offers, met);
        if met_count <= all - met_count {
            key.1.insert(need);
            self.make_cohort(key, taken);
        } else {
            let rest = std::mem::replace(&mut cohort.offers, taken);
            self.insert_need(number, need);
            self.make_cohort(key, rest);
        }
        self.version += 1;
    }

    /// Which offers of a shape in a cohort meet a need; `None` if none does.
    fn meets(
        &self,
        need: NeedNo,
        (shape, offers): (ShapeNo, &BTreeSet<OfferNo>),
        judged: &mut BTreeMap<ShapeNo, Option<bool>>,
    ) -> Option<MatchingOffers> {
        let need = self.needs.get(&need)?;
        let judge = || need.judges(self.shapes.get(&shape)?);
        match *judged.entry(shape).or_insert_with(judge) {
            Some(true) => return Some(MatchingOffers::All),
            Some(false) => return None,
            None => {}
        }
        let fits = |offer: &&OfferNo| {
            let key = self.offers.get(offer).map(|offer| &offer.key);
            key.is_some_and(|key| key.offer.fits(&need.spec, &key.stores).is_ok())
        };
        let some: BTreeSet<OfferNo> = offers.iter().filter(fits).copied().collect();
        match some.len() {
            0 => None,
            len if len == offers.len() => Some(MatchingOffers::All),
            _ => Some(MatchingOffers::Some(some)),
        }
    }

    /// Adds a new need that all slots of a cohort meet.
    fn insert_need(&mut self, number: CohortNo, no: NeedNo) {
        self.rekey(number, |needs| {
            needs.insert(no);
        });
        if let (Some(cohort), Some(need)) = (self.cohorts.get_mut(&number), self.needs.get_mut(&no))
        {
            if cohort.firsts.is_some() {
                need.listed.insert(number);
            }
            let family = need.family;
            cohort.families.insert(family);
            self.add_cohort_to(family, number);
        }
        self.relist(number);
    }

    /// Removes a need from a cohort; the need no longer exists elsewhere. If another cohort has the same needs now,
    /// the two merge.
    fn remove_need_of(&mut self, number: CohortNo, need: NeedNo) {
        if let Some(other) = self.rekey(number, |needs| {
            needs.remove(&need);
        }) {
            self.merge(number, other);
        }
        self.relist(number);
    }

    /// Changes the needs of a cohort in place. If another cohort already has the same needs, it keeps its key, and is
    /// returned.
    fn rekey(
        &mut self,
        number: CohortNo,
        change: impl Fn(&mut BTreeSet<NeedNo>),
    ) -> Option<CohortNo> {
        let cohort = self.cohorts.get_mut(&number)?;
        let own = (std::mem::take(&mut cohort.namespace), std::mem::take(&mut cohort.needs));
        // Reuse both copies: a cohort may have as many needs as there are runs.
        let (mut key, _) = self.cohort_numbers.remove_entry(&own)?;
        (cohort.namespace, cohort.needs) = own;
        change(&mut cohort.needs);
        change(&mut key.1);
        #[cfg(test)]
        {
            self.work.rekeyed += 1;
        }
        let other = self.cohort_numbers.get(&key).copied();
        if other.is_none() {
            self.cohort_numbers.insert(key, number);
        }
        other
    }

    /// Merges two cohorts with the same needs; `other` has the key.
    fn merge(&mut self, number: CohortNo, other: CohortNo) {
        let len = |no| self.cohorts.get(&no).map_or(0, |cohort: &Cohort| count(&cohort.offers));
        let (kept, gone) = match len(number) > len(other) {
            true => (number, other),
            false => (other, number),
        };
        let Some(Cohort { namespace, needs, families, offers, .. }) = self.cohorts.remove(&gone)
        else {
            return;
        };
        self.unlist_firsts(&needs, gone);
        self.remove_cohort_from(&families, gone);
        if kept == number {
            self.cohort_numbers.insert((namespace, needs), kept);
        }
        let free = self.place(&offers, kept);
        if let Some(cohort) = self.cohorts.get_mut(&kept) {
            cohort.free += free;
            for (shape, mut offers) in offers {
                cohort.offers.entry(shape).or_default().append(&mut offers);
            }
        }
        self.relist(kept);
        self.version += 1;
    }

    /// Makes a cohort of offers that are in no other.
    fn make_cohort(&mut self, key: CohortKey, offers: Offers) -> CohortNo {
        let number = CohortNo(self.number());
        let families = self.families_of(&key.1);
        for family in &families {
            self.add_cohort_to(*family, number);
        }
        #[cfg(test)]
        {
            self.work.rekeyed += 1;
        }
        let free = self.place(&offers, number);
        let (namespace, needs) = key.clone();
        let cohort = Cohort { namespace, needs, families, offers, free, firsts: None };
        self.cohorts.insert(number, cohort);
        self.cohort_numbers.insert(key, number);
        self.relist(number);
        number
    }

    /// Moves offers to this cohort. Returns how many of their slots take work, which their former cohorts no longer
    /// count.
    fn place(&mut self, offers: &Offers, cohort: CohortNo) -> usize {
        let mut free = 0;
        for no in offers.values().flatten() {
            if let Some(offer) = self.offers.get_mut(no) {
                let before = std::mem::replace(&mut offer.cohort, cohort);
                free += offer.free;
                if let Some(before) = self.cohorts.get_mut(&before) {
                    before.free -= offer.free;
                }
                #[cfg(test)]
                {
                    self.work.moved += 1;
                }
            }
        }
        free
    }

    /// Puts an offer that is new into the cohort of its needs.
    pub(super) fn join_cohort(&mut self, key: CohortKey, shape: ShapeNo, no: OfferNo) -> CohortNo {
        let number = match self.cohort_numbers.get(&key) {
            Some(number) => *number,
            None => self.make_cohort(key, Offers::new()),
        };
        if let Some(cohort) = self.cohorts.get_mut(&number) {
            cohort.offers.entry(shape).or_default().insert(no);
        }
        number
    }

    pub(super) fn leave_cohort(&mut self, number: CohortNo, shape: ShapeNo, no: OfferNo) {
        let Some(cohort) = self.cohorts.get_mut(&number) else { return };
        if let Some(offers) = cohort.offers.get_mut(&shape) {
            offers.remove(&no);
            if offers.is_empty() {
                cohort.offers.remove(&shape);
            }
        }
        if !cohort.offers.is_empty() {
            return;
        }
        let Some(Cohort { namespace, needs, families, .. }) = self.cohorts.remove(&number) else {
            return;
        };
        self.unlist_firsts(&needs, number);
        self.remove_cohort_from(&families, number);
        self.cohort_numbers.remove(&(namespace, needs));
    }

    /// Removes a cohort, whether or not it lists the first turns of these needs.
    fn unlist_firsts(&mut self, needs: &BTreeSet<NeedNo>, cohort: CohortNo) {
        for need in needs {
            if let Some(need) = self.needs.get_mut(need) {
                need.listed.remove(&cohort);
            }
        }
    }
}

/// Removes the offers that meet a need from those of a cohort.
fn take_met(offers: &mut Offers, met: BTreeMap<ShapeNo, MatchingOffers>) -> Offers {
    let mut taken = Offers::new();
    for (shape, meets) in met {
        match meets {
            MatchingOffers::All => taken.extend(offers.remove_entry(&shape)),
            MatchingOffers::Some(some) => {
                if let Some(all) = offers.get_mut(&shape) {
                    all.retain(|offer| !some.contains(offer));
                }
                taken.insert(shape, some);
            }
        }
    }
    taken
}
