//! A ledger of a given size, and timed commands to it.
//!
//! Invariant: only [`Ledger::apply`] is measured, which reads a command's bytes, changes the state and extends the
//! digest; encoding the command, taking events and draining the image are not part of it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rollout_ledger::id::{CoordEpoch, LedgerMs, RunNo, SegmentNo, SlotNo, SlotRef};
use rollout_ledger::{
    BlobRef, Body, Command, EngineSpec, EntryId, HeldRows, ImageDelta, Ledger, Op, OpKind,
    PartDecl, Registration, Reply, RunSpec, SegmentDecl, SlotOffer, limits, op,
};

/// Commands between two images, which a member writes once a second.
const COMMANDS_PER_IMAGE: u64 = 1000;
/// Operations of one command while the ledger is filled.
const AT_ONCE: usize = 512;

/// Which models runs use and slots have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Models {
    /// All runs use the same one, and all slots have it.
    One,
    /// Each run uses a different one. Half of the slots have one of these each, and half have one that no run uses.
    Own,
    /// Each run uses a different one, and all slots have any.
    Any,
}

/// The size of a ledger.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) runs: u32,
    pub(super) slots: u32,
    /// Of all runs together.
    pub(super) rows: u64,
    pub(super) models: Models,
    pub(super) cluster_version: u32,
}

/// One slot, and the rows that it holds.
#[derive(Clone, Debug)]
pub(super) struct Puller {
    pub(super) slot: SlotRef,
    pub(super) held: Vec<HeldRows>,
    seq: u64,
    /// Some run uses its model.
    pub(super) wanted: bool,
}

#[derive(Clone)]
pub(super) struct LedgerFixture {
    pub(super) ledger: Ledger,
    pub(super) pullers: Vec<Puller>,
    index: u64,
    pub(super) clock: u64,
}

fn blob(number: u64) -> BlobRef {
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&number.to_be_bytes());
    BlobRef { digest, bytes: 4096 }
}

/// The model of half of the slots if each run uses a different one.
pub(super) const NOBODY_ASKS: &str = "nobody-asks";

fn model_of(size: Size, number: u32) -> String {
    match size.models {
        Models::One => "model".into(),
        Models::Own | Models::Any => format!("model-{}", number % size.runs),
    }
}

/// The model of one slot, and whether some run uses it.
fn offered(size: Size, slot: u32) -> (String, bool) {
    match size.models {
        Models::One => (model_of(size, slot), true),
        Models::Own if slot.is_multiple_of(2) => (model_of(size, slot / 2), true),
        Models::Own => (NOBODY_ASKS.into(), false),
        Models::Any => ("*".into(), true),
    }
}

impl LedgerFixture {
    /// Builds one whose slots hold nothing yet.
    pub(super) fn of(size: Size) -> anyhow::Result<Self> {
        let ledger = Ledger::new([7; 16]);
        let mut fixture = Self { ledger, pullers: Vec::new(), index: 0, clock: 0 };
        fixture.command(Body::OpenEpoch)?;
        fixture.command(Body::SetVersion(size.cluster_version))?;
        fixture.add_runs(size)?;
        fixture.add_workers(size)?;
        Ok(fixture)
    }

    fn add_runs(&mut self, size: Size) -> anyhow::Result<()> {
        for number in 0..size.runs {
            self.create_run(&format!("run-{number}"), model_of(size, number))?;
            let mut left = size.rows / u64::from(size.runs);
            let mut segments = Vec::new();
            while left > 0 {
                let rows = left.min(limits::SEGMENT_ROWS_MAX.into()) as u32;
                let no = segments.len() as u32;
                segments.push(SegmentDecl { number: SegmentNo(no), rows, blob: blob(no.into()) });
                left -= u64::from(rows);
            }
            let run = RunNo(number + 1);
            for some in segments.chunks(limits::SEGMENTS_PER_OP_MAX) {
                self.ops([OpKind::AddSegments(op::AddSegments { run, segments: some.to_vec() })])?;
            }
        }
        Ok(())
    }

    /// Creates a run, and returns how long that took.
    pub(super) fn create_run(
        &mut self,
        name: &str,
        model: String,
    ) -> anyhow::Result<(RunNo, Duration)> {
        let spec = RunSpec {
            engine: EngineSpec { model, ..EngineSpec::default() },
            weight: 1,
            attempts_max: 8,
            failures_max: u64::MAX,
            ..RunSpec::default()
        };
        let (namespace, folder) = ("default".into(), format!("{name}/own"));
        let (name, spec) = (name.to_owned(), Box::new(spec));
        let (mut replies, taken) =
            self.ops([OpKind::CreateRun(op::CreateRun { namespace, name, spec, folder })])?;
        let Some(Reply::Run { run, .. }) = replies.pop() else { bail!("no run was created") };
        Ok((run, taken))
    }

