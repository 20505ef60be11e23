//! Tests of batches, with a ledger that applies one operation at a time.
//!
//! After each operation, the invariants hold, and a ledger that is loaded from the image has the same state.

mod bounds;
mod ends;
mod idempotency;
mod limits;
mod owners;
mod runs;

use crate::batch::spec::{EngineSpec, RunSpec, SlotOffer};
use crate::kernel::id::{
    BatchFence, CoordEpoch, LedgerMs, RunNo, SegmentNo, SessionId, SlotNo, SlotRef,
};
use crate::kernel::openai_refusal::OpenAiRefusal;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::command::{
    BlobRef, Body, Command, FailureClass, OpKind, PartDecl, Registration, SegmentDecl, op,
};
use crate::machine::digest::digest_records;
use crate::machine::ledger::{EntryId, Ledger};
use crate::machine::version_gate::OPENAI_API_VERSION;
use crate::openai::batch::{BatchError, BatchSpec, BatchStatus, BatchUsage};
use crate::openai::batch_output::BatchOutput;
use crate::openai::batch_view::{BatchTask, BatchView};
use crate::openai::content::Extent;
use crate::openai::create_batch::BatchDecl;
use crate::openai::file::{FilePurpose, FileSpec};
use std::collections::BTreeMap;

/// The members of the cluster.
const FIRST: u64 = 1;
const SECOND: u64 = 2;
/// The completion window of batches.
const WINDOW_MS: u64 = 60_000;
/// Wall time is this much ahead of ledger time.
const WALL: u64 = 1_700_000_000_000;

struct Bench {
    ledger: Ledger,
    image: BTreeMap<Vec<u8>, Vec<u8>>,
    index: u64,
    now: u64,
    pulls: u64,
}

impl Bench {
    /// A cluster with the file `file-in` and a worker of one slot.
    fn new() -> Self {
        let (ledger, image) = (Ledger::new([1; 16]), BTreeMap::new());
        let mut bench = Self { ledger, image, index: 0, now: 1000, pulls: 0 };
        bench.command(Body::OpenEpoch);
        bench.command(Body::SetVersion(OPENAI_API_VERSION));
        bench.granted(create_file("file-in", FilePurpose::Batch, 0));
        bench
    }

    fn command(&mut self, body: Body) -> Reply {
        let reply = self.apply(body);
        self.ledger.check_invariants().expect("they hold");
        self.reload();
        reply
    }

    fn apply(&mut self, body: Body) -> Reply {
        self.index += 1;
        let (at, wall_ms) = (LedgerMs(self.now), WALL + self.now);
        let command = Command { epoch: CoordEpoch(1), at, wall_ms, body };
        let entry = EntryId { index: self.index, term: 1 };
        let mut replies = self.ledger.apply(entry, &command.encode()).expect("it is known");
        self.ledger.take_events();
        replies.pop().expect("a reply")
    }

    /// Continues with a ledger that is loaded from the image.
    fn reload(&mut self) {
        let delta = self.ledger.drain_dirty();
        for prefix in delta.delete_prefixes {
            self.image.retain(|key, _| !key.starts_with(&prefix));
        }
        delta.deletes.iter().for_each(|key| drop(self.image.remove(key)));
        self.image.extend(delta.puts);
        assert_eq!(digest_records(&self.image), self.ledger.state_digest());
        self.ledger = Ledger::load(self.image.clone()).expect("what was drained loads");
        self.ledger.check_invariants().expect("they hold when loaded");
    }

    fn op(&mut self, kind: OpKind) -> Reply {
        self.command(Body::Ops(vec![kind.into()]))
    }

    fn granted(&mut self, kind: OpKind) -> Reply {
        match self.op(kind) {
            Reply::Rejected(why) => panic!("{why}"),
            reply => reply,
        }
    }

    fn refused(&mut self, kind: OpKind) -> Rejection {
        let before = self.ledger.state_records();
        let Reply::Rejected(why) = self.op(kind) else { panic!("it was granted") };
        assert_eq!(self.ledger.state_records(), before, "a refused operation changed something");
        why
    }

    fn openai_refusal(&mut self, kind: OpKind) -> OpenAiRefusal {
        match self.refused(kind) {
            Rejection::OpenAi(why) => why,
            other => panic!("{other}"),
        }
    }

