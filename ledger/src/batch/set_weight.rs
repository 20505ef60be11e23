//! Changes the share of a run that has not ended.
//!
//! *Invariant:* only the weight changes, and it counts from the next claim on: what the run was served before stays
//! divided by the weight that it had then. The spec's digest stays that of the submission, so a repeat of the
//! submission finds the run.
//!
//! Absent: rows that are granted, which stay where they are, and an event. The audit names who changed the
//! weight.

use crate::batch::spec::check_weight;
use crate::kernel::id::RunNo;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// Changes the weight of a run that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetWeight {
    /// The run.
    pub run: RunNo,
    /// Share among runs of one priority, 1 to [`WEIGHT_MAX`](crate::limits::WEIGHT_MAX).
    pub weight: u32,
}

impl Operation for SetWeight {
    const SINCE: u32 = 4;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        // It closes gaps between the times of runs.
        Cost::GrowsWithState
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
        Some(ledger.check_new_weight(self.run, self.weight))
    }

    fn apply(self, ledger: &mut Ledger, _: &mut Context) -> Result<Reply, Rejection> {
        ledger.set_weight(self.run, self.weight)
    }
}

impl Ledger {
    fn check_new_weight(&self, no: RunNo, weight: u32) -> Result<(), Rejection> {
        let run = self.runs.get(&no).ok_or(Rejection::RunUnknown)?;
        if run.ended() {
            return Err(run.over());
        }
        check_weight(weight)
    }

