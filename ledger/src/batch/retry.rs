//! Makes failed rows pending again at a user's request.
//!
//! *Invariant:* finished rows do not change. A retried row keeps its history and has no strike; a run that had
//! finished runs again, and finishes again. A dry run refuses what the retry would refuse, and does not list the failed
//! rows of the run, of which there may be millions.

use crate::batch::completion_webhook::WebhookState;
use crate::batch::run::{Run, RunState};
use crate::kernel::id::RunNo;
use crate::kernel::reply::{Rejection, Reply};
use crate::kernel::rows::Rows;
use crate::kernel::visits::count_visit;
use crate::machine::apply::Context;
use crate::machine::event::EventKind;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// Rows that failed for good are pending again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryRows {
    /// The run.
    pub run: RunNo,
    /// Which; `None` for all that failed.
    pub rows: Option<Rows>,
}

impl Operation for RetryRows {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = true;

    fn cost(&self) -> Cost {
        Cost::GrowsWithState
    }

    fn grows(&self) -> bool {
        true
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        ledger.subject_of_run(self.run)
    }

    fn dry_run(&self, ledger: &Ledger) -> Option<Result<(), Rejection>> {
        Some(ledger.check_retry(self.run, self.rows.as_ref()))
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.retry_rows(ctx, self.run, self.rows)
    }
}

impl Ledger {
    /// Refuses as [`Self::retry_rows`] does.
    fn check_retry(&self, no: RunNo, rows: Option<&Rows>) -> Result<(), Rejection> {
        let run = self.run_to_retry(no)?;
        let all = self.admit_retry(run, run.head.counts.failed);
        match rows {
            // There may be room for some of them.
            Some(rows) if all.is_err() => self.admit_retry(run, run.failed_among(rows)),
            // Where there is room for all of them, there is for some.
            _ => all,
        }
    }

    /// The failed rows that a retry of these makes pending.
    fn retryable(&self, no: RunNo, rows: Option<&Rows>) -> Result<Rows, Rejection> {
        let run = self.run_to_retry(no)?;
        let failed = run.failures.iter().filter(|t| t.1.failed).map(|t| (*t.0, 1));
        let failed = Rows::from_ranges(failed).unwrap_or_default();
        let again = match rows {
            Some(rows) => failed.partition(rows).0,
            None => failed,
        };
        self.admit_retry(run, again.len())?;
        Ok(again)
    }

    /// The run, unless it has ended so that no row of it may be pending again.
    fn run_to_retry(&self, no: RunNo) -> Result<&Run, Rejection> {
        let run = self.runs.get(&no).ok_or(Rejection::RunUnknown)?;
        let lives =
            matches!(run.head.state, RunState::Running | RunState::Paused | RunState::Finished);
        if !lives || !run.has_rows() {
            return Err(run.over());
        }
        let finished = run.head.state == RunState::Finished;
        if finished {
            self.check_has_no_batch(no)?;
        }
        if finished && run.deadline().is_some_and(|at| at <= self.meta.clock()) {
            return Err(Rejection::DeadlineExceeded);
        }
        Ok(run)
    }

    /// Refuses to make so many rows of the run pending if its namespace has no room for them.
    fn admit_retry(&self, run: &Run, again: u64) -> Result<(), Rejection> {
        if again == 0 {
            return Ok(());
        }
        self.admit_rows(&run.head.namespace, again)?;
        match run.head.state {
            RunState::Finished => self.admit_run(&run.head.namespace),
            _ => Ok(()),
        }
    }

    pub(crate) fn retry_rows(
        &mut self,
        ctx: &Context,
        no: RunNo,
        rows: Option<Rows>,
    ) -> Result<Reply, Rejection> {
        let again = self.retryable(no, rows.as_ref())?;
        if again.is_empty() {
            return Ok(Reply::Retried { rows: 0 });
        }
        let run = self.run_mut(no)?;
        let finished = run.head.state == RunState::Finished;
        for row in again.iter() {
            if let Some(record) = run.failures.get_mut(&row) {
                record.pardon();
            }
        }
        let touched = run.reopen(&again);
        run.head.counts.failed -= again.len();
        run.bring_back(&again);
        if finished {
            run.head.state = RunState::Running;
            run.head.webhook = WebhookState::None;
            run.head.finished_wall_ms = 0;
        }
        self.runs.mark_failures(no, again.iter());
        self.runs.mark_segments(no, touched);
        self.runs.mark(no);
        self.refresh_active(no);
        self.emit(ctx, EventKind::Retried { run: no, rows: again.clone() });
        if finished {
            self.emit_run(ctx, no, "resumed", "failed rows are tried again");
        }
        Ok(Reply::Retried { rows: again.len() })
    }
}

