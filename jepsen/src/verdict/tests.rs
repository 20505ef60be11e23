//! Tests of the verdict on hand-made records.

use super::*;
use crate::expected_outcome::ExpectedOutcome;
use crate::operations::Outcome;
use crate::value::Value;

fn seen(what: EventKind) -> Event {
    Event { time_ns: 1, what }
}

fn heard(leader: &str, epoch: u64) -> Event {
    let (observer, leader) = ("w1".to_owned(), leader.to_owned());
    seen(EventKind::Heard { observer, leader, epoch })
}

fn digest(member: &str, state: &str) -> Event {
    let (member, chain) = (member.to_owned(), "c".to_owned());
    let (state, image) = (state.to_owned(), state.to_owned());
    seen(EventKind::Digest { member, index: 9, chain, state, image, error: String::new() })
}

#[test]
fn a_run_in_which_nothing_happened_is_no_pass() {
    let run = Recorded { operations: Vec::new(), events: Vec::new() };
    let judged = judged(&run).unwrap();
    assert_eq!((judged.verdict, judged.verdict.status()), (Verdict::Unknown, 2));
}

#[test]
fn each_rule_is_broken_by_its_evidence() {
    let back = vec![heard("c1", 4), heard("c1", 3)];
    let two = vec![heard("c1", 4), heard("c2", 4)];
    let apart = vec![digest("c1", "a"), digest("c2", "b")];
    let stuck = vec![seen(EventKind::Recovered { after_ms: None })];
    let observer = || "w1".to_owned();
    let opened = |session| seen(EventKind::Opened { observer: observer(), session });
    let falling = vec![opened(8), opened(7)];
    let twice = vec![opened(8), opened(8)];
    let how = "it was resumed".to_owned();
    let revived = vec![seen(EventKind::Revived { observer: observer(), session: 8, how })];
    let stale = |taken_by| {
        let what = "heartbeat".to_owned();
        seen(EventKind::Stale { observer: observer(), what, claimed: 3, taken_by })
    };
    let taken = vec![stale(Some(4))];
    let again = |same| {
        let (what, request_id) = ("create run".to_owned(), "1/2".to_owned());
        seen(EventKind::Repeated { what, request_id, same, detail: "run 1, then run 2".into() })
    };
    let other = vec![again(false)];
    let (f, key) = ("get".to_owned(), "a".to_owned());
    let fell = vec![seen(EventKind::EpochBehind { f, key, said: 6, placed: 7 })];
    let (member, status) = ("c1".to_owned(), "signal".to_owned());
    let panicked = vec![seen(EventKind::Died { member, status, panicked: true })];
    let (what, status) = ("the client of batch-1".to_owned(), "exit status: 101".to_owned());
    let crashed = vec![seen(EventKind::Crashed { what, status })];
    let (log, line) = ("c1.log".to_owned(), "thread 'x' panicked at a.rs:1".to_owned());
    let lost = vec![seen(EventKind::Panicked { log, line })];
    let compared = |member: &str, state: &str| {
        let (member, chain, state) = (member.to_owned(), "c".to_owned(), state.to_owned());
        seen(EventKind::Compared { member, index: 8, chain, state })
    };
    let says = |member: &str, applied, epoch| {
        let (member, role) = (member.to_owned(), "follower".to_owned());
        seen(EventKind::Status { member, life: 1, role, term: epoch, epoch, applied, installed: 0 })
    };
    let ahead = vec![says("c1", 7, 2), says("c2", 7, 1)];
    let behind = vec![says("c1", 7, 2), says("c2", 9, 1)];
    let meanwhile = vec![compared("c1", "a"), compared("c3", "b")];
    let broken = [
        ahead, behind, meanwhile, back, two, apart, stuck, falling, twice, revived, taken, other,
        panicked, fell, crashed, lost,
    ];
    for events in broken.into_iter().chain(members()) {
        let broken = rules::broken(&events);
        assert_eq!(broken.len(), 1, "{broken:?}");
        let run = Recorded { operations: Vec::new(), events };
        assert_eq!(judged(&run).unwrap().verdict, Verdict::Violation);
    }
    let well = [
        heard("c1", 3),
        heard("c1", 3),
        heard("c2", 4),
        digest("c1", "a"),
        digest("c2", "a"),
        opened(7),
        opened(8),
        stale(None),
        again(true),
        compared("c1", "a"),
        compared("c2", "a"),
        says("c1", 9, 2),
        says("c2", 7, 1),
        says("c3", 9, 2),
    ];
    assert_eq!(rules::broken(&well), Vec::<String>::new());
}

