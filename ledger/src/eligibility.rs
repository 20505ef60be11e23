//! The index of which runs a slot may serve.
//!
//! A *need* is what a run asks of a slot; runs that ask for the same share it. An *offer* is what a slot has; slots that
//! have the same share it. A *cohort* is all slots of a namespace that meet exactly the same needs. Comparing texts and
//! versions happens once for each pair of a need and an offer. From then on, "which runs could this slot serve" costs one
//! look at each of its cohort's needs, however many slots and runs there are.
//!
//! *Invariant:* the index is derived from runs and workers alone. Numbers of needs, offers and cohorts differ between
//! members, so no decision depends on them: only on the turns, which order runs.
//! Absent on purpose: what changes with every grant, such as caps of namespaces, cordons and trials.

use crate::id::{RunNo, SlotRef};
use crate::spec::{RunSpec, SlotOffer};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// A need's number. It means nothing outside one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NeedNo(pub u64);

/// An offer's number. It means nothing outside one process; 0 is no offer's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OfferNo(u64);

/// A cohort's number. It means nothing outside one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CohortNo(pub u64);

/// The place of a run among those that have something to give: the smallest is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    pub(crate) priority: Reverse<u8>,
    /// Its virtual time; 0 where the cluster's version knows none.
    pub(crate) time: u64,
    pub(crate) run: RunNo,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NeedKey {
    namespace: String,
    model: String,
    revision: String,
    task: String,
    selector: BTreeMap<String, String>,
    require: BTreeMap<String, String>,
    store_url: String,
}

impl NeedKey {
    fn of(namespace: &str, spec: &RunSpec) -> Self {
        Self {
            namespace: namespace.to_owned(),
            model: spec.engine.model.clone(),
            revision: spec.engine.revision.clone(),
            task: spec.engine.task.clone(),
            selector: spec.selector.clone(),
            require: spec.require.clone(),
            store_url: spec.store_url.clone(),
        }
    }

    /// A spec that asks for this and nothing else.
    fn spec(&self) -> RunSpec {
        let mut spec = RunSpec {
            selector: self.selector.clone(),
            require: self.require.clone(),
            store_url: self.store_url.clone(),
            ..RunSpec::default()
        };
        spec.engine.model.clone_from(&self.model);
        spec.engine.revision.clone_from(&self.revision);
        spec.engine.task.clone_from(&self.task);
        spec
    }
}

#[derive(Clone, Debug)]
struct Need {
    key: NeedKey,
    spec: RunSpec,
    /// Runs that have not ended.
    runs: usize,
    /// Of these, the ones that have something to give.
    turns: BTreeSet<Turn>,
    cohorts: BTreeSet<CohortNo>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OfferKey {
    namespace: String,
    offer: SlotOffer,
    stores: Vec<String>,
}

#[derive(Clone, Debug)]
struct Offer {
    key: OfferKey,
    slots: BTreeSet<SlotRef>,
    cohort: CohortNo,
}

type CohortKey = (String, BTreeSet<NeedNo>);

#[derive(Clone, Debug)]
struct Cohort {
    namespace: String,
    needs: BTreeSet<NeedNo>,
    offers: BTreeSet<OfferNo>,
}

/// Where a run that has not ended stands in the index.
#[derive(Clone, Copy, Debug)]
struct Place {
    need: NeedNo,
    turn: Option<Turn>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Eligibility {
    needs: BTreeMap<NeedNo, Need>,
    need_numbers: BTreeMap<NeedKey, NeedNo>,
    offers: BTreeMap<OfferNo, Offer>,
    offer_numbers: BTreeMap<OfferKey, OfferNo>,
    cohorts: BTreeMap<CohortNo, Cohort>,
    cohort_numbers: BTreeMap<CohortKey, CohortNo>,
    runs: BTreeMap<RunNo, Place>,
    /// Numbers given so far.
    numbers: u64,
    /// Changes whenever slots may have moved to other cohorts.
    version: u64,
}

impl Eligibility {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Sets where a run that has not ended stands; `turn` where it has something to give.
    pub(crate) fn set_run(
        &mut self,
        no: RunNo,
        (namespace, spec): (&str, &RunSpec),
        turn: Option<Turn>,
    ) {
        let need = match self.runs.get(&no) {
            Some(place) if place.turn == turn => return,
            Some(place) => place.need,
            None => self.join_need(namespace, spec),
        };
        let before = self.runs.insert(no, Place { need, turn }).and_then(|place| place.turn);
        let Some(need) = self.needs.get_mut(&need) else { return };
        if let Some(before) = before {
            need.turns.remove(&before);
        }
        need.turns.extend(turn);
    }

    /// A run has ended or is gone.
    pub(crate) fn remove_run(&mut self, no: RunNo) {
        let Some(place) = self.runs.remove(&no) else { return };
        let Some(need) = self.needs.get_mut(&place.need) else { return };
        if let Some(turn) = place.turn {
            need.turns.remove(&turn);
        }
        need.runs -= 1;
        if need.runs == 0 {
            self.remove_need(place.need);
        }
    }

