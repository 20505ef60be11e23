//! The index of which runs a slot may serve.
//!
//! A *need* is what a run asks of a slot; runs that ask for the same share one. An *offer* is what a slot has; slots
//! that have the same share one. A *cohort* is all slots of a namespace that meet exactly the same needs. A *shape*
//! is an offer without the parts that differ between hosts: its stores, its labels, and its versions except the routes.
//! If a need asks for none of these, one comparison decides for all offers of a shape. Texts and versions are compared
//! at most once for each pair of a need and an offer. From then on, finding the run that a slot serves next is one
//! lookup, however many slots, needs and runs there are.
//!
//! Needs that the same cohorts meet form a *family* ([`families`]).
//!
//! Adding or removing a need changes cohorts as a whole. Offers move one by one only when a cohort splits or two
//! merge, and then only those of the smaller side.
//!
//! *Invariant:* the index is derived from runs and workers alone. The numbers of needs, offers and cohorts differ
//! between members, so no decision depends on them: only on the turns, which order runs.
//! Absent: what changes with every grant, such as caps of namespaces and groups, and which slots have a
//! cordon; `free.rs` counts the slots without one. `routes.rs` counts the routes of the OpenAI API that offers report.

mod cohorts;
mod families;
mod free;
mod routes;
#[cfg(test)]
mod tests;
mod turns;

use crate::batch::spec::{ROUTES_PROPERTY, RunSpec, SlotOffer};
use crate::batch::store_access::StoreAccess;
use crate::kernel::id::{RunNo, SlotRef};
use crate::kernel::visits::count_visit;
use families::Family;
use routes::RouteCounts;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) use families::FamilyNo;

/// A need's number. It means nothing outside one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NeedNo(pub u64);

/// An offer's number. It means nothing outside one process; 0 is no offer's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OfferNo(u64);

/// A cohort's number. It means nothing outside one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CohortNo(pub u64);

/// The position of a run among those that have rows to give: the smallest is served first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    pub(crate) priority: Reverse<u8>,
    /// Its virtual time; 0 if the cluster's version has none.
    pub(crate) time: u64,
    pub(crate) run: RunNo,
}

/// An offer, the stores that its worker can use, and its slots.
pub(crate) type Offering<'a> = (&'a SlotOffer, &'a StoreAccess, &'a BTreeSet<SlotRef>);

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
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

    /// A spec with only these requirements.
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
    /// The turns of its runs that have rows to give.
    turns: BTreeSet<Turn>,
    /// The family of needs that the same cohorts meet.
    family: FamilyNo,
    /// The cohorts that meet it and list the first turns of their needs.
    listed: BTreeSet<CohortNo>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OfferKey {
    namespace: String,
    offer: SlotOffer,
    stores: StoreAccess,
}

impl OfferKey {
    /// Its namespace, and its offer without the parts that differ between hosts. The routes stay, because runs of the
    /// OpenAI API require one each.
    fn shape(&self) -> ShapeKey {
        let SlotOffer { models, tasks, ineligible, .. } = self.offer.clone();
        let routes = self.offer.property(ROUTES_PROPERTY);
        let versions = routes
            .map(|routes| (ROUTES_PROPERTY.to_owned(), routes.to_owned()))
            .into_iter()
            .collect();
        let shape = SlotOffer { models, tasks, ineligible, versions, ..SlotOffer::default() };
        (self.namespace.clone(), shape)
    }
}

#[derive(Clone, Debug)]
struct Offer {
    key: OfferKey,
    shape: ShapeNo,
    slots: BTreeSet<SlotRef>,
    /// How many of its slots take work.
    free: usize,
    cohort: CohortNo,
}

/// A shape's number. It means nothing outside one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ShapeNo(u64);

type ShapeKey = (String, SlotOffer);

#[derive(Clone, Debug)]
struct Shape {
    key: ShapeKey,
    offers: BTreeSet<OfferNo>,
}

type Offers = BTreeMap<ShapeNo, BTreeSet<OfferNo>>;

type CohortKey = (String, BTreeSet<NeedNo>);

#[derive(Clone, Debug)]
struct Cohort {
    namespace: String,
    needs: BTreeSet<NeedNo>,
    /// Those of its needs.
    families: BTreeSet<FamilyNo>,
    offers: Offers,
    /// How many slots of its offers take work.
    free: usize,
    /// The first turn of each of its needs at each priority; kept only if it has many needs.
    firsts: Option<BTreeMap<Turn, NeedNo>>,
}