#[test]
fn a_requested_fault_that_did_not_happen_keeps_a_run_from_passing() {
    let plan = |nemesis: &[&str]| {
        let nemesis = nemesis.iter().map(|&name| name.to_owned()).collect();
        seen(EventKind::Plan { workload: "item".into(), nemesis, seed: 1, secs: 60 })
    };
    let fault = |id, kind: &str, proven| {
        seen(EventKind::Fault { id, kind: kind.into(), on: "c1".into(), proven })
    };
    let missing = |events| {
        let run = Recorded { operations: Vec::new(), events };
        Coverage::of(&run).missing(&run).join("\n")
    };
    for (family, asked) in [
        ("snapshot", "snapshots installed"),
        ("snapshot", "proven snapshot-leader-cut"),
        ("power", "losses of power that took something"),
        ("partition", "proven partition-leader-minority"),
        ("kill", "leader changes"),
    ] {
        assert!(missing(vec![plan(&[family])]).contains(asked), "{family}");
        assert!(!missing(vec![plan(&["clock"])]).contains(asked), "{family}");
    }
    for (family, changes) in [("kill", 2), ("membership", 1)] {
        let asked = format!("leader changes: 0, at least {changes} are needed");
        assert!(missing(vec![plan(&[family])]).contains(&asked), "{family}");
    }
    let cut = || vec![plan(&["snapshot"]), fault(4, "snapshot-cut", false)];
    assert!(missing(cut()).contains("proven snapshot-cut: 0"));
    let late = cut().into_iter().chain([seen(EventKind::Proven { id: 4 })]).collect();
    assert!(!missing(late).contains("proven snapshot-cut"), "the proof may come later");
}

#[test]
fn a_run_without_any_log_position_does_not_pass() {
    let missing = |workload: &str, counted: Coverage| {
        let (workload, nemesis) = (workload.to_owned(), vec!["kill".to_owned()]);
        let events = vec![seen(EventKind::Plan { workload, nemesis, seed: 1, secs: 60 })];
        counted.missing(&Recorded { operations: Vec::new(), events }).join("\n")
    };
    let replayed = || Coverage { replayed: 1, ..Coverage::default() };
    for workload in ["item", "steal", "session", "store"] {
        let says = "answers replayed by their places in the log: 0";
        assert!(missing(workload, Coverage::default()).contains(says), "{workload}");
        assert!(!missing(workload, replayed()).contains(says), "{workload}");
    }
    let ordered = || Coverage { ordered: 1, ..Coverage::default() };
    for workload in ["run", "rendezvous", "barrier", "shards"] {
        let says = "answers whose places were compared with time: 0";
        assert!(missing(workload, Coverage::default()).contains(says), "{workload}");
        assert!(!missing(workload, ordered()).contains(says), "{workload}");
    }
}

#[test]
fn digests_are_compared_on_the_way_or_it_is_no_pass() {
    let plan = || {
        let (workload, nemesis) = ("item".to_owned(), Vec::new());
        seen(EventKind::Plan { workload, nemesis, seed: 1, secs: 60 })
    };
    let digest = |member: &str, index| {
        let (member, text) = (member.to_owned(), "a".to_owned());
        seen(EventKind::Compared { member, index, chain: text.clone(), state: text })
    };
    let missing = |digests: Vec<Event>| {
        let events = std::iter::once(plan()).chain(digests).collect();
        let run = Recorded { operations: Vec::new(), events };
        let coverage = Coverage::of(&run);
        let says = "digests compared on the way";
        (coverage.compared, coverage.missing(&run).iter().any(|what| what.starts_with(says)))
    };
    assert_eq!(missing(Vec::new()), (0, true));
    assert_eq!(missing(vec![digest("c1", 4), digest("c2", 5)]), (0, true), "each alone");
    assert_eq!(missing(vec![digest("c1", 4), digest("c2", 4)]), (2, false));
}

