//! What an autoscaler gets: pending rows by model, and the slots that could run them.

use rollout_ledger::id::{CoordEpoch, LedgerMs, SegmentNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::view::Pool;
use rollout_ledger::{
    BlobRef, Body, Command, EngineSpec, EntryId, Ledger, OpKind, Registration, Reply, RunAction,
    RunSpec, SegmentDecl, SlotOffer, op,
};

struct Played {
    ledger: Ledger,
    index: u64,
}

impl Played {
    fn new() -> Self {
        let mut this = Self { ledger: Ledger::new([7; 16]), index: 0 };
        this.command(Body::OpenEpoch);
        this
    }

    fn command(&mut self, body: Body) -> Vec<Reply> {
        self.index += 1;
        let command = Command { epoch: CoordEpoch(1), at: LedgerMs(0), wall_ms: 0, body };
        let entry = EntryId { index: self.index, term: 1 };
        self.ledger.apply(entry, &command.encode()).expect("a known command")
    }

    fn op(&mut self, kind: OpKind) -> Reply {
        self.command(Body::Ops(vec![kind.into()])).remove(0)
    }

    fn run(&mut self, name: &str, model: &str, rows: u32) -> rollout_ledger::id::RunNo {
        let engine = EngineSpec { model: model.into(), ..EngineSpec::default() };
        let spec = Box::new(RunSpec { engine, weight: 1, attempts_max: 1, ..RunSpec::default() });
        let (namespace, name) = ("default".into(), name.into());
        let folder = format!("{name}/1");
        let create = OpKind::CreateRun(op::CreateRun { namespace, name, spec, folder });
        let Reply::Run { run, .. } = self.op(create) else {
            panic!("not created");
        };
        let blob = BlobRef { digest: [1; 32], bytes: 10 };
        let segments = vec![SegmentDecl { number: SegmentNo(0), rows, blob }];
        self.op(OpKind::AddSegments(op::AddSegments { run, segments }));
        run
    }

    fn worker(&mut self, name: &str, slots: &[&[&str]]) -> SessionId {
        let offer = |models: &&[&str]| SlotOffer {
            models: models.iter().map(|m| (*m).to_owned()).collect(),
            ..SlotOffer::default()
        };
        let registration = Registration {
            namespace: "default".into(),
            name: name.into(),
            instance: 1,
            slots: slots.iter().map(offer).collect(),
            ..Registration::default()
        };
        match self.op(OpKind::Register(Box::new(registration))) {
            Reply::Registered { session, .. } => session,
            other => panic!("{other:?}"),
        }
    }

    fn claim(&mut self, session: SessionId, slot: u16, rows_max: u32) {
        let slot = SlotRef { session, slot: SlotNo(slot) };
        let claim = OpKind::Claim(op::Claim { slot, instance: 1, seq: 1, rows_max });
        assert!(matches!(self.op(claim), Reply::Granted(grants) if !grants.is_empty()));
    }

    fn pool(&self, model: &str) -> Pool {
        self.ledger.pools().get(model).copied().unwrap_or_default()
    }
}

#[test]
fn a_pool_counts_the_rows_of_its_model_and_the_slots_that_could_take_them() {
    let mut played = Played::new();
    let run = played.run("r1", "small", 100);
    assert_eq!(played.pool("small"), Pool { pending: 100, ..Pool::default() });
    let session = played.worker("w1", &[&["small"], &["small@v2", "big"], &["*"]]);
    // "small@v2" is a slot of the model; the run's revision is ignored.
    assert_eq!(played.pool("small"), Pool { pending: 100, running: 0, slots: 3, idle: 3 });
    assert_eq!(played.pool("big"), Pool { slots: 2, idle: 2, ..Pool::default() });
    played.claim(session, 0, 30);
    assert_eq!(played.pool("small"), Pool { pending: 70, running: 30, slots: 3, idle: 2 });
    let (slot, reason) = (Some(SlotNo(2)), "hot".to_owned());
    played.op(OpKind::Cordon(op::Cordon { session, slot, cordoned: true, reason }));
    assert_eq!(played.pool("small"), Pool { pending: 70, running: 30, slots: 2, idle: 1 });
    let (action, reason) = (RunAction::Pause, "a look".to_owned());
    played.op(OpKind::ControlRun(op::ControlRun { run, action, reason }));
    assert_eq!(played.pool("small").pending, 0, "nobody is to be started for a paused run");
    assert_eq!(played.pool("small").running, 30);
}

#[test]
fn a_pool_without_rows_and_slots_is_not_listed() {
    let mut played = Played::new();
    played.worker("w1", &[&["*"]]);
    assert!(played.ledger.pools().is_empty());
}

#[test]
fn the_models_of_a_namespace_are_those_that_its_slots_name() {
    let mut played = Played::new();
    assert!(played.ledger.models_in("default").is_empty());
    played.run("r1", "unserved", 1);
    played.worker("w1", &[&["small"], &["small@v2", "big"], &["*"]]);
    let models: Vec<String> = played.ledger.models_in("default").into_iter().collect();
    assert_eq!(
        models,
        ["big", "small"],
        "without revisions, and without models that only runs name"
    );
    assert!(played.ledger.models_in("other").is_empty(), "workers serve their own namespace");
}
