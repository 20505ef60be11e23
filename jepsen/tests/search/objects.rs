//! Compares the search with a brute-force check for rows, cells and whole stores: small random histories of each, in
//! some of which no order explains the answers.
//!
//! Absent: the meaning of the models, which their own tests cover. These tests use the models' steps only to find
//! orders.

use super::Plain;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rollout_jepsen::models::{Act, Cell, CellOp, Decided, Item, ItemOp, KvStore, KvStoreOp, Model};
use rollout_jepsen::search::{Interval, Search, Stop};
use rollout_jepsen::value::Value;
use std::sync::Arc;

const HISTORIES: u64 = 20_000;
/// How often to draw an answer until it is a possible one.
const DRAWS: usize = 60;

fn text(rng: &mut StdRng) -> Arc<str> {
    ["1", "2"].choose(rng).copied().unwrap_or_default().into()
}

fn row(rng: &mut StdRng) -> ItemOp {
    let attempt = rng.random_range(1..4);
    match rng.random_range(0..7) {
        0 => ItemOp::Claim(attempt),
        1 => ItemOp::Lease(attempt),
        2 => ItemOp::Complete(attempt, text(rng)),
        3 => ItemOp::Fail(attempt, rng.random()),
        4 => ItemOp::Nack(attempt),
        5 => ItemOp::Refused(attempt),
        _ => ItemOp::Read(match rng.random_range(0..4) {
            0 => Decided::Failed,
            1 => Decided::Open,
            _ => Decided::Done(text(rng)),
        }),
    }
}

fn value(rng: &mut StdRng) -> Value {
    if rng.random_ratio(1, 3) { Value::Nil } else { Value::Text(text(rng)) }
}

fn cell(rng: &mut StdRng) -> CellOp {
    let known = rng.random_ratio(3, 4);
    match rng.random_range(0..9) {
        0 | 1 => CellOp::Get(value(rng)),
        2 => CellOp::Set(Value::Text(text(rng))),
        3 => {
            let (expected, desired) = (value(rng), Value::Text(text(rng)));
            CellOp::Swap(expected, desired, known.then(|| value(rng)))
        }
        4 => CellOp::Add(rng.random_range(0..2), known.then(|| rng.random_range(0..4))),
        5 => CellOp::Append(text(rng), known.then(|| rng.random_range(1..3))),
        6 => CellOp::Delete(known.then(|| rng.random())),
        7 => CellOp::Has(rng.random()),
        _ => CellOp::Reached(rng.random_range(1..3), rng.random()),
    }
}

/// One operation of a request, and a possible answer.
fn act(rng: &mut StdRng) -> (Act, Value) {
    let key: Arc<str> = "k".into();
    match rng.random_range(0..5) {
        0 => (Act::Set(vec![(key, text(rng))]), Value::Nil),
        1 => (Act::Append(key, text(rng)), Value::Int(rng.random_range(1..4))),
        2 => (Act::Delete(key), Value::Int(rng.random_range(0..2))),
        3 => (Act::Push("q".into(), text(rng)), Value::Int(rng.random_range(1..3))),
        _ => (Act::Pop("q".into()), value(rng)),
    }
}

fn kv_store(rng: &mut StdRng) -> KvStoreOp {
    match rng.random_range(0..6) {
        0..3 => {
            let (acts, answers) = (0..rng.random_range(1..3)).map(|_| act(rng)).unzip();
            KvStoreOp::Apply(acts, rng.random_ratio(3, 4).then_some(answers))
        }
        3 => {
            let (seen, length) = (value(rng), Value::Int(rng.random_range(0..3)));
            let (count, names) = match seen {
                Value::Nil => (0, Vec::new()),
                _ => (1, vec![Value::text("k")]),
            };
            let told = vec![Value::List(vec![seen]), Value::Int(count), length, Value::List(names)];
            KvStoreOp::Look("q".into(), vec!["k".into()], Value::List(told))
        }
        4 => {
            KvStoreOp::Has(["k", "q"].choose(rng).copied().unwrap_or_default().into(), rng.random())
        }
        _ => KvStoreOp::Drop,
    }
}

/// Operations in the order in which they took effect, each called some time before and answered some time after. Some
/// were never answered, and some of those never took effect; some answers are random.
fn history<M: Model>(model: &M, draw: fn(&mut StdRng) -> M::Op, seed: u64) -> Vec<Interval<M::Op>> {
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut state, mut intervals) = (model.initial(), Vec::new());
    let wrong = if rng.random_bool(0.75) { 0.6 } else { 0.0 };
    for nth in 1..=rng.random_range(3..8) {
        let at = nth * 10 + 20;
        let mut op = draw(&mut rng);
        let mut next = model.step(&state, &op);
        for _ in 0..if rng.random_bool(wrong) { 0 } else { DRAWS } {
            if next.is_some() {
                break;
            }
            op = draw(&mut rng);
            next = model.step(&state, &op);
        }
        let lost = rng.random_bool(0.2);
        if !lost || rng.random_bool(0.5) {
            state = next.unwrap_or(state);
        }
        let call = at - rng.random_range(0..25);
        let ret = (!lost).then(|| at + rng.random_range(0..25));
        intervals.push(Interval { op, call, ret });
    }
    intervals
}

/// Whether there is an order of these, by trying every order.
fn any_order<M: Model>(
    model: &M,
    intervals: &[Interval<M::Op>],
    placed: &mut [bool],
    state: &M::State,
) -> bool {
    let left: Vec<usize> = (0..intervals.len()).filter(|&i| !placed[i]).collect();
    if left.iter().all(|&i| intervals[i].ret.is_none()) {
        return true;
    }
    let soonest = left.iter().filter_map(|&i| intervals[i].ret).min().unwrap_or(u64::MAX);
    left.into_iter().filter(|&i| intervals[i].call <= soonest).any(|i| {
        let Some(after) = model.step(state, &intervals[i].op) else { return false };
        placed[i] = true;
        let found = any_order(model, intervals, placed, &after);
        placed[i] = false;
        found
    })
}

fn agrees<M: Model + Copy>(model: M, draw: fn(&mut StdRng) -> M::Op) {
    let mut violations = 0;
    for seed in 0..HISTORIES {
        let intervals = history(&model, draw, seed);
        let explained =
            any_order(&model, &intervals, &mut vec![false; intervals.len()], &model.initial());
        violations += u64::from(!explained);
        let expected = if explained { Stop::Found } else { Stop::Exhausted };
        for depth_first in [u64::MAX, seed % 4] {
            let search = Search::new(&model, &intervals).depth_first(depth_first);
            assert_eq!({ search }.run(u64::MAX, None), expected, "seed {seed}: {intervals:#?}");
        }
        let plain = Plain(model);
        let found = Search::new(&plain, &intervals).run(u64::MAX, None);
        assert_eq!(found, expected, "seed {seed}, without short cuts: {intervals:#?}");
    }
    let share = violations * 100 / HISTORIES;
    assert!((20..=80).contains(&share), "{share} of 100 are violations: one is hardly tested");
}

#[test]
fn the_search_agrees_with_every_order_of_operations_on_a_row() {
    agrees(Item, row);
}

#[test]
fn the_search_agrees_with_every_order_of_operations_on_a_cell() {
    agrees(Cell, cell);
}

#[test]
fn the_search_agrees_with_every_order_of_operations_on_a_whole_store() {
    agrees(KvStore, kv_store);
}
