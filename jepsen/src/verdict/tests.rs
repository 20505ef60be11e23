//! A verdict of hand-made records.

use super::*;

fn seen(what: What) -> Event {
    Event { time_ns: 1, what }
}

fn heard(leader: &str, epoch: u64) -> Event {
    let (observer, leader) = ("w1".to_owned(), leader.to_owned());
    seen(What::Heard { observer, leader, epoch, granted: true })
}

fn digest(member: &str, state: &str) -> Event {
    let (member, chain) = (member.to_owned(), "c".to_owned());
    let (state, image) = (state.to_owned(), state.to_owned());
    seen(What::Digest { member, index: 9, chain, state, image, error: String::new() })
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
    let stuck = vec![seen(What::Recovered { after_ms: None })];
    for events in [back, two, apart, stuck] {
        let broken = rules::broken(&events);
        assert_eq!(broken.len(), 1, "{broken:?}");
        let run = Recorded { operations: Vec::new(), events };
        assert_eq!(judged(&run).unwrap().verdict, Verdict::Violation);
    }
    let well =
        [heard("c1", 3), heard("c1", 3), heard("c2", 4), digest("c1", "a"), digest("c2", "a")];
    assert_eq!(rules::broken(&well), Vec::<String>::new());
}

#[test]
fn what_was_asked_for_and_did_not_happen_keeps_a_run_from_passing() {
    let plan = |nemesis: &[&str]| {
        let nemesis = nemesis.iter().map(|&name| name.to_owned()).collect();
        seen(What::Plan { workload: "item".into(), nemesis, seed: 1, secs: 60 })
    };
    let fault = |id, kind: &str, proven| {
        seen(What::Fault { id, kind: kind.into(), on: "c1".into(), proven })
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
    let cut = || vec![plan(&["snapshot"]), fault(4, "snapshot-cut", false)];
    assert!(missing(cut()).contains("proven snapshot-cut: 0"));
    let late = cut().into_iter().chain([seen(What::Proven { id: 4 })]).collect();
    assert!(!missing(late).contains("proven snapshot-cut"), "the proof may come later");
}