/// The position in the index of a run that has not ended.
#[derive(Clone, Copy, Debug)]
struct RunPosition {
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
    shapes: BTreeMap<ShapeNo, Shape>,
    shape_numbers: BTreeMap<ShapeKey, ShapeNo>,
    cohorts: BTreeMap<CohortNo, Cohort>,
    cohort_numbers: BTreeMap<CohortKey, CohortNo>,
    routes: RouteCounts,
    families: BTreeMap<FamilyNo, Family>,
    /// Families by the sums over their cohorts; one of several with the same sum.
    marks: BTreeMap<u64, FamilyNo>,
    runs: BTreeMap<RunNo, RunPosition>,
    /// Numbers given so far.
    numbers: u64,
    /// Changes when a slot is in another cohort than before.
    version: u64,
    /// The cohorts of the slots that were removed last, all of one session: a worker that resumes its session adds them
    /// again.
    left: BTreeMap<SlotRef, CohortNo>,
    #[cfg(test)]
    work: Work,
}

/// The cost of changes.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Work {
    /// Cohorts that were created, or whose needs have changed.
    rekeyed: usize,
    /// Offers that were moved to another cohort.
    moved: usize,
    /// Offers that were compared with a need.
    compared: usize,
}

impl Eligibility {
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Sets the position of a run that has not ended; `turn` if it has rows to give.
    pub(crate) fn set_run(
        &mut self,
        no: RunNo,
        (namespace, spec): (&str, &RunSpec),
        turn: Option<Turn>,
    ) {
        let need = match self.runs.get(&no) {
            Some(position) if position.turn == turn => return,
            Some(position) => position.need,
            None => self.join_need(namespace, spec),
        };
        let before =
            self.runs.insert(no, RunPosition { need, turn }).and_then(|position| position.turn);
        self.change_turn(need, before, turn);
    }

