//! Short histories of trainers, correct and wrong.

use super::*;

fn list(values: Vec<Value>) -> Value {
    Value::List(values)
}

fn answered_op(
    f: &str,
    key: &str,
    input: Vec<Value>,
    answer: Option<Value>,
    called_at: u64,
) -> Operation {
    let outcome = match answer {
        Some(value) => Outcome::Answered { value, at: called_at + 1, line: 0, position: None },
        None => Outcome::Unknown,
    };
    let (input, key) = (list(input), Some(key.into()));
    Operation { process: 0, request: None, f: f.into(), key, input, called_at, line: 0, outcome }
}

fn recover(round: i64, generation: i64, base: Option<(i64, i64, i64)>, at: u64) -> Operation {
    let step = base.map_or(0, |base| base.1);
    let base = base.map_or(Value::Nil, |(number, step, generation)| {
        let ranks = list(vec![Value::text("a"), Value::text("b")]);
        list(vec![Value::Int(number), Value::Int(step), Value::Int(generation), ranks])
    });
    let answer = list(vec![Value::text("7"), Value::Int(generation), Value::Int(step), base]);
    answered_op("recover", "train", vec![Value::text("a"), Value::Int(round)], Some(answer), at)
}

fn claim(who: &str, generation: i64, key: &str, token: i64, from: i64, at: u64) -> Operation {
    let answer = list(vec![Value::Int(token), Value::Int(from)]);
    answered_op("claim", key, vec![Value::text(who), Value::Int(generation)], Some(answer), at)
}

fn end(f: &str, generation: i64, token: i64, step: i64, read: Option<i64>, at: u64) -> Operation {
    let mut input =
        vec![Value::text("a"), Value::Int(generation), Value::Int(token), Value::Int(step)];
    input.extend(read.map(Value::Int));
    answered_op(f, "0/0", input, Some(Value::text("in")), at)
}

fn report(who: &str, number: i64, step: i64, held: &[(i64, i64)], at: u64) -> Operation {
    let held = held
        .iter()
        .map(|&(shard, read)| list(vec![Value::Int(0), Value::Int(shard), Value::Int(read)]));
    let input = vec![Value::text(who), Value::Int(1), Value::Int(step), list(held.collect())];
    let state = if who == "b" { "complete" } else { "open" };
    answered_op("report", &format!("checkpoint-{number}"), input, Some(Value::text(state)), at)
}

/// Two samples of shard 0 are given back, two more are read when a checkpoint comes, and the rest is lost with the
/// generation; the next generation begins after those four.
fn story() -> Vec<Operation> {
    vec![
        recover(1, 1, None, 10),
        claim("a", 1, "0/0", 100, 0, 20),
        end("release", 1, 100, 3, Some(2), 30),
        claim("b", 1, "0/0", 200, 2, 40),
        report("a", 1, 8, &[], 50),
        report("b", 1, 8, &[(0, 4)], 52),
        end("finish", 1, 200, 9, None, 60),
        recover(2, 2, Some((1, 8, 1)), 70),
        claim("a", 2, "0/0", 300, 4, 80),
        end("finish", 2, 300, 10, None, 90),
    ]
}

fn alarms(story: &[Operation]) -> Vec<String> {
    judged(story).violations
}

#[test]
fn a_story_in_which_every_sample_is_in_once_is_right() {
    assert_eq!(alarms(&story()), Vec::<String>::new());
    assert_eq!(judged(&story()).claims, 3);
}

#[test]
fn a_shard_that_two_have_is_found() {
    let mut twice = story();
    twice.insert(2, claim("b", 1, "0/0", 150, 0, 25));
    let found = alarms(&twice);
    assert!(found.iter().any(|f| f.contains("while a had it")), "{found:?}");
}

#[test]
fn samples_that_are_in_twice_or_never_are_found() {
    for from in [0, 2, 6] {
        let mut wrong = story();
        wrong[8] = claim("a", 2, "0/0", 300, from, 80);
        let found = alarms(&wrong);
        assert!(found.iter().any(|f| f.contains("which has {4} of it")), "{from}: {found:?}");
    }
    // If it is unknown whether a report arrived, both outcomes are right.
    let mut unknown = story();
    unknown[2].outcome = Outcome::Unknown;
    assert_eq!(alarms(&unknown), Vec::<String>::new());
}

#[test]
fn an_epoch_that_is_not_finished_and_a_checkpoint_that_is_forgotten_are_found() {
    let over = answered_op(
        "over",
        "0",
        vec![Value::text("a"), Value::Int(2)],
        Some(Value::Bool(true)),
        95,
    );
    let mut early = story();
    early.push(over);
    let found = alarms(&early);
    assert!(found.iter().any(|f| f.contains("shard 1 is not")), "{found:?}");
    assert!(!found.iter().any(|f| f.contains("shard 0 is not")), "{found:?}");
    let mut forgotten = story();
    forgotten[7] = recover(2, 2, None, 70);
    let found = alarms(&forgotten);
    assert!(found.iter().any(|f| f.contains("though checkpoint 1 of step 8")), "{found:?}");
    let mut without = story();
    without.remove(4);
    let found = alarms(&without);
    assert!(found.iter().any(|f| f.contains("which a never reported")), "{found:?}");
}

#[test]
fn a_trainer_accepted_in_an_old_lineage_is_a_violation() {
    let mut late = story();
    late.push(end("finish", 1, 200, 11, None, 99));
    let found = alarms(&late);
    assert!(found.iter().any(|f| f.contains("was heard after lineage 2")), "{found:?}");
}