    fn tick_to(&mut self, now: u64) {
        while self.now < now {
            self.now = now.min(self.now + 60_000);
            self.apply(Body::Tick);
        }
        self.command(Body::Tick);
    }

    fn create(&mut self, id: &str) {
        let made = self.granted(create(id));
        assert_eq!(made, Reply::Batch { id: id.into(), created: true });
    }

    fn task(&self, id: &str) -> BatchTask {
        let tasks = self.ledger.batch_tasks();
        tasks.into_iter().find(|task| task.batch == id).expect("work")
    }

    /// Assigns the work of a batch, and returns the fence.
    fn assign(&mut self, id: &str, member: u64) -> BatchFence {
        self.granted(assign(id, member));
        let task = self.task(id);
        assert_eq!(task.owner, Some(member));
        assert!(self.ledger.batch_tasks_of(member).contains(&task));
        task.fence
    }

    /// A batch with so many rows whose run has started.
    fn started(&mut self, id: &str, rows: u32) -> RunNo {
        self.create(id);
        let fence = self.assign(id, FIRST);
        self.granted(segments(id, fence, 0, &[rows]));
        self.granted(start(id, fence, &[rows]));
        assert_eq!(self.status(id), BatchStatus::InProgress);
        self.view(id).run.expect("a run")
    }

    /// A worker of one slot.
    fn register(&mut self) -> SlotRef {
        let offer = SlotOffer { models: vec!["m".into()], ..SlotOffer::default() };
        let registration = Registration {
            namespace: "default".into(),
            name: "w".into(),
            instance: 1,
            slots: vec![offer],
            ..Registration::default()
        };
        let Reply::Registered { session, .. } =
            self.granted(OpKind::Register(Box::new(registration)))
        else {
            panic!("no session");
        };
        slot(session)
    }

    /// The slot runs so many rows. Those of the last `failed` fail for good.
    fn run_rows(&mut self, slot: SlotRef, rows: u32, failed: u32) {
        self.pulls += 1;
        let claim = op::Claim { slot, instance: 1, seq: self.pulls, rows_max: rows };
        let Reply::Granted(granted) = self.granted(OpKind::Claim(claim)) else {
            panic!("no rows");
        };
        let held = granted.first().expect("rows").held.clone();
        let all: Vec<u64> = held.rows.iter().collect();
        assert_eq!(all.len(), rows as usize);
        let set = |rows: &[u64]| {
            let ranges = rows.iter().map(|row| (*row, 1));
            let rows = crate::Rows::from_ranges(ranges).expect("ascending");
            crate::HeldRows { rows, ..held.clone() }
        };
        let (done, bad) = all.split_at((rows - failed) as usize);
        if !done.is_empty() {
            let blob = blob(self.index);
            let part = PartDecl { blob, tokens_in: 1, tokens_out: 2 };
            let sets = vec![set(done)];
            self.granted(OpKind::Complete(op::Complete { slot, run: held.run, part, sets }));
        }
        for row in bad {
            self.granted(OpKind::Fail(op::Fail {
                slot,
                held: set(&[*row]),
                class: FailureClass::InvalidRow,
                code: "invalid".into(),
                message: "bad".into(),
                evidence: crate::Evidence::default(),
            }));
        }
    }

    fn view(&self, id: &str) -> BatchView {
        self.ledger.batch_view(id).expect("a batch")
    }

    fn status(&self, id: &str) -> BatchStatus {
        self.view(id).status
    }

    fn users(&self) -> u32 {
        self.ledger.api_file("file-in").expect("the input").users
    }
}

impl Ledger {
    /// All records but that of the position.
    fn state_records(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut records = BTreeMap::new();
        self.for_each_record(|key, value| drop(records.insert(key.to_vec(), value.to_vec())));
        records.remove(crate::META_KEY);
        records
    }
}

fn slot(session: SessionId) -> SlotRef {
    SlotRef { session, slot: SlotNo(0) }
}

fn blob(number: u64) -> BlobRef {
    BlobRef { digest: *blake3::hash(&number.to_be_bytes()).as_bytes(), bytes: 9 }
}

