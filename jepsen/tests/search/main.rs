//! Compares the search with a brute-force check, with itself without its optimizations, and with the orders that it
//! claims to have found.

mod brute;
mod objects;
mod random;

use random::{Object, Plan, history};
use rollout_jepsen::formats::Event;
use rollout_jepsen::judge::{Budget, Judgment, Verdict, judge};
use rollout_jepsen::models::{CasRegister, Kv, Model};
use rollout_jepsen::operations::{Operation, Outcome, pair};
use rollout_jepsen::search::{Interval, Search, Stop};
use rollout_jepsen::value::Value;
use std::time::Duration;

const SMALL_HISTORIES: u64 = 100_000;
const MIDDLING_HISTORIES: u64 = 3_000;

/// A model that gives the search no shape of its operations.
struct Plain<M>(M);

impl<M: Model> Model for Plain<M> {
    type State = M::State;
    type Op = M::Op;
    const KEYED: bool = M::KEYED;

    fn initial(&self) -> M::State {
        self.0.initial()
    }

    fn step(&self, state: &M::State, op: &M::Op) -> Option<M::State> {
        self.0.step(state, op)
    }

    fn read(
        &self,
        f: &str,
        input: &Value,
        answer: Option<&Value>,
    ) -> Result<Option<M::Op>, String> {
        self.0.read(f, input, answer)
    }

    fn show(&self, state: &M::State) -> String {
        self.0.show(state)
    }
}

fn operations(events: &[Event]) -> Vec<Operation> {
    pair(events.iter().cloned().map(Ok)).unwrap()
}

fn judged<M: Model>(model: &M, operations: &[Operation]) -> Judgment {
    let budget = Budget { configurations: 2_000_000, time: Duration::from_secs(120) };
    judge(model, operations, budget, false).unwrap()
}

fn verdict(object: Object, operations: &[Operation], plain: bool) -> Judgment {
    match (object, plain) {
        (Object::Register, false) => judged(&CasRegister, operations),
        (Object::Register, true) => judged(&Plain(CasRegister), operations),
        (Object::Kv, false) => judged(&Kv, operations),
        (Object::Kv, true) => judged(&Plain(Kv), operations),
    }
}

fn small(seed: u64) -> Plan {
    let object = if seed.is_multiple_of(2) { Object::Register } else { Object::Kv };
    let values = [0, 2, 3][(seed / 2 % 3) as usize];
    let keys = 1 + usize::from(seed.is_multiple_of(7));
    let clients = 2 + (seed % 3) as usize;
    let operations = 3 + (seed % 5) as usize;
    Plan { object, clients, operations, keys, values, unknown: 0.2, wrong: 0.6 }
}

#[test]
fn the_search_agrees_with_every_order_tried_out_on_100_000_small_histories() {
    let mut violations = 0;
    for seed in 0..SMALL_HISTORIES {
        let plan = small(seed);
        let events = history(plan, seed);
        let operations = operations(&events);
        let expected = match brute::linearizable(&events) {
            true => Verdict::Linearizable,
            false => Verdict::Violation,
        };
        violations += u64::from(expected == Verdict::Violation);
        if plan.keys == 1 {
            let depth_first = seed % 4;
            let stop = match plan.object {
                Object::Register => searched(&CasRegister, &operations, depth_first),
                Object::Kv => searched(&Kv, &operations, depth_first),
            };
            let expected = match expected {
                Verdict::Linearizable => Stop::Found,
                _ => Stop::Exhausted,
            };
            assert_eq!(stop, expected, "seed {seed}, breadth first: {events:#?}");
        }
        for plain in [false, true] {
            let found = verdict(plan.object, &operations, plain).verdict;
            assert_eq!(found, expected, "seed {seed}, plain {plain}: {events:#?}");
        }
    }
    let share = violations * 100 / SMALL_HISTORIES;
    assert!(
        (20..=80).contains(&share),
        "{share} of 100 are violations: one verdict is hardly tested"
    );
}

