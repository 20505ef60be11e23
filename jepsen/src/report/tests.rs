//! Tests of the page of a hand-made record.

use super::*;
use crate::events::{Event, EventKind};
use crate::operations::{Operation, Outcome};
use crate::value::Value;
use crate::verdict::judged;

const SECOND_NS: u64 = 1_000_000_000;

fn read(line: u64, at_s: u64, seen: &str) -> Operation {
    Operation {
        request: None,
        process: line as i64,
        f: "read".into(),
        key: Some("3/1".into()),
        input: Value::Nil,
        called_at: at_s * SECOND_NS,
        line,
        outcome: Outcome::Answered {
            value: Value::Text(seen.into()),
            at: at_s * SECOND_NS + 5_000_000,
            line: line + 1,
            position: None,
        },
    }
}

#[test]
fn a_page_needs_nothing_else_and_shows_faults_leaders_and_the_answer_that_nothing_explains() {
    let event = |seconds: u64, what| Event { time_ns: seconds * SECOND_NS, what };
    let led = |seconds| {
        let (member, role) = ("c2".to_owned(), "leader".to_owned());
        let status = EventKind::Status {
            member,
            life: 1,
            role,
            term: 7,
            epoch: 7,
            applied: 1,
            installed: 0,
        };
        event(seconds, status)
    };
    let events = vec![
        event(
            0,
            EventKind::Plan { workload: "item".into(), nemesis: Vec::new(), seed: 4, secs: 30 },
        ),
        led(1),
        led(2),
        event(
            3,
            EventKind::Fault { id: 1, kind: "kill-leader".into(), on: "c2".into(), proven: true },
        ),
        event(9, EventKind::Healed { id: 1 }),
        event(30, EventKind::Recovered { after_ms: Some(1) }),
    ];
    // No worker ever had the row.
    let run = Recorded { operations: vec![read(1, 5, "a<b"), read(3, 6, "a<b")], events };
    let judged = judged(&run).unwrap();
    assert_eq!(timeline::failing(&run, &judged), ["3/1"], "{:?}", judged.violations);
    let page = html(&run, &judged);
    let ordered = format!("the places of {} compared with time", judged.coverage.ordered);
    assert!(text(&judged).contains(&ordered) && page.contains(&ordered));
    for wanted in [
        "--seed 4 --secs 30",
        "<h1 class=\"violation\"",
        "kill-leader",
        "c2 in term 7",
        "<h2>Item 3/1",
    ] {
        assert!(page.contains(wanted), "{wanted}");
    }
    assert!(page.contains("font-weight=\"bold\">5.000 s, line 1: read"), "{page}");
    assert!(!page.contains("a<b") && page.contains("a&lt;b"));
    for foreign in ["http:", "https:", "src=", "<script", "@import", "url("] {
        assert!(!page.contains(foreign), "{foreign}");
    }
}

#[test]
fn every_object_that_a_violation_names_gets_a_timeline_and_no_word_is_taken_for_one() {
    let mut keys = ["3/1", "run:s1-1", "a", "batch-3", "batch-3-by-7"].map(|key| {
        let key = Some(key.into());
        Operation { key, ..read(1, 5, "x") }
    });
    keys.sort_by(|one, other| one.key.cmp(&other.key));
    let run = Recorded { operations: keys.to_vec(), events: Vec::new() };
    let failing = |violations: &[&str], violated: &[&str]| -> Vec<String> {
        let owned = |all: &[&str]| all.iter().map(|&one| one.to_owned()).collect::<Vec<_>>();
        let mut judged = judged(&run).unwrap();
        judged.violations = owned(violations);
        judged.violated_keys = owned(violated);
        timeline::failing(&run, &judged).into_iter().map(str::to_owned).collect()
    };
    let told =
        ["the only request for run:s1-1 found it, which no request created", "item 3/1: a read"];
    assert_eq!(failing(&told, &[]), ["run:s1-1", "3/1"]);
    assert_eq!(failing(&["batch-3-by-7: row 4 has two results"], &[]), ["batch-3-by-7"]);
    assert_eq!(failing(&["a release of t2 was refused"], &[]), Vec::<String>::new());
    assert_eq!(
        failing(&["no order of its operations explains item a"], &["a", "3/1"]),
        ["a", "3/1"]
    );
}

#[test]
fn a_timeline_that_is_too_long_shows_what_is_around_the_blame_and_tells_how_much_is_not_shown() {
    // One second each; the answer of each is on the line after its call.
    let operations: Vec<Operation> = (0..400).map(|nth| read(2 * nth + 1, nth, "x")).collect();
    let run = Recorded { operations, events: Vec::new() };
    let page = |blamed: Option<u64>| {
        let mut judged = judged(&run).unwrap();
        let names = |line: u64| format!("item 3/1: a read (lines {line} and {})", line + 1);
        judged.violations = blamed.map(|nth| names(2 * nth + 1)).into_iter().collect();
        timeline::of(&run, &judged, "3/1")
    };
    let rows = |page: &str| page.matches("<rect").count();
    let (bold, more) = ("font-weight=\"bold\">", "more operations");
    let none = page(None);
    for (blamed, before, behind) in
        [(Some(390), 100, 0), (Some(200), 50, 50), (Some(3), 0, 100), (None, 100, 0)]
    {
        let page = page(blamed);
        assert_eq!(rows(&page), rows(&none));
        let bolds = blamed.map(|nth| format!("{bold}{nth}.000 s, line {}: read", 2 * nth + 1));
        assert!(bolds.is_none_or(|bold| page.contains(&bold)), "{blamed:?}: {page}");
        for (count, side) in [(before, "before"), (behind, "behind")] {
            let told = page.contains(&format!("{count} {more} {side} these"));
            assert_eq!(told, count > 0, "{blamed:?}: {page}");
        }
        assert_eq!(page.matches(more).count(), usize::from(before > 0) + usize::from(behind > 0));
    }
    assert!(none.contains(">399.000 s, line 799: read") && !none.contains(">99.000 s"), "{none}");
}
