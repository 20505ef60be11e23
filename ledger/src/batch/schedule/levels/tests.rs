//! Measures the cost of keeping times comparable, in visited records.

use crate::batch::spec::{EngineSpec, RunSpec, SlotOffer};
use crate::kernel::id::{CoordEpoch, LedgerMs, RunNo, SegmentNo, SessionId, SlotNo, SlotRef};
use crate::kernel::reply::Reply;
use crate::kernel::visits::visits_of;
use crate::machine::command::op;
use crate::machine::command::{
    BlobRef, Body, Command, OpKind, Registration, RunAction, SegmentDecl,
};
use crate::machine::ledger::{EntryId, Ledger};
use crate::machine::version_gate::SCHEDULING_VERSION;

/// A ledger, and the index of its last entry.
struct Bench(Ledger, u64);

impl Bench {
    fn new() -> Self {
        let mut bench = Self(Ledger::new([1; 16]), 0);
        bench.apply(Body::OpenEpoch);
        bench.apply(Body::SetVersion(SCHEDULING_VERSION));
        bench
    }

    fn apply(&mut self, body: Body) -> Reply {
        self.1 += 1;
        let command = Command { epoch: CoordEpoch(1), at: LedgerMs(0), wall_ms: 0, body };
        let entry = EntryId { index: self.1, term: 1 };
        let mut replies = self.0.apply(entry, &command.encode()).expect("it is known");
        match replies.pop().expect("a reply") {
            Reply::Rejected(why) => panic!("{why:?}"),
            reply => reply,
        }
    }

    fn op(&mut self, kind: OpKind) -> Reply {
        self.apply(Body::Ops(vec![kind.into()]))
    }

    /// A host with one slot for any model.
    fn host(&mut self, host: u32) -> SessionId {
        let offer = SlotOffer {
            models: vec!["*".into()],
            labels: [("host".to_owned(), host.to_string())].into(),
            ..SlotOffer::default()
        };
        let registration = Registration {
            namespace: "default".into(),
            name: format!("w{host}"),
            instance: 1,
            slots: vec![offer],
            ..Registration::default()
        };
        match self.op(OpKind::Register(Box::new(registration))) {
            Reply::Registered { session, .. } => session,
            reply => panic!("{reply:?}"),
        }
    }

    /// A run of one row, pinned to `host` if given.
    fn run(&mut self, model: &str, host: Option<u32>) -> RunNo {
        let spec = RunSpec {
            engine: EngineSpec { model: model.into(), ..EngineSpec::default() },
            selector: host.map(|host| ("host".to_owned(), host.to_string())).into_iter().collect(),
            weight: 1,
            attempts_max: 3,
            ..RunSpec::default()
        };
        let name = format!("r{}", self.1);
        let (folder, spec) = (format!("{name}/own"), Box::new(spec));
        let create =
            OpKind::CreateRun(op::CreateRun { namespace: "default".into(), name, spec, folder });
        let Reply::Run { run, .. } = self.op(create) else { panic!("no run") };
        let segment = SegmentDecl { number: SegmentNo(0), rows: 1, blob: BlobRef::default() };
        self.op(OpKind::AddSegments(op::AddSegments { run, segments: vec![segment] }));
        run
    }
}

#[test]
fn closing_gaps_costs_the_cohorts_and_the_needs_and_not_each_pair_of_them() {
    const HOSTS: u32 = 60;
    const MODELS: u32 = 40;
    /// Each cohort once, and each need twice. A visited pair of them counts as a visit too.
    const VISITS: u64 = 4 * (HOSTS + HOSTS + MODELS) as u64;
    let mut bench = Bench::new();
    let sessions: Vec<SessionId> = (0..HOSTS).map(|host| bench.host(host)).collect();
    for model in 0..MODELS {
        bench.run(&format!("m{model}"), None);
    }
    let pinned: Vec<RunNo> = (0..HOSTS).map(|host| bench.run("m0", Some(host))).collect();
    let more = visits_of(|| bench.run("other", Some(3)));
    let (run, reason) = (pinned[7], String::new());
    let pause = OpKind::ControlRun(op::ControlRun {
        run,
        action: RunAction::Pause,
        reason: reason.clone(),
    });
    let paused = visits_of(|| bench.op(pause));
    let cancel = OpKind::ControlRun(op::ControlRun { run, action: RunAction::Cancel, reason });
    let ended = visits_of(|| bench.op(cancel));
    let left = visits_of(|| bench.op(OpKind::Deregister(op::Deregister { session: sessions[9] })));
    for visits in [more, paused, ended, left] {
        assert!((1..=VISITS).contains(&visits), "{visits} visits, at most {VISITS}");
    }
    bench.0.check_invariants().expect("they hold");
}

#[test]
fn runs_that_join_together_do_not_look_past_each_other() {
    const RUNS: u32 = 400;
    /// Of all that changes about a run that gets its row back.
    const FEW: u64 = 30;
    let mut bench = Bench::new();
    let session = bench.host(0);
    for _ in 0..RUNS {
        bench.run("m", None);
    }
    let slot = SlotRef { session, slot: SlotNo(0) };
    bench.op(OpKind::Claim(op::Claim { slot, instance: 1, seq: 1, rows_max: RUNS }));
    assert!(bench.0.runs.values().all(|run| !run.gives()), "it has all rows");
    bench.host(1);
    bench.run("m", None);
    let visits = visits_of(|| bench.op(OpKind::Deregister(op::Deregister { session })));
    assert!(bench.0.runs.values().all(|run| run.gives()), "the rows are back");
    let most = u64::from(RUNS) * FEW;
    assert!((1..=most).contains(&visits), "{visits} visits, at most {most}");
    bench.0.check_invariants().expect("they hold");
}
