//! Short histories of a job that continues, correct and wrong.

use super::*;

const S: u64 = 1_000_000_000;

fn answered_op(f: &str, key: &str, input: Vec<Value>, answer: Option<Value>, s: u64) -> Operation {
    let outcome = answer.map_or(Outcome::Unknown, |value| Outcome::Answered {
        value,
        at: s * S + S / 10,
        line: 0,
        position: None,
    });
    let (f, key) = (f.into(), Some(format!("on/{key}").into()));
    Operation {
        process: 0,
        request: None,
        f,
        key,
        input: Value::List(input),
        called_at: s * S,
        line: 0,
        outcome,
    }
}

fn claim(who: &str, token: i64, from: i64, s: u64) -> Operation {
    let answer = Value::List(vec![Value::Int(token), Value::Int(from)]);
    answered_op("claim", "0/0", vec![Value::text(who), Value::Int(1)], Some(answer), s)
}

fn end(f: &str, who: &str, token: i64, read: Option<i64>, s: u64) -> Operation {
    let mut input = vec![Value::text(who), Value::Int(1), Value::Int(token), Value::Int(9)];
    input.extend(read.map(Value::Int));
    answered_op(f, "0/0", input, Some(Value::text("in")), s)
}

fn report(who: &str, read: i64, s: u64) -> Operation {
    let held = Value::List(vec![Value::Int(0), Value::Int(0), Value::Int(read)]);
    let input = vec![Value::text(who), Value::Int(1), Value::Int(24), Value::List(vec![held])];
    answered_op("report", "checkpoint-1", input, Some(Value::text("open")), s)
}

fn lives(who: &str, seconds: std::ops::Range<u64>) -> Vec<Operation> {
    let sign =
        |s| answered_op("alive", "onward", vec![Value::text(who)], Some(Value::Bool(true)), s);
    seconds.map(sign).collect()
}

/// Two samples are given back, one more is reported, and its reader is lost; the next reader begins at the last known
/// position, and reads to the end.
fn story() -> Vec<Operation> {
    vec![
        claim("a", 100, 0, 1),
        end("release", "a", 100, Some(2), 2),
        claim("b", 200, 2, 3),
        report("b", 3, 4),
        claim("a", 300, 3, 9),
        end("finish", "a", 300, None, 10),
    ]
}

fn alarms(story: &[Operation]) -> Vec<String> {
    judged(story).violations
}

fn wrong(story: &[Operation], says: &str) {
    let found = alarms(story);
    assert!(found.iter().any(|alarm| alarm.contains(says)), "{says}: {found:?}");
}

#[test]
fn a_shard_that_is_given_on_after_a_loss_is_right() {
    assert_eq!(alarms(&story()), Vec::<String>::new());
    let told = judged(&story());
    let counts: Vec<usize> = told.counts.iter().map(|count| count.1).collect();
    assert_eq!(counts, [3, 0, 1]);
    // Beginning where the lost reader began is right too: its checkpoint may have been given up.
    let mut again = story();
    again[4] = claim("a", 300, 2, 9);
    assert_eq!(alarms(&again), Vec::<String>::new());
}

#[test]
fn unread_and_returned_samples_are_violations() {
    for from in [0, 1, 4] {
        let mut wrong_from = story();
        wrong_from[4] = claim("a", 300, from, 9);
        wrong(&wrong_from, "and {2, 3} of it is in");
    }
    let mut repeated = story();
    repeated[2] = claim("b", 200, 0, 3);
    wrong(&repeated, "and {2} of it is in");
}

#[test]
fn a_former_holder_that_is_accepted_is_a_violation() {
    let mut late = story();
    late.push(end("finish", "b", 200, None, 12));
    wrong(&late, "b was heard of shard 0/0 after it was given to a");
    let mut one_claim = story();
    one_claim.insert(3, claim("c", 200, 2, 4));
    wrong(&one_claim, "have one claim");
}

#[test]
fn a_shard_of_a_live_trainer_is_not_given_to_another() {
    let with = |signs: Vec<Operation>| {
        let mut story = story();
        // Enough time before it, so that no earlier silence counts.
        story.iter_mut().for_each(|operation| {
            operation.called_at += 10 * S;
            if let Outcome::Answered { at, .. } = &mut operation.outcome {
                *at += 10 * S;
            }
        });
        story.extend(signs);
        story
    };
    wrong(&with(lives("b", 5..20)), "who was heard all the time");
    let silent = [lives("b", 5..15), lives("b", 18..20)].concat();
    assert_eq!(alarms(&with(silent)), Vec::<String>::new());
    let mut another = lives("b", 5..20);
    another.push(answered_op("join", "onward", vec![Value::text("b")], Some(Value::Nil), 16));
    assert_eq!(alarms(&with(another)), Vec::<String>::new(), "another process has its name");
}

#[test]
fn an_epoch_that_is_not_read_to_its_end_is_found() {
    let mut early = story();
    early.push(answered_op("over", "0", vec![Value::text("a")], Some(Value::Bool(true)), 12));
    wrong(&early, "epoch 0 is finished, but shard 1 is not");
    assert!(!alarms(&early).iter().any(|alarm| alarm.contains("shard 0 is not")));
}
