//! A brute-force check of linearizability: tries every order of the operations of a short history, on all keys at
//! once, with models of its own.

use rollout_jepsen::formats::{Event, Kind};
use rollout_jepsen::value::Value;
use std::collections::BTreeMap;

#[derive(Debug)]
struct Op {
    f: String,
    key: String,
    input: Value,
    answer: Option<Value>,
    call: usize,
    ret: usize,
}

type Objects = BTreeMap<String, Value>;

pub(crate) fn linearizable(history: &[Event]) -> bool {
    let mut ops = Vec::new();
    for (call, invoke) in history.iter().enumerate().filter(|(_, e)| e.kind == Kind::Invoke) {
        let rest = history.iter().enumerate().skip(call + 1);
        let done = rest.into_iter().find(|(_, e)| e.process == invoke.process);
        let (ret, answer) = match done {
            Some((_, event)) if event.kind == Kind::Fail => continue,
            Some((ret, event)) if event.kind == Kind::Ok => (ret, Some(event.value.clone())),
            _ => (usize::MAX, None),
        };
        let key = invoke.key.as_deref().unwrap_or_default().to_owned();
        let (f, input) = (invoke.f.to_string(), invoke.value.clone());
        ops.push(Op { f, key, input, answer, call, ret });
    }
    let mut placed = vec![false; ops.len()];
    place(&ops, &mut placed, &Objects::new())
}

fn place(ops: &[Op], placed: &mut [bool], objects: &Objects) -> bool {
    let left = || (0..ops.len()).filter(|&i| !placed[i]);
    if left().all(|i| ops[i].answer.is_none()) {
        return true;
    }
    let soonest = left().map(|i| ops[i].ret).min().unwrap_or(usize::MAX);
    let next: Vec<usize> = left().filter(|&i| ops[i].call < soonest).collect();
    next.into_iter().any(|i| {
        let Some(after) = apply(&ops[i], objects) else { return false };
        placed[i] = true;
        let found = place(ops, placed, &after);
        placed[i] = false;
        found
    })
}

fn apply(op: &Op, objects: &Objects) -> Option<Objects> {
    let mut after = objects.clone();
    let kv = matches!(op.f.as_str(), "get" | "put" | "append");
    let initial = if kv { Value::text("") } else { Value::Nil };
    let state = after.entry(op.key.clone()).or_insert(initial);
    let possible = match (op.f.as_str(), &op.input) {
        ("read" | "get", _) => op.answer.as_ref().is_none_or(|answer| answer == state),
        ("cas", Value::List(pair)) => {
            let swaps = *state == pair[0];
            if swaps {
                *state = pair[1].clone();
            }
            op.answer.as_ref().is_none_or(|answer| *answer == Value::Bool(swaps))
        }
        ("append", Value::Text(more)) => {
            let Value::Text(text) = &*state else { return None };
            *state = Value::text(&format!("{text}{more}"));
            true
        }
        (_, input) => {
            *state = input.clone();
            true
        }
    };
    possible.then_some(after)
}
