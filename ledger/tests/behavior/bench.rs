//! A ledger for testing bounds, and the commands to it.

use rollout_ledger::id::{CoordEpoch, LedgerMs, RunNo, SegmentNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::{
    BlobRef, Body, Command, EngineSpec, EntryId, Evidence, FailureClass, HeldRows, JobName, Ledger,
    Op, OpKind, PartDecl, ParticipantDecl, Registration, Rejection, Reply, RunSpec, SegmentDecl,
    SlotOffer, limits, op,
};
use std::collections::BTreeMap;

/// Operations that are tried at a time, where many are.
const AT_ONCE: usize = 1000;

pub(crate) struct Bench {
    pub(crate) ledger: Ledger,
    index: u64,
    clock: u64,
}

pub(crate) fn spec() -> RunSpec {
    RunSpec {
        engine: EngineSpec { model: "m".into(), ..EngineSpec::default() },
        weight: 1,
        attempts_max: 8,
        failures_max: 1_000_000,
        ..RunSpec::default()
    }
}

pub(crate) fn create(name: &str, spec: RunSpec) -> OpKind {
    create_in("default", name, spec)
}

pub(crate) fn create_in(namespace: &str, name: &str, spec: RunSpec) -> OpKind {
    let (folder, spec) = (format!("{name}/own"), Box::new(spec));
    OpKind::CreateRun(op::CreateRun {
        namespace: namespace.into(),
        name: name.into(),
        spec,
        folder,
    })
}

pub(crate) fn open_client(name: &str) -> OpKind {
    OpKind::OpenClient(op::OpenClient { name: name.into(), holder: String::new() })
}

pub(crate) fn segment(number: u32, rows: u32) -> SegmentDecl {
    let blob = BlobRef { digest: [1; 32], bytes: 9 };
    SegmentDecl { number: SegmentNo(number), rows, blob }
}

pub(crate) fn registration(name: &str, slots: usize) -> Registration {
    let offer = SlotOffer { models: vec!["*".into()], ..SlotOffer::default() };
    Registration {
        namespace: "default".into(),
        name: name.into(),
        instance: 1,
        slots: vec![offer; slots],
        ..Registration::default()
    }
}

pub(crate) fn register(registration: Registration) -> OpKind {
    OpKind::Register(Box::new(registration))
}

pub(crate) fn at(session: SessionId) -> SlotRef {
    SlotRef { session, slot: SlotNo(0) }
}

pub(crate) fn claim(slot: SlotRef, seq: u64, rows_max: u32) -> OpKind {
    OpKind::Claim(op::Claim { slot, instance: 1, seq, rows_max })
}

pub(crate) fn complete(slot: SlotRef, run: RunNo, sets: Vec<HeldRows>) -> OpKind {
    let part = PartDecl { blob: BlobRef::default(), tokens_in: 0, tokens_out: 0 };
    OpKind::Complete(op::Complete { slot, run, part, sets })
}

pub(crate) fn job(name: &str) -> JobName {
    JobName { namespace: "default".into(), job: name.into() }
}

pub(crate) fn participant(name: &str) -> ParticipantDecl {
    ParticipantDecl { name: name.into(), keep_alive_ms: 1000, ..ParticipantDecl::default() }
}

pub(crate) fn text(bytes: usize) -> String {
    "x".repeat(bytes)
}

impl Bench {
    pub(crate) fn new() -> Self {
        let mut bench = Self { ledger: Ledger::new([1; 16]), index: 0, clock: 0 };
        bench.command(Body::OpenEpoch);
        bench
    }

    /// A copy that is loaded from the image of this one, which had no image before.
    pub(crate) fn reloaded(&mut self) -> Self {
        let image: BTreeMap<_, _> = self.ledger.drain_dirty().puts.into_iter().collect();
        let ledger = Ledger::load(image).expect("what was drained loads");
        Self { ledger, index: self.index, clock: self.clock }
    }

    pub(crate) fn command_at(&mut self, at: u64, body: Body) -> Vec<Reply> {
        self.index += 1;
        let command = Command { epoch: CoordEpoch(1), at: LedgerMs(at), wall_ms: at, body };
        let entry = EntryId { index: self.index, term: 1 };
        let replies = self.ledger.apply(entry, &command.encode()).expect("a known command");
        self.ledger.take_events();
        replies
    }

    pub(crate) fn command(&mut self, body: Body) -> Vec<Reply> {
        self.command_at(self.clock, body)
    }

    pub(crate) fn op(&mut self, op: impl Into<Op>) -> Reply {
        let mut replies = self.command(Body::Ops(vec![op.into()]));
        replies.pop().expect("a reply")
    }

    /// What is granted.
    pub(crate) fn granted(&mut self, op: impl Into<Op>) -> Reply {
        match self.op(op) {
            Reply::Rejected(why) => panic!("refused: {why}"),
            reply => reply,
        }
    }

    /// Many, each granted, in the order of their answers.
    pub(crate) fn all_granted(&mut self, kinds: impl IntoIterator<Item = OpKind>) -> Vec<Reply> {
        let kinds: Vec<Op> = kinds.into_iter().map(Op::from).collect();
        let mut replies = Vec::new();
        for some in kinds.chunks(AT_ONCE) {
            replies.extend(self.command(Body::Ops(some.to_vec())));
        }
        let refused = replies.iter().find(|reply| matches!(reply, Reply::Rejected(_)));
        assert!(refused.is_none(), "{refused:?}");
        replies
    }

    /// What is refused, and leaves no trace.
    pub(crate) fn refused(&mut self, op: impl Into<Op>) -> Rejection {
        let Reply::Rejected(why) = self.op(op) else { panic!("granted") };
        why
    }

    pub(crate) fn invalid(&mut self, op: impl Into<Op>) {
        let why = self.refused(op);
        assert!(matches!(why, Rejection::Invalid(_)), "{why:?}");
    }

    /// Refused for this bound.
    pub(crate) fn over(&mut self, bound: u64, op: impl Into<Op>) {
        let why = self.refused(op);
        assert!(matches!(why, Rejection::Limit { max, .. } if max == bound), "{why:?}");
    }

    /// Time passes up to there, in steps that a leader may make.
    pub(crate) fn tick_to(&mut self, at: u64) {
        while self.clock < at {
            self.clock = at.min(self.clock + limits::CLOCK_STEP_MAX_MS);
            let replies = self.command(Body::Tick);
            assert!(matches!(replies[..], [Reply::Ok]), "{replies:?}");
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.clock
    }

    pub(crate) fn worker(&mut self, name: &str, slots: usize) -> SlotRef {
        match self.granted(register(registration(name, slots))) {
            Reply::Registered { session, .. } => at(session),
            reply => panic!("{reply:?}"),
        }
    }

    /// A run with this many rows, with an open input.
    pub(crate) fn run(&mut self, name: &str, spec: RunSpec, rows: u32) -> RunNo {
        let Reply::Run { run, .. } = self.granted(create(name, spec)) else { panic!("no run") };
        let whole =
            (0..rows / limits::SEGMENT_ROWS_MAX).map(|n| segment(n, limits::SEGMENT_ROWS_MAX));
        let mut segments: Vec<SegmentDecl> = whole.collect();
        let left = rows % limits::SEGMENT_ROWS_MAX;
        if left > 0 {
            segments.push(segment(segments.len() as u32, left));
        }
        self.granted(OpKind::AddSegments(op::AddSegments { run, segments }));
        run
    }

    /// The result of a pull.
    pub(crate) fn pull(&mut self, slot: SlotRef, seq: u64, rows_max: u32) -> Vec<HeldRows> {
        match self.granted(claim(slot, seq, rows_max)) {
            Reply::Granted(grants) => grants.into_iter().map(|grant| grant.held).collect(),
            reply => panic!("{reply:?}"),
        }
    }
}

/// Rows of some grants.
pub(crate) fn rows(held: &[HeldRows]) -> u64 {
    held.iter().map(|held| held.rows.len()).sum()
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.ledger.check_invariants().expect("the invariants hold");
        }
    }
}

/// A row fails in that way.
pub(crate) fn fail(bench: &mut Bench, slot: SlotRef, held: HeldRows, class: FailureClass) {
    let (code, message) = ("e".to_owned(), String::new());
    let evidence = Evidence::default();
    let reply =
        bench.granted(OpKind::Fail(op::Fail { slot, held, class, code, message, evidence }));
    assert!(matches!(reply, Reply::Taken { ref refused } if refused.is_empty()), "{reply:?}");
}
