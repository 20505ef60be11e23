//! Forged histories: the replay finds each kind of wrong answer, and accepts the correct histories.

mod random;

use super::*;
use crate::formats::ReportedPosition;
use crate::models::Item;
use crate::value::Value;

/// A row's history; calls and answers are one tick apart unless set otherwise.
#[derive(Default)]
struct Forged(Vec<Operation>);

impl Forged {
    fn add(mut self, f: &str, input: Value, answer: Option<(Value, u64, bool)>) -> Self {
        let line = self.0.len() as u64 + 1;
        let called_at = 10 * line;
        let outcome = match answer {
            None => Outcome::Unknown,
            Some((value, index, repeated)) => {
                let at = match f {
                    "read" => LogPosition::behind(index),
                    _ => LogPosition { index, position: 0 },
                };
                let position = Some(ReportedPosition { at, epoch: Some(1), repeated });
                Outcome::Answered { value, at: called_at + 5, line, position }
            }
        };
        let (f, key) = (f.into(), Some("1/0".into()));
        self.0.push(Operation {
            process: 0,
            request: None,
            f,
            key,
            input,
            called_at,
            line,
            outcome,
        });
        self
    }

    fn claim(self, index: u64, attempt: i64) -> Self {
        self.add("claim", Value::Nil, Some((Value::Int(attempt), index, false)))
    }

    fn complete(self, index: u64, attempt: i64, part: &str, taken: bool) -> Self {
        let input = Value::List(vec![Value::Int(attempt), Value::text(part)]);
        self.add("complete", input, Some((Value::Bool(taken), index, false)))
    }

    fn read(self, index: u64, seen: Value) -> Self {
        self.add("read", Value::Nil, Some((seen, index, false)))
    }

    /// The last operation was called at the very start.
    fn called_early(mut self) -> Self {
        self.last().called_at = 0;
        self
    }

    fn last(&mut self) -> &mut Operation {
        self.0.last_mut().unwrap()
    }

    fn position(&mut self) -> &mut ReportedPosition {
        match &mut self.last().outcome {
            Outcome::Answered { position: Some(position), .. } => position,
            _ => panic!("no place"),
        }
    }

    fn violations(&self) -> Vec<String> {
        let (mut found, _) = out_of_order(&self.0);
        found.extend(replay(&Item, &self.0).unwrap().violations);
        found
    }

    fn is_right(&self) {
        assert_eq!(self.violations(), Vec::<String>::new());
    }

    fn is_wrong(&self, with: &str) {
        let found = self.violations();
        assert!(found.len() == 1 && found[0].contains(with), "{found:?} without {with:?}");
    }
}

fn start() -> Forged {
    Forged::default().claim(5, 50)
}

#[test]
fn a_history_that_the_log_explains_is_accepted() {
    start().complete(6, 50, "p", true).read(6, Value::text("p")).is_right();
    start().claim(7, 70).complete(8, 50, "p", false).complete(9, 70, "q", true).is_right();
    start().read(5, Value::Nil).read(5, Value::Nil).is_right();
}

#[test]
fn a_stale_read_is_seen_though_it_overlaps_the_write() {
    let stale = start().complete(6, 50, "p", true).read(6, Value::Nil).called_early();
    stale.is_wrong("there it was done in part p");
    // As of an earlier index the same answer is right.
    start().complete(6, 50, "p", true).read(5, Value::Nil).called_early().is_right();
}

#[test]
fn a_read_of_an_unwritten_value_is_a_violation() {
    start().complete(6, 50, "p", true).read(7, Value::text("q")).is_wrong("read");
}

#[test]
fn a_second_completion_that_is_accepted_is_seen() {
    start().complete(6, 50, "p", true).claim(7, 70).is_wrong("claim");
    start().claim(7, 70).complete(8, 70, "q", true).complete(9, 50, "p", true).is_wrong("complete");
}

#[test]
fn a_late_result_of_an_attempt_that_was_overtaken_is_seen() {
    start().claim(7, 70).complete(8, 50, "p", true).is_wrong("granted under attempt 70");
}

#[test]
fn a_late_result_of_a_victim_is_seen_though_the_steal_is_one_operation() {
    let stolen = || {
        let gives = Value::List(vec![Value::Int(50)]);
        // The idle worker had pulled before.
        let idle_slot = start().claim(6, 60).called_early();
        idle_slot.add("yield", gives, Some((Value::Bool(true), 6, false))).called_early()
    };
    stolen().complete(7, 50, "p", false).complete(8, 60, "q", true).is_right();
    stolen().complete(7, 50, "p", true).is_wrong("granted under attempt 60");
}