#[test]
fn the_short_cuts_do_not_change_a_verdict_on_longer_histories() {
    let mut violations = 0;
    for seed in 0..MIDDLING_HISTORIES {
        let (clients, length, wrong) = (3 + (seed % 3) as usize, 14 + (seed % 20) as usize, 0.04);
        let plan = Plan { clients, operations: length, wrong, unknown: 0.1, ..small(seed) };
        let operations = operations(&history(plan, seed));
        let quick = verdict(plan.object, &operations, false);
        let plain = verdict(plan.object, &operations, true);
        assert_eq!(quick.verdict, plain.verdict, "seed {seed}");
        assert_ne!(quick.verdict, Verdict::Unknown, "seed {seed}");
        violations += u64::from(quick.verdict == Verdict::Violation);
    }
    let share = violations * 100 / MIDDLING_HISTORIES;
    assert!((10..=90).contains(&share), "{share} of 100 are violations");
}

#[test]
fn an_order_that_was_found_respects_time_and_explains_every_answer() {
    for seed in 0..2_000 {
        let plan = Plan { operations: 40, keys: 1, wrong: 0.0, ..small(seed) };
        let operations = operations(&history(plan, seed));
        match plan.object {
            Object::Register => explains(&CasRegister, &operations),
            Object::Kv => explains(&Kv, &operations),
        }
    }
}

fn searched<M: Model>(model: &M, operations: &[Operation], depth_first: u64) -> Stop {
    let intervals = intervals(model, operations);
    Search::new(model, &intervals).depth_first(depth_first).run(u64::MAX, None)
}

/// The operations of one key as the search takes them.
fn intervals<M: Model>(model: &M, operations: &[Operation]) -> Vec<Interval<M::Op>> {
    let mut intervals = Vec::new();
    for operation in operations {
        let answer = match &operation.outcome {
            Outcome::Answered { value, .. } => Some(value),
            Outcome::Unknown => None,
        };
        let op = model.read(&operation.f, &operation.input, answer).unwrap();
        let (call, ret) = (operation.called_at, operation.answered_at());
        intervals.extend(op.map(|op| Interval { op, call, ret }));
    }
    intervals
}

fn explains<M: Model>(model: &M, operations: &[Operation]) {
    let intervals = intervals(model, operations);
    for depth_first in [u64::MAX, 10, 0] {
        explains_each(model, &intervals, depth_first);
    }
}

fn explains_each<M: Model>(model: &M, intervals: &[Interval<M::Op>], depth_first: u64) {
    let mut search = Search::new(model, intervals).depth_first(depth_first);
    assert_eq!(search.run(u64::MAX, None), Stop::Found);
    let order: Vec<usize> = search.order().collect();
    let mut state = model.initial();
    let mut latest_call = 0;
    for &index in &order {
        let Interval { op, call, ret } = &intervals[index];
        state = model.step(&state, op).expect("the order explains this answer");
        assert!(ret.is_none_or(|ret| ret >= latest_call), "after one that was called later");
        latest_call = latest_call.max(*call);
    }
    let mut placed = order;
    placed.sort_unstable();
    let distinct = placed.windows(2).all(|w| w[0] != w[1]);
    let answered = (0..intervals.len()).filter(|&i| intervals[i].ret.is_some());
    assert!(distinct && answered.into_iter().all(|i| placed.binary_search(&i).is_ok()));
}

/// Thousands of operations with many unknown ones are judged within a small budget.
#[test]
fn long_histories_of_unique_values_need_few_configurations() {
    for (object, clients, length, unknown, wrong, most) in [
        (Object::Register, 6, 6_000, 0.02, 0.0, 20_000),
        (Object::Register, 12, 12_000, 0.02, 0.0, 40_000),
        (Object::Register, 12, 4_000, 0.2, 0.0, 40_000),
        (Object::Register, 12, 4_000, 0.02, 0.01, 40_000),
        (Object::Kv, 12, 2_000, 0.02, 0.0, 40_000),
        (Object::Kv, 12, 2_000, 0.02, 0.01, 10_000),
    ] {
        for seed in 0..3 {
            let plan =
                Plan { object, clients, operations: length, keys: 1, values: 0, unknown, wrong };
            let judged = verdict(object, &operations(&history(plan, seed)), false);
            let expected = if wrong > 0.0 { Verdict::Violation } else { Verdict::Linearizable };
            assert_eq!(judged.verdict, expected, "{clients} clients, seed {seed}: {judged:?}");
            assert!(judged.configurations <= most, "{clients} clients, seed {seed}: {judged:?}");
        }
    }
}
