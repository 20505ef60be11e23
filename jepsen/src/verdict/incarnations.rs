//! Checks the answers about incarnations of participants of a rendezvous: an incarnation belongs to at most one round;
//! it is void once a later one was given under its name, and otherwise only for a reason; and a participant that joins
//! once is in one round.
//!
//! *Invariant:* incarnations are known from the answers to joins. A join without an answer may or may not have counted;
//! nothing else is certain.

use super::silences::Signs;
use super::values::{list, text};
use crate::operations::{Operation, Outcome};
use crate::value::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A participant that is heard more often than this is not lost; the workload allows a silence of 1.5 s.
const PATIENCE_NS: u64 = 1_400_000_000;

/// An incarnation of a job.
type Incarnation<'a> = (&'a str, &'a str);

/// A join that was answered with an incarnation.
struct Joined<'a> {
    who: &'a str,
    called_at: u64,
    answered_at: u64,
}

#[derive(Default)]
struct IncarnationHistory<'a> {
    joined: BTreeMap<Incarnation<'a>, Joined<'a>>,
    /// When a participant asked to join under a name, whatever the outcome.
    join_calls: BTreeMap<(&'a str, &'a str), Vec<u64>>,
    left: BTreeMap<Incarnation<'a>, u64>,
    signs: Signs<Incarnation<'a>>,
    rounds: BTreeMap<Incarnation<'a>, BTreeSet<i64>>,
    /// For each member, its rounds and when each was first reported.
    members: BTreeMap<(&'a str, &'a str), BTreeMap<i64, u64>>,
    /// Incarnations reported as void: the reason, and when that was asked and answered.
    gone: Vec<(Incarnation<'a>, &'a str, u64, u64)>,
    /// Incarnations reported as valid, and when that was asked.
    good: Vec<(Incarnation<'a>, u64)>,
}

/// The violations, in words.
pub(super) fn broken(operations: &[Operation]) -> Vec<String> {
    let mut history = IncarnationHistory::default();
    for operation in operations {
        history.read(operation);
    }
    let mut found = history.one_round_each();
    found.extend(history.departures());
    found.extend(history.void_incarnations());
    found.extend(history.uninvited());
    found
}

impl<'a> IncarnationHistory<'a> {
    fn read(&mut self, operation: &'a Operation) {
        let key = operation.key.as_deref().unwrap_or_default();
        let (input, called_at) = (list(&operation.input), operation.called_at);
        let (who, incarnation) = (text(input.first()), (key, text(input.get(1))));
        let answer = match &operation.outcome {
            Outcome::Answered { value, at, .. } => Some((value, *at)),
            Outcome::Unknown => None,
        };
        match (&*operation.f, answer) {
            ("join", Some((Value::Bool(_), _))) => {}
            ("join", answer) => {
                let who = text(Some(&operation.input));
                self.join_calls.entry((key, who)).or_default().push(called_at);
                if let Some((Value::Text(incarnation), answered_at)) = answer {
                    let incarnation = (key, &**incarnation);
                    self.joined.insert(incarnation, Joined { who, called_at, answered_at });
                    self.signs.add(incarnation, called_at, answered_at);
                }
            }
            ("leave", _) => {
                let first = self.left.entry(incarnation).or_insert(called_at);
                *first = (*first).min(called_at);
            }
            ("round", Some((answer, at))) => {
                let answer = list(answer);
                match (answer.first(), text(answer.first())) {
                    (Some(Value::Int(round)), _) => {
                        self.rounds.entry(incarnation).or_default().insert(*round);
                        for member in answer.iter().skip(2) {
                            let rounds = self.members.entry((key, text(Some(member)))).or_default();
                            let first = rounds.entry(*round).or_insert(at);
                            *first = (*first).min(at);
                        }
                        self.signs.add(incarnation, called_at, at);
                    }
                    (_, "gone") => {
                        self.gone.push((incarnation, text(answer.get(1)), called_at, at))
                    }
                    (_, "pending") => self.signs.add(incarnation, called_at, at),
                    _ => {}
                }
            }
            ("alive", Some((answer, at))) => match text(list(answer).get(2)) {
                "" if who != "?" => {
                    self.good.push((incarnation, called_at));
                    self.signs.add(incarnation, called_at, at);
                }
                "?" => {}
                why => self.gone.push((incarnation, why, called_at, at)),
            },
            _ => {}
        }
    }

    fn one_round_each(&self) -> Vec<String> {
        let several = self.rounds.iter().filter(|(_, rounds)| rounds.len() > 1);
        let found = several.map(|((key, incarnation), rounds)| {
            format!("ticket {incarnation} of {key} is of the rounds {rounds:?}")
        });
        found.collect()
    }

    /// Checks that every void incarnation has a reason: its owner left, was replaced under its name, or was silent.
    fn departures(&self) -> Vec<String> {
        let mut found = Vec::new();
        for &(incarnation, why, _, at) in &self.gone {
            let Some(Joined { who, called_at, answered_at }) = self.joined.get(&incarnation) else {
                continue;
            };
            let (key, number) = incarnation;
            let left = self.left.get(&incarnation).is_some_and(|left| *left < at);
            let joins = self.join_calls.get(&(key, *who)).into_iter().flatten();
            let again = joins.into_iter().any(|joined_at| joined_at > called_at && *joined_at < at);
            let unreasonable = match why {
                "left" => !left,
                "replaced" => !again,
                // Count from a while after it came: a proof needs that much time.
                _ => !left && !again && self.was_kept_alive(incarnation, *answered_at, at),
            };
            if unreasonable {
                found
                    .push(format!("{who}, ticket {number} of {key}, is gone as {why}, and is not"));
            }
        }
        found
    }

