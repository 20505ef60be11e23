//! Prunes configurations by what the remaining operations need.
//!
//! It works only if the model gives the [`Shape`](crate::models::Shape) of every operation. From the states that the
//! remaining operations need (*targets*) it derives:
//! - **dead end**: an answered operation needs a target that no remaining operation sets, that nothing set by one
//!   leads to, and that the present state does not lead to either;
//! - **useless**: a crashed operation whose new state leads to no target of the rest, while the old state leads to
//!   none that the rest must avoid: an order with it is an order without it;
//! - **escape**: if the old state does lead to a target that must be avoided, and the new one to no target, one such
//!   crashed operation that is possible in every state stands for all of them;
//! - **forgotten**: the state leads to no target, wanted or to be avoided: all such states are equivalent;
//! - **unseen**: if nothing is to be avoided, an operation that leads from one forgotten state to another can be put
//!   in order at once, because no operation sees its effect, now or later;
//! - **serves**: so can an operation that sets a state that others need, if all of those others may be next as well,
//!   change nothing, and are put in order right behind it, and if nothing else that is needed comes of that state.
//!   Wherever else an order has them, what lies between it and the next operation that sets a state is possible in
//!   any state.
//!
//! *Invariant:* targets are counted over the operations not yet in order, so taking and returning an operation are
//! exact opposites. The cost is bounded before it is spent: above the bound nothing is excluded, which is always
//! correct.

use super::bits;
use super::space::{ClassId, Space, StateId};
use crate::models::{Effect, Model, Need};
use std::collections::HashMap;
use std::time::Instant;

/// About how many bytes the table of targets that each state leads to may take, before the search begins.
const REACH_MAX_BYTES: usize = super::MAX_BYTES / 2;
/// Classes of operations to process between two clock reads.
const CLASSES_PER_LOOK: usize = 16;

/// A target's number.
pub(super) type Target = u32;

/// Facts about a class of operations.
struct Class {
    needs: Option<Target>,
    avoids: Option<Target>,
    changes_nothing: bool,
    sets: Option<StateId>,
    /// The targets to which the state that it sets may lead.
    supplies: Vec<Target>,
}

impl Class {
    /// Possible in every state.
    fn anytime(&self) -> bool {
        self.needs.is_none() && self.avoids.is_none()
    }
}

/// The possible use of a crashed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// Nothing: an order without it is as good.
    None,
    /// It leaves a state that the rest must avoid for one that is equivalent to others. Any operation of this use is
    /// as good as any other.
    Escape,
    /// The effect of this very operation may be needed.
    Own,
}

/// How many remaining operations concern each target, and the set of targets that any of them concerns.
struct Counts {
    counts: Vec<u32>,
    present: Vec<u64>,
    /// The total over all targets.
    all: usize,
}

impl Counts {
    fn new(targets: usize) -> Self {
        Self { counts: vec![0; targets], present: vec![0; targets.div_ceil(64)], all: 0 }
    }

    fn add(&mut self, target: Target) {
        self.all += 1;
        self.counts[target as usize] += 1;
        bits::set(&mut self.present, target as usize);
    }

    fn remove(&mut self, target: Target) {
        self.all -= 1;
        let count = &mut self.counts[target as usize];
        *count -= 1;
        if *count == 0 {
            bits::clear(&mut self.present, target as usize);
        }
    }

    /// Whether any operation concerns one of these.
    fn any(&self, targets: &[Target]) -> bool {
        !self.is_empty() && targets.iter().any(|&target| self.counts[target as usize] > 0)
    }

    fn is_empty(&self) -> bool {
        self.all == 0
    }
}

pub(super) struct Pruner {
    /// Empty if an operation has no shape: then nothing is excluded.
    classes: Vec<Class>,
    targets: Vec<StateId>,
    /// Needed by answered operations; by any; to be avoided by any; set by any.
    demand: Counts,
    wish: Counts,
    avoid: Counts,
    supply: Counts,
    /// For each state seen, the targets that it leads to.
    reach: Vec<Option<Box<[u64]>>>,
}

impl Pruner {
    pub(super) fn new<M: Model>(space: &mut Space<'_, M>, deadline: Option<Instant>) -> Self {
        let mut targets = Vec::new();
        let classes = classes(space, &mut targets).unwrap_or_default();
        let row_bytes = targets.len().div_ceil(64) * 8;
        let sets = classes.iter().filter(|class| class.sets.is_some()).count();
        let bytes = sets.saturating_mul(row_bytes * 2); // Each row, and what each class supplies of it.
        if classes.is_empty() || bytes > REACH_MAX_BYTES {
            return Self::of(Vec::new());
        }
        Self::of(targets).with(classes, space, deadline).unwrap_or_else(|| Self::of(Vec::new()))
    }