    /// Adds workers with eight slots each, or with more if there would be too many workers.
    fn add_workers(&mut self, size: Size) -> anyhow::Result<()> {
        let each = size.slots.div_ceil(limits::WORKERS_MAX as u32).max(8).min(size.slots);
        let mut number = 0;
        let mut registrations = Vec::new();
        while number < size.slots {
            let own = each.min(size.slots - number);
            // Agents on cloud hosts label their slots this way: no two hosts have the same label.
            let labels = [("instance_id".to_owned(), format!("i-{number:017x}"))];
            let offer = |slot: u32| SlotOffer {
                models: vec![offered(size, number + slot).0],
                labels: labels.clone().into(),
                ..SlotOffer::default()
            };
            let registration = Registration {
                namespace: "default".into(),
                name: format!("worker-{number}"),
                instance: 1,
                slots: (0..own).map(offer).collect(),
                ..Registration::default()
            };
            registrations.push(OpKind::Register(Box::new(registration)));
            number += own;
        }
        for some in registrations.chunks(AT_ONCE) {
            for reply in self.ops(some.iter().cloned())?.0 {
                let Reply::Registered { session, .. } = reply else { bail!("{reply:?}") };
                let own = each.min(size.slots - self.pullers.len() as u32);
                for number in 0..own {
                    let (_, wanted) = offered(size, self.pullers.len() as u32);
                    let slot = SlotRef { session, slot: SlotNo(number as u16) };
                    self.pullers.push(Puller { slot, held: Vec::new(), seq: 0, wanted });
                }
            }
        }
        Ok(())
    }

    /// Applies a command; returns its replies and how long that took.
    pub(super) fn command(&mut self, body: Body) -> anyhow::Result<(Vec<Reply>, Duration)> {
        self.index += 1;
        let at = LedgerMs(self.clock);
        let command = Command { epoch: CoordEpoch(1), at, wall_ms: self.clock, body };
        let bytes = command.encode();
        let entry = EntryId { index: self.index, term: 1 };
        let begun = Instant::now();
        let replies = self.ledger.apply(entry, &bytes).context("a command of its own")?;
        let taken = begun.elapsed();
        self.ledger.take_events();
        if self.index.is_multiple_of(COMMANDS_PER_IMAGE) {
            self.ledger.drain_dirty();
        }
        if let Some(Reply::Rejected(why)) = replies.iter().find(|r| matches!(r, Reply::Rejected(_)))
        {
            bail!("the ledger refuses: {why}");
        }
        Ok((replies, taken))
    }

    pub(super) fn ops(
        &mut self,
        ops: impl IntoIterator<Item = OpKind>,
    ) -> anyhow::Result<(Vec<Reply>, Duration)> {
        self.command(Body::Ops(ops.into_iter().map(Op::from).collect()))
    }

    /// One slot pulls; returns whether it got any row, and how long the claim took.
    pub(super) fn claim(&mut self, at: usize, rows_max: u32) -> anyhow::Result<(bool, Duration)> {
        let puller = &mut self.pullers[at];
        let (slot, seq) = (puller.slot, puller.seq + 1);
        let (mut replies, taken) =
            self.ops([OpKind::Claim(op::Claim { slot, instance: 1, seq, rows_max })])?;
        let Some(Reply::Granted(granted)) = replies.pop() else { bail!("no answer to a claim") };
        let got = !granted.is_empty();
        let puller = &mut self.pullers[at];
        if got {
            puller.seq = seq;
        }
        puller.held.extend(granted.into_iter().map(|granted| granted.held));
        Ok((got, taken))
    }

    /// One slot completes rows that it holds: for each attempt the rows that `which` selects, as one part each.
    pub(super) fn complete(
        &mut self,
        at: usize,
        which: impl Fn(&HeldRows) -> HeldRows,
    ) -> anyhow::Result<()> {
        self.complete_of(at, usize::MAX, which)
    }

    /// One slot completes the oldest attempt that it has.
    pub(super) fn complete_first(&mut self, at: usize) -> anyhow::Result<()> {
        self.complete_of(at, 1, HeldRows::clone)
    }

    fn complete_of(
        &mut self,
        at: usize,
        attempts: usize,
        which: impl Fn(&HeldRows) -> HeldRows,
    ) -> anyhow::Result<()> {
        let slot = self.pullers[at].slot;
        let mut ops = Vec::new();
        for held in self.pullers[at].held.iter_mut().take(attempts) {
            let done = which(held);
            held.rows.subtract(&done.rows);
            let part = PartDecl { blob: blob(self.index), tokens_in: 9, tokens_out: 9 };
            ops.push(OpKind::Complete(op::Complete {
                slot,
                run: held.run,
                part,
                sets: vec![done],
            }));
        }
        self.pullers[at].held.retain(|held| !held.rows.is_empty());
        self.ops(ops).map(drop)
    }

    /// The changes since the last image, and how long they took to gather, while a member holds its lock.
    pub(super) fn image(&mut self) -> (ImageDelta, Duration) {
        let begun = Instant::now();
        let delta = self.ledger.drain_dirty();
        (delta, begun.elapsed())
    }
}

/// How many bytes an image's delta writes.
pub(super) fn bytes_of(delta: &ImageDelta) -> u64 {
    let puts = delta.puts.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
    (puts + delta.deletes.iter().map(Vec::len).sum::<usize>()) as u64
}