impl Run {
    /// How many of these rows have failed for good. Reads the histories of these rows only.
    fn failed_among(&self, rows: &Rows) -> u64 {
        let ranges = rows.ranges().iter().map(|&(start, len)| start..start + u64::from(len));
        let histories = ranges.flat_map(|range| self.failures.range(range));
        let failed = histories.inspect(|_| count_visit()).filter(|(_, record)| record.failed);
        // The rest of the run's histories are of rows that have not failed.
        let all = usize::try_from(self.head.counts.failed).unwrap_or(usize::MAX);
        failed.take(all).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::spec::{EngineSpec, RunSpec, SlotOffer};
    use crate::identity::quota::Quota;
    use crate::kernel::id::{CoordEpoch, LedgerMs, SegmentNo, SlotNo, SlotRef};
    use crate::kernel::visits::visits_of;
    use crate::machine::command::op;
    use crate::machine::command::{
        BlobRef, Body, Command, Evidence, FailureClass, HeldRows, OpKind, Registration, Scope,
        SegmentDecl,
    };
    use crate::machine::ledger::EntryId;

    const ROWS: u32 = 100;
    /// The first of them.
    const FAILED: u32 = 50;

    fn applied(ledger: &mut Ledger, body: Body) -> Reply {
        let command = Command { epoch: CoordEpoch(1), at: LedgerMs(0), wall_ms: 0, body };
        let entry = EntryId { index: ledger.applied().index + 1, term: 1 };
        let mut replies = ledger.apply(entry, &command.encode()).expect("it is known");
        ledger.check_invariants().expect("they hold");
        replies.pop().expect("a reply")
    }

    fn operated(ledger: &mut Ledger, kind: OpKind) -> Reply {
        applied(ledger, Body::Ops(vec![kind.into()]))
    }

    /// A ledger with a run of which a worker has all rows, except for those that it has failed.
    fn failed_rows() -> (Ledger, RunNo) {
        let mut ledger = Ledger::new([1; 16]);
        applied(&mut ledger, Body::OpenEpoch);
        let spec = RunSpec {
            engine: EngineSpec { model: "m".into(), ..EngineSpec::default() },
            weight: 1,
            attempts_max: 1,
            failures_max: ROWS.into(),
            ..RunSpec::default()
        };
        let (namespace, name, folder) = ("default".into(), "r".into(), "r/own".into());
        let create = op::CreateRun { namespace, name, spec: Box::new(spec), folder };
        let created = operated(&mut ledger, OpKind::CreateRun(create));
        let Reply::Run { run, .. } = created else { panic!("{created:?}") };
        let blob = BlobRef::default();
        let segments = vec![SegmentDecl { number: SegmentNo(0), rows: ROWS, blob }];
        operated(&mut ledger, OpKind::AddSegments(op::AddSegments { run, segments }));
        let registration = Registration {
            namespace: "default".into(),
            name: "w".into(),
            instance: 1,
            slots: vec![SlotOffer { models: vec!["m".into()], ..SlotOffer::default() }],
            ..Registration::default()
        };
        let registered = operated(&mut ledger, OpKind::Register(Box::new(registration)));
        let Reply::Registered { session, .. } = registered else { panic!("{registered:?}") };
        let slot = SlotRef { session, slot: SlotNo(0) };
        let claim = op::Claim { slot, instance: 1, seq: 1, rows_max: ROWS };
        let granted = operated(&mut ledger, OpKind::Claim(claim));
        let Reply::Granted(granted) = granted else { panic!("{granted:?}") };
        let held = HeldRows { rows: Rows::range(0, FAILED), ..granted[0].held.clone() };
        let (code, message, evidence) = (String::new(), String::new(), Evidence::default());
        let class = FailureClass::InvalidRow;
        let failed = op::Fail { slot, held, class, code, message, evidence };
        operated(&mut ledger, OpKind::Fail(failed));
        assert_eq!(ledger.run_view(run).expect("a run").counts.failed, FAILED.into());
        (ledger, run)
    }

    fn named(ranges: &[(u64, u32)]) -> Option<Rows> {
        Rows::from_ranges(ranges.iter().copied())
    }

    /// Whether the retry is granted. The dry run and the retry itself must agree, and the dry run may visit so many
    /// histories of rows.
    fn granted(ledger: &Ledger, run: RunNo, rows: Option<Rows>, visits_max: u64) -> bool {
        let retry = OpKind::RetryRows(RetryRows { run, rows });
        let visits = visits_of(|| ledger.dry_run(&Scope::All, &retry));
        assert!(visits <= visits_max, "{visits} visits for {retry:?}");
        let dry = ledger.dry_run(&Scope::All, &retry).expect("it has a dry run");
        match operated(&mut ledger.clone(), retry) {
            Reply::Rejected(why) => assert_eq!(dry, Err(why)),
            reply => assert_eq!(dry, Ok(()), "{reply:?}"),
        }
        dry.is_ok()
    }

    #[test]
    fn a_dry_run_agrees_with_the_retry_and_visits_named_rows_only_where_a_quota_may_refuse_them() {
        let (mut ledger, run) = failed_rows();
        assert!(granted(&ledger, run, None, 0));
        assert!(granted(&ledger, run, named(&[(0, ROWS)]), 0), "there is no quota");
        let pending = ledger.namespace_view("default").expect("a namespace").pending_rows;
        let quota = |rows: u64| Quota {
            namespace: "default".into(),
            pending_rows_max: Some(pending + rows),
            ..Quota::default()
        };
        operated(&mut ledger, OpKind::SetQuota(quota(FAILED.into())));
        assert!(granted(&ledger, run, None, 0));
        assert!(granted(&ledger, run, named(&[(0, ROWS)]), 0), "there is room for all");
        operated(&mut ledger, OpKind::SetQuota(quota(10)));
        assert!(!granted(&ledger, run, None, 0));
        assert!(!granted(&ledger, run, named(&[(0, ROWS)]), FAILED.into()));
        assert!(granted(&ledger, run, named(&[(0, 4), (20, 6)]), 10));
        assert!(!granted(&ledger, run, named(&[(0, 4), (20, 7)]), 11));
        assert!(granted(&ledger, run, named(&[(45, 60)]), 5));
        assert!(granted(&ledger, run, named(&[(50, 50)]), 0), "none of these has failed");
        assert!(!granted(&ledger, RunNo(9), None, 0));
    }
}
