//! Random histories of a real object: operations overlap, some answers are lost, some operations take effect long
//! after that, and some answers are made wrong on purpose.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rollout_jepsen::formats::{Event, Kind};
use rollout_jepsen::value::Value;
use std::collections::HashMap;

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Object {
    Register,
    Kv,
}

#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) object: Object,
    pub(crate) clients: usize,
    pub(crate) operations: usize,
    pub(crate) keys: usize,
    /// The number of different values; 0: each write has a value of its own.
    pub(crate) values: i64,
    /// How often an answer is lost, and how often it is wrong.
    pub(crate) unknown: f64,
    pub(crate) wrong: f64,
}

struct Pending {
    client: usize,
    process: i64,
    f: &'static str,
    key: usize,
    input: Value,
    answer: Option<Value>,
    lost: bool,
}

struct World {
    plan: Plan,
    rng: StdRng,
    objects: HashMap<usize, Value>,
    pending: Vec<Pending>,
    processes: Vec<i64>,
    unique: i64,
    events: Vec<Event>,
    /// Answers of reads so far, as a source of stale ones.
    seen: Vec<Value>,
}

pub(crate) fn history(plan: Plan, seed: u64) -> Vec<Event> {
    let mut world = World {
        plan,
        rng: StdRng::seed_from_u64(seed),
        objects: HashMap::new(),
        pending: Vec::new(),
        processes: (0..plan.clients as i64).collect(),
        unique: 0,
        events: Vec::new(),
        seen: Vec::new(),
    };
    let mut called = 0;
    while called < plan.operations || world.pending.iter().any(|p| !p.lost) {
        match world.rng.random_range(0..3) {
            0 if called < plan.operations => called += usize::from(world.call()),
            1 => world.apply_any(),
            _ => world.answer(),
        }
    }
    world.events
}

impl World {
    fn value(&mut self) -> Value {
        self.unique += 1;
        let number = match self.plan.values {
            0 => self.unique,
            values => self.rng.random_range(0..values),
        };
        match self.plan.object {
            Object::Register => Value::Int(number),
            Object::Kv => Value::text(&format!("{number};")),
        }
    }

    fn current(&self, key: usize) -> Value {
        let empty = match self.plan.object {
            Object::Register => Value::Nil,
            Object::Kv => Value::text(""),
        };
        self.objects.get(&key).cloned().unwrap_or(empty)
    }

    fn push(&mut self, p: &Pending, kind: Kind, value: Value) {
        let at = self.events.len() as u64 + 1;
        let key = Some(p.key.to_string().into());
        self.events.push(Event {
            position: None,
            request: None,
            line: at,
            at,
            process: p.process,
            kind,
            f: p.f.into(),
            key,
            value,
        });
    }

    fn call(&mut self) -> bool {
        let client = self.rng.random_range(0..self.plan.clients);
        if self.pending.iter().any(|p| p.client == client && !p.lost) {
            return false;
        }
        let key = self.rng.random_range(0..self.plan.keys);
        let (f, input) = match (self.plan.object, self.rng.random_range(0..3)) {
            (Object::Register, 0) => ("read", Value::Nil),
            (Object::Register, 1) => ("write", self.value()),
            (Object::Register, _) => {
                // Half of them expect the present value; otherwise they would hardly ever succeed.
                let from = match self.rng.random_bool(0.5) {
                    true => self.current(key),
                    false => self.value(),
                };
                ("cas", Value::List(vec![from, self.value()]))
            }
            (Object::Kv, 0) => ("get", Value::Nil),
            (Object::Kv, 1) if self.rng.random_bool(0.3) => ("put", self.value()),
            (Object::Kv, _) => ("append", self.value()),
        };
        let process = self.processes[client];
        let pending = Pending { client, process, f, key, input, answer: None, lost: false };
        self.push(&pending, Kind::Invoke, pending.input.clone());
        self.pending.push(pending);
        true
    }

    fn apply_any(&mut self) {
        let waiting: Vec<usize> =
            (0..self.pending.len()).filter(|&i| self.pending[i].answer.is_none()).collect();
        if let Some(&index) = waiting.choose(&mut self.rng) {
            self.apply(index);
        }
    }

    fn apply(&mut self, index: usize) {
        let Pending { f, key, ref input, .. } = self.pending[index];
        let current = self.current(key);
        let (next, answer) = match (f, input) {
            ("read" | "get", _) => (current.clone(), current),
            ("cas", Value::List(pair)) => match pair[0] == current {
                true => (pair[1].clone(), Value::Bool(true)),
                false => (current, Value::Bool(false)),
            },
            ("append", Value::Text(more)) => {
                let Value::Text(text) = current else { panic!("a text") };
                (Value::text(&format!("{text}{more}")), input.clone())
            }
            _ => (input.clone(), input.clone()),
        };
        self.objects.insert(key, next);
        self.pending[index].answer = Some(answer);
    }

    fn answer(&mut self) {
        let open: Vec<usize> = (0..self.pending.len()).filter(|&i| !self.pending[i].lost).collect();
        let Some(&index) = open.choose(&mut self.rng) else { return };
        if self.rng.random_bool(self.plan.unknown) {
            let client = self.pending[index].client;
            self.processes[client] += self.plan.clients as i64;
            self.pending[index].lost = true;
            let lost = self.pending.swap_remove(index);
            self.push(&lost, Kind::Info, Value::Nil);
            self.pending.push(lost);
            return;
        }
        if self.pending[index].answer.is_none() && self.rng.random_bool(0.05) {
            let refused = self.pending.swap_remove(index);
            return self.push(&refused, Kind::Fail, Value::Nil);
        }
        if self.pending[index].answer.is_none() {
            self.apply(index);
        }
        let answered = self.pending.swap_remove(index);
        let mut answer = answered.answer.clone().unwrap_or_default();
        let reads = matches!(answered.f, "read" | "get");
        if reads {
            self.seen.push(answer.clone());
        }
        if self.rng.random_bool(self.plan.wrong) {
            answer = match answer {
                Value::Bool(swapped) => Value::Bool(!swapped),
                _ if reads => self.seen.choose(&mut self.rng).cloned().unwrap_or_default(),
                written => written,
            };
        }
        self.push(&answered, Kind::Ok, answer);
    }
}
