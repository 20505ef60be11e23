//! Histories of each workload: correct ones pass, and each kind of wrong answer is reported.

use super::*;
use crate::formats::ReportedPosition;
use crate::history::LogPosition;
use crate::value::Value;

/// One operation after another.
#[derive(Default)]
struct HistoryBuilder(Vec<Operation>);

impl HistoryBuilder {
    fn add(mut self, f: &str, key: &str, input: Value, answer: Value) -> Self {
        let line = self.0.len() as u64 + 1;
        let (called_at, at) = (10 * line, 10 * line + 5);
        let outcome = Outcome::Answered { value: answer, at, line, position: None };
        let (f, key) = (f.into(), Some(key.into()));
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

    fn violations(&self) -> Vec<String> {
        self.violations_of("store")
    }

    fn violations_of(&self, workload: &str) -> Vec<String> {
        judged(workload, &self.0).unwrap().violations
    }

    fn last(&mut self) -> &mut Operation {
        self.0.last_mut().unwrap()
    }

    /// The last one was called before all others.
    fn early(mut self) -> Self {
        self.last().called_at = 0;
        self
    }

    fn positioned(mut self, at: LogPosition, repeated: bool) -> Self {
        if let Outcome::Answered { position, .. } = &mut self.last().outcome {
            *position = Some(ReportedPosition { at, epoch: Some(1), repeated });
        }
        self
    }

    /// The last one is an operation at this index.
    fn at(self, index: u64) -> Self {
        self.positioned(LogPosition { index, position: 0 }, false)
    }

    /// The last one was sent twice, and its answer has this index.
    fn again_at(self, index: u64) -> Self {
        self.positioned(LogPosition { index, position: 0 }, true)
    }

    /// The last one is a read as of this index.
    fn read_at(self, index: u64) -> Self {
        self.positioned(LogPosition::behind(index), false)
    }

    /// The outcome of the last one is unknown.
    fn unknown(mut self) -> Self {
        self.last().outcome = Outcome::Unknown;
        self
    }
}

fn words(words: &[&str]) -> Value {
    Value::List(words.iter().map(|word| Value::text(word)).collect())
}

fn apply(told: HistoryBuilder, act: &[&str], answer: Value) -> HistoryBuilder {
    told.add("apply", "shelf-1", Value::List(vec![words(act)]), Value::List(vec![answer]))
}

/// A read that sees this value of `a`, and this many elements in the queue.
fn look(told: HistoryBuilder, value: Option<&str>, queued: i64) -> HistoryBuilder {
    let (names, value) = match value {
        Some(value) => (words(&["a"]), Value::text(value)),
        None => (words(&[]), Value::Nil),
    };
    let count = Value::Int(i64::from(value != Value::Nil));
    let seen = vec![Value::List(vec![value]), count, Value::Int(queued), names];
    told.add("look", "shelf-1", words(&["q", "a"]), Value::List(seen))
}

fn wrong(told: &HistoryBuilder, key: &str) {
    let found = told.violations();
    let says = format!("no order of its operations explains item {key}");
    assert!(found.len() == 1 && found[0].starts_with(&says), "{found:?}");
}

#[test]
fn keys_and_whole_stores_are_judged_in_one_history() {
    let keys = || HistoryBuilder::default().add("set", "a", Value::text("1"), Value::Nil);
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
fn the_answer_of_a_wait_is_judged_whether_it_woke_or_timed_out() {
    let waits =
        |told: HistoryBuilder, f: &str, input, found| told.add(f, "a", input, Value::Bool(found));
    let one = || HistoryBuilder::default().add("set", "a", Value::text("1"), Value::Nil);
    assert!(waits(one(), "wait", Value::Nil, true).violations().is_empty());
    wrong(&waits(one(), "wait", Value::Nil, false), "a");
    wrong(&waits(HistoryBuilder::default(), "wait", Value::Nil, true), "a");
    assert!(waits(one(), "reach", Value::Int(2), false).violations().is_empty());
    wrong(&waits(one(), "reach", Value::Int(2), true), "a");
    let deleted = || one().add("delete", "a", Value::Nil, Value::Int(1));
    assert!(waits(deleted(), "wait", Value::Nil, false).violations().is_empty());
    wrong(&waits(deleted(), "wait", Value::Nil, true), "a");
}

#[test]
fn an_element_that_is_given_twice_or_lost_is_found() {
    let pushed = || apply(HistoryBuilder::default(), &["push", "q", "x"], Value::Int(1));
    let popped = |told| apply(told, &["pop", "q"], Value::text("x"));
    assert!(look(popped(pushed()), None, 0).violations().is_empty());
    wrong(&popped(popped(pushed())), "shelf-1");
    wrong(&apply(pushed(), &["pop", "q"], Value::Nil), "shelf-1");
    wrong(&look(pushed(), None, 0), "shelf-1");
}

fn one_wrong(workload: &str, told: &HistoryBuilder, says: &str) {
    let found = told.violations_of(workload);
    assert!(found.len() == 1 && found[0].contains(says), "{found:?} without {says:?}");
}

fn set(told: HistoryBuilder, value: &str) -> HistoryBuilder {
    told.add("set", "a", Value::text(value), Value::Nil)
}

fn get(told: HistoryBuilder, seen: &str) -> HistoryBuilder {
    told.add("get", "a", Value::Nil, Value::text(seen))
}

#[test]
fn a_key_of_a_store_is_replayed_by_positions() {
    let two = || set(set(HistoryBuilder::default(), "1").at(5), "2").at(6).early();
    assert_eq!(get(two(), "2").read_at(6).violations(), Vec::<String>::new());
    // The two overlap, so that an order by time alone explains it.
    assert_eq!(get(two(), "1").violations(), Vec::<String>::new());
    one_wrong("store", &get(two(), "1").read_at(6), "but there it was \"2\"");
    assert_eq!(get(two(), "1").read_at(5).early().violations(), Vec::<String>::new());
    let waits =
        |told: HistoryBuilder, found| told.add("wait", "a", Value::Nil, Value::Bool(found)).early();
    assert!(waits(two(), false).read_at(4).violations().is_empty(), "it looked before");
    one_wrong("store", &waits(two(), false).read_at(5), "but there it was");
    let found = judged("store", &get(two(), "2").read_at(6).0).unwrap();
    assert_eq!((found.replayed, found.ordered), (3, 3));
}

#[test]
fn a_whole_store_is_replayed_by_positions() {
    let push = |told, value, length| apply(told, &["push", "q", value], Value::Int(length));
    let right = push(push(HistoryBuilder::default(), "x", 1).at(5), "y", 2).at(6).early();
    assert_eq!(right.violations(), Vec::<String>::new());
    let swapped = push(push(HistoryBuilder::default(), "x", 1).at(6), "y", 2).at(5).early();
    one_wrong("store", &swapped, "but there it was");
}

#[test]
fn reads_of_a_run_are_replayed_by_position() {
    let put = |told: HistoryBuilder, why: &str| {
        told.add("put", "register-1", Value::text(why), Value::Nil)
    };
    let seen = |told: HistoryBuilder, why: &str| {
        told.add("get", "register-1", Value::Nil, Value::text(why)).early()
    };
    let two = || put(put(HistoryBuilder::default(), "s1-1").at(5), "s2-1").at(6).early();
    assert!(seen(two(), "s2-1").read_at(6).violations_of("session").is_empty());
    assert!(seen(two(), "s1-1").read_at(5).violations_of("session").is_empty());
    assert!(seen(two(), "").read_at(4).violations_of("session").is_empty());
    one_wrong("session", &seen(two(), "s1-1").read_at(6), "but there it was \"s2-1\"");
    one_wrong("session", &seen(two(), "").read_at(5), "but there it was \"s1-1\"");
}

#[test]
fn a_repeated_or_unanswered_request_may_take_effect_before_its_position() {
    // Its first copy took effect: a read as of an earlier index than its answer saw it.
    let twice = || set(HistoryBuilder::default(), "1").again_at(9);
    assert!(get(twice(), "1").read_at(7).early().violations().is_empty());
    one_wrong(
        "store",
        &get(set(HistoryBuilder::default(), "1").at(9), "1").read_at(7).early(),
        "there it was",
    );
    // By its position it has happened.
    let after = get(set(twice(), "2").at(12), "1").read_at(12);
    one_wrong("store", &after.early(), "there it was \"2\"");
    let lost = || set(set(HistoryBuilder::default(), "1").at(5), "2").unknown();
    assert!(get(lost(), "2").read_at(8).violations().is_empty());
    assert!(get(lost(), "1").read_at(8).violations().is_empty());
    one_wrong("store", &get(get(lost(), "2").read_at(8), "1").read_at(9).early(), "there it was");
}

#[test]
fn answers_without_positions_are_a_doubt_where_all_have_to_have_them() {
    let nowhere = |workload, told: &HistoryBuilder| {
        let doubts = judged(workload, &told.0).unwrap().doubts;
        doubts.into_iter().any(|doubt| doubt == "answers that name no place in the log: 1")
    };
    assert!(nowhere("store", &get(set(HistoryBuilder::default(), "1").at(5), "1")));
    assert!(!nowhere("store", &get(set(HistoryBuilder::default(), "1").at(5), "1").read_at(5)));
    let put =
        || HistoryBuilder::default().add("put", "register-1", Value::text("s1-1"), Value::Nil);
    assert!(nowhere("session", &put()));
    assert!(!nowhere("session", &put().at(4)));
}

#[test]
fn answers_of_every_workload_keep_the_order_of_time_and_of_epochs() {
    let join =
        |told: HistoryBuilder, by: &str| told.add("join", "x", Value::text(by), Value::Bool(false));
    for workload in ["run", "rendezvous", "barrier", "shards"] {
        let two = || join(join(HistoryBuilder::default(), "a").at(9), "b");
        assert_eq!(two().at(10).violations_of(workload), Vec::<String>::new(), "{workload}");
        assert!(two().at(7).early().violations_of(workload).is_empty(), "{workload}: they overlap");
        one_wrong(workload, &two().at(7), "when it was called, 9.0 was answered");
        one_wrong(workload, &two().read_at(8), "when it was called, 9.0 was answered");
        assert!(two().read_at(9).violations_of(workload).is_empty(), "{workload}");
        let mut fallen = two().at(10);
        if let Outcome::Answered { position: Some(position), .. } = &mut fallen.last().outcome {
            position.epoch = Some(0);
        }
        one_wrong(workload, &fallen, "index 10 is of epoch 0");
        assert_eq!(judged(workload, &fallen.0).unwrap().ordered, 2);
    }
}

fn doubts(workload: &str, told: &HistoryBuilder) -> Vec<String> {
    judged(workload, &told.0).unwrap().doubts
}

#[test]
fn an_answer_without_a_position_is_a_doubt_in_every_workload_but_where_it_cannot_have_one() {
    let says = "answers that name no place in the log: 1";
    let doubted =
        |workload: &str, told: &HistoryBuilder| doubts(workload, told).iter().any(|d| d == says);
    let one = |f: &str, answer: Value| HistoryBuilder::default().add(f, "1/0", Value::Nil, answer);
    let text = Value::text;
    for (workload, f, answer) in [
        ("item", "read", Value::Nil),
        ("steal", "read", Value::Nil),
        ("session", "create", Value::Bool(true)),
        ("store", "get", Value::Nil),
        ("rendezvous", "leave", Value::Nil),
        ("rendezvous", "join", text("7")),
        ("barrier", "pass", text("pending")),
        ("shards", "alive", Value::Bool(true)),
        ("run", "delete", Value::Nil),
        ("run", "described", text("RUN_STATE_DELETING")),
    ] {
        assert!(doubted(workload, &one(f, answer.clone())), "{workload} {f}");
        assert!(!doubted(workload, &one(f, answer).read_at(9)), "{workload} {f} with a place");
    }
    for (workload, f, answer) in [
        ("rendezvous", "join", Value::Bool(false)),
        ("run", "delete", text("none")),
        ("run", "described", text("none")),
        ("run", "submit", Value::Nil),
    ] {
        assert!(!doubted(workload, &one(f, answer)), "{workload} {f}");
    }
}

#[test]
fn a_write_without_a_request_id_is_a_doubt() {
    let says = "writes without a request id: 1";
    let doubted = |told: &HistoryBuilder| doubts("store", told).iter().any(|doubt| doubt == says);
    assert!(doubted(&set(HistoryBuilder::default(), "1")));
    let mut named = set(HistoryBuilder::default(), "1");
    named.last().request = Some("4/1".into());
    assert!(!doubted(&named));
    assert!(!doubted(&get(named, "1")), "a read is no request of a session");
}

#[test]
fn the_creation_of_a_run_is_judged_without_rows() {
    let told = |made: bool| {
        let answer = vec![Value::Int(1), Value::Bool(made), Value::text("folder")];
        HistoryBuilder::default().add("create", "run:s1-1", Value::Nil, Value::List(answer)).at(5)
    };
    for workload in ["item", "steal"] {
        assert_eq!(told(true).violations_of(workload), Vec::<String>::new());
        one_wrong(workload, &told(false), "which no request created");
    }
}
