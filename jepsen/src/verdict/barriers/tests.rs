//! Short histories of a barrier of three, correct and wrong.

use super::*;

const MS: u64 = 1_000_000;
const ALL: [&str; 3] = ["hard-a", "hard-b", "hard-c"];

fn list(names: &[&str]) -> Value {
    Value::List(names.iter().map(|name| Value::text(name)).collect())
}

/// Delay after the first of them comes.
const LATER_MS: u64 = 4000;

fn operation(f: &str, who: &str, told: Option<Value>, ms: u64) -> Operation {
    let early = if let "alive" | "come" = f { 0 } else { LATER_MS };
    let called_at = (ms + early) * MS;
    let outcome = told.map_or(Outcome::Unknown, |value| Outcome::Answered {
        value,
        at: called_at + MS,
        line: 0,
        position: None,
    });
    let key = if let "alive" | "come" = f { "hard" } else { "hard/1" };
    let (f, key, input) = (f.into(), Some(key.into()), Value::text(who));
    Operation { process: 0, request: None, f, key, input, called_at, line: 0, outcome }
}

fn arrive(who: &str, ms: u64) -> Operation {
    operation("arrive", who, Some(Value::Nil), ms)
}

fn waits(who: &str, ms: u64) -> Operation {
    operation("pass", who, Some(Value::text("pending")), ms)
}

fn pass(who: &str, members: &[&str], without: &[&str], ms: u64) -> Operation {
    let told = Value::List(vec![Value::text("open"), list(members), list(without)]);
    operation("pass", who, Some(told), ms)
}

fn fail(why: &str, who: &str, host: &str, missing: &[&str], ms: u64) -> Operation {
    let mut told: Vec<Value> =
        ["failed", why, who, host].iter().map(|word| Value::text(word)).collect();
    told.extend([list(missing), Value::text("77")]);
    operation("pass", "hard-a", Some(Value::List(told)), ms)
}

/// Two of three arrive, and one of them is answered that it waits.
fn story() -> Vec<Operation> {
    vec![arrive("hard-a", 100), arrive("hard-b", 110), waits("hard-a", 120)]
}

fn alarms(story: &[Operation]) -> Vec<String> {
    broken(story).0
}

fn assert_found(story: &[Operation], says: &str) {
    let found = alarms(story);
    assert!(found.iter().any(|alarm| alarm.contains(says)), "{says}: {found:?}");
}

/// The same of a barrier of another name.
fn of(barrier: &str, story: Vec<Operation>) -> Vec<Operation> {
    let rename = |mut operation: Operation| {
        let key = operation.key.as_deref().unwrap_or_default().replace("hard", barrier);
        operation.key = Some(key.into());
        operation
    };
    story.into_iter().map(rename).collect()
}

#[test]
fn passing_after_all_have_asked_is_correct() {
    let mut right = story();
    right.push(arrive("hard-c", 130));
    right.extend(ALL.map(|who| pass(who, &ALL, &[], 140)));
    assert_eq!(broken(&right), (Vec::new(), 1));
}

#[test]
fn an_early_passage_one_too_few_and_two_stories_are_found() {
    for (wrong, says) in [
        (pass("hard-a", &ALL, &[], 125), "before hard-c had arrived"),
        (pass("hard-a", &ALL[..2], &[], 150), "with 2 of 3"),
        (pass("hard-a", &["hard-a", "hard-a", "hard-c"], &[], 150), "with 3 of 3"),
        (pass("hard-a", &ALL[..2], &ALL[2..], 150), "may not shrink"),
        (pass("hard-a", &["hard-a", "hard-c", "hard-x"], &[], 150), "without hard-b, who had"),
    ] {
        let mut story = story();
        story.extend([arrive("hard-c", 130), wrong, pass("hard-b", &ALL, &[], 150)]);
        assert_found(&story, says);
    }
    let mut two = story();
    two.push(arrive("hard-c", 130));
    two.extend([pass("hard-a", &ALL[..2], &[], 150), pass("hard-b", &ALL, &[], 150)]);
    assert_found(&two, "and others");
}

#[test]
fn a_generation_that_waits_again_after_its_end_is_found() {
    let mut again = story();
    again.extend([arrive("hard-c", 130), pass("hard-b", &ALL, &[], 140), waits("hard-c", 150)]);
    assert_found(&again, "waited again");
}