    /// A pruner that excludes nothing yet.
    fn of(targets: Vec<StateId>) -> Self {
        let counts = || Counts::new(targets.len());
        let (demand, wish, avoid, supply) = (counts(), counts(), counts(), counts());
        Self { classes: Vec::new(), targets, demand, wish, avoid, supply, reach: Vec::new() }
    }

    /// Adds what each of these supplies; `None` if the deadline passes first, or if they supply too much.
    fn with<M: Model>(
        mut self,
        mut classes: Vec<Class>,
        space: &Space<'_, M>,
        deadline: Option<Instant>,
    ) -> Option<Self> {
        let mut bytes = 0;
        for (nth, class) in classes.iter_mut().enumerate() {
            let Some(to) = class.sets else { continue };
            let looks = nth.is_multiple_of(CLASSES_PER_LOOK);
            if looks && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return None;
            }
            self.see(space, to);
            let reach = self.reach(to);
            let all = 0..self.targets.len();
            class.supplies = all.filter(|&t| bits::get(reach, t)).map(|t| t as Target).collect();
            bytes += class.supplies.capacity() * size_of::<Target>();
            if bytes > REACH_MAX_BYTES {
                return None;
            }
        }
        self.classes = classes;
        Some(self)
    }

    /// Counts an operation that remains to be put in order, also when it is taken back out of the order.
    pub(super) fn add(&mut self, class: ClassId, answered: bool) {
        let Some(class) = self.classes.get(class as usize) else { return };
        if let Some(target) = class.needs {
            self.wish.add(target);
            if answered {
                self.demand.add(target);
            }
        }
        class.avoids.into_iter().for_each(|target| self.avoid.add(target));
        class.supplies.iter().for_each(|&target| self.supply.add(target));
    }

    /// The opposite of [`Self::add`]: the operation was put in order.
    pub(super) fn remove(&mut self, class: ClassId, answered: bool) {
        let Some(class) = self.classes.get(class as usize) else { return };
        if let Some(target) = class.needs {
            self.wish.remove(target);
            if answered {
                self.demand.remove(target);
            }
        }
        class.avoids.into_iter().for_each(|target| self.avoid.remove(target));
        class.supplies.iter().for_each(|&target| self.supply.remove(target));
    }

    /// Whether operations of this class change nothing, in any state in which they are possible.
    pub(super) fn changes_nothing(&self, class: ClassId) -> bool {
        self.classes.get(class as usize).is_some_and(|class| class.changes_nothing)
    }

    /// Whether no order can continue from `state`.
    pub(super) fn dead_end<M: Model>(&mut self, space: &Space<'_, M>, state: StateId) -> bool {
        self.see(space, state);
        let wanted = self.demand.present.iter().zip(&self.supply.present);
        wanted
            .zip(self.reach(state))
            .any(|((demand, supply), reach)| demand & !supply & !reach != 0)
    }

    /// The result of a step without calling the model: whether and where it leads.
    pub(super) fn step(&self, from: StateId, class: ClassId) -> Option<Option<StateId>> {
        let class = self.classes.get(class as usize)?;
        let is = |target: Target| self.targets[target as usize] == from;
        if class.needs.is_some_and(|target| !is(target)) || class.avoids.is_some_and(is) {
            return Some(None);
        }
        if class.changes_nothing { Some(Some(from)) } else { class.sets.map(Some) }
    }

    /// The possible use of a crashed operation that leads from one state to the other.
    pub(super) fn used_for<M: Model>(
        &mut self,
        space: &Space<'_, M>,
        (from, to): (StateId, StateId),
        class: ClassId,
    ) -> Use {
        self.see(space, from);
        self.see(space, to);
        let Some(class) = self.classes.get(class as usize) else { return Use::Own };
        // The state that it sets leads to what it supplies, which needs few words even if there are many states.
        let wished = match class.sets {
            Some(_) => self.wish.any(&class.supplies),
            None => bits::intersect(self.reach(to), &self.wish.present),
        };
        if wished {
            return Use::Own;
        }
        if self.avoid.is_empty() {
            return Use::None;
        }
        let avoid = &self.avoid.present;
        match (bits::intersect(self.reach(from), avoid), bits::intersect(self.reach(to), avoid)) {
            (false, _) => Use::None,
            (true, false) if class.anytime() && class.sets.is_some() => Use::Escape,
            (true, _) => Use::Own,
        }
    }

    /// Whether no remaining operation can distinguish this state from another forgotten one.
    pub(super) fn forgotten<M: Model>(&mut self, space: &Space<'_, M>, state: StateId) -> bool {
        self.see(space, state);
        let reach = self.reach(state);
        !self.classes.is_empty()
            && !bits::intersect(reach, &self.wish.present)
            && !bits::intersect(reach, &self.avoid.present)
    }

    /// Whether the present state is forgotten while nothing is to be avoided.
    pub(super) fn idle<M: Model>(&mut self, space: &Space<'_, M>, state: StateId) -> bool {
        self.avoid.is_empty() && self.forgotten(space, state)
    }

    /// Whether operations of this class take a state that is idle to another that is.
    pub(super) fn unseen(&self, class: ClassId) -> bool {
        let Some(class) = self.classes.get(class as usize) else { return false };
        class.sets.is_some() && class.anytime() && !self.wish.any(&class.supplies)
    }

    /// If the state is idle: the target that operations of this class set, and how many operations need it, provided
    /// that it leads to no other needed target.
    pub(super) fn serves(&self, class: ClassId) -> Option<(Target, u32)> {
        let class = self.classes.get(class as usize)?;
        let to = class.sets.filter(|_| class.anytime())?;
        let count = |target: Target| self.wish.counts[target as usize];
        let mut wished = class.supplies.iter().copied().filter(|&target| count(target) > 0);
        match (wished.next(), wished.next()) {
            (Some(target), None) if self.targets[target as usize] == to => {
                Some((target, count(target)))
            }
            _ => None,
        }
    }

    /// The target that operations of this class need, if they change nothing.
    pub(super) fn reads(&self, class: ClassId) -> Option<Target> {
        self.classes.get(class as usize).filter(|class| class.changes_nothing)?.needs
    }

    /// The number of targets: about the cost of any question about a state.
    pub(super) fn targets(&self) -> usize {
        self.targets.len()
    }

    /// The number of targets that an operation supplies: the cost of adding and removing it.
    pub(super) fn supplied(&self, class: ClassId) -> usize {
        self.classes.get(class as usize).map_or(0, |class| class.supplies.len())
    }

    /// About how many bytes it holds.
    pub(super) fn bytes(&self) -> usize {
        self.reach.len() * (self.targets.len().div_ceil(64) * 8 + 16)
    }

    /// Computes once which targets a state leads to.
    fn see<M: Model>(&mut self, space: &Space<'_, M>, state: StateId) {
        let index = state as usize;
        if self.reach.len() <= index {
            self.reach.resize_with(index + 1, || None);
        }
        if self.reach[index].is_none() {
            let mut row = vec![0; self.targets.len().div_ceil(64)];
            for (i, &target) in self.targets.iter().enumerate() {
                if space.model().leads_to(space.state(state), space.state(target)) {
                    bits::set(&mut row, i);
                }
            }
            self.reach[index] = Some(row.into());
        }
    }

    fn reach(&self, state: StateId) -> &[u64] {
        self.reach.get(state as usize).and_then(Option::as_deref).unwrap_or_default()
    }
}