/// Statuses of members, each with one error.
fn members() -> [Vec<Event>; 4] {
    let status = |member: &str, life, term, epoch| {
        let (member, role) = (member.to_owned(), "leader".to_owned());
        let (applied, installed) = (10 * epoch, 0);
        seen(EventKind::Status { member, life, role, term, epoch, applied, installed })
    };
    let image = |image: &str, error: &str| {
        let (member, chain, state) = ("c1".to_owned(), "c".to_owned(), "a".to_owned());
        let (image, error) = (image.to_owned(), error.to_owned());
        vec![seen(EventKind::Digest { member, index: 9, chain, state, image, error })]
    };
    let both_lead = vec![status("c1", 1, 4, 4), status("c2", 1, 4, 4)];
    let back_in_one_life = vec![status("c1", 1, 4, 4), status("c1", 1, 5, 3)];
    [both_lead, back_in_one_life, image("b", ""), image("", "a block is torn")]
}

fn created(key: &str, answer: Option<bool>) -> Operation {
    let position = None;
    let outcome = answer.map_or(Outcome::Unknown, |made| Outcome::Answered {
        value: Value::Bool(made),
        at: 2,
        line: 2,
        position,
    });
    let (f, key, input) = ("create".into(), Some(key.into()), Value::Nil);
    Operation { process: 1, request: None, f, key, input, called_at: 1, line: 1, outcome }
}

#[test]
fn exactly_one_request_creates_an_object() {
    let broken = |answers: &[Option<bool>]| {
        let operations: Vec<Operation> = answers.iter().map(|a| created("duel-1", *a)).collect();
        create_races::broken(&operations).len()
    };
    assert_eq!(broken(&[Some(true), Some(false), None]), 0);
    assert_eq!(broken(&[Some(false), None]), 0);
    assert_eq!(broken(&[Some(true), Some(true)]), 1);
    assert_eq!(broken(&[Some(false), Some(false)]), 1);
}

/// A batch of forty rows with these lines as its output.
fn exported(lines: Vec<Value>) -> Vec<Operation> {
    let told = |f: &str, input, value| {
        let (f, key) = (f.into(), Some("batch-3".into()));
        let outcome = Outcome::Answered { value, at: 2, line: 2, position: None };
        Operation { process: 1, request: None, f, key, input, called_at: 1, line: 1, outcome }
    };
    let counts = [40, 10, 5, 5, 18, 2].map(Value::Int).to_vec();
    vec![
        told("submit", Value::List(vec![Value::Int(3), Value::Int(40)]), Value::Nil),
        told("progress", Value::Nil, Value::List(counts)),
        told("export", Value::Nil, Value::List(lines)),
    ]
}

fn line(row: u64, state: &str, text: &str) -> Value {
    let row = Value::Int(i64::try_from(row).unwrap());
    Value::List(vec![row, Value::text(state), Value::text(text)])
}

fn right(row: u64) -> Value {
    let outcome = ExpectedOutcome::of(3, row);
    match outcome.class() {
        Some(class) => line(row, "failed", class),
        None => line(row, "done", &format!("MOCK:{}", outcome.prompt(3, row))),
    }
}

#[test]
fn every_row_of_a_batch_ends_once_as_its_prompt_asks() {
    let all = || (0..40).map(right).collect::<Vec<_>>();
    let broken = |lines: Vec<Value>| rows::judged(&exported(lines)).violations;
    assert_eq!(broken(all()), Vec::<String>::new());
    let with = |change: &dyn Fn(&mut Vec<Value>)| {
        let mut lines = all();
        change(&mut lines);
        broken(lines)
    };
    let lost = with(&|lines| lines.truncate(39));
    assert!(lost[0].contains("1 rows lost, the first 39"), "{lost:?}");
    let doubled = with(&|lines| lines.push(right(4)));
    assert!(doubled[0].contains("row 4 has two results"), "{doubled:?}");
    let invented = with(&|lines| lines.push(line(40, "done", "MOCK:say 40 of 3")));
    assert!(invented[0].contains("row 40 was never submitted"), "{invented:?}");
    let swapped = with(&|lines| lines[1] = line(1, "done", "MOCK:say 2 of 3"));
    assert!(swapped[0].contains("row 1"), "{swapped:?}");
    let failed = with(&|lines| lines[1] = line(1, "failed", "transient"));
    assert!(failed[0].contains("row 1"), "{failed:?}");
}