#[test]
fn a_barrier_that_counts_does_not_open_for_a_participant_counted_twice() {
    let twice = |members: &[&str]| {
        let mut story = story();
        story.push(pass("hard-a", members, &[], 150));
        of("any", story)
    };
    assert_found(&twice(&ALL[..2]), "with 2 of 3");
    assert_found(&twice(&["hard-a", "hard-b", "hard-b"]), "with 3 of 3");
}

#[test]
fn a_failure_names_the_lost_participant_and_its_host() {
    let lost = |host, missing: &[&str]| {
        let mut story = story();
        story.push(fail("lost", "hard-c", host, missing, 1900));
        story
    };
    assert_eq!(alarms(&lost("host-of-hard-c", &["hard-c"])), Vec::<String>::new());
    assert_found(&lost("host-of-hard-b", &["hard-c"]), "said to be on host-of-hard-b");
    assert_found(&lost("host-of-hard-c", &["hard-b", "hard-c"]), "without hard-b, who had arrived");
    let mut other = story();
    other.push(fail("left", "hard-c", "host-of-hard-c", &["hard-c"], 1900));
    assert_found(&other, "failed as left, which nobody did");
    let mut stranger = story();
    stranger.push(fail("lost", "soft-c", "host-of-soft-c", &["hard-c"], 1900));
    assert_found(&stranger, "did not wait for soft-c");
    // A participant that came after it had failed did not count.
    let mut late = story();
    late.remove(2);
    late.push(fail("lost", "hard-c", "host-of-hard-c", &["hard-b", "hard-c"], 1900));
    assert_eq!(alarms(&late), Vec::<String>::new());
}

#[test]
fn a_participant_that_is_never_silent_is_not_lost() {
    let alive = |ms| operation("alive", "hard-c", Some(Value::text("")), ms);
    let lives = |pauses: std::ops::Range<u64>| {
        let mut story = story();
        story.push(operation("come", "hard-c", Some(Value::text("9")), 50));
        story.extend(
            (100..2400 + LATER_MS).step_by(400).filter(|ms| !pauses.contains(ms)).map(alive),
        );
        story
    };
    let lost = || fail("lost", "hard-c", "host-of-hard-c", &["hard-c"], 2500);
    let with = |mut story: Vec<Operation>| {
        story.push(lost());
        story
    };
    assert_found(&with(lives(0..0)), "heard all the time");
    assert_eq!(alarms(&with(lives(4500..6400))), Vec::<String>::new(), "it was silent");
    let mut shrunk = lives(0..0);
    shrunk.push(pass("hard-a", &ALL[..2], &ALL[2..], 2500));
    assert_found(&of("soft", shrunk.clone()), "did not wait for hard-c");
    assert_found(&shrunk, "heard all the time");
}

#[test]
fn a_time_out_that_comes_early_is_found() {
    let timed_out = |ms| {
        let mut story = story();
        story.push(fail("timed_out", "", "", &["hard-c"], ms));
        story
    };
    assert_found(&timed_out(9000), "too early");
    assert_eq!(alarms(&timed_out(15_200)), Vec::<String>::new());
    let mut forgot = timed_out(15_200);
    forgot[3] = fail("timed_out", "", "", &["hard-b", "hard-c"], 15_200);
    assert_found(&forgot, "without hard-b, who had arrived");
}

#[test]
fn an_arrival_counts_until_its_participant_comes_again() {
    let comes = |who, told| operation("come", who, told, 115 + LATER_MS);
    let (came, unknown) = (|| Some(Value::text("9")), || None);
    let passes = |again: bool| {
        let mut story = vec![arrive("hard-a", 100), arrive("hard-b", 110), arrive("hard-c", 112)];
        story.extend([comes("hard-c", came()), waits("hard-a", 120)]);
        story.extend(again.then(|| arrive("hard-c", 130)));
        story.push(pass("hard-a", &ALL, &[], 150));
        story
    };
    assert_found(&passes(false), "by an arrival of hard-c before it came anew");
    assert_eq!(alarms(&passes(true)), Vec::<String>::new());
    // The participant may have come after the generation had opened.
    let mut late = passes(false);
    late.remove(4);
    assert_eq!(alarms(&late), Vec::<String>::new());
    // If a new process may have come, its arrival is not certain.
    for told in [came(), unknown()] {
        let mut story = story();
        story.push(comes("hard-b", told));
        story.push(fail("timed_out", "", "", &["hard-b", "hard-c"], 15_200));
        assert_eq!(alarms(&story), Vec::<String>::new());
    }
}