/// The facts about each class, if all have a shape; fills in the targets.
fn classes<M: Model>(space: &mut Space<'_, M>, targets: &mut Vec<StateId>) -> Option<Vec<Class>> {
    let mut numbers: HashMap<StateId, Target> = HashMap::new();
    let mut classes = Vec::with_capacity(space.classes());
    for class in 0..space.classes() {
        let shape = space.model().shape(space.op(class as ClassId))?;
        let mut target = |state: M::State| {
            let state = space.intern(state);
            *numbers.entry(state).or_insert_with(|| {
                targets.push(state);
                targets.len() as Target - 1
            })
        };
        let (needs, avoids) = match shape.needs {
            Need::Anything => (None, None),
            Need::Exactly(state) => (Some(target(state)), None),
            Need::AllBut(state) => (None, Some(target(state))),
        };
        let changes_nothing = shape.effect == Effect::None;
        let sets = match shape.effect {
            Effect::Sets(state) => Some(space.intern(state)),
            Effect::None | Effect::Changes => None,
        };
        let supplies = Vec::new();
        classes.push(Class { needs, avoids, changes_nothing, sets, supplies });
    }
    Some(classes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{CasRegister, RegisterOp};
    use crate::value::Value;

    #[test]
    fn an_outlook_that_takes_too_long_is_none_and_excludes_nothing() {
        let prepared = |deadline| {
            let mut space = Space::new(&CasRegister);
            for number in 0..100 {
                space.class(&RegisterOp::Write(Value::Int(number)));
                space.class(&RegisterOp::Read(Value::Int(number)));
            }
            let pruner = Pruner::new(&mut space, deadline);
            (pruner.classes.len(), pruner.targets.len(), pruner.bytes() > 0)
        };
        assert_eq!(prepared(None), (200, 100, true));
        assert_eq!(prepared(Some(Instant::now())), (0, 0, false));
    }
}