    fn set_weight(&mut self, no: RunNo, weight: u32) -> Result<Reply, Rejection> {
        self.check_new_weight(no, weight)?;
        let run = self.runs.change(&no).ok_or(Rejection::RunUnknown)?;
        let before = std::mem::replace(&mut run.head.spec.weight, weight);
        if before != weight {
            // A run that slots of its own have served may be far ahead. Without this it would wait at the slots that it
            // shares until the others have caught up, whatever its new weight.
            self.reshape_with(no);
        }
        Ok(Reply::Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::spec::{EngineSpec, RunSpec, SlotOffer};
    use crate::kernel::id::{CoordEpoch, LedgerMs, SegmentNo, SlotNo, SlotRef};
    use crate::kernel::limits;
    use crate::machine::command::{
        BlobRef, Body, Command, OpKind, Registration, RunAction, SegmentDecl, op,
    };
    use crate::machine::ledger::EntryId;

    /// A ledger with two runs of weight 1 and a slot that fits both, the index of its last entry, and the number of the
    /// slot's last pull.
    struct Bench {
        ledger: Ledger,
        index: u64,
        runs: [RunNo; 2],
        slot: SlotRef,
        pulls: u64,
    }

    impl Bench {
        fn new() -> Self {
            let slot = SlotRef { session: Default::default(), slot: SlotNo(0) };
            let (ledger, runs) = (Ledger::new([1; 16]), [RunNo(0); 2]);
            let mut bench = Self { ledger, index: 0, runs, slot, pulls: 0 };
            bench.apply(Body::OpenEpoch);
            bench.apply(Body::SetVersion(SetWeight::SINCE));
            for (at, name) in ["a", "b"].into_iter().enumerate() {
                let Reply::Run { run, created: true, .. } = bench.submit(name, 1) else {
                    panic!("no run");
                };
                bench.runs[at] = run;
                let (number, rows) = (SegmentNo(0), limits::SEGMENT_ROWS_MAX);
                let segments = vec![SegmentDecl { number, rows, blob: BlobRef::default() }];
                bench.op(OpKind::AddSegments(op::AddSegments { run, segments }));
            }
            let registration = Registration {
                namespace: "default".into(),
                name: "w".into(),
                instance: 1,
                slots: vec![SlotOffer { models: vec!["m".into()], ..SlotOffer::default() }],
                ..Registration::default()
            };
            let registered = bench.op(OpKind::Register(Box::new(registration)));
            let Reply::Registered { session, .. } = registered else { panic!("{registered:?}") };
            bench.slot.session = session;
            bench
        }

        fn apply(&mut self, body: Body) -> Reply {
            self.index += 1;
            let command = Command { epoch: CoordEpoch(1), at: LedgerMs(0), wall_ms: 0, body };
            let entry = EntryId { index: self.index, term: 1 };
            let mut replies = self.ledger.apply(entry, &command.encode()).expect("it is known");
            self.ledger.check_invariants().expect("they hold");
            replies.pop().expect("a reply")
        }

        fn op(&mut self, kind: OpKind) -> Reply {
            self.apply(Body::Ops(vec![kind.into()]))
        }

        fn submit(&mut self, name: &str, weight: u32) -> Reply {
            let spec = RunSpec {
                engine: EngineSpec { model: "m".into(), ..EngineSpec::default() },
                weight,
                attempts_max: 3,
                ..RunSpec::default()
            };
            let (namespace, folder) = ("default".into(), format!("{name}/own"));
            let (name, spec) = (name.to_owned(), Box::new(spec));
            self.op(OpKind::CreateRun(op::CreateRun { namespace, name, spec, folder }))
        }

        fn set(&mut self, run: RunNo, weight: u32) -> Reply {
            self.op(OpKind::SetWeight(SetWeight { run, weight }))
        }

        fn weights(&self) -> [u32; 2] {
            self.runs.map(|run| self.ledger.run_view(run).expect("a run").spec.weight)
        }

        /// The rows of each run that a pull gets.
        fn pull(&mut self, rows_max: u32) -> [u64; 2] {
            self.pulls += 1;
            let claim = op::Claim { slot: self.slot, instance: 1, seq: self.pulls, rows_max };
            let claimed = self.op(OpKind::Claim(claim));
            let Reply::Granted(grants) = claimed else { panic!("{claimed:?}") };
            self.runs.map(|run| {
                let of_run = grants.iter().filter(|grant| grant.held.run == run);
                of_run.map(|grant| grant.held.rows.len()).sum()
            })
        }
    }

    #[test]
    fn two_runs_share_by_the_weights_that_they_have_at_each_claim() {
        let mut bench = Bench::new();
        let [a, b] = bench.runs;
        assert_eq!(bench.pull(64), [32, 32]);
        assert_eq!(bench.set(b, 3), Reply::Ok);
        for _ in 0..3 {
            assert_eq!(bench.pull(128), [32, 96]);
        }
        // The other way around, and back.
        assert_eq!((bench.set(a, 3), bench.set(b, 1)), (Reply::Ok, Reply::Ok));
        assert_eq!(bench.pull(128), [96, 32]);
        assert_eq!(bench.set(a, 1), Reply::Ok);
        assert_eq!(bench.pull(64), [32, 32]);
    }

    #[test]
    fn a_weight_out_of_bounds_is_refused_as_at_a_submission_and_changes_nothing() {
        let mut bench = Bench::new();
        for weight in [0, limits::WEIGHT_MAX + 1, u32::MAX] {
            let refused = bench.set(bench.runs[1], weight);
            assert!(matches!(refused, Reply::Rejected(Rejection::Invalid(_))), "{refused:?}");
            assert_eq!(refused, bench.submit("c", weight));
            assert_eq!(bench.weights(), [1, 1]);
        }
        assert_eq!(bench.pull(64), [32, 32]);
        assert_eq!(bench.set(bench.runs[1], limits::WEIGHT_MAX), Reply::Ok);
        assert_eq!(bench.weights(), [1, limits::WEIGHT_MAX]);
    }

    #[test]
    fn a_run_that_has_ended_keeps_its_weight_and_a_paused_one_may_get_another() {
        let mut bench = Bench::new();
        let [a, b] = bench.runs;
        let control =
            |run, action| OpKind::ControlRun(op::ControlRun { run, action, reason: String::new() });
        assert_eq!(bench.op(control(a, RunAction::Cancel)), Reply::Ok);
        assert_eq!(bench.set(a, 3), Reply::Rejected(Rejection::RunEnded));
        assert_eq!(bench.op(control(b, RunAction::Pause)), Reply::Ok);
        assert_eq!(bench.set(b, 3), Reply::Ok);
        assert_eq!(bench.weights(), [1, 3]);
        assert_eq!(bench.set(RunNo(9), 3), Reply::Rejected(Rejection::RunUnknown));
    }

    #[test]
    fn a_repeated_submission_finds_the_run_whose_weight_was_changed() {
        let mut bench = Bench::new();
        assert_eq!(bench.set(bench.runs[0], 3), Reply::Ok);
        let found = bench.submit("a", 1);
        assert!(matches!(found, Reply::Run { created: false, .. }), "{found:?}");
        assert_eq!(bench.submit("a", 3), Reply::Rejected(Rejection::SpecConflict));
        assert_eq!(bench.weights(), [3, 1]);
    }
}
