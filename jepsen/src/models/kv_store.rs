//! A whole small store of a training job as one object: keys with values, and queues. One request may change several
//! of them, and a read sees all of them at one moment.
//!
//! *Invariant:* the operations of a request take effect in order, with nothing between them. A key's value is text,
//! and a queue that exists is not empty.

use super::Model;
use crate::value::Value;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

#[derive(Clone, Copy, Debug, Default)]
pub struct KvStore;

/// The contents of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KvStoreState {
    values: BTreeMap<Arc<str>, Arc<str>>,
    queues: BTreeMap<Arc<str>, VecDeque<Arc<str>>>,
}

/// One operation of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    /// Puts all of these values.
    Set(Vec<(Arc<str>, Arc<str>)>),
    /// Appends to a value; answers its new length.
    Append(Arc<str>, Arc<str>),
    /// Deletes a value; answers 1, or 0 if there was none.
    Delete(Arc<str>),
    /// Appends to a queue; answers its new length.
    Push(Arc<str>, Arc<str>),
    /// Pops the first element of a queue; answers it, or nil if there was none.
    Pop(Arc<str>),
}

/// A request, with its answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KvStoreOp {
    /// All of these, and their answers, if known.
    Apply(Vec<Act>, Option<Vec<Value>>),
    /// Read a queue and these keys: the values, the number of keys that have one, the length of the queue, and the
    /// names of those keys.
    Look(Arc<str>, Vec<Arc<str>>, Value),
    /// Found whether a value or a non-empty queue of that name exists.
    Has(Arc<str>, bool),
    Drop,
}

fn int(count: usize) -> Value {
    Value::Int(i64::try_from(count).unwrap_or(i64::MAX))
}

impl KvStoreState {
    /// Applies it, and returns its answer.
    fn act(&mut self, act: &Act) -> Value {
        match act {
            Act::Set(pairs) => {
                self.values.extend(pairs.iter().cloned());
                Value::Nil
            }
            Act::Append(key, more) => {
                let value = self.values.entry(key.clone()).or_default();
                *value = format!("{value}{more}").into();
                int(value.len())
            }
            Act::Delete(key) => int(usize::from(self.values.remove(key).is_some())),
            Act::Push(queue, value) => {
                let queue = self.queues.entry(queue.clone()).or_default();
                queue.push_back(value.clone());
                int(queue.len())
            }
            Act::Pop(name) => {
                let Some(queue) = self.queues.get_mut(name) else { return Value::Nil };
                let first = queue.pop_front();
                if queue.is_empty() {
                    self.queues.remove(name);
                }
                first.map_or(Value::Nil, Value::Text)
            }
        }
    }

    fn looked(&self, queue: &Arc<str>, keys: &[Arc<str>]) -> Value {
        let value = |key: &Arc<str>| self.values.get(key).cloned().map_or(Value::Nil, Value::Text);
        let length = self.queues.get(queue).map_or(0, VecDeque::len);
        let names = self.values.keys().cloned().map(Value::Text).collect();
        let values = keys.iter().map(value).collect();
        Value::List(vec![
            Value::List(values),
            int(self.values.len()),
            int(length),
            Value::List(names),
        ])
    }
}

impl Model for KvStore {
    type State = KvStoreState;
    type Op = KvStoreOp;

    const KEYED: bool = true;

    fn initial(&self) -> KvStoreState {
        KvStoreState::default()
    }

    fn step(&self, state: &KvStoreState, op: &KvStoreOp) -> Option<KvStoreState> {
        match op {
            KvStoreOp::Apply(acts, answers) => {
                let mut next = state.clone();
                let expected: Vec<Value> = acts.iter().map(|act| next.act(act)).collect();
                answers.as_ref().is_none_or(|answers| *answers == expected).then_some(next)
            }
            KvStoreOp::Look(queue, keys, seen) => {
                (state.looked(queue, keys) == *seen).then(|| state.clone())
            }
            KvStoreOp::Has(name, found) => {
                let there = state.values.contains_key(name) || state.queues.contains_key(name);
                (there == *found).then(|| state.clone())
            }
            KvStoreOp::Drop => Some(KvStoreState::default()),
        }
    }

    fn read(
        &self,
        f: &str,
        input: &Value,
        answer: Option<&Value>,
    ) -> Result<Option<KvStoreOp>, String> {
        let unclear = || format!("a store has no {f} of {input}");
        match (f, input, answer) {
            ("apply", Value::List(acts), _) => {
                let acts = acts.iter().map(act).collect::<Option<Vec<_>>>().ok_or_else(unclear)?;
                match answer {
                    None => Ok(Some(KvStoreOp::Apply(acts, None))),
                    Some(Value::List(answers)) => {
                        Ok(Some(KvStoreOp::Apply(acts, Some(answers.clone()))))
                    }
                    Some(other) => Err(format!("operations that answer {other}")),
                }
            }
            ("look", Value::List(names), Some(seen)) => {
                let names = names.iter().map(text).collect::<Option<Vec<_>>>();
                let names = names.ok_or_else(unclear)?;
                let (queue, keys) = names.split_first().ok_or_else(unclear)?;
                Ok(Some(KvStoreOp::Look(queue.clone(), keys.to_vec(), seen.clone())))
            }
            ("wait", Value::Text(name), Some(Value::Bool(found))) => {
                Ok(Some(KvStoreOp::Has(name.clone(), *found)))
            }
            ("look" | "wait", _, None) => Ok(None),
            ("drop", ..) => Ok(Some(KvStoreOp::Drop)),
            _ => Err(unclear()),
        }
    }

