//! The moves of a search: which operations may come next in a configuration, and how to take and undo them.
//!
//! *Invariant:* [`Search::undo`] restores exactly what [`Search::take`] changed.

use super::pruning::{Pruner, Target, Use};
use super::space::{ClassId, Space, StateId};
use super::visited::FastHash;
use super::{CRASHED, Search, TakenStep, bits};
use crate::models::Model;
use std::collections::HashMap;

impl<M: Model> Search<'_, M> {
    /// Takes every operation that needs no choice, as long as there is time. Returns the earliest answer still to be
    /// explained and the first operation called after it.
    pub(super) fn settle(&mut self) -> (u64, usize) {
        loop {
            let (horizon, end) = self.scan();
            let before = self.left;
            let available = std::mem::take(&mut self.available);
            // Cached for the present state until the state or the remaining operations change.
            let mut idle = None;
            let mut readers = None;
            for &operation in &available {
                if bits::get(&self.done, operation as usize) {
                    continue; // In this pass, behind what it reads.
                }
                let class = self.required[operation as usize].class;
                let harmless = self.pruner.changes_nothing(class)
                    && step(&self.pruner, &mut self.space, self.state, class).is_some();
                let (pruner, space, state) = (&mut self.pruner, &self.space, self.state);
                let mut idles = || *idle.get_or_insert_with(|| pruner.idle(space, state));
                if harmless || idles() && self.pruner.unseen(class) {
                    self.take(operation);
                    idle = None;
                } else if idle == Some(true)
                    && let Some((target, wishes)) = self.pruner.serves(class)
                {
                    let readers = readers.get_or_insert_with(|| self.readers(&available));
                    let all = readers.get(&target).into_iter().flatten().copied();
                    let left = |&one: &u32| !bits::get(&self.done, one as usize);
                    let all: Vec<u32> = all.filter(left).collect();
                    if all.len() == wishes as usize {
                        self.take(operation);
                        all.into_iter().for_each(|one| self.take(one));
                        idle = None;
                    }
                }
                if self.watch.late() {
                    break;
                }
            }
            self.available = available;
            if self.left == before || self.watch.late() {
                return (horizon, end);
            }
        }
    }

    /// The operations that may be next and change nothing, by the state that they need.
    fn readers(&self, available: &[u32]) -> HashMap<Target, Vec<u32>, FastHash> {
        let mut readers: HashMap<Target, Vec<u32>, FastHash> = HashMap::default();
        for &operation in available {
            if let Some(target) = self.pruner.reads(self.required[operation as usize].class) {
                readers.entry(target).or_default().push(operation);
            }
        }
        readers
    }

    /// Finds the required operations that may be next: those called no later than the earliest
    /// answer among those that are not in order yet.
    pub(super) fn scan(&mut self) -> (u64, usize) {
        self.available.clear();
        let (mut horizon, mut end) = (u64::MAX, self.required.len());
        for operation in bits::zeros_from(&self.done, self.low, self.required.len()) {
            let required = &self.required[operation];
            if required.call > horizon {
                end = operation;
                break;
            }
            horizon = horizon.min(required.ret);
            self.available.push(operation as u32);
        }
        self.watch.spend(self.available.len());
        (horizon, end)
    }

    /// Remembers this configuration, unless it can achieve nothing that one seen before cannot.
    pub(super) fn admit(&mut self, end: usize) -> bool {
        let forgotten = self.pruner.forgotten(&self.space, self.state);
        let state = if forgotten { u32::MAX } else { self.state };
        self.key.clear();
        self.key.push((self.low as u64) << 32 | u64::from(state));
        self.key.extend_from_slice(&self.done[self.low..=end / 64]);
        while self.key.len() > 1 && self.key.last() == Some(&0) {
            self.key.pop();
        }
        self.seen.admit(&self.key, &self.used, &mut self.watch)
    }

    /// Pushes the operations that may be next: first the answered ones, those that must be explained soonest first;
    /// then the crashed ones, because an order should use as few of them as possible.
    pub(super) fn choose(&mut self, horizon: u64) {
        let Self { required, crashed, choices, available, space, pruner, used, state, .. } = self;
        // Each class once: equal operations are interchangeable.
        let (looked, now) = (&mut self.looked, self.configurations);
        let mut first = |class: ClassId| std::mem::replace(&mut looked[class as usize], now) != now;
        available.sort_unstable_by_key(|&o| required[o as usize].ret);
        for &operation in available.iter() {
            let class = required[operation as usize].class;
            if first(class) && step(pruner, space, *state, class).is_some() {
                choices.push(operation);
            }
        }
        let mut escape = false;
        for (index, one) in (0_u32..).zip(crashed.iter()) {
            if one.call > horizon {
                break;
            }
            self.watch.spend(1);
            let first_of_equals = one.earlier.is_none_or(|e| bits::get(used, e as usize));
            if bits::get(used, index as usize) || !first_of_equals || !first(one.class) {
                continue;
            }
            let Some(to) = step(pruner, space, *state, one.class) else { continue };
            let good = match to == *state {
                true => Use::None,
                false => pruner.used_for(space, (*state, to), one.class),
            };
            if good == Use::Own || good == Use::Escape && !escape {
                escape |= good == Use::Escape;
                choices.push(index | CRASHED);
            }
        }
    }

    pub(super) fn take(&mut self, operation: u32) {
        let class = if operation & CRASHED == 0 {
            let index = operation as usize;
            let class = self.required[index].class;
            bits::set(&mut self.done, index);
            while self.done[self.low] == u64::MAX {
                self.low += 1;
            }
            self.left -= 1;
            self.pruner.remove(class, true);
            class
        } else {
            let index = (operation & !CRASHED) as usize;
            bits::set(&mut self.used, index);
            let class = self.crashed[index].class;
            self.pruner.remove(class, false);
            class
        };
        self.watch.spend(1 + self.pruner.supplied(class));
        self.trail.push(TakenStep { operation, before: self.state });
        // invariant: only possible steps are chosen, so this fallback to the present state is never used.
        let to = step(&self.pruner, &mut self.space, self.state, class);
        self.state = to.unwrap_or(self.state);
    }

    pub(super) fn undo(&mut self, length: usize) {
        for taken in self.trail.drain(length..).rev() {
            self.state = taken.before;
            if taken.operation & CRASHED == 0 {
                let index = taken.operation as usize;
                bits::clear(&mut self.done, index);
                self.low = self.low.min(index / 64);
                self.left += 1;
                self.pruner.add(self.required[index].class, true);
            } else {
                let index = (taken.operation & !CRASHED) as usize;
                bits::clear(&mut self.used, index);
                self.pruner.add(self.crashed[index].class, false);
            }
        }
    }
}

/// The state after an operation, from its shape if that is enough.
fn step<M: Model>(
    pruner: &Pruner,
    space: &mut Space<'_, M>,
    from: StateId,
    class: ClassId,
) -> Option<StateId> {
    pruner.step(from, class).unwrap_or_else(|| space.step(from, class))
}
