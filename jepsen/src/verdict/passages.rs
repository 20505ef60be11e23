//! What participants were told at barriers: nobody passed before all had arrived, and all were told the same.

use crate::operations::{Operation, Outcome};
use crate::value::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Participants of each barrier in the workload.
const MEMBERS: usize = 3;

fn names(value: Option<&Value>) -> BTreeSet<String> {
    match value {
        Some(Value::List(names)) => names.iter().map(ToString::to_string).collect(),
        _ => BTreeSet::new(),
    }
}

/// What was found, and how many generations were passed.
pub(super) fn broken(operations: &[Operation]) -> (Vec<String>, usize) {
    let mut found = Vec::new();
    let mut arrivals: BTreeMap<(&str, String), u64> = BTreeMap::new();
    let key = |operation: &'_ Operation| operation.key.clone().unwrap_or_default();
    for operation in operations.iter().filter(|o| &*o.f == "arrive") {
        let at = (operation.key.as_deref().unwrap_or_default(), operation.input.to_string());
        let first = arrivals.entry(at).or_insert(operation.called_at);
        *first = (*first).min(operation.called_at);
    }
    let mut told: BTreeMap<String, &Value> = BTreeMap::new();
    let mut passed = BTreeSet::new();
    for operation in operations.iter().filter(|o| &*o.f == "pass") {
        let Outcome::Answered { value, at, .. } = &operation.outcome else { continue };
        let (key, who) = (key(operation).to_string(), &operation.input);
        let before = told.entry(key.clone()).or_insert(value);
        if *before != value {
            found.push(format!("{who} was told {value} of barrier {key}, and others {before}"));
        }
        let Value::List(parts) = value else { continue };
        if parts.first() != Some(&Value::text("open")) {
            continue;
        }
        passed.insert(key.clone());
        let (members, without) = (names(parts.get(1)), names(parts.get(2)));
        if members.union(&without).count() != MEMBERS {
            let n = members.len();
            found.push(format!("{who} passed barrier {key} with {n} of {MEMBERS}: {value}"));
        }
        if key.starts_with("hard/") && !without.is_empty() {
            found.push(format!("{who} passed barrier {key}, which may not shrink: {value}"));
        }
        for member in &members {
            let arrived = arrivals.get(&(key.as_str(), member.clone()));
            if arrived.is_none_or(|arrived| arrived > at) {
                found.push(format!("{who} passed barrier {key} before {member} had arrived"));
            }
        }
    }
    (found, passed.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrive(who: &str, called_at: u64) -> Operation {
        Operation {
            process: 0,
            f: "arrive".into(),
            key: Some("hard/1".into()),
            input: Value::text(who),
            called_at,
            line: 0,
            outcome: Outcome::Unknown,
        }
    }

    fn pass(who: &str, members: &[&str], without: &[&str], at: u64) -> Operation {
        let list = |names: &[&str]| Value::List(names.iter().map(|n| Value::text(n)).collect());
        let value = Value::List(vec![Value::text("open"), list(members), list(without)]);
        let outcome = Outcome::Answered { value, at, line: 0, place: None };
        Operation { f: "pass".into(), outcome, ..arrive(who, at - 1) }
    }

    #[test]
    fn whoever_passes_after_all_have_asked_to_is_right() {
        let all = ["a", "b", "c"];
        let mut story: Vec<Operation> = (1..).zip(all).map(|(at, who)| arrive(who, at)).collect();
        story.extend(all.map(|who| pass(who, &all, &[], 9)));
        assert_eq!(broken(&story), (Vec::new(), 1));
    }

    #[test]
    fn an_early_passage_one_too_few_and_two_stories_are_found() {
        let all = ["a", "b", "c"];
        for (wrong, says) in [
            (pass("a", &all, &[], 2), "before \"c\" had arrived"),
            (pass("a", &["a", "b"], &[], 9), "with 2 of 3"),
            (pass("a", &["a", "b"], &["c"], 9), "may not shrink"),
        ] {
            let mut story: Vec<Operation> =
                (1..).zip(all).map(|(at, who)| arrive(who, at)).collect();
            story.extend([pass("b", &all, &[], 9), wrong]);
            let (found, _) = broken(&story);
            assert!(found.iter().any(|f| f.contains(says)), "{says}: {found:?}");
        }
    }
}
