//! Ten runs of a million rows, one after another, take the memory and the image of one.
//!
//! The allocator counts memory, so that nothing is left out: a map that never shrinks or an index that keeps a run's
//! number would show.

use rollout_ledger::id::{CoordEpoch, LedgerMs, RunNo, SegmentNo, SlotNo, SlotRef};
use rollout_ledger::{
    BlobRef, Body, Command, EngineSpec, EntryId, Ledger, OpKind, PartDecl, Registration, Reply,
    RunSpec, SegmentDecl, SlotOffer, op,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};

static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);

struct Counting;

// SAFETY: every call goes to the system's allocator, unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as our caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: as our caller promised.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SEGMENT_ROWS: u32 = 4000;
const SEGMENTS: u32 = 250;

struct Played {
    ledger: Ledger,
    image: BTreeMap<Vec<u8>, Vec<u8>>,
    index: u64,
    clock: u64,
}

impl Played {
    fn new() -> Self {
        let mut this =
            Self { ledger: Ledger::new([7; 16]), image: BTreeMap::new(), index: 0, clock: 0 };
        this.command(Body::OpenEpoch);
        this
    }

    fn command(&mut self, body: Body) -> Vec<Reply> {
        self.index += 1;
        let at = LedgerMs(self.clock);
        let command = Command { epoch: CoordEpoch(1), at, wall_ms: 0, body };
        let entry = EntryId { index: self.index, term: 1 };
        let replies = self.ledger.apply(entry, &command.encode()).expect("a known command");
        self.ledger.take_events();
        replies
    }

    fn op(&mut self, kind: OpKind) -> Reply {
        self.command(Body::Ops(vec![kind.into()])).remove(0)
    }

    fn seal(&mut self, run: RunNo) -> Reply {
        let ended_index = self.ledger.run_view(run).map_or(0, |view| view.ended_index);
        self.op(OpKind::Seal(op::Seal { run, manifest: blob("m", 0), ended_index }))
    }

    fn write_image(&mut self) {
        let delta = self.ledger.drain_dirty();
        for prefix in &delta.delete_prefixes {
            self.image.retain(|key, _| !key.starts_with(prefix));
        }
        delta.deletes.iter().for_each(|key| drop(self.image.remove(key)));
        self.image.extend(delta.puts);
    }

    fn image_bytes(&self) -> usize {
        self.image.iter().map(|(key, value)| key.len() + value.len()).sum()
    }
}

fn blob(tag: &str, number: u64) -> BlobRef {
    let digest = *blake3::hash(format!("{tag}{number}").as_bytes()).as_bytes();
    BlobRef { digest, bytes: 1000 }
}

fn register(played: &mut Played) -> SlotRef {
    let offer = SlotOffer { models: vec!["*".into()], ..SlotOffer::default() };
    let registration = Registration {
        namespace: "default".into(),
        name: "w1".into(),
        instance: 1,
        slots: vec![offer],
        ..Registration::default()
    };
    match played.op(OpKind::Register(Box::new(registration))) {
        Reply::Registered { session, .. } => SlotRef { session, slot: SlotNo(0) },
        other => panic!("{other:?}"),
    }
}