#[test]
fn rows_that_are_in_no_state_or_in_two_are_seen_and_a_batch_without_an_end_is_a_doubt() {
    let mut operations = exported((0..40).map(right).collect());
    let counts = [40, 10, 5, 5, 18, 1].map(Value::Int).to_vec();
    operations[1].outcome =
        Outcome::Answered { value: Value::List(counts), at: 2, line: 2, position: None };
    assert!(rows::judged(&operations).violations[0].contains("39 by their states"));
    let unended = rows::judged(&operations[..1]);
    assert_eq!((unended.violations.len(), unended.doubts.len()), (0, 1));
}

/// Two rows under a fault from 4 s to 28 s: each granted, completed this often with these answers, and read at the
/// end.
fn completed(times: u64, accepted: bool, read: Value) -> Recorded {
    const S: u64 = 1_000_000_000;
    let event = |at_s: u64, what| Event { time_ns: at_s * S, what };
    let (workload, nemesis) = ("item".to_owned(), vec!["kill".to_owned()]);
    let fault =
        EventKind::Fault { id: 1, kind: "kill-leader".into(), on: "c1".into(), proven: true };
    let mut events = vec![
        event(0, EventKind::Plan { workload, nemesis, seed: 1, secs: 30 }),
        event(4, fault),
        event(28, EventKind::Healed { id: 1 }),
    ];
    for (member, index) in [("c1", 9), ("c2", 9), ("c3", 9)] {
        let Event { what: EventKind::Digest { chain, state, image, error, .. }, .. } =
            digest(member, "a")
        else {
            continue;
        };
        let member = member.to_owned();
        events.push(event(90, EventKind::Digest { member, index, chain, state, image, error }));
    }
    let operation = |at_s: u64, f: &str, row: u64, value| {
        let (f, key) = (f.into(), Some(format!("1/{row}").into()));
        let at = at_s * S + 1;
        let outcome = Outcome::Answered { value, at, line: 2, position: None };
        let (input, called_at) = (Value::Nil, at_s * S);
        Operation { process: 1, request: None, f, key, input, called_at, line: 1, outcome }
    };
    let mut operations = Vec::new();
    for nth in 0..times {
        operations.push(operation(10, "complete", nth % 2, Value::Bool(accepted)));
    }
    for row in 0..2 {
        operations.push(operation(8, "read", row, Value::Nil));
        operations.push(operation(80, "read", row, read.clone()));
    }
    Recorded { operations, events }
}

#[test]
fn a_run_without_accepted_results_or_with_unended_rows_is_no_pass() {
    let missing = |run: Recorded| Coverage::of(&run).missing(&run).join("\n");
    let well = missing(completed(12, true, Value::text("p")));
    for asked in ["results accepted", "rows that had not ended", "digests are of one index"] {
        assert!(!well.contains(asked), "{well}");
    }
    let refused = missing(completed(120, false, Value::Nil));
    assert!(refused.contains("results accepted: 0, at least 6 are needed"), "{refused}");
    assert!(refused.contains("results accepted under a fault: 0"), "{refused}");
    assert!(refused.contains("rows that had not ended at the end: 2"), "{refused}");
    let open = missing(completed(12, true, Value::Nil));
    assert!(open.contains("rows that had not ended at the end: 2"), "{open}");
    let few = missing(completed(5, true, Value::text("p")));
    assert!(few.contains("results accepted under a fault: 5, at least 6"), "{few}");
}

#[test]
fn the_last_digests_are_of_three_members_at_one_index() {
    let told = |digests: &[(&str, u64)]| {
        let mut run = completed(12, true, Value::text("p"));
        run.events.retain(|event| !matches!(event.what, EventKind::Digest { .. }));
        for (member, index) in digests {
            let (member, index, text) = ((*member).to_owned(), *index, || "a".to_owned());
            let (chain, state, image, error) = (text(), text(), text(), String::new());
            let digest = EventKind::Digest { member, index, chain, state, image, error };
            run.events.push(Event { time_ns: 1, what: digest });
        }
        let coverage = Coverage::of(&run);
        let says = "members whose digests are of one index at the end";
        (coverage.digests, coverage.missing(&run).iter().any(|what| what.starts_with(says)))
    };
    assert_eq!(told(&[("c1", 9), ("c2", 9), ("c3", 9)]), (3, false));
    assert_eq!(told(&[("c1", 9), ("c2", 10), ("c3", 11)]), (1, true), "each at its own");
    assert_eq!(told(&[("c1", 9), ("c1", 9), ("c2", 9)]), (2, true), "one twice");
    assert_eq!(told(&[]), (0, true));
}