    /// Whether it was heard all the time since it came, except for the beginning.
    fn was_kept_alive(&self, incarnation: Incarnation<'a>, came_at: u64, until: u64) -> bool {
        let from = came_at.saturating_add(super::silences::SETTLED_NS);
        from < until && self.signs.throughout(&incarnation, from, until, PATIENCE_NS)
    }

    /// Checks that an incarnation is void once a later one was given under its name.
    fn void_incarnations(&self) -> Vec<String> {
        type Times<'a> = Vec<(u64, u64, &'a str)>;
        let mut latest: BTreeMap<(&str, &str), Times<'_>> = BTreeMap::new();
        for ((key, incarnation), Joined { who, called_at, answered_at }) in &self.joined {
            let all = latest.entry((key, who)).or_default();
            all.push((*called_at, *answered_at, incarnation));
        }
        let mut found = Vec::new();
        for &((key, incarnation), asked_at) in &self.good {
            let Some(joined) = self.joined.get(&(key, incarnation)) else { continue };
            let later = latest.get(&(key, joined.who)).into_iter().flatten();
            let mut later =
                later.filter(|later| later.0 > joined.answered_at && later.1 < asked_at);
            if let Some((.., other)) = later.next() {
                let who = joined.who;
                found.push(format!(
                    "ticket {incarnation} of {who} in {key} is good after ticket {other} was given"
                ));
            }
        }
        found
    }

    /// Checks that no participant is in more rounds than it joined for, or in a round before it asked.
    fn uninvited(&self) -> Vec<String> {
        let mut found = Vec::new();
        for ((key, who), rounds) in &self.members {
            for (nth, at) in rounds.values().enumerate() {
                let joins = self.join_calls.get(&(*key, *who)).into_iter().flatten();
                let joins = joins.filter(|joined_at| *joined_at < at).count();
                if joins <= nth {
                    let n = nth + 1;
                    found.push(format!("{who} is in {n} rounds of {key}, and asked {joins} times"));
                    break;
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn words(words: &[&str]) -> Value {
        Value::List(words.iter().map(|word| Value::text(word)).collect())
    }

    fn answered_op(f: &str, input: Value, value: Value, s: u64) -> Operation {
        let (f, key) = (f.into(), Some("meet".into()));
        let outcome = Outcome::Answered { value, at: s * S + S / 10, line: 0, position: None };
        Operation { process: 0, request: None, f, key, input, called_at: s * S, line: 0, outcome }
    }

    fn join(incarnation: &str, s: u64) -> Operation {
        answered_op("join", Value::text("a"), Value::text(incarnation), s)
    }

    fn round(incarnation: &str, round: i64, s: u64) -> Operation {
        let seen = vec![Value::Int(round), Value::Int(0), Value::text("a")];
        answered_op("round", words(&["a", incarnation]), Value::List(seen), s)
    }

    fn alive(incarnation: &str, gone: &str, s: u64) -> Operation {
        let seen = vec![Value::text("member"), Value::Int(1), Value::text(gone)];
        answered_op("alive", words(&["a", incarnation]), Value::List(seen), s)
    }

    fn wrong(history: &[Operation], says: &str) {
        let found = broken(history);
        assert!(found.len() == 1 && found[0].contains(says), "{says}: {found:?}");
    }

    #[test]
    fn a_ticket_that_is_void_by_its_owner_s_next_is_right() {
        let history = [
            join("7", 1),
            round("7", 1, 2),
            alive("7", "", 3),
            join("9", 4),
            alive("7", "replaced", 5),
            alive("9", "", 5),
            round("9", 2, 6),
        ];
        assert_eq!(broken(&history), Vec::<String>::new());
    }

    #[test]
    fn a_ticket_in_two_rounds_and_a_member_that_never_joined_are_found() {
        let twice = broken(&[join("7", 1), round("7", 1, 2), round("7", 2, 3)]);
        assert!(twice[0].contains("is of the rounds {1, 2}"), "{twice:?}");
        assert!(twice[1].contains("a is in 2 rounds of meet, and asked 1 times"), "{twice:?}");
        wrong(&[round("7", 1, 2), join("7", 3)], "asked 0 times");
    }

    #[test]
    fn a_ticket_that_stays_valid_despite_a_later_one_is_found() {
        wrong(&[join("7", 1), join("9", 2), alive("7", "", 3)], "after ticket 9 was given");
        let at_once = [join("7", 1), join("9", 2), alive("7", "", 2)];
        assert_eq!(broken(&at_once), Vec::<String>::new(), "asked before the answer");
    }

    #[test]
    fn a_void_ticket_without_a_reason_is_a_violation() {
        let lives = |until| (2..until).map(|s| alive("7", "", s)).collect::<Vec<_>>();
        let history = |last: Operation| {
            let mut all = vec![join("7", 1)];
            all.extend(lives(9));
            all.push(last);
            all
        };
        wrong(&history(alive("7", "lost", 9)), "is gone as lost");
        wrong(&history(alive("7", "left", 9)), "is gone as left");
        wrong(&history(alive("7", "replaced", 9)), "is gone as replaced");
        let silent = history(alive("7", "lost", 12));
        assert_eq!(broken(&silent), Vec::<String>::new());
        let mut left = history(alive("7", "left", 9));
        left.insert(3, answered_op("leave", words(&["a", "7"]), Value::Nil, 3));
        assert_eq!(broken(&left), Vec::<String>::new());
    }
}
