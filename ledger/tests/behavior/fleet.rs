//! A ledger with runs and slots, and the commands to it. A member may be loaded from its image at any moment.

use rollout_ledger::id::{CoordEpoch, LedgerMs, RunNo, SegmentNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::{
    BlobRef, Body, Command, EngineSpec, EntryId, Evidence, FailureClass, GrantedRows, HeldRows,
    Ledger, OpKind, PartDecl, Registration, Reply, RunSpec, SegmentDecl, SlotOffer, op,
};
use std::collections::BTreeMap;

const SEGMENT_ROWS: u32 = 4096;
const STEP_MAX_MS: u64 = 60_000;

pub(crate) struct Fleet {
    pub(crate) ledger: Ledger,
    image: BTreeMap<Vec<u8>, Vec<u8>>,
    index: u64,
    term: u64,
    pub(crate) clock: u64,
    /// Every slot, in the order of registration, and its latest pull.
    pub(crate) slots: Vec<(SlotRef, u64)>,
    /// The number of commands between two checks of the invariants.
    pub(crate) check_every: u64,
}

impl Fleet {
    pub(crate) fn new(version: u32) -> Self {
        let (ledger, image, slots) = (Ledger::new([3; 16]), BTreeMap::new(), Vec::new());
        let mut fleet = Self { ledger, image, index: 0, term: 0, clock: 0, slots, check_every: 1 };
        fleet.lead();
        fleet.apply(Body::SetVersion(version));
        fleet
    }

    pub(crate) fn run(&mut self, namespace: &str, name: &str, rows: u32) -> RunNo {
        let spec = RunSpec {
            engine: EngineSpec { model: "m".into(), ..EngineSpec::default() },
            weight: 1,
            attempts_max: 3,
            failures_max: 64,
            ..RunSpec::default()
        };
        let folder = format!("{name}/1");
        let (namespace, name) = (namespace.into(), name.into());
        let create =
            OpKind::CreateRun(op::CreateRun { namespace, name, spec: Box::new(spec), folder });
        let Reply::Run { run, .. } = self.op(create) else { panic!("no run") };
        let blob = BlobRef { digest: [1; 32], bytes: 1 };
        let full = (0..rows / SEGMENT_ROWS).map(|_| SEGMENT_ROWS);
        let rest = Some(rows % SEGMENT_ROWS).filter(|rest| *rest > 0);
        let segments: Vec<SegmentDecl> = (0..)
            .zip(full.chain(rest))
            .map(|(n, rows)| SegmentDecl { number: SegmentNo(n), rows, blob: blob.clone() })
            .collect();
        let all: Vec<u8> = segments.iter().flat_map(|segment| segment.blob.digest).collect();
        self.op(OpKind::AddSegments(op::AddSegments { run, segments }));
        let digest = *blake3::hash(&all).as_bytes();
        self.op(OpKind::CloseInput(op::CloseInput { run, rows: rows.into(), digest }));
        run
    }

    /// Adds a worker with this many slots; returns the number of the first.
    pub(crate) fn worker(&mut self, namespace: &str, name: &str, slots: usize) -> usize {
        let offer = SlotOffer { models: vec!["m".into()], ..SlotOffer::default() };
        let registration = Registration {
            namespace: namespace.into(),
            name: name.into(),
            slots: vec![offer; slots],
            ..Registration::default()
        };
        self.op(OpKind::Register(Box::new(registration)));
        let (session, first) = (SessionId::at(self.index, 0), self.slots.len());
        let slot = |n| (SlotRef { session, slot: SlotNo(n as u16) }, 0);
        self.slots.extend((0..slots).map(slot));
        first
    }

    pub(crate) fn apply(&mut self, body: Body) -> Reply {
        self.index += 1;
        let entry = EntryId { index: self.index, term: self.term };
        let at = LedgerMs(self.clock);
        let command = Command { epoch: CoordEpoch(self.term), at, wall_ms: self.clock, body };
        let replies = self.ledger.apply(entry, &command.encode()).expect("known");
        if self.index.is_multiple_of(self.check_every) {
            self.ledger.check_invariants().expect("they hold");
        }
        self.ledger.take_events();
        replies.into_iter().next().expect("one")
    }

    pub(crate) fn op(&mut self, kind: OpKind) -> Reply {
        let reply = self.apply(Body::Ops(vec![kind.into()]));
        assert!(!matches!(reply, Reply::Rejected(_)), "{reply:?}");
        reply
    }

    /// Time passes.
    pub(crate) fn tick(&mut self, mut after_ms: u64) {
        loop {
            let step = after_ms.min(STEP_MAX_MS);
            after_ms -= step;
            self.clock += step;
            self.apply(Body::Tick);
            if after_ms == 0 {
                break;
            }
        }
    }

    /// A new leader, at a member that knows nothing but the image.
    pub(crate) fn lead(&mut self) {
        let delta = self.ledger.drain_dirty();
        for prefix in delta.delete_prefixes {
            self.image.retain(|key, _| !key.starts_with(&prefix));
        }
        self.image.extend(delta.puts);
        delta.deletes.iter().for_each(|key| {
            self.image.remove(key);
        });
        self.ledger = Ledger::load(self.image.clone()).expect("what was drained loads");
        self.term += 1;
        self.apply(Body::OpenEpoch);
    }

    pub(crate) fn pull(&mut self, at: usize, rows_max: u32) -> Vec<GrantedRows> {
        let (slot, last) = self.slots[at];
        match self.op(OpKind::Claim(op::Claim { slot, instance: 0, seq: last + 1, rows_max })) {
            Reply::Granted(grants) => {
                self.slots[at].1 += u64::from(!grants.is_empty());
                grants
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn died(&mut self, at: usize, started: Vec<HeldRows>, class: FailureClass) {
        self.op(OpKind::EngineDied(op::EngineDied {
            slot: self.slots[at].0,
            number: 0,
            started,
            class,
            code: "sigkill".into(),
            message: String::new(),
            evidence: Evidence::default(),
        }));
    }

    pub(crate) fn done(&mut self, at: usize, held: HeldRows) {
        let digest = *blake3::hash(&self.index.to_be_bytes()).as_bytes();
        let part = PartDecl { blob: BlobRef { digest, bytes: 1 }, tokens_in: 0, tokens_out: 0 };
        let (slot, run) = (self.slots[at].0, held.run);
        self.op(OpKind::Complete(op::Complete { slot, run, part, sets: vec![held] }));
    }

    /// Why a slot gets no work.
    pub(crate) fn cordon(&self, at: usize) -> Option<String> {
        let SlotRef { session, slot } = self.slots[at].0;
        let view = self.ledger.worker_view(session).expect("registered");
        view.slots[usize::from(slot.0)].cordon.clone()
    }
}
