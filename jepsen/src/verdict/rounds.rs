//! Checks the answers about rounds of a rendezvous: agreement, ranks, exclusivity, closing.

use crate::operations::{Operation, Outcome};
use crate::value::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The smallest and the largest round of the workload.
const SIZES: std::ops::RangeInclusive<usize> = 2..=3;

/// One participant's view of a round.
struct RoundView<'a> {
    key: &'a str,
    name: String,
    round: i64,
    rank: i64,
    members: Vec<String>,
    at: u64,
}

fn text(value: &Value) -> String {
    match value {
        Value::Text(text) => text.to_string(),
        other => other.to_string(),
    }
}

fn answered<'a>(
    operations: &'a [Operation],
    f: &'a str,
) -> impl Iterator<Item = (&'a Operation, &'a Value, u64)> {
    operations.iter().filter(move |o| &*o.f == f).filter_map(|o| match &o.outcome {
        Outcome::Answered { value, at, .. } => Some((o, value, *at)),
        Outcome::Unknown => None,
    })
}

fn seen(operations: &[Operation]) -> Vec<RoundView<'_>> {
    let rounds = answered(operations, "round");
    let each = rounds.filter_map(|(operation, value, at)| {
        let (Value::List(given), Value::List(answer)) = (&operation.input, value) else {
            return None;
        };
        let [Value::Int(round), Value::Int(rank), members @ ..] = answer.as_slice() else {
            return None;
        };
        Some(RoundView {
            key: operation.key.as_deref().unwrap_or_default(),
            name: text(given.first()?),
            round: *round,
            rank: *rank,
            members: members.iter().map(text).collect(),
            at,
        })
    });
    each.collect()
}

/// The findings, and the number of rounds.
pub(super) fn broken(operations: &[Operation]) -> (Vec<String>, usize) {
    let mut found = Vec::new();
    let seen = seen(operations);
    let mut rosters: BTreeMap<(&str, i64), &RoundView<'_>> = BTreeMap::new();
    let mut first: BTreeMap<(&str, i64), u64> = BTreeMap::new();
    for one in &seen {
        let RoundView { key, name, round, rank, members, at } = one;
        let distinct: BTreeSet<_> = members.iter().collect();
        if distinct.len() != members.len() || !SIZES.contains(&members.len()) {
            found.push(format!("round {round} of {key} has the members {members:?}"));
        }
        let place = usize::try_from(*rank).ok().and_then(|rank| members.get(rank));
        if place != Some(name) {
            found.push(format!("{name} received rank {rank} in round {round} of {members:?}"));
        }
        let before = rosters.entry((key, *round)).or_insert(one);
        if before.members != *members {
            let theirs = &before.members;
            found.push(format!(
                "round {round} of {key} has the members {members:?}, and {theirs:?} for {}",
                before.name
            ));
        }
        let earliest = first.entry((key, *round)).or_insert(*at);
        *earliest = (*earliest).min(*at);
    }
    found.extend(two_at_once(operations, &first));
    found.extend(strangers(operations, &rosters));
    found.extend(joined_after_close(operations));
    (found, rosters.len())
}

/// Checks for a participant that was a member of a round after a later one was complete, or of another round than it
/// was given.
fn two_at_once(operations: &[Operation], first: &BTreeMap<(&str, i64), u64>) -> Vec<String> {
    let mut found = Vec::new();
    for (operation, value, _) in answered(operations, "alive") {
        let (Value::List(given), Value::List(answer)) = (&operation.input, value) else { continue };
        let ([who, _, Value::Int(mine)], [standing, Value::Int(now), ..]) =
            (given.as_slice(), answer.as_slice())
        else {
            continue;
        };
        if text(standing) != "member" {
            continue;
        }
        let (key, who) = (operation.key.as_deref().unwrap_or_default(), text(who));
        if mine != now {
            found.push(format!("{who} met in round {mine} of {key}, and is a member of {now}"));
        }
        let behind = first.range((key, mine + 1)..(key, i64::MAX));
        let later = behind.filter(|later| *later.1 < operation.called_at).map(|later| later.0.1);
        if let Some(other) = later.min() {
            found.push(format!("{who} was a member of round {mine} after round {other} of {key}"));
        }
    }
    found
}