/// One run of a million rows, from its creation to its last row, and its number.
fn run_of_a_million(played: &mut Played, slot: SlotRef, turn: u32, seq: &mut u64) -> RunNo {
    let engine = EngineSpec { model: "m".into(), ..EngineSpec::default() };
    let spec = Box::new(RunSpec { engine, weight: 1, attempts_max: 1, ..RunSpec::default() });
    let (namespace, name) = ("default".into(), format!("run{turn}"));
    let folder = format!("{name}/1");
    let Reply::Run { run, created: true, .. } =
        played.op(OpKind::CreateRun(op::CreateRun { namespace, name, spec, folder }))
    else {
        panic!("not created");
    };
    let decl =
        |n| SegmentDecl { number: SegmentNo(n), rows: SEGMENT_ROWS, blob: blob("s", n.into()) };
    let segments: Vec<_> = (0..SEGMENTS).map(decl).collect();
    let digests: Vec<u8> = segments.iter().flat_map(|s| s.blob.digest).collect();
    played.op(OpKind::AddSegments(op::AddSegments { run, segments }));
    let rows = u64::from(SEGMENTS * SEGMENT_ROWS);
    let digest = *blake3::hash(&digests).as_bytes();
    played.op(OpKind::CloseInput(op::CloseInput { run, rows, digest }));
    let mut done = 0;
    while done < rows {
        *seq += 1;
        let claim = OpKind::Claim(op::Claim { slot, instance: 1, seq: *seq, rows_max: 1000 });
        let Reply::Granted(grants) = played.op(claim) else { panic!("not granted") };
        for grant in grants {
            done += grant.held.rows.len();
            let part = PartDecl { blob: blob("p", *seq), tokens_in: 1, tokens_out: 1 };
            let complete =
                OpKind::Complete(op::Complete { slot, run, part, sets: vec![grant.held] });
            assert_eq!(played.op(complete), Reply::Taken { refused: vec![] });
        }
    }
    run
}

#[test]
fn ten_runs_of_a_million_rows_take_the_room_of_one() {
    let mut played = Played::new();
    let slot = register(&mut played);
    let (mut seq, mut peaks) = (0, Vec::new());
    for turn in 0..10 {
        let run = run_of_a_million(&mut played, slot, turn, &mut seq);
        played.write_image();
        let held = LIVE_BYTES.load(Ordering::Relaxed);
        assert!(played.image_bytes() > 1_000_000, "a million rows are in the image");
        peaks.push((held, played.image_bytes()));
        played.clock += 1000;
        assert_eq!(played.seal(run), Reply::Ok);
        played.write_image();
        assert_eq!(played.op(OpKind::DeleteRun(op::DeleteRun { run })), Reply::Ok);
        assert_eq!(played.op(OpKind::ForgetRun(op::ForgetRun { run })), Reply::Ok);
        played.write_image();
        played.ledger.check_invariants().expect("sound");
    }
    let ((memory, image), (memory_10, image_10)) = (peaks[0], peaks[9]);
    assert!(memory_10 < memory + memory / 10, "{memory} bytes with one, {memory_10} with ten");
    assert!(image_10 < image + image / 10, "{image} bytes with one, {image_10} with ten");
    assert!(played.image_bytes() < 10_000, "{} bytes are left of nothing", played.image_bytes());
}

#[test]
fn a_sealed_run_takes_at_most_four_kilobytes_however_much_it_asked_for() {
    let mut played = Played::new();
    let long = |n| "x".repeat(n);
    let engine = EngineSpec {
        model: long(1000),
        revision: long(1000),
        task: long(1000),
        options_json: long(60_000),
    };
    let spec = RunSpec {
        engine,
        weight: 1,
        attempts_max: 1,
        sampling_json: long(60_000),
        options_json: long(60_000),
        store_url: long(1000),
        input_name: long(1000),
        selector: (0..60).map(|n| (format!("{n}{}", long(100)), long(100))).collect(),
        ..RunSpec::default()
    };
    let (namespace, name, folder) = ("default".into(), "big".into(), "big/1".into());
    let Reply::Run { run, .. } = played.op(OpKind::CreateRun(op::CreateRun {
        namespace,
        name,
        spec: Box::new(spec),
        folder,
    })) else {
        panic!("not created");
    };
    let (rows, digest) = (0, *blake3::hash(&[]).as_bytes());
    assert_eq!(played.op(OpKind::CloseInput(op::CloseInput { run, rows, digest })), Reply::Ok);
    played.write_image();
    assert!(played.image_bytes() > 180_000);
    assert_eq!(played.seal(run), Reply::Ok);
    played.write_image();
    let of_the_run: usize = played
        .image
        .iter()
        .filter(|(key, _)| matches!(key[0], b'R' | b'F' | b'S' | b'P' | b'T'))
        .map(|(key, value)| key.len() + value.len())
        .sum();
    assert!(of_the_run <= rollout_ledger::limits::SEALED_BYTES_MAX, "{of_the_run}");
}
