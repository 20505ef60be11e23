//! Histories of a workload as its judges get them: what is right passes, and each kind of lie is told.

use super::*;
use crate::operations::Outcome;
use crate::value::Value;

/// One operation after another of the workload `store`.
#[derive(Default)]
struct Told(Vec<Operation>);

impl Told {
    fn add(mut self, f: &str, key: &str, input: Value, answer: Value) -> Self {
        let line = self.0.len() as u64 + 1;
        let (called_at, at) = (10 * line, 10 * line + 5);
        let outcome = Outcome::Answered { value: answer, at, line, place: None };
        let (f, key) = (f.into(), Some(key.into()));
        self.0.push(Operation { process: 0, f, key, input, called_at, line, outcome });
        self
    }

    fn violations(&self) -> Vec<String> {
        judged("store", &self.0).unwrap().violations
    }
}

fn words(words: &[&str]) -> Value {
    Value::List(words.iter().map(|word| Value::text(word)).collect())
}

fn apply(told: Told, act: &[&str], answer: Value) -> Told {
    told.add("apply", "shelf-1", Value::List(vec![words(act)]), Value::List(vec![answer]))
}

/// Sees so many keys, all of them `a`, and so many in the queue.
fn look(told: Told, value: Option<&str>, queued: i64) -> Told {
    let (names, value) = match value {
        Some(value) => (words(&["a"]), Value::text(value)),
        None => (words(&[]), Value::Nil),
    };
    let count = Value::Int(i64::from(value != Value::Nil));
    let seen = vec![Value::List(vec![value]), count, Value::Int(queued), names];
    told.add("look", "shelf-1", words(&["q", "a"]), Value::List(seen))
}

fn wrong(told: &Told, key: &str) {
    let found = told.violations();
    let says = format!("no order of its operations explains item {key}");
    assert!(found.len() == 1 && found[0].starts_with(&says), "{found:?}");
}

#[test]
fn keys_and_whole_stores_are_judged_beside_each_other() {
    let keys = || Told::default().add("set", "a", Value::text("1"), Value::Nil);
    let both = || apply(keys(), &["set", "a", "7"], Value::Nil);
    let right = look(both().add("get", "a", Value::Nil, Value::text("1")), Some("7"), 0);
    assert_eq!(right.violations(), Vec::<String>::new());
    let few = judged("store", &right.0).unwrap();
    assert_eq!((few.operations, few.keys), (4, 2));
    assert!(few.doubts[0].starts_with("stores that were used as a whole: 1"), "{:?}", few.doubts);
    wrong(&both().add("get", "a", Value::Nil, Value::text("7")), "a");
    wrong(&look(both(), Some("1"), 0), "shelf-1");
}

#[test]
fn what_a_wait_says_is_judged_whether_it_woke_or_gave_up() {
    let waits = |told: Told, f: &str, input, found| told.add(f, "a", input, Value::Bool(found));
    let one = || Told::default().add("set", "a", Value::text("1"), Value::Nil);
    assert!(waits(one(), "wait", Value::Nil, true).violations().is_empty());
    wrong(&waits(one(), "wait", Value::Nil, false), "a");
    wrong(&waits(Told::default(), "wait", Value::Nil, true), "a");
    assert!(waits(one(), "reach", Value::Int(2), false).violations().is_empty());
    wrong(&waits(one(), "reach", Value::Int(2), true), "a");
    let deleted = || one().add("delete", "a", Value::Nil, Value::Int(1));
    assert!(waits(deleted(), "wait", Value::Nil, false).violations().is_empty());
    wrong(&waits(deleted(), "wait", Value::Nil, true), "a");
}

#[test]
fn an_element_that_is_given_twice_or_lost_is_found() {
    let pushed = || apply(Told::default(), &["push", "q", "x"], Value::Int(1));
    let popped = |told| apply(told, &["pop", "q"], Value::text("x"));
    assert!(look(popped(pushed()), None, 0).violations().is_empty());
    wrong(&popped(popped(pushed())), "shelf-1");
    wrong(&apply(pushed(), &["pop", "q"], Value::Nil), "shelf-1");
    wrong(&look(pushed(), None, 0), "shelf-1");
}