    fn join_need(&mut self, namespace: &str, spec: &RunSpec) -> NeedNo {
        let key = NeedKey::of(namespace, spec);
        let number = match self.need_numbers.get(&key) {
            Some(number) => *number,
            None => self.add_need(key),
        };
        if let Some(need) = self.needs.get_mut(&number) {
            need.runs += 1;
        }
        number
    }

    fn add_need(&mut self, key: NeedKey) -> NeedNo {
        let number = NeedNo(self.number());
        let spec = key.spec();
        let in_namespace = |offer: &&Offer| offer.key.namespace == key.namespace;
        let meets = |offer: &&Offer| offer.key.offer.fits(&spec, &offer.key.stores).is_ok();
        let offers = self.offers.values().filter(in_namespace).filter(meets);
        let met_by: Vec<OfferNo> =
            offers.filter_map(|o| self.offer_numbers.get(&o.key).copied()).collect();
        let need = Need {
            key: key.clone(),
            spec,
            runs: 0,
            turns: BTreeSet::new(),
            cohorts: BTreeSet::new(),
        };
        self.needs.insert(number, need);
        self.need_numbers.insert(key, number);
        for offer in met_by {
            self.move_offer(offer, |needs| {
                needs.insert(number);
            });
        }
        number
    }

    fn remove_need(&mut self, number: NeedNo) {
        let Some(need) = self.needs.remove(&number) else { return };
        self.need_numbers.remove(&need.key);
        let offers_of = |cohort: &CohortNo| self.cohorts.get(cohort).map(|c| c.offers.clone());
        let offers: Vec<OfferNo> = need.cohorts.iter().filter_map(offers_of).flatten().collect();
        for offer in offers {
            self.move_offer(offer, |needs| {
                needs.remove(&number);
            });
        }
    }

    /// Adds a slot. The number that it returns is what the slot is looked up by.
    pub(crate) fn add_slot(
        &mut self,
        namespace: &str,
        offer: &SlotOffer,
        stores: &[String],
        slot: SlotRef,
    ) -> OfferNo {
        // The kind of engine is for people: slots that differ in nothing else meet the same needs.
        let offer = SlotOffer { engine: String::new(), ..offer.clone() };
        let key = OfferKey { namespace: namespace.to_owned(), offer, stores: stores.to_vec() };
        let number = match self.offer_numbers.get(&key) {
            Some(number) => *number,
            None => self.add_offer(key),
        };
        if let Some(offer) = self.offers.get_mut(&number) {
            offer.slots.insert(slot);
        }
        number
    }

    pub(crate) fn remove_slot(&mut self, number: OfferNo, slot: SlotRef) {
        let Some(offer) = self.offers.get_mut(&number) else { return };
        offer.slots.remove(&slot);
        if offer.slots.is_empty() {
            let (key, cohort) = (offer.key.clone(), offer.cohort);
            self.offers.remove(&number);
            self.offer_numbers.remove(&key);
            self.leave_cohort(cohort, number);
        }
    }

    fn add_offer(&mut self, key: OfferKey) -> OfferNo {
        let number = OfferNo(self.number());
        let met = |need: &Need| {
            need.key.namespace == key.namespace && key.offer.fits(&need.spec, &key.stores).is_ok()
        };
        let needs =
            self.needs.iter().filter(|(_, need)| met(need)).map(|(number, _)| *number).collect();
        let cohort = self.join_cohort((key.namespace.clone(), needs), number);
        self.offers.insert(number, Offer { key: key.clone(), slots: BTreeSet::new(), cohort });
        self.offer_numbers.insert(key, number);
        number
    }

    fn move_offer(&mut self, number: OfferNo, change: impl FnOnce(&mut BTreeSet<NeedNo>)) {
        let Some(cohort) = self.offers.get(&number).map(|offer| offer.cohort) else { return };
        let Some(Cohort { namespace, needs, .. }) = self.cohorts.get(&cohort) else { return };
        let mut key = (namespace.clone(), needs.clone());
        change(&mut key.1);
        self.leave_cohort(cohort, number);
        let cohort = self.join_cohort(key, number);
        if let Some(offer) = self.offers.get_mut(&number) {
            offer.cohort = cohort;
        }
        self.version += 1;
    }

    fn join_cohort(&mut self, key: CohortKey, offer: OfferNo) -> CohortNo {
        let number = match self.cohort_numbers.get(&key) {
            Some(number) => *number,
            None => {
                let number = CohortNo(self.number());
                for need in &key.1 {
                    if let Some(need) = self.needs.get_mut(need) {
                        need.cohorts.insert(number);
                    }
                }
                let (namespace, needs) = key.clone();
                self.cohorts.insert(number, Cohort { namespace, needs, offers: BTreeSet::new() });
                self.cohort_numbers.insert(key, number);
                number
            }
        };
        if let Some(cohort) = self.cohorts.get_mut(&number) {
            cohort.offers.insert(offer);
        }
        number
    }