    /// A run has ended or is gone.
    pub(crate) fn remove_run(&mut self, no: RunNo) {
        let Some(position) = self.runs.remove(&no) else { return };
        self.change_turn(position.need, position.turn, None);
        let Some(need) = self.needs.get_mut(&position.need) else { return };
        need.runs -= 1;
        if need.runs == 0 {
            self.remove_need(position.need);
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

    /// Adds a slot. Returns the number for looking it up.
    pub(crate) fn add_slot(
        &mut self,
        namespace: &str,
        offer: &SlotOffer,
        stores: &StoreAccess,
        slot: SlotRef,
    ) -> OfferNo {
        // The kind of engine is informational only: slots that differ in nothing else meet the same needs.
        let offer = SlotOffer { engine: String::new(), ..offer.clone() };
        let key = OfferKey { namespace: namespace.to_owned(), offer, stores: stores.clone() };
        let number = match self.offer_numbers.get(&key) {
            Some(number) => *number,
            None => self.add_offer(key),
        };
        if let Some(offer) = self.offers.get_mut(&number) {
            offer.slots.insert(slot);
            if self.left.remove(&slot).is_some_and(|before| before != offer.cohort) {
                self.version += 1;
            }
        }
        number
    }

    pub(crate) fn remove_slot(&mut self, number: OfferNo, slot: SlotRef) {
        let Some(offer) = self.offers.get_mut(&number) else { return };
        offer.slots.remove(&slot);
        if self.left.first_key_value().is_some_and(|left| left.0.session != slot.session) {
            self.left.clear();
        }
        self.left.insert(slot, offer.cohort);
        if offer.slots.is_empty() {
            self.remove_offer(number);
        }
    }

    fn add_offer(&mut self, key: OfferKey) -> OfferNo {
        let number = OfferNo(self.number());
        let of_namespace = NeedKey { namespace: key.namespace.clone(), ..NeedKey::default() };
        let needs = self.need_numbers.range(of_namespace..);
        let needs = needs.take_while(|(need, _)| need.namespace == key.namespace);
        let met = |need: &NeedNo| {
            let need = self.needs.get(need);
            need.is_some_and(|need| key.offer.fits(&need.spec, &key.stores).is_ok())
        };
        let needs = needs.map(|(_, need)| *need).filter(met).collect();
        self.routes.add(&key.namespace, &key.offer);
        let shape = self.join_shape(key.shape(), number);
        let cohort = self.join_cohort((key.namespace.clone(), needs), shape, number);
        let offer = Offer { key: key.clone(), shape, slots: BTreeSet::new(), free: 0, cohort };
        self.offers.insert(number, offer);
        self.offer_numbers.insert(key, number);
        number
    }

    fn remove_offer(&mut self, number: OfferNo) {
        let Some(offer) = self.offers.remove(&number) else { return };
        self.offer_numbers.remove(&offer.key);
        self.routes.remove(&offer.key.namespace, &offer.key.offer);
        self.leave_cohort(offer.cohort, offer.shape, number);
        let Some(shape) = self.shapes.get_mut(&offer.shape) else { return };
        shape.offers.remove(&number);
        if shape.offers.is_empty() {
            self.shape_numbers.remove(&shape.key);
            self.shapes.remove(&offer.shape);
        }
    }

    fn join_shape(&mut self, key: ShapeKey, offer: OfferNo) -> ShapeNo {
        let number = match self.shape_numbers.get(&key) {
            Some(number) => *number,
            None => {
                let number = ShapeNo(self.number());
                let shape = Shape { key: key.clone(), offers: BTreeSet::new() };
                self.shapes.insert(number, shape);
                self.shape_numbers.insert(key, number);
                number
            }
        };
        if let Some(shape) = self.shapes.get_mut(&number) {
            shape.offers.insert(offer);
        }
        number
    }

    /// Changes when a slot is in another cohort than before.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn cohort(&self, offer: OfferNo) -> Option<CohortNo> {
        self.offers.get(&offer).map(|offer| offer.cohort)
    }

    /// The need of a run that has not ended.
    pub(crate) fn need(&self, no: RunNo) -> Option<NeedNo> {
        self.runs.get(&no).map(|position| position.need)
    }

    /// The turn of a run among those that have rows to give.
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

    /// The cohorts whose slots meet a run's need.
    pub(crate) fn cohorts(&self, no: RunNo) -> impl Iterator<Item = CohortNo> {
        let family = self.need(no).and_then(|need| self.family_of(need));
        family.into_iter().flat_map(|family| family.cohorts.iter().copied())
    }

    /// The slots that meet a run's need.
    pub(crate) fn slots_for(&self, no: RunNo) -> impl Iterator<Item = SlotRef> {
        let family = self.need(no).and_then(|need| self.family_of(need));
        let cohorts = family.into_iter().flat_map(|family| &family.cohorts);
        let offers = cohorts.filter_map(|cohort| self.cohorts.get(cohort));
        let offers = offers.flat_map(|cohort| cohort.offers.values().flatten());
        offers
            .filter_map(|offer| self.offers.get(offer))
            .flat_map(|offer| offer.slots.iter().copied())
            .inspect(|_| count_visit())
    }

    /// The offers of a namespace's slots, by shape: the common part, and each offer with its slots.
    pub(crate) fn shapes_in<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a SlotOffer, impl Iterator<Item = Offering<'a>>)> {
        let first = (namespace.to_owned(), SlotOffer::default());
        let shapes = self.shape_numbers.range(first..).map(|(_, number)| *number);
        let shapes = shapes.filter_map(|number| self.shapes.get(&number));
        let shapes = shapes.take_while(move |shape| shape.key.0 == namespace);
        shapes.map(|shape| {
            let offers = shape.offers.iter().filter_map(|offer| self.offers.get(offer));
            let offers = offers.map(|offer| (&offer.key.offer, &offer.key.stores, &offer.slots));
            (&shape.key.1, offers)
        })
    }

    /// The cohorts of a namespace.
    pub(crate) fn cohorts_in(&self, namespace: &str) -> impl Iterator<Item = CohortNo> {
        let cohorts = self.cohort_numbers.range((namespace.to_owned(), BTreeSet::new())..);
        let cohorts = cohorts.take_while(move |(cohort, _)| cohort.0 == namespace);
        cohorts.map(|(_, number)| *number)
    }

    /// The priorities of a namespace's runs that have rows to give.
    pub(crate) fn priorities(&self, namespace: &str) -> BTreeSet<u8> {
        let first = NeedKey { namespace: namespace.to_owned(), ..NeedKey::default() };
        let needs = self.need_numbers.range(first..);
        let needs = needs.take_while(|(need, _)| need.namespace == namespace);
        let needs = needs.filter_map(|(_, number)| self.needs.get(number));
        needs.flat_map(Need::firsts).map(|turn| turn.priority.0).collect()
    }
}
