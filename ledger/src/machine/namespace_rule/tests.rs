use super::*;
use crate::batch::spec::{EngineSpec, RunSpec, SlotOffer};
use crate::identity::quota::Quota;
use crate::kernel::id::{CoordEpoch, LedgerMs, SegmentNo, SlotNo, SlotRef};
use crate::kernel::reply::Reply;
use crate::machine::command::{
    BlobRef, Body, Command, Op, PartDecl, Registration, RunAction, ScopedOp, SegmentDecl, op,
};
use crate::machine::ledger::EntryId;

const ROWS: u32 = 4;

/// A ledger, and the index of its last entry.
struct Bench(Ledger, u64);

impl Bench {
    /// A cluster of this version with the namespaces `default` and `team`.
    fn new(version: u32) -> Self {
        let mut bench = Self(Ledger::new([1; 16]), 0);
        bench.apply(Body::OpenEpoch);
        bench.apply(Body::SetVersion(version));
        bench.op(OpKind::SetNamespace(op::SetNamespace {
            name: "team".into(),
            running_rows_max: 0,
        }));
        bench
    }

    fn apply(&mut self, body: Body) -> Vec<Reply> {
        self.1 += 1;
        let command = Command { epoch: CoordEpoch(1), at: LedgerMs(0), wall_ms: 0, body };
        let entry = EntryId { index: self.1, term: 1 };
        let replies = self.0.apply(entry, &command.encode()).expect("it is known");
        self.0.check_invariants().expect("they hold");
        replies
    }

    fn op(&mut self, kind: OpKind) -> Reply {
        self.apply(Body::Ops(vec![kind.into()])).remove(0)
    }

    /// Applies an operation of a caller that may use only `team`.
    fn of_team(&mut self, kind: OpKind) -> Reply {
        self.within("team", kind)
    }

    /// Applies an operation of a caller that may use only this namespace.
    fn within(&mut self, namespace: &str, kind: OpKind) -> Reply {
        let scope = Scope::Namespaces(vec![namespace.into()]);
        let dry_run = self.0.dry_run(&scope, &kind);
        let op = Op::from(kind);
        let reply = self.apply(Body::ScopedOps(vec![ScopedOp { scope, op }])).remove(0);
        if let Some(Err(why)) = dry_run {
            assert_eq!(reply, Reply::Rejected(why), "the dry run says the same");
        }
        reply
    }

    fn run(&mut self, namespace: &str) -> RunNo {
        let Reply::Run { run, .. } = self.op(create(namespace)) else { panic!("no run") };
        let segment = SegmentDecl { number: SegmentNo(0), rows: ROWS, blob: BlobRef::default() };
        self.op(OpKind::AddSegments(op::AddSegments { run, segments: vec![segment] }));
        run
    }

    /// A new process of a worker, which lists these rows. Returns its slot, and the rows that it must drop.
    fn register(
        &mut self,
        (namespace, name): (&str, &str),
        held: Vec<HeldRows>,
    ) -> (SlotRef, Vec<HeldRows>) {
        let registration = Registration {
            namespace: namespace.into(),
            name: name.into(),
            instance: self.1,
            slots: vec![SlotOffer { models: vec!["m".into()], ..SlotOffer::default() }],
            held,
            ..Registration::default()
        };
        let reply = self.op(OpKind::Register(Box::new(registration)));
        let Reply::Registered { session, dropped, .. } = reply else { panic!("{reply:?}") };
        (SlotRef { session, slot: SlotNo(0) }, dropped)
    }

    /// Rows of a run whose worker is silent, so that any worker which names the attempt may report them.
    fn lapsed(&mut self, namespace: &str) -> HeldRows {
        let run = self.run(namespace);
        let (slot, _) = self.register((namespace, "w"), Vec::new());
        let claim = op::Claim { slot, instance: self.1 - 1, seq: 1, rows_max: ROWS };
        let reply = self.op(OpKind::Claim(claim));
        let Reply::Granted(mut grants) = reply else { panic!("{reply:?}") };
        let session = slot.session;
        let suspect = op::Suspect { session, started: Vec::new(), grace_ms: 60_000 };
        self.op(OpKind::Suspect(suspect));
        let held = grants.pop().expect("a grant").held;
        assert_eq!(held.run, run);
        held
    }

    fn done(&self, run: RunNo) -> u64 {
        self.0.run_view(run).expect("a run").counts.done
    }
}

fn create(namespace: &str) -> OpKind {
    let engine = EngineSpec { model: "m".into(), ..EngineSpec::default() };
    let spec = RunSpec { engine, weight: 1, attempts_max: 1, ..RunSpec::default() };
    let (name, folder) = ("r".to_owned(), "r/own".to_owned());
    OpKind::CreateRun(op::CreateRun {
        namespace: namespace.into(),
        name,
        spec: Box::new(spec),
        folder,
    })
}

fn complete(slot: SlotRef, held: &HeldRows) -> OpKind {
    let part = PartDecl { blob: BlobRef::default(), tokens_in: 1, tokens_out: 1 };
    OpKind::Complete(op::Complete { slot, run: held.run, part, sets: vec![held.clone()] })
}

