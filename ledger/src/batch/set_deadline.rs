//! Changes when a run ends that has not ended yet.
//!
//! *Invariant:* only the deadline changes. The spec's digest stays that of the submission, so a repeat of the submission
//! finds the run. A new deadline takes effect in a `Tick`, as the first one does (`deadline.rs`).
//!
//! Absent: an event. The audit names who changed the deadline, and the run's end has an event.

use crate::kernel::id::RunNo;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// Changes the deadline of a run that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetDeadline {
    /// The run.
    pub run: RunNo,
    /// Ledger time from the run's creation to its deadline; 0 for none.
    pub deadline_ms: u64,
}

impl Operation for SetDeadline {
    const SINCE: u32 = 4;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        false
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        ledger.subject_of_run(self.run)
    }

    fn dry_run(&self, ledger: &Ledger) -> Option<Result<(), Rejection>> {
        Some(ledger.check_deadline(self.run, self.deadline_ms))
    }

    fn apply(self, ledger: &mut Ledger, _: &mut Context) -> Result<Reply, Rejection> {
        ledger.set_deadline(self.run, self.deadline_ms)
    }
}

impl Ledger {
    fn check_deadline(&self, no: RunNo, deadline_ms: u64) -> Result<(), Rejection> {
        let now = self.meta.clock();
        let run = self.runs.get(&no).ok_or(Rejection::RunUnknown)?;
        if run.ended() {
            return Err(run.over());
        }
        let age_ms = now.0.saturating_sub(run.head.created_at.0);
        if deadline_ms > 0 && deadline_ms <= age_ms {
            let (deadline_s, age_s) = (deadline_ms / 1000, age_ms / 1000);
            return Err(Rejection::Invalid(format!(
                "the deadline, {deadline_s} s after the run's submission, has passed: it was submitted {age_s} s ago"
            )));
        }
        Ok(())
    }

    fn set_deadline(&mut self, no: RunNo, deadline_ms: u64) -> Result<Reply, Rejection> {
        self.check_deadline(no, deadline_ms)?;
        let run = self.runs.change(&no).ok_or(Rejection::RunUnknown)?;
        run.head.spec.deadline_ms = deadline_ms;
        Ok(Reply::Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::run::RunState;
    use crate::batch::spec::{EngineSpec, RunSpec};
    use crate::kernel::id::{CoordEpoch, LedgerMs};
    use crate::machine::command::{Body, Command, OpKind, RunAction, op};
    use crate::machine::ledger::EntryId;

    /// The ledger time at which the run is created.
    const CREATED: u64 = 1000;

    /// A ledger with one run, and the index of its last entry.
    struct Bench {
        ledger: Ledger,
        index: u64,
        run: RunNo,
    }

    impl Bench {
        fn new(deadline_ms: u64) -> Self {
            let mut bench = Self { ledger: Ledger::new([1; 16]), index: 0, run: RunNo(0) };
            bench.apply(0, Body::OpenEpoch);
            bench.apply(0, Body::SetVersion(SetDeadline::SINCE));
            let Reply::Run { run, created: true, .. } = bench.submit(CREATED, deadline_ms) else {
                panic!("no run");
            };
            bench.run = run;
            bench
        }

        fn apply(&mut self, at: u64, body: Body) -> Reply {
            self.index += 1;
            let command = Command { epoch: CoordEpoch(1), at: LedgerMs(at), wall_ms: 0, body };
            let entry = EntryId { index: self.index, term: 1 };
            let mut replies = self.ledger.apply(entry, &command.encode()).expect("it is known");
            self.ledger.check_invariants().expect("they hold, also of the index of deadlines");
            replies.pop().expect("a reply")
        }

        fn submit(&mut self, at: u64, deadline_ms: u64) -> Reply {
            let spec = RunSpec {
                engine: EngineSpec { model: "m".into(), ..EngineSpec::default() },
                weight: 1,
                attempts_max: 3,
                deadline_ms,
                ..RunSpec::default()
            };
            let (namespace, name, folder) = ("default".into(), "r".into(), "r/own".into());
            let create = op::CreateRun { namespace, name, spec: Box::new(spec), folder };
            self.apply(at, Body::Ops(vec![OpKind::CreateRun(create).into()]))
        }

        fn set(&mut self, at: u64, deadline_ms: u64) -> Reply {
            let set = SetDeadline { run: self.run, deadline_ms };
            self.apply(at, Body::Ops(vec![OpKind::SetDeadline(set).into()]))
        }

        fn state(&self) -> RunState {
            self.ledger.run_view(self.run).expect("a run").state
        }
    }

    #[test]
    fn a_deadline_is_moved_earlier_later_and_away_and_a_tick_applies_the_last_one() {
        let mut bench = Bench::new(50_000);
        assert_eq!(bench.ledger.next_deadline(), Some(LedgerMs(51_000)));
        for (deadline_ms, due) in [(20_000, Some(21_000)), (55_000, Some(56_000)), (0, None)] {
            assert_eq!(bench.set(2000, deadline_ms), Reply::Ok);
            assert_eq!(bench.ledger.next_deadline(), due.map(LedgerMs), "{deadline_ms}");
        }
        assert_eq!(bench.set(2000, 30_000), Reply::Ok);
        bench.apply(30_999, Body::Tick);
        assert_eq!(bench.state(), RunState::Running);
        bench.apply(31_000, Body::Tick);
        assert_eq!(bench.state(), RunState::DeadlineExceeded);
        assert_eq!(bench.ledger.next_deadline(), None);
    }

    #[test]
    fn a_deadline_that_has_passed_is_refused_and_changes_nothing() {
        let mut bench = Bench::new(0);
        for deadline_ms in [1, 8999, 9000] {
            let refused = bench.set(CREATED + 9000, deadline_ms);
            assert!(matches!(refused, Reply::Rejected(Rejection::Invalid(_))), "{refused:?}");
            assert_eq!(bench.ledger.next_deadline(), None);
        }
        assert_eq!(bench.set(CREATED + 9000, 9001), Reply::Ok);
        assert_eq!(bench.ledger.next_deadline(), Some(LedgerMs(CREATED + 9001)));
    }

    #[test]
    fn a_run_that_has_ended_keeps_its_deadline() {
        let mut bench = Bench::new(5000);
        bench.apply(CREATED + 5000, Body::Tick);
        let refused = bench.set(CREATED + 5000, 0);
        assert_eq!(refused, Reply::Rejected(Rejection::DeadlineExceeded));
        let mut bench = Bench::new(5000);
        let (run, reason) = (bench.run, String::new());
        let cancel = op::ControlRun { run, action: RunAction::Cancel, reason };
        bench.apply(CREATED, Body::Ops(vec![OpKind::ControlRun(cancel).into()]));
        assert_eq!(bench.set(CREATED, 6000), Reply::Rejected(Rejection::RunEnded));
        bench.run = RunNo(9);
        assert_eq!(bench.set(CREATED, 6000), Reply::Rejected(Rejection::RunUnknown));
    }

    #[test]
    fn a_repeated_submission_finds_the_run_whose_deadline_was_changed() {
        let mut bench = Bench::new(5000);
        assert_eq!(bench.set(CREATED, 6000), Reply::Ok);
        let found = bench.submit(CREATED, 5000);
        assert!(matches!(found, Reply::Run { created: false, .. }), "{found:?}");
        let other = bench.submit(CREATED, 6000);
        assert_eq!(other, Reply::Rejected(Rejection::SpecConflict));
        let view = bench.ledger.run_view(bench.run).expect("a run");
        assert_eq!(view.spec.deadline_ms, 6000);
    }
}