/// Checks for a name under a rank of a round's store that does not have this rank.
fn strangers(
    operations: &[Operation],
    rosters: &BTreeMap<(&str, i64), &RoundView<'_>>,
) -> Vec<String> {
    let mut found = Vec::new();
    for (operation, value, _) in answered(operations, "peers") {
        let (Value::List(given), Value::List(names)) = (&operation.input, value) else { continue };
        let [_, Value::Int(round)] = given.as_slice() else { continue };
        let key = operation.key.as_deref().unwrap_or_default();
        let Some(roster) = rosters.get(&(key, *round)) else { continue };
        for (rank, name) in names.iter().enumerate().filter(|(_, name)| **name != Value::Nil) {
            if roster.members.get(rank) != Some(&text(name)) {
                let (name, members) = (text(name), &roster.members);
                found.push(format!(
                    "{name} has rank {rank} in the store of round {round} of {members:?}"
                ));
            }
        }
    }
    found
}

/// Checks for a participant that joined a rendezvous closed before it asked.
fn joined_after_close(operations: &[Operation]) -> Vec<String> {
    let mut closed: BTreeMap<&str, u64> = BTreeMap::new();
    for (operation, _, at) in answered(operations, "close") {
        let key = operation.key.as_deref().unwrap_or_default();
        let earliest = closed.entry(key).or_insert(at);
        *earliest = (*earliest).min(at);
    }
    let mut found = Vec::new();
    for (operation, value, _) in answered(operations, "join") {
        let key = operation.key.as_deref().unwrap_or_default();
        let after = closed.get(key).is_some_and(|at| *at < operation.called_at);
        if after && *value != Value::Bool(false) {
            found.push(format!("{key} was joined after it was closed"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(f: &str, given: &str, told: Value, called_at: u64, at: u64) -> Operation {
        Operation {
            request: None,
            process: 0,
            f: f.into(),
            key: Some("meet".into()),
            input: Value::List(vec![Value::text(given), Value::text("7"), Value::Int(1)]),
            called_at,
            line: 0,
            outcome: Outcome::Answered { value: told, at, line: 0, position: None },
        }
    }

    fn round(who: &str, round: i64, rank: i64, members: &[&str], at: u64) -> Operation {
        let mut told = vec![Value::Int(round), Value::Int(rank)];
        told.extend(members.iter().map(|m| Value::text(m)));
        operation("round", who, Value::List(told), at - 1, at)
    }

    #[test]
    fn rounds_that_all_agree_on_are_right() {
        let all = [
            round("a", 1, 0, &["a", "b"], 10),
            round("b", 1, 1, &["a", "b"], 12),
            operation(
                "alive",
                "a",
                Value::List(vec![Value::text("member"), Value::Int(1)]),
                13,
                14,
            ),
            round("b", 2, 1, &["a", "b"], 20),
        ];
        assert_eq!(broken(&all), (Vec::new(), 2));
    }

    #[test]
    fn other_members_a_rank_twice_and_two_rounds_at_once_are_found() {
        let alive = Value::List(vec![Value::text("member"), Value::Int(1)]);
        for (wrong, says) in [
            (round("b", 1, 0, &["a", "b"], 12), "received rank 0"),
            (round("b", 1, 1, &["c", "b"], 12), "for a"),
            (round("b", 2, 1, &["a", "b"], 11), "after round 2"),
            (round("b", 2, 0, &["b"], 30), "has the members"),
        ] {
            let first = round("a", 1, 0, &["a", "b"], 10);
            let all = [first, wrong, operation("alive", "a", alive.clone(), 13, 14)];
            let (found, _) = broken(&all);
            assert!(found.iter().any(|f| f.contains(says)), "{says}: {found:?}");
        }
    }

    #[test]
    fn a_stranger_in_the_store_of_a_round_is_found() {
        let peers = |names: &[Option<&str>]| {
            let names = names.iter().map(|name| name.map_or(Value::Nil, Value::text)).collect();
            let mut read = operation("peers", "a", Value::List(names), 13, 14);
            read.input = Value::List(vec![Value::text("a"), Value::Int(1)]);
            read
        };
        let met = round("a", 1, 0, &["a", "b"], 10);
        let right = [met.clone(), peers(&[Some("a"), None]), peers(&[Some("a"), Some("b")])];
        assert_eq!(broken(&right).0, Vec::<String>::new());
        let wrong = [met, peers(&[Some("b"), None])];
        assert_eq!(broken(&wrong).0, ["b has rank 0 in the store of round 1 of [\"a\", \"b\"]"]);
    }

    #[test]
    fn a_join_after_closing_is_a_violation() {
        let close = operation("close", "-", Value::Nil, 1, 2);
        let join = operation("join", "a", Value::text("9"), 3, 4);
        assert_eq!(broken(&[close.clone(), join]).0, ["meet was joined after it was closed"]);
        let refused = operation("join", "a", Value::Bool(false), 3, 4);
        let before = operation("join", "a", Value::text("9"), 1, 4);
        assert!(broken(&[close, refused, before]).0.is_empty());
    }
}
