use super::*;

/// The only cohort of these tests, and its only need.
const COHORT: CohortNo = CohortNo(1);
const NEED: NeedNo = NeedNo(1);

/// Every slot of the cohort fits every other, except these pairs.
#[derive(Default)]
struct Fits {
    but: Vec<(u64, u64)>,
}

impl Fit for Fits {
    fn needs(&self, cohort: CohortNo) -> Vec<NeedNo> {
        if cohort == COHORT { vec![NEED] } else { Vec::new() }
    }

    fn takes(&self, _: SlotRef) -> bool {
        true
    }

    fn runs(&self, victim: SlotRef, idle_slot: SlotRef) -> Vec<RunNo> {
        let pair = (victim.session.0, idle_slot.session.0);
        if self.but.contains(&pair) { Vec::new() } else { vec![RunNo(1)] }
    }
}

fn slot(session: u64) -> SlotRef {
    SlotRef { session: SessionId(session), slot: SlotNo(0) }
}

fn report(stealing: &Stealing, session: u64, queued: u32, running: u32) {
    let load = v1::SlotLoad { slot: 0, queued, running, concurrency: 4 };
    stealing.record_loads(SessionId(session), &[load], |_| vec![NEED]);
}

fn ask(stealing: &Stealing, idle_slots: &[u64]) -> Vec<(u64, u32)> {
    let idle_slots = |_| idle_slots.iter().map(|s| slot(*s)).collect();
    let requests = stealing.choose(Instant::now(), &[COHORT], idle_slots, &Fits::default());
    requests.iter().map(|a| (a.victim.session.0, a.rows_max)).collect()
}

#[test]
fn the_busiest_slot_yields_half_of_its_backlog_and_at_most_32_rows() {
    let stealing = Stealing::default();
    report(&stealing, 1, 7, 4);
    report(&stealing, 2, 9, 4);
    report(&stealing, 3, 0, 0);
    assert_eq!(ask(&stealing, &[3]), [(2, 5)]);
    let stealing = Stealing::default();
    report(&stealing, 1, 500, 4);
    report(&stealing, 2, 500, 4);
    report(&stealing, 3, 0, 0);
    assert_eq!(ask(&stealing, &[3]), [(1, 32)], "of equals the first");
}

#[test]
fn a_slot_with_a_backlog_or_an_open_question_steals_nothing() {
    let stealing = Stealing::default();
    report(&stealing, 1, 8, 4);
    report(&stealing, 2, 1, 0);
    assert_eq!(ask(&stealing, &[2]), []);
    assert_eq!(ask(&stealing, &[9]), [], "nothing was heard of it");
    report(&stealing, 2, 0, 0);
    report(&stealing, 3, 0, 0);
    assert_eq!(ask(&stealing, &[2, 3]), [(1, 4)], "one request a victim");
    report(&stealing, 4, 6, 4);
    assert_eq!(ask(&stealing, &[2]), [], "one request an idle slot");
    assert_eq!(ask(&stealing, &[3]), [(4, 3)]);
}

#[test]
fn a_single_queued_row_goes_only_to_a_slot_that_starts_it_at_once() {
    let stealing = Stealing::default();
    report(&stealing, 1, 1, 4);
    report(&stealing, 2, 0, 4);
    assert_eq!(ask(&stealing, &[2]), []);
    report(&stealing, 2, 0, 3);
    assert_eq!(ask(&stealing, &[2]), [(1, 1)]);
}

#[test]
fn a_slot_is_idle_if_it_could_start_more_and_no_slot_has_a_backlog_for_it() {
    let stealing = Stealing::default();
    let fits = Fits { but: vec![(1, 3), (3, 2)] };
    let idle = |stealing: &Stealing| {
        stealing.idle((COHORT, &[slot(2), slot(3), slot(9)]), usize::MAX, &fits)
    };
    report(&stealing, 1, 0, 4);
    report(&stealing, 2, 0, 1);
    report(&stealing, 3, 0, 4);
    assert_eq!(idle(&stealing), [(slot(2), 3)], "the third runs all that it can");
    report(&stealing, 1, 2, 4);
    report(&stealing, 3, 0, 2);
    assert_eq!(idle(&stealing), [(slot(3), 2)], "the second may steal");
    report(&stealing, 1, 0, 4);
    stealing.granted(slot(3), 1, vec![NEED]);
    assert_eq!(idle(&stealing), [(slot(2), 3)], "the third was just given something");
}

#[test]
fn an_answer_counts_once_from_the_asked_slot_and_in_time() {
    let stealing = Stealing::default();
    report(&stealing, 1, 8, 4);
    report(&stealing, 2, 0, 0);
    assert_eq!(ask(&stealing, &[2]), [(1, 4)]);
    assert_eq!(stealing.answered(slot(2), 1, 4), None, "it was not asked");
    assert_eq!(stealing.answered(slot(1), 2, 4), None, "the leader has not asked that");
    assert_eq!(stealing.answered(slot(1), 1, 4), Some(slot(2)));
    assert_eq!(stealing.answered(slot(1), 1, 4), None);
    report(&stealing, 1, 8, 4);
    assert_eq!(ask(&stealing, &[2]), [(1, 4)]);
    let later = Instant::now() + REQUEST_TIMEOUT;
    let requests = stealing.choose(later, &[COHORT], |_| vec![slot(2)], &Fits::default());
    assert_eq!(requests[0].id, 3, "the question was forgotten, and is asked anew");
    assert_eq!(stealing.answered(slot(1), 2, 4), None, "too late");
}
#[test]
fn slots_that_wait_for_another_model_are_not_compared() {
    struct Counts(std::cell::Cell<u32>);
    impl Fit for Counts {
        fn needs(&self, cohort: CohortNo) -> Vec<NeedNo> {
            vec![NeedNo(cohort.0)]
        }
        fn takes(&self, _: SlotRef) -> bool {
            true
        }
        fn runs(&self, _: SlotRef, _: SlotRef) -> Vec<RunNo> {
            self.0.set(self.0.get() + 1);
            vec![RunNo(1)]
        }
    }
    let stealing = Stealing::default();
    for session in 1..=1000 {
        report(&stealing, session, 8, 4);
        report(&stealing, 1000 + session, 0, 0);
    }
    let fit = Counts(std::cell::Cell::new(0));
    let waiting = |_| (1001..=2000).map(slot).collect();
    let requests = stealing.choose(Instant::now(), &[CohortNo(2)], waiting, &fit);
    assert_eq!((requests.len(), fit.0.get()), (0, 0), "no pair is compared");
    let requests = stealing.choose(Instant::now(), &[COHORT], waiting, &fit);
    assert_eq!((requests.len(), fit.0.get()), (1000, 1000), "each pair that is chosen, once");
}
