//! Checks the answers to clients that create runs: exactly the request for its name creates a run, and the run has
//! what was declared for it.
//!
//! *Invariant:* names are used once, and the pieces of an input are alike and declared one after another, so that
//! each request determines its answer.

use super::rows::numbers;
use crate::operations::{Operation, Outcome};
use crate::value::Value;
use std::collections::BTreeMap;

/// Every wrong answer.
pub(super) fn broken(operations: &[Operation]) -> Vec<String> {
    let (mut found, mut runs) = (Vec::new(), BTreeMap::new());
    for operation in operations {
        let Outcome::Answered { value, .. } = &operation.outcome else { continue };
        let key = operation.key.as_deref().unwrap_or("?");
        match (&*operation.f, value) {
            ("create", Value::List(answer)) => {
                let [Value::Int(run), Value::Bool(made), ..] = answer.as_slice() else {
                    found.push(format!("{key} was created, and answered {value}"));
                    continue;
                };
                if !made {
                    found.push(format!(
                        "the only request for {key} found it, which no request created"
                    ));
                }
                if let Some(other) = runs.insert(*run, key) {
                    found.push(format!("{other} and {key} are both run {run}"));
                }
            }
            ("declare", _) => {
                let Some([number, rows]) = numbers(&operation.input) else { continue };
                let whole = [number + 1, (number + 1) * rows];
                if numbers(value) != Some(whole) {
                    found.push(format!("with piece {number} {key} has {value}, not {whole:?}"));
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered_op(f: &str, key: &str, input: Value, value: Value) -> Operation {
        let (f, key) = (f.into(), Some(key.into()));
        let outcome = Outcome::Answered { value, at: 2, line: 2, position: None };
        Operation { process: 0, request: None, f, key, input, called_at: 1, line: 1, outcome }
    }

    fn created(key: &str, run: i64, made: bool) -> Operation {
        let value = vec![Value::Int(run), Value::Bool(made), Value::text("folder")];
        answered_op("create", key, Value::Nil, Value::List(value))
    }

    fn declared(number: i64, answer: [i64; 2]) -> Operation {
        let list = |values: [i64; 2]| Value::List(values.map(Value::Int).to_vec());
        answered_op("declare", "run:s1-1", list([number, 3]), list(answer))
    }

    #[test]
    fn a_run_is_made_by_its_own_request_and_has_what_was_declared() {
        let all = [created("run:s1-1", 4, true), declared(0, [1, 3]), declared(1, [2, 6])];
        assert_eq!(broken(&all), Vec::<String>::new());
        assert_eq!(broken(&[created("run:s1-1", 4, false)]).len(), 1);
        let both = [created("run:s1-1", 4, true), created("run:s2-1", 4, true)];
        assert_eq!(broken(&both).len(), 1);
        for wrong in [[1, 6], [2, 3], [1, 0]] {
            assert_eq!(broken(&[declared(1, wrong)]).len(), 1, "{wrong:?}");
        }
    }
}