    fn leave_cohort(&mut self, number: CohortNo, offer: OfferNo) {
        let Some(cohort) = self.cohorts.get_mut(&number) else { return };
        cohort.offers.remove(&offer);
        if cohort.offers.is_empty() {
            let Some(Cohort { namespace, needs, .. }) = self.cohorts.remove(&number) else {
                return;
            };
            for need in &needs {
                if let Some(need) = self.needs.get_mut(need) {
                    need.cohorts.remove(&number);
                }
            }
            self.cohort_numbers.remove(&(namespace, needs));
        }
    }

    /// Changes whenever slots may have moved to other cohorts.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn cohort(&self, offer: OfferNo) -> Option<CohortNo> {
        self.offers.get(&offer).map(|offer| offer.cohort)
    }

    /// The need of a run that has not ended.
    pub(crate) fn need(&self, no: RunNo) -> Option<NeedNo> {
        self.runs.get(&no).map(|place| place.need)
    }

    /// Where a run stands among those that have something to give.
    pub(crate) fn turn(&self, no: RunNo) -> Option<Turn> {
        self.runs.get(&no)?.turn
    }

    /// Whether slots of an offer meet a run's need.
    pub(crate) fn fits(&self, offer: OfferNo, no: RunNo) -> bool {
        let cohort = self.cohort(offer).and_then(|number| self.cohorts.get(&number));
        let need = self.need(no);
        cohort.zip(need).is_some_and(|(cohort, need)| cohort.needs.contains(&need))
    }

    /// The needs that the slots of a cohort meet.
    pub(crate) fn needs(&self, cohort: CohortNo) -> impl Iterator<Item = NeedNo> {
        self.cohorts.get(&cohort).into_iter().flat_map(|cohort| cohort.needs.iter().copied())
    }

    /// The runs of a need and a priority that have something to give, in their turns.
    pub(crate) fn turns(&self, need: NeedNo, priority: u8) -> impl Iterator<Item = Turn> {
        let priority = Reverse(priority);
        let first = Turn { priority, time: 0, run: RunNo(0) };
        let last = Turn { priority, time: u64::MAX, run: RunNo(u32::MAX) };
        self.needs
            .get(&need)
            .map(|need| need.turns.range(first..=last).copied())
            .into_iter()
            .flatten()
    }

    /// The runs of these needs that have something to give, in their turns.
    pub(crate) fn merged(&self, needs: impl Iterator<Item = NeedNo>) -> impl Iterator<Item = Turn> {
        let mut heads: Vec<_> = needs
            .filter_map(|need| {
                let mut turns = self.needs.get(&need)?.turns.iter().copied();
                Some((turns.next()?, turns))
            })
            .collect();
        std::iter::from_fn(move || {
            let first = heads.iter().enumerate().min_by_key(|(_, head)| head.0)?.0;
            let turn = heads[first].0;
            match heads[first].1.next() {
                Some(next) => heads[first].0 = next,
                None => drop(heads.swap_remove(first)),
            }
            Some(turn)
        })
    }

    /// The cohorts whose slots meet a run's need.
    pub(crate) fn cohorts(&self, no: RunNo) -> impl Iterator<Item = CohortNo> {
        let need = self.need(no).and_then(|need| self.needs.get(&need));
        need.into_iter().flat_map(|need| need.cohorts.iter().copied())
    }

    /// The slots that meet a run's need.
    pub(crate) fn slots_for(&self, no: RunNo) -> impl Iterator<Item = SlotRef> {
        let need = self.need(no).and_then(|need| self.needs.get(&need));
        let cohorts = need.into_iter().flat_map(|need| &need.cohorts);
        let offers =
            cohorts.filter_map(|cohort| self.cohorts.get(cohort)).flat_map(|cohort| &cohort.offers);
        offers
            .filter_map(|offer| self.offers.get(offer))
            .flat_map(|offer| offer.slots.iter().copied())
    }

    /// What the slots of a namespace offer, each distinct offer once, with one of its slots.
    pub(crate) fn offers_in<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a SlotOffer, &'a [String], &'a BTreeSet<SlotRef>)> {
        let offers = self.offers.values().filter(move |offer| offer.key.namespace == namespace);
        offers.map(|offer| (&offer.key.offer, &offer.key.stores[..], &offer.slots))
    }

    /// The virtual time at which a run that had nothing to give joins those that have: that of the run that is served next
    /// at the slots where it would wait for longest. `None` where nobody shares a slot with it. Runs in `joining`, it among
    /// them, do not count.
    pub(crate) fn joining_time(
        &self,
        no: RunNo,
        priority: u8,
        joining: &BTreeSet<RunNo>,
    ) -> Option<u64> {
        let first = |need: &NeedNo| {
            let mut turns = self.turns(*need, priority);
            turns.find(|turn| !joining.contains(&turn.run)).map(|turn| turn.time)
        };
        let need = self.needs.get(&self.need(no)?)?;
        let cohorts = need.cohorts.iter().filter_map(|cohort| self.cohorts.get(cohort));
        cohorts.filter_map(|cohort| cohort.needs.iter().filter_map(first).min()).max()
    }
}