#[test]
fn a_caller_of_one_namespace_changes_nothing_of_another() {
    let mut bench = Bench::new(NAMESPACES_VERSION);
    let (own, other) = (bench.run("team"), bench.run("default"));
    let (worker, _) = bench.register(("default", "w"), Vec::new());
    let session = worker.session;
    let denied = Reply::Rejected(Rejection::NamespaceDenied("default".into()));
    let quota = Quota {
        namespace: "team".into(),
        create: false,
        pending_rows_max: None,
        running_rows_max: None,
        runs_max: Some(1),
    };
    for kind in [
        OpKind::DeleteRun(op::DeleteRun { run: other }),
        OpKind::Drain(op::DrainWorker { session, deadline_ms: 0 }),
        create("default"),
    ] {
        assert_eq!(bench.of_team(kind), denied);
    }
    assert_eq!(bench.of_team(OpKind::SetQuota(quota)), Reply::Rejected(Rejection::ClusterDenied));
    let unknown = OpKind::DeleteRun(op::DeleteRun { run: RunNo(99) });
    assert!(!matches!(bench.of_team(unknown), Reply::Rejected(Rejection::NamespaceDenied(_))));
    let cancel = |run| {
        let action = RunAction::Cancel;
        OpKind::ControlRun(op::ControlRun { run, action, reason: String::new() })
    };
    assert_eq!(bench.of_team(cancel(other)), denied);
    assert_eq!(bench.of_team(cancel(own)), bench.op(cancel(other)), "as for a caller of all");
}

#[test]
fn a_command_with_scopes_is_refused_whole_below_its_version() {
    let mut bench = Bench::new(NAMESPACES_VERSION - 1);
    let (needs, version) = (NAMESPACES_VERSION, NAMESPACES_VERSION - 1);
    let low = Reply::Rejected(Rejection::VersionLow { needs, version });
    let scope = Scope::Namespaces(vec!["team".into()]);
    let op = Op::from(create("team"));
    let ops = vec![ScopedOp { scope, op: op.clone() }, ScopedOp::from(op)];
    assert_eq!(bench.apply(Body::ScopedOps(ops)), [low.clone(), low]);
}

#[test]
fn a_late_result_counts_only_from_a_worker_of_the_runs_namespace() {
    let mut bench = Bench::new(NAMESPACES_VERSION);
    let held = bench.lapsed("default");
    let (foreign, _) = bench.register(("team", "w"), Vec::new());
    let refused = vec![RefusedRows {
        run: held.run,
        attempt: held.attempt,
        rows: held.rows.clone(),
        why: Rejection::AttemptStale,
    }];
    assert_eq!(bench.op(complete(foreign, &held)), Reply::Taken { refused });
    assert_eq!(bench.done(held.run), 0);
    let (own, _) = bench.register(("default", "back"), Vec::new());
    assert_eq!(bench.op(complete(own, &held)), Reply::Taken { refused: Vec::new() });
    assert_eq!(bench.done(held.run), u64::from(ROWS));
}

#[test]
fn a_late_result_of_an_ended_session_counts_only_within_the_namespace_of_its_worker() {
    let mut bench = Bench::new(NAMESPACES_VERSION);
    let held = bench.lapsed("default");
    let end = |bench: &mut Bench, slot: SlotRef| {
        let ended = bench.op(OpKind::Deregister(op::Deregister { session: slot.session }));
        assert_eq!(ended, Reply::Ok);
    };
    let (foreign, _) = bench.register(("team", "w"), Vec::new());
    end(&mut bench, foreign);
    let denied = Reply::Rejected(Rejection::NamespaceDenied("default".into()));
    assert_eq!(bench.within("team", complete(foreign, &held)), denied);
    assert_eq!(bench.done(held.run), 0);
    let (own, _) = bench.register(("default", "back"), Vec::new());
    end(&mut bench, own);
    let taken = Reply::Taken { refused: Vec::new() };
    assert_eq!(bench.within("default", complete(own, &held)), taken);
    assert_eq!(bench.done(held.run), u64::from(ROWS));
}

#[test]
fn below_the_version_a_late_result_counts_from_any_worker() {
    let mut bench = Bench::new(NAMESPACES_VERSION - 1);
    let held = bench.lapsed("default");
    let (foreign, _) = bench.register(("team", "w"), Vec::new());
    assert_eq!(bench.op(complete(foreign, &held)), Reply::Taken { refused: Vec::new() });
    assert_eq!(bench.done(held.run), u64::from(ROWS), "as builds of version 3 apply it");
}

#[test]
fn a_worker_takes_over_no_rows_of_another_namespace() {
    let mut bench = Bench::new(NAMESPACES_VERSION);
    let held = bench.lapsed("default");
    let running = |bench: &Bench| bench.0.run_view(held.run).expect("a run").counts.running;
    // Another process of the silent worker ends its session, and holds none of the rows.
    bench.register(("default", "w"), Vec::new());
    let (_, dropped) = bench.register(("team", "w"), vec![held.clone()]);
    assert_eq!((dropped, running(&bench)), (vec![held.clone()], 0));
    let (_, dropped) = bench.register(("default", "back"), vec![held.clone()]);
    assert_eq!((dropped, running(&bench)), (Vec::new(), u64::from(ROWS)));
}