fn create_file(id: &str, purpose: FilePurpose, ttl_ms: u64) -> OpKind {
    let (namespace, key, filename) = ("default".into(), String::new(), "in.jsonl".into());
    OpKind::CreateFile(op::CreateFile {
        id: id.into(),
        spec: Box::new(FileSpec { namespace, key, filename, purpose, ttl_ms }),
        request: None,
        content: content(id),
        begun_at: LedgerMs(1000),
    })
}

fn content(id: &str) -> Extent {
    Extent { folder: format!("0123-{id}"), pieces: vec![blob(7)] }
}

fn batch_spec() -> BatchSpec {
    BatchSpec {
        endpoint: "/v1/chat/completions".into(),
        input_file: "file-in".into(),
        completion_window: "1m".into(),
        window_ms: WINDOW_MS,
        ..BatchSpec::default()
    }
}

fn decl(id: &str) -> BatchDecl {
    BatchDecl {
        id: id.into(),
        namespace: "default".into(),
        body_hash: [1; 32],
        spec: batch_spec(),
        folder: format!("{id}/0123-1"),
        ..BatchDecl::default()
    }
}

fn create(id: &str) -> OpKind {
    made(decl(id))
}

fn made(decl: BatchDecl) -> OpKind {
    OpKind::CreateBatch(Box::new(decl))
}

fn assign(id: &str, member: u64) -> OpKind {
    OpKind::AssignBatch(op::AssignBatch { batch: id.into(), member })
}

fn segment(number: u32, rows: u32) -> SegmentDecl {
    SegmentDecl { number: SegmentNo(number), rows, blob: blob(number.into()) }
}

/// Segments with these rows after `have` others. Each line has 10 bytes.
fn segments(id: &str, fence: BatchFence, have: u64, rows: &[u32]) -> OpKind {
    let first = have as u32;
    let decls = (first..).zip(rows).map(|(number, rows)| segment(number, *rows));
    // Segments before these have as many rows as the first of them.
    let lines = have * u64::from(rows[0]) + rows.iter().map(|rows| u64::from(*rows)).sum::<u64>();
    OpKind::AddBatchSegments(op::AddBatchSegments {
        batch: id.into(),
        fence,
        segments: decls.collect(),
        offset: 10 * lines,
        lines,
    })
}

fn run_spec() -> RunSpec {
    RunSpec {
        engine: EngineSpec { model: "m".into(), ..EngineSpec::default() },
        weight: 1,
        attempts_max: 3,
        failures_max: u64::MAX,
        ..RunSpec::default()
    }
}

fn start(id: &str, fence: BatchFence, rows: &[u32]) -> OpKind {
    let mut hasher = blake3::Hasher::new();
    for number in 0..rows.len() as u64 {
        hasher.update(&blob(number).digest);
    }
    OpKind::StartBatch(op::StartBatch {
        batch: id.into(),
        fence,
        spec: Box::new(run_spec()),
        rows: rows.iter().map(|rows| u64::from(*rows)).sum(),
        digest: *hasher.finalize().as_bytes(),
    })
}

fn error(line: u64) -> BatchError {
    BatchError {
        code: "invalid_json_line".into(),
        message: "not JSON".into(),
        param: None,
        line: Some(line),
    }
}

fn fail(id: &str, fence: BatchFence) -> OpKind {
    OpKind::FailBatch(op::FailBatch { batch: id.into(), fence, errors: vec![error(3)] })
}

fn cancel(id: &str) -> OpKind {
    OpKind::CancelBatch(op::CancelBatch { batch: id.into() })
}

fn output(id: &str, now: u64) -> BatchOutput {
    let (filename, begun_at) = (format!("{id}.jsonl"), LedgerMs(now));
    BatchOutput { id: id.into(), filename, content: content(id), begun_at }
}

/// Ends a batch with the output file `file-o` and its own number.
fn finish(bench: &Bench, id: &str, fence: BatchFence, ends_as: BatchStatus) -> OpKind {
    let drawn = id.strip_prefix("batch_").unwrap_or(id);
    OpKind::FinishBatch(op::FinishBatch {
        batch: id.into(),
        fence,
        ends_as,
        output: Some(output(&format!("file-o{drawn}"), bench.now)),
        errors: Some(output(&format!("file-e{drawn}"), bench.now)),
        usage: BatchUsage { input_tokens: 3, output_tokens: 4, ..BatchUsage::default() },
    })
}
