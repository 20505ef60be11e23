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