#[test]
fn a_second_completion_by_another_lease_is_found() {
    let lease = |forged: Forged, index| {
        forged.add("lease", Value::Nil, Some((Value::Int(70), index, false)))
    };
    lease(start(), 7).complete(8, 50, "p", true).complete(9, 70, "q", false).is_right();
    lease(start(), 7)
        .complete(8, 50, "p", true)
        .complete(9, 70, "q", true)
        .is_wrong("there it was done");
}

#[test]
fn an_attempt_that_does_not_rise_is_seen() {
    start().claim(7, 40).is_wrong("claim");
}

#[test]
fn an_answer_that_contradicts_the_order_of_time_is_found() {
    start().complete(4, 50, "p", false).is_wrong("when it was called, 5.0 was answered");
    // Two writes of one row at one position.
    let found = start().complete(5, 50, "p", true).violations();
    assert!(found[0].contains("5.0 was answered"), "{found:?}");
}

#[test]
fn a_position_that_two_requests_say_is_their_own_is_seen() {
    let two = |first: &str, second: &str| {
        let mut forged = Forged::default();
        for (process, f) in [(0, first), (1, second)] {
            forged = forged.add(f, Value::Nil, Some((Value::Nil, 9, false)));
            forged.last().called_at = 0;
            forged.last().process = process;
        }
        forged
    };
    let found = |forged: &Forged| out_of_order(&forged.0).0;
    let twice = found(&two("set", "append"));
    assert!(twice.len() == 1 && twice[0].starts_with("two requests stand at 9.0"), "{twice:?}");
    assert_eq!(found(&two("claim", "claim")).len(), 1, "nobody gave anything up");
    assert_eq!(found(&two("yield", "yield")).len(), 1);
    // One operation takes rows from one and gives them to another.
    assert_eq!(found(&two("yield", "claim")), Vec::<String>::new());
    assert_eq!(found(&two("yield", "lease")), Vec::<String>::new());
    // One request may carry several operations.
    let mut one = two("complete", "complete");
    one.0.iter_mut().for_each(|operation| operation.request = Some("4/1".into()));
    assert_eq!(found(&one), Vec::<String>::new());
    one.last().request = Some("4/2".into());
    assert_eq!(found(&one).len(), 1);
    // The position may belong to a copy of the second request.
    let mut copied = two("set", "append");
    copied.position().repeated = true;
    assert_eq!(found(&copied), Vec::<String>::new());
    let reads = two("read", "read");
    assert_eq!(found(&reads), Vec::<String>::new(), "two reads may be as of one index");
}

#[test]
fn an_epoch_that_falls_along_the_log_is_seen() {
    let mut forged = start().read(6, Value::Nil).read(7, Value::Nil);
    forged.position().epoch = Some(0);
    forged.is_wrong("index 7 is of epoch 0");
    let mut forged = start().read(6, Value::Nil).read(6, Value::Nil);
    forged.position().epoch = Some(2);
    forged.is_wrong("index 6 is of epoch 2");
}

#[test]
fn a_request_that_was_sent_twice_took_effect_between_its_call_and_its_answer() {
    let part = Value::List(vec![Value::Int(50), Value::text("p")]);
    let twice = |called_early: bool| {
        let mut forged = start().add("complete", part.clone(), Some((Value::Bool(true), 9, true)));
        forged.last().called_at = if called_early { 16 } else { 27 };
        forged = forged.read(7, Value::text("p")).called_early();
        forged.last().called_at = 17;
        forged
    };
    twice(true).is_right();
    // A read of index 8 was answered before the completion was called.
    let mut late = twice(false);
    late.0[1].outcome = match late.0[1].outcome.clone() {
        Outcome::Answered { value, line, position, .. } => {
            Outcome::Answered { value, line, position, at: 90 }
        }
        other => other,
    };
    late = late.read(8, Value::Nil).called_early();
    (late.last().called_at, late.0[1].called_at) = (18, 60);
    assert!(!late.violations().is_empty());
}

#[test]
fn an_operation_without_an_answer_may_have_happened_or_not() {
    let part = Value::List(vec![Value::Int(50), Value::text("p")]);
    let unknown = || start().add("complete", part.clone(), None);
    unknown().read(9, Value::text("p")).is_right();
    unknown().read(9, Value::Nil).is_right();
    unknown().read(9, Value::text("p")).read(10, Value::Nil).is_wrong("done in part");
    unknown().read(9, Value::text("q")).is_wrong("read");
}

#[test]
fn an_answer_without_a_position_is_not_counted_as_replayed() {
    let mut forged = start();
    assert_eq!(replay(&Item, &forged.0).unwrap().positioned, 1);
    if let Outcome::Answered { position, .. } = &mut forged.last().outcome {
        *position = None;
    }
    assert_eq!(replay(&Item, &forged.0).unwrap().positioned, 0);
}
