//! Running sums over runs and slots: for autoscalers, quotas, counts of runs, and the bound on cordons.
//!
//! *Invariant:* after each command the sums are those of the runs that have not ended and of all slots (`settle.rs`).
//! So a reader pays for the number of models and lists of models, a quota for one lookup, and a change for what
//! changed.
//! Absent: sums that decide what a claim gets, such as a namespace's running rows; those change within a command.

use crate::batch::run::{Run, RunState};
use crate::fleet::pool_view::Pool;
use crate::kernel::id::RunNo;
use crate::kernel::visits::count_visit;
use std::collections::{BTreeMap, BTreeSet};

/// The contribution of a run to the sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RunRows {
    /// Rows that slots may be given.
    pending: u64,
    /// Rows that slots have.
    running: u64,
    /// Rows without an outcome that no slot has.
    open: u64,
}

impl RunRows {
    fn of(run: &Run) -> Self {
        count_visit();
        let pending = run.pending();
        Self {
            pending: if run.head.state == RunState::Running { pending } else { 0 },
            running: run.head.counts.running,
            open: pending + run.head.counts.waiting,
        }
    }
}

/// A run that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Counted {
    namespace: String,
    model: String,
    rows: RunRows,
}

/// A namespace's usage of its quotas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    /// Runs that have not ended.
    pub(crate) runs: u32,
    /// Their rows without an outcome that no slot has.
    pub(crate) open_rows: u64,
}

/// Rows of one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ModelRows {
    pending: u64,
    running: u64,
}

/// How a slot is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotUse {
    /// It takes work.
    pub(crate) works: bool,
    /// It takes work and holds no row.
    pub(crate) idle: bool,
    /// It is eligible and its worker is ready, whatever its cordons and trials.
    pub(crate) ready: bool,
    /// It is ready, and the ledger itself has cordoned it.
    pub(crate) cordoned: bool,
    /// It is ready and has no cordon.
    pub(crate) free: bool,
}

/// Slots of a namespace that offer the same list of models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slots {
    all: u64,
    work: u64,
    idle: u64,
    pub(crate) ready: u64,
    pub(crate) cordoned: u64,
    pub(crate) free: u64,
}

impl Slots {
    fn add(&mut self, slot: SlotUse) {
        self.all += 1;
        self.work += u64::from(slot.works);
        self.idle += u64::from(slot.idle);
        self.ready += u64::from(slot.ready);
        self.cordoned += u64::from(slot.cordoned);
        self.free += u64::from(slot.free);
    }

    fn subtract(&mut self, slot: SlotUse) {
        self.all -= 1;
        self.work -= u64::from(slot.works);
        self.idle -= u64::from(slot.idle);
        self.ready -= u64::from(slot.ready);
        self.cordoned -= u64::from(slot.cordoned);
        self.free -= u64::from(slot.free);
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    runs: BTreeMap<RunNo, Counted>,
    namespaces: BTreeMap<String, Used>,
    models: BTreeMap<String, ModelRows>,
    /// By namespace and list of models.
    slots: BTreeMap<String, BTreeMap<Vec<String>, Slots>>,
    deleting: BTreeSet<RunNo>,
}

impl Tally {
    /// Counts a run as it is now; `None` if it is gone.
    pub(crate) fn count_run(&mut self, no: RunNo, run: Option<&Run>) {
        match run.is_some_and(|run| run.head.state == RunState::Deleting) {
            true => self.deleting.insert(no),
            false => self.deleting.remove(&no),
        };
        let Self { runs, namespaces, models, .. } = self;
        let live = run.filter(|run| !run.ended());
        if let Some(run) = live
            && !runs.contains_key(&no)
        {
            let (namespace, model) = (&run.head.namespace, &run.head.spec.engine.model);
            change(namespaces, namespace, |used| used.runs += 1);
            let (namespace, model, rows) = (namespace.clone(), model.clone(), RunRows::default());
            runs.insert(no, Counted { namespace, model, rows });
        }
        let Some(Counted { namespace, model, rows }) = runs.get_mut(&no) else { return };
        let is = live.map(RunRows::of).unwrap_or_default();
        let was = std::mem::replace(rows, is);
        if was != is {
            change(models, model, |rows| {
                rows.pending = rows.pending + is.pending - was.pending;
                rows.running = rows.running + is.running - was.running;
            });
        }
        if was.open != is.open || live.is_none() {
            change(namespaces, namespace, |used| {
                used.open_rows = used.open_rows + is.open - was.open;
                used.runs -= u32::from(live.is_none());
            });
        }
        if live.is_none() {
            runs.remove(&no);
        }
    }