    fn state_bytes(&self, state: &KvStoreState) -> usize {
        let values = state.values.iter().map(|(key, value)| key.len() + value.len() + 64);
        let queued = state.queues.values().map(|queue| queue.len() * 32 + 64);
        values.chain(queued).sum()
    }

    fn show(&self, state: &KvStoreState) -> String {
        format!("{:?} and queues {:?}", state.values, state.queues)
    }
}

fn text(value: &Value) -> Option<Arc<str>> {
    match value {
        Value::Text(text) => Some(text.clone()),
        _ => None,
    }
}

fn act(value: &Value) -> Option<Act> {
    let Value::List(words) = value else { return None };
    let words = words.iter().map(text).collect::<Option<Vec<_>>>()?;
    let (what, given) = words.split_first()?;
    match (&**what, given) {
        ("set", pairs) if !pairs.is_empty() && pairs.len() % 2 == 0 => {
            Some(Act::Set(pairs.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()))
        }
        ("append", [key, more]) => Some(Act::Append(key.clone(), more.clone())),
        ("delete", [key]) => Some(Act::Delete(key.clone())),
        ("push", [queue, value]) => Some(Act::Push(queue.clone(), value.clone())),
        ("pop", [queue]) => Some(Act::Pop(queue.clone())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Value {
        Value::List(words.iter().map(|word| Value::text(word)).collect())
    }

    /// Applies requests in turn, each with its answer.
    fn follow(story: &[(&str, Value, Value)]) -> Option<KvStoreState> {
        story.iter().try_fold(KvStoreState::default(), |state, (f, input, answer)| {
            let op = KvStore.read(f, input, Some(answer)).unwrap().unwrap();
            KvStore.step(&state, &op)
        })
    }

    fn apply(acts: &[&[&str]], told: &[Value]) -> (&'static str, Value, Value) {
        let acts = acts.iter().map(|act| words(act)).collect();
        ("apply", Value::List(acts), Value::List(told.to_vec()))
    }

    fn look(values: &[Option<&str>], length: i64, names: &[&str]) -> (&'static str, Value, Value) {
        let value = |value: &Option<&str>| value.map_or(Value::Nil, Value::text);
        let count = Value::Int(names.len() as i64);
        let values = Value::List(values.iter().map(value).collect());
        let seen = vec![values, count, Value::Int(length), words(names)];
        ("look", words(&["q", "a", "b"]), Value::List(seen))
    }

    fn pair() -> (&'static str, Value, Value) {
        apply(&[&["set", "a", "1", "b", "2"]], &[Value::Nil])
    }

    #[test]
    fn both_of_two_keys_that_are_set_together_are_seen_or_none() {
        assert!(follow(&[look(&[None, None], 0, &[]), pair()]).is_some());
        assert!(follow(&[pair(), look(&[Some("1"), Some("2")], 0, &["a", "b"])]).is_some());
        assert!(follow(&[pair(), look(&[Some("1"), None], 0, &["a"])]).is_none());
        assert!(follow(&[pair(), look(&[Some("1"), Some("2")], 0, &["a"])]).is_none());
    }

    #[test]
    fn a_queue_gives_each_element_once_and_in_order() {
        let push = |value, length| apply(&[&["push", "q", value]], &[Value::Int(length)]);
        let pop = |told| apply(&[&["pop", "q"]], &[told]);
        let (x, y) = (|| Value::text("x"), || Value::text("y"));
        let two = || vec![push("x", 1), push("y", 2)];
        let then = |more: Vec<(&'static str, Value, Value)>| follow(&[two(), more].concat());
        let popped = then(vec![pop(x()), pop(y()), pop(Value::Nil)]);
        assert_eq!(popped, Some(KvStoreState::default()));
        assert!(then(vec![pop(y())]).is_none(), "out of order");
        assert!(then(vec![pop(x()), pop(x())]).is_none(), "twice");
        assert!(then(vec![pop(Value::Nil)]).is_none(), "lost");
        assert!(then(vec![push("z", 4)]).is_none(), "a push that counted twice");
        assert!(then(vec![look(&[None, None], 1, &[])]).is_none(), "a length that is wrong");
        let waits = |found| ("wait", Value::text("q"), Value::Bool(found));
        assert!(then(vec![waits(true), pop(x())]).is_some());
        assert!(then(vec![waits(false)]).is_none(), "a wake-up that was lost");
        assert!(follow(&[waits(true)]).is_none(), "woken by nothing");
    }

    #[test]
    fn the_operations_of_one_request_follow_each_other() {
        let one = [Value::Int(1), Value::text("x"), Value::Nil, Value::Int(2), Value::Int(1)];
        let acts: [&[&str]; 5] = [
            &["push", "q", "x"],
            &["pop", "q"],
            &["set", "a", "1"],
            &["append", "a", "2"],
            &["delete", "a"],
        ];
        assert_eq!(follow(&[apply(&acts, &one)]), Some(KvStoreState::default()));
        let mut wrong = one.clone();
        wrong[3] = Value::Int(1);
        assert_eq!(follow(&[apply(&acts, &wrong)]), None);
        let kept = [pair(), ("drop", Value::Nil, Value::Nil), look(&[Some("1"), None], 0, &["a"])];
        assert_eq!(follow(&kept), None, "a store that was dropped");
    }
}
