//! Random correct histories of one key, with copies, lost answers and late copies: the replay accepts each of them,
//! and finds one wrong answer in any of them.

use super::*;
use crate::models::Cell;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The most lost operations in a history.
const LOST_MAX: usize = 12;

/// An operation in flight.
struct Flying {
    operation: Operation,
    /// The answer of its last copy, and its position.
    answer: Option<(Value, LogPosition)>,
    copies: u32,
}

/// A key and its clients.
struct Played {
    rng: StdRng,
    state: Option<String>,
    index: u64,
    now: u64,
    clients: Vec<Option<Flying>>,
    /// No client waits for these; a copy may still arrive.
    lost: Vec<Flying>,
    done: Vec<Operation>,
}

impl Played {
    fn history(seed: u64) -> Vec<Operation> {
        let (rng, clients) = (StdRng::seed_from_u64(seed), (0..4).map(|_| None).collect());
        let (lost, done) = (Vec::new(), Vec::new());
        let mut played = Self { rng, state: None, index: 9, now: 0, clients, lost, done };
        for _ in 0..1500 {
            played.step();
        }
        let left = played.clients.into_iter().flatten().chain(played.lost);
        played.done.extend(left.map(|flying| flying.operation));
        played.done
    }

    fn step(&mut self) {
        self.now += 1;
        // Entries of other objects.
        self.index += self.rng.random_range(0..2);
        if self.rng.random_ratio(1, 10) && !self.lost.is_empty() {
            let which = self.rng.random_range(0..self.lost.len());
            let mut late = self.lost.swap_remove(which);
            self.apply(&mut late);
            self.lost.push(late);
        }
        let who = self.rng.random_range(0..self.clients.len());
        let Some(mut flying) = self.clients[who].take() else {
            self.clients[who] = Some(self.call());
            return;
        };
        let writes = &*flying.operation.f == "set";
        match (self.rng.random_range(0..10), flying.answer.clone()) {
            (0..5, _) => self.apply(&mut flying),
            (5..9, Some((value, at))) => {
                let repeated = writes && flying.copies > 1;
                let position = Some(ReportedPosition { at, epoch: Some(1), repeated });
                let (at, line) = (self.now, self.now);
                flying.operation.outcome = Outcome::Answered { value, at, line, position };
                return self.done.push(flying.operation);
            }
            (9, _) if writes && self.lost.len() < LOST_MAX => return self.lost.push(flying),
            _ => {}
        }
        self.clients[who] = Some(flying);
    }

    fn call(&mut self) -> Flying {
        let (f, input) = match self.rng.random_bool(0.5) {
            true => ("set", Value::text(&format!("v{}", self.now))),
            false => ("get", Value::Nil),
        };
        let (called_at, line) = (self.now, self.now);
        let (f, key, outcome) = (f.into(), Some("a".into()), Outcome::Unknown);
        let operation =
            Operation { process: 0, request: None, f, key, input, called_at, line, outcome };
        Flying { operation, answer: None, copies: 0 }
    }

    /// One copy arrives: only the first copy of a write changes anything, and each copy is answered at its own
    /// position.
    fn apply(&mut self, flying: &mut Flying) {
        flying.copies += 1;
        let Value::Text(value) = &flying.operation.input else {
            let seen = self.state.as_deref().map_or(Value::Nil, Value::text);
            flying.answer = Some((seen, LogPosition::behind(self.index)));
            return;
        };
        self.index += 1;
        if flying.copies == 1 {
            self.state = Some(value.to_string());
        }
        flying.answer = Some((Value::Nil, LogPosition { index: self.index, position: 0 }));
    }
}

fn seen(operation: &Operation) -> Option<&Value> {
    match &operation.outcome {
        Outcome::Answered { value, .. } if &*operation.f == "get" => Some(value),
        _ => None,
    }
}

#[test]
fn a_key_that_was_right_is_never_judged_wrong_and_a_stale_answer_is_seen() {
    let (mut repeated, mut stale) = (0, 0);
    for seed in 0..60 {
        let mut history = Played::history(seed);
        let found = replay(&Cell, &history).unwrap();
        assert_eq!(found.violations, Vec::<String>::new(), "seed {seed}");
        assert_eq!((found.unfinished, out_of_order(&history).0), (0, Vec::new()), "seed {seed}");
        let twice = |o: &&Operation| match &o.outcome {
            Outcome::Answered { position: Some(position), .. } => position.repeated,
            _ => false,
        };
        repeated += history.iter().filter(twice).count();
        // Give the last read the value that another client saw long before.
        let mut reads = (0..history.len()).filter(|at| seen(&history[*at]).is_some());
        let (Some(first), Some(last)) = (reads.nth(20), reads.next_back()) else { continue };
        let old = seen(&history[first]).cloned();
        if old.as_ref() == seen(&history[last]) {
            continue;
        }
        if let (Outcome::Answered { value, .. }, Some(old)) = (&mut history[last].outcome, old) {
            *value = old;
        }
        stale += 1;
        assert!(!replay(&Cell, &history).unwrap().violations.is_empty(), "seed {seed}");
    }
    assert!(repeated > 1000, "{repeated} were sent twice");
    assert!(stale > 30, "{stale} histories with a stale answer");
}