    /// Updates the count of a slot from its earlier state to its present one; `None` if it does not or did not exist.
    pub(crate) fn count_slot(
        &mut self,
        (namespace, models): (&str, &[String]),
        was: Option<SlotUse>,
        is: Option<SlotUse>,
    ) {
        if !self.slots.contains_key(namespace) {
            self.slots.insert(namespace.to_owned(), BTreeMap::new());
        }
        let Some(lists) = self.slots.get_mut(namespace) else { return };
        if !lists.contains_key(models) {
            lists.insert(models.to_vec(), Slots::default());
        }
        let Some(slots) = lists.get_mut(models) else { return };
        if let Some(is) = is {
            slots.add(is);
        }
        if let Some(was) = was {
            slots.subtract(was);
        }
        if slots.all == 0 {
            lists.remove(models);
        }
        if lists.is_empty() {
            self.slots.remove(namespace);
        }
    }

    /// The lists of models that slots of a namespace offer, and the sums over the slots of each.
    pub(crate) fn lists_in(&self, namespace: &str) -> impl Iterator<Item = (&[String], &Slots)> {
        let lists = self.slots.get(namespace).into_iter().flatten();
        lists.map(|(models, slots)| (models.as_slice(), slots))
    }

    /// A namespace's usage of its quotas.
    pub(crate) fn used(&self, namespace: &str) -> Used {
        self.namespaces.get(namespace).copied().unwrap_or_default()
    }

    /// The rows of a run without an outcome that no slot has; `None` if it has ended.
    pub(crate) fn open_rows(&self, no: RunNo) -> Option<u64> {
        self.runs.get(&no).map(|counted| counted.rows.open)
    }

    /// Runs that have not ended.
    pub(crate) fn live_runs(&self) -> usize {
        self.runs.len()
    }

    /// Runs that are being deleted.
    pub(crate) fn deleting_runs(&self) -> usize {
        self.deleting.len()
    }

    /// See [`Ledger::models_in`](crate::Ledger::models_in).
    pub(crate) fn models_in(&self, namespace: &str) -> BTreeSet<String> {
        let offers = self.lists_in(namespace).flat_map(|(models, _)| models);
        offers.map(|offer| name_of(offer)).filter(|name| *name != "*").map(str::to_owned).collect()
    }

    /// See [`Ledger::pools`](crate::Ledger::pools).
    pub(crate) fn pools(&self) -> BTreeMap<String, Pool> {
        let of_rows = |rows: &ModelRows| Pool {
            pending: rows.pending,
            running: rows.running,
            ..Pool::default()
        };
        let mut pools: BTreeMap<String, Pool> =
            self.models.iter().map(|(model, rows)| (model.clone(), of_rows(rows))).collect();
        let mut any = Slots::default();
        for (models, slots) in self.slots.values().flatten() {
            let names: BTreeSet<&str> = models.iter().map(|model| name_of(model)).collect();
            if names.contains("*") {
                (any.work, any.idle) = (any.work + slots.work, any.idle + slots.idle);
                continue;
            }
            for name in names {
                let pool = pools.entry(name.to_owned()).or_default();
                (pool.slots, pool.idle) = (pool.slots + slots.work, pool.idle + slots.idle);
            }
        }
        for pool in pools.values_mut() {
            (pool.slots, pool.idle) = (pool.slots + any.work, pool.idle + any.idle);
        }
        pools
    }
}

/// Changes the sum for a name. A zero sum has no entry.
fn change<V: Default + PartialEq>(
    sums: &mut BTreeMap<String, V>,
    name: &str,
    change: impl FnOnce(&mut V),
) {
    if !sums.contains_key(name) {
        sums.insert(name.to_owned(), V::default());
    }
    let Some(sum) = sums.get_mut(name) else { return };
    change(sum);
    if *sum == V::default() {
        sums.remove(name);
    }
}

/// The model of an offer that may name one revision of it.
fn name_of(offer: &str) -> &str {
    offer.rsplit_once('@').map_or(offer, |(model, _)| model)
}
