//! Every state that an object may be in at a log position, and the floating operations that led there.
//!
//! *Invariant:* two ways to one state may differ only in operations that may or may not have happened. Then the way
//! that used fewer of them stands for both, because every continuation of the other is possible for it. So unanswered
//! operations cost one state each, not one per set of them.

use crate::models::Model;
use std::collections::HashMap;
use std::hash::Hash;

/// A floating operation, by its number.
pub(super) type Number = usize;

/// The floating operations that led to a state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct UsedOperations {
    /// Operations that certainly happen and are answered at later positions; in order.
    answered: Vec<Number>,
    /// Operations that may or may not have happened; in order.
    unknown: Vec<Number>,
}

impl UsedOperations {
    fn contains(&self, which: Number, answered: bool) -> bool {
        let used = if answered { &self.answered } else { &self.unknown };
        used.binary_search(&which).is_ok()
    }

    fn with(&self, which: Number, answered: bool) -> Self {
        let mut with = self.clone();
        let used = if answered { &mut with.answered } else { &mut with.unknown };
        if let Err(at) = used.binary_search(&which) {
            used.insert(at, which);
        }
        with
    }
}

/// An operation that may take effect now.
pub(super) struct Open<'a, O> {
    pub(super) number: Number,
    pub(super) op: &'a O,
    /// It has an answer, at a later position.
    pub(super) answered: bool,
}

pub(super) struct Frontier<S> {
    /// By state and answered operations: the sets of unknown ones, none a subset of another.
    ways: HashMap<(S, Vec<Number>), Vec<Vec<Number>>>,
    /// How many ways there are.
    len: usize,
}

impl<S: Clone + Eq + Hash> Frontier<S> {
    pub(super) fn of(initial: S) -> Self {
        let mut frontier = Self::empty();
        frontier.add(initial, UsedOperations::default());
        frontier
    }

    fn empty() -> Self {
        Self { ways: HashMap::new(), len: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Each state, once or more.
    pub(super) fn states(&self) -> impl Iterator<Item = &S> {
        self.ways.keys().map(|(state, _)| state)
    }

    /// Adds a way to a state. False if a known way covers it.
    fn add(&mut self, state: S, used: UsedOperations) -> bool {
        let ways = self.ways.entry((state, used.answered)).or_default();
        let covers = |less: &[Number], more: &[Number]| {
            less.iter().all(|which| more.binary_search(which).is_ok())
        };
        if ways.iter().any(|way| covers(way, &used.unknown)) {
            return false;
        }
        let before = ways.len();
        ways.retain(|way| !covers(&used.unknown, way));
        self.len = self.len + 1 - (before - ways.len());
        ways.push(used.unknown);
        true
    }

    fn all(&self) -> impl Iterator<Item = (&S, UsedOperations)> {
        self.ways.iter().flat_map(|((state, answered), ways)| {
            let used = |unknown: &Vec<Number>| UsedOperations {
                answered: answered.clone(),
                unknown: unknown.clone(),
            };
            ways.iter().map(move |unknown| (state, used(unknown)))
        })
    }

    /// Adds every state that open operations lead to. False once there are more than `max`.
    pub(super) fn close<M: Model<State = S>>(
        &mut self,
        model: &M,
        open: &[Open<'_, M::Op>],
        max: usize,
    ) -> bool {
        let mut left: Vec<(S, UsedOperations)> =
            self.all().map(|(state, used)| (state.clone(), used)).collect();
        while let Some((state, used)) = left.pop() {
            for one in open.iter().filter(|one| !used.contains(one.number, one.answered)) {
                let Some(next) = model.step(&state, one.op) else { continue };
                let with = used.with(one.number, one.answered);
                if self.add(next.clone(), with.clone()) {
                    left.push((next, with));
                }
                if self.len > max {
                    return false;
                }
            }
        }
        true
    }

    /// The frontier after an operation that takes effect here.
    pub(super) fn step<M: Model<State = S>>(&self, model: &M, op: &M::Op) -> Self {
        let mut next = Self::empty();
        for (state, used) in self.all() {
            if let Some(state) = model.step(state, op) {
                next.add(state, used);
            }
        }
        next
    }

    /// The states in which an answered operation has taken effect; the operation is removed from them.
    pub(super) fn having(&self, which: Number) -> Self {
        let mut next = Self::empty();
        for (state, mut used) in self.all() {
            if let Ok(at) = used.answered.binary_search(&which) {
                used.answered.remove(at);
                next.add(state.clone(), used);
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{Cell, CellOp};
    use crate::value::Value;
    use std::collections::HashSet;

    fn unknown(ops: &[CellOp]) -> Vec<Open<'_, CellOp>> {
        let open = |(number, op)| Open { number, op, answered: false };
        ops.iter().enumerate().map(open).collect()
    }

    #[test]
    fn unknown_writes_cost_one_state_each() {
        let writes: Vec<CellOp> =
            (0..500).map(|n| CellOp::Set(Value::text(&n.to_string()))).collect();
        let mut frontier = Frontier::of(Value::Nil);
        assert!(frontier.close(&Cell, &unknown(&writes), 1000));
        assert_eq!(frontier.len, 501);
        let read = frontier.step(&Cell, &CellOp::Get(Value::text("7")));
        assert_eq!(read.states().collect::<Vec<_>>(), [&Value::text("7")]);
        // The operation that the read saw has happened; each of the others may still happen.
        let mut after = read;
        assert!(after.close(&Cell, &unknown(&writes), 1000));
        assert!(after.states().any(|state| *state == Value::text("8")));
        let back = after.step(&Cell, &CellOp::Get(Value::Nil));
        assert!(back.is_empty(), "nothing takes a value away");
    }

    #[test]
    fn an_operation_takes_effect_at_most_once() {
        let add = [CellOp::Add(5, None)];
        let mut frontier = Frontier::of(Value::text("1"));
        assert!(frontier.close(&Cell, &unknown(&add), 10));
        let states: HashSet<&Value> = frontier.states().collect();
        assert_eq!(states, HashSet::from([&Value::text("1"), &Value::text("6")]));
        let answered = [Open { number: 0, op: &add[0], answered: true }];
        let mut frontier = Frontier::of(Value::text("1"));
        assert!(frontier.close(&Cell, &answered, 10));
        let having = frontier.having(0);
        assert_eq!(having.states().collect::<Vec<_>>(), [&Value::text("6")]);
    }

    #[test]
    fn more_states_than_allowed_are_reported() {
        let adds: Vec<CellOp> = (0..12).map(|bit| CellOp::Add(1 << bit, None)).collect();
        assert!(!Frontier::of(Value::Nil).close(&Cell, &unknown(&adds), 1000));
    }
}
