//! Batches in the model: a list that is searched from scratch each time. And the actions on them. No story lasts as
//! long as an idempotency key.

use crate::meanings::{blob, spec};
use crate::naive::{Model, Outcome};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use rollout_ledger::id::{BatchFence, LedgerMs, RunNo, SegmentNo};
use rollout_ledger::view::RunState;
use rollout_ledger::{
    BatchDecl, BatchError, BatchOutput, BatchSpec, BatchStatus, BatchUsage, BatchWork, Extent,
    Ledger, OpKind, OpenAiRefusal, ROLLOUT_KEY, Rejection, Reply, RunAction, RunSpec, SegmentDecl,
    op,
};

/// Its end, and how many rows it had and how many are done.
type End = (BatchStatus, u64, u64);

#[derive(Clone, Debug)]
enum Stage {
    /// The segments, and the offset after them.
    Validating(Vec<SegmentDecl>, u64),
    /// The run, and whether the batch was cancelled.
    Started(RunNo, bool),
    Ended(End),
}

#[derive(Clone, Debug)]
pub(crate) struct Batch {
    decl: BatchDecl,
    created_at: u64,
    owner: Option<u64>,
    fence: BatchFence,
    stage: Stage,
    run: Option<RunNo>,
}

/// What is done with one of four batches. `stale`: under an earlier fence.
#[derive(Clone, Debug)]
pub(crate) enum BatchAct {
    Create { batch: u8, key: Option<u8>, own: bool, body: u8, file: u8 },
    Assign { batch: u8, member: u8 },
    Add { batch: u8, rows: u8, stale: bool, gap: bool, again: bool },
    Fail { batch: u8, stale: bool },
    Start { batch: u8, stale: bool, wrong: bool },
    Cancel { batch: u8 },
    Finish { batch: u8, stale: bool, ends_as: Option<bool> },
}

pub(crate) fn batch_act() -> impl Strategy<Value = BatchAct> {
    let seldom = || prop_oneof![9 => Just(false), 1 => Just(true)];
    let key = prop_oneof![2 => Just(None), 1 => (0..2u8).prop_map(Some)];
    let body = prop_oneof![9 => Just(0u8), 1 => Just(1u8)];
    let ends_as = prop_oneof![8 => Just(None), 1 => any::<bool>().prop_map(Some)];
    prop_oneof![
        4 => (0..4u8, key, seldom(), body, 0..3u8).prop_map(|(batch, key, own, body, file)| {
            BatchAct::Create { batch, key, own, body, file }
        }),
        6 => (0..4u8, 1..3u8).prop_map(|(batch, member)| BatchAct::Assign { batch, member }),
        6 => (0..4u8, 1..4u8, seldom(), seldom(), seldom()).prop_map(
            |(batch, rows, stale, gap, again)| BatchAct::Add { batch, rows, stale, gap, again }
        ),
        1 => (0..4u8, seldom()).prop_map(|(batch, stale)| BatchAct::Fail { batch, stale }),
        4 => (0..4u8, seldom(), seldom())
            .prop_map(|(batch, stale, wrong)| BatchAct::Start { batch, stale, wrong }),
        1 => (0..4u8).prop_map(|batch| BatchAct::Cancel { batch }),
        6 => (0..4u8, seldom(), ends_as)
            .prop_map(|(batch, stale, ends_as)| BatchAct::Finish { batch, stale, ends_as }),
    ]
}

fn batch_id(batch: u8) -> String {
    format!("batch_{batch}")
}

/// The run of a batch comes before all others, so that it ends.
fn run_spec() -> RunSpec {
    RunSpec { priority: 9, ..spec(0, false) }
}

fn errors() -> Vec<BatchError> {
    let (code, message) = ("invalid_json_line".into(), "not JSON".into());
    vec![BatchError { code, message, param: None, line: Some(1) }]
}

fn decl(batch: u8, key: Option<u8>, own: bool, body: u8, file: u8) -> BatchDecl {
    let id = batch_id(batch);
    let own = own.then(|| (ROLLOUT_KEY.to_owned(), "nightly".to_owned()));
    BatchDecl {
        namespace: "default".into(),
        key: String::new(),
        idempotency: key.map(|key| [key; 32]),
        body_hash: [body; 32],
        spec: BatchSpec {
            endpoint: "/v1/completions".into(),
            input_file: format!("file-{file}"),
            completion_window: "20s".into(),
            window_ms: 20_000,
            metadata: own.into_iter().collect(),
            ..BatchSpec::default()
        },
        folder: format!("{id}/0123-1"),
        id,
    }
}

impl BatchAct {
    pub(crate) fn kind(&self, model: &Model) -> OpKind {
        let of = |batch: u8, stale: bool| {
            let found = model.batches.iter().find(|of| of.decl.id == batch_id(batch));
            let fence = found.map_or(BatchFence(7), |of| of.fence);
            (batch_id(batch), if stale { BatchFence(fence.0 / 2) } else { fence }, found)
        };
        match *self {
            Self::Create { batch, key, own, body, file } => {
                OpKind::CreateBatch(Box::new(decl(batch, key, own, body, file)))
            }
            Self::Assign { batch, member } => {
                let member = member.into();
                OpKind::AssignBatch(op::AssignBatch { batch: batch_id(batch), member })
            }
            Self::Add { batch, rows, stale, gap, again } => {
                let (batch, fence, found) = of(batch, stale);
                let (have, end) = found.map_or((Vec::new(), 0), |of| of.segments());
                let next = SegmentDecl {
                    number: SegmentNo(have.len() as u32 + u32::from(gap)),
                    rows: rows.into(),
                    blob: blob(format!("{rows}")),
                };
                let last = have.last().filter(|_| again).cloned();
                let lines = end / 10 + if last.is_some() { 0 } else { rows.into() };
                let (segments, offset) = (vec![last.unwrap_or(next)], 10 * lines);
                OpKind::AddBatchSegments(op::AddBatchSegments {
                    batch,
                    fence,
                    segments,
                    offset,
                    lines,
                })
            }
            Self::Fail { batch, stale } => {
                let (batch, fence, _) = of(batch, stale);
                OpKind::FailBatch(op::FailBatch { batch, fence, errors: errors() })
            }
            Self::Start { batch, stale, wrong } => {
                let (batch, fence, found) = of(batch, stale);
                let segments = found.map_or(Vec::new(), |of| of.segments().0);
                let spec = Box::new(run_spec());
                let rows = rows_of(&segments) + u64::from(wrong);
                let digest = digest_of(&segments);
                OpKind::StartBatch(op::StartBatch { batch, fence, spec, rows, digest })
            }
            Self::Cancel { batch } => {
                OpKind::CancelBatch(op::CancelBatch { batch: batch_id(batch) })
            }
            Self::Finish { batch: number, stale, ends_as } => {
                let (batch, fence, found) = of(number, stale);
                let due = found.and_then(|of| match &of.stage {
                    Stage::Ended((status, ..)) => Some(*status),
                    _ => model.end_of(of),
                });
                let ends_as = match ends_as {
                    None => due.unwrap_or(BatchStatus::Completed),
                    Some(true) => BatchStatus::Expired,
                    Some(false) => BatchStatus::Cancelled,
                };
                let (errors, usage) = (None, BatchUsage::default());
                let output = Some(output(number));
                OpKind::FinishBatch(op::FinishBatch {
                    batch,
                    fence,
                    ends_as,
                    output,
                    errors,
                    usage,
                })
            }
        }
    }
}

fn output(batch: u8) -> BatchOutput {
    let id = format!("file-out{batch}");
    let content = Extent { folder: format!("0123-{id}"), pieces: vec![blob("out".into())] };
    // Never too old.
    BatchOutput { id, filename: "out.jsonl".into(), content, begun_at: LedgerMs(u64::MAX) }
}

fn rows_of(segments: &[SegmentDecl]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.rows)).sum()
}

fn digest_of(segments: &[SegmentDecl]) -> [u8; 32] {
    let all: Vec<u8> = segments.iter().flat_map(|segment| segment.blob.digest).collect();
    *blake3::hash(&all).as_bytes()
}

impl Batch {
    /// The segments of a batch in validation, and the offset after them.
    fn segments(&self) -> (Vec<SegmentDecl>, u64) {
        match &self.stage {
            Stage::Validating(segments, offset) => (segments.clone(), *offset),
            _ => (Vec::new(), 0),
        }
    }

    fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Ended(_))
    }
}

impl Model {
    fn run_state(&self, run: RunNo) -> RunState {
        self.runs[run.0 as usize - 1].state
    }

    fn status_of(&self, batch: &Batch) -> BatchStatus {
        match batch.stage {
            Stage::Validating(..) => BatchStatus::Validating,
            Stage::Started(_, true) => BatchStatus::Cancelling,
            Stage::Started(run, false) => match self.run_state(run) {
                RunState::Running | RunState::Paused => BatchStatus::InProgress,
                RunState::Finished | RunState::DeadlineExceeded => BatchStatus::Finalizing,
                RunState::Cancelled | RunState::Deleting => BatchStatus::Cancelling,
            },
            Stage::Ended((status, ..)) => status,
        }
    }

    fn end_of(&self, batch: &Batch) -> Option<BatchStatus> {
        let Stage::Started(run, _) = batch.stage else { return None };
        match (self.status_of(batch), self.run_state(run)) {
            (BatchStatus::Cancelling, _) => Some(BatchStatus::Cancelled),
            (BatchStatus::Finalizing, RunState::Finished) => Some(BatchStatus::Completed),
            (BatchStatus::Finalizing, _) => Some(BatchStatus::Expired),
            _ => None,
        }
    }

    /// Batches that have not ended and use a file.
    pub(crate) fn users_of_file(&self, id: &str) -> u32 {
        let open = self.batches.iter().filter(|batch| !batch.has_ended());
        open.filter(|batch| batch.decl.spec.input_file == id).count() as u32
    }

    /// The batch of a run, and whether it has ended.
    pub(crate) fn batch_of_run(&self, run: RunNo) -> Option<(String, bool)> {
        let batch = self.batches.iter().find(|batch| batch.run == Some(run))?;
        Some((batch.decl.id.clone(), batch.has_ended()))
    }

    pub(crate) fn namespace_of_batch(&self, id: &str) -> Option<String> {
        let found = self.batches.iter().find(|batch| batch.decl.id == id)?;
        Some(found.decl.namespace.clone())
    }

    fn batch_at(&self, id: &str) -> Result<usize, Rejection> {
        let at = self.batches.iter().position(|batch| batch.decl.id == id);
        at.ok_or_else(|| OpenAiRefusal::BatchUnknown(id.into()).into())
    }

    fn stale(&self, at: usize) -> Rejection {
        let status = self.status_of(&self.batches[at]).to_string();
        OpenAiRefusal::BatchFenceStale { status }.into()
    }

    fn fenced(&self, id: &str, fence: BatchFence) -> Result<usize, Rejection> {
        let at = self.batch_at(id)?;
        match self.batches[at].fence == fence && fence.0 > 0 {
            true => Ok(at),
            false => Err(self.stale(at)),
        }
    }

    fn check_owned(&self, at: usize) -> Result<(), Rejection> {
        if self.batches[at].owner.is_none() { Err(self.stale(at)) } else { Ok(()) }
    }

    fn set_stage(&mut self, at: usize, stage: Stage) -> Outcome {
        self.batches[at].stage = stage;
        self.batches[at].owner = None;
        Ok(Reply::Ok)
    }

    /// The operations on batches.
    pub(crate) fn batch_op(&mut self, kind: OpKind) -> Outcome {
        if self.version < 5 {
            return Err(Rejection::VersionLow { needs: 5, version: self.version });
        }
        match kind {
            OpKind::CreateBatch(decl) => self.create_batch(*decl),
            OpKind::AssignBatch(op) => self.assign_batch(op),
            OpKind::AddBatchSegments(op) => self.add_batch_segments(op),
            OpKind::FailBatch(op) => {
                let at = self.fenced(&op.batch, op.fence)?;
                match self.batches[at].stage {
                    Stage::Validating(..) => {
                        self.check_owned(at)?;
                        self.set_stage(at, Stage::Ended((BatchStatus::Failed, 0, 0)))
                    }
                    Stage::Ended((BatchStatus::Failed, ..)) => Ok(Reply::Ok),
                    _ => Err(self.stale(at)),
                }
            }
            OpKind::StartBatch(op) => self.start_batch(op),
            OpKind::CancelBatch(op) => self.cancel_batch(&op.batch),
            OpKind::FinishBatch(op) => self.finish_batch(op),
            other => panic!("{other:?} is not about batches"),
        }
    }

    fn create_batch(&mut self, decl: BatchDecl) -> Outcome {
        let (key, own) = (decl.idempotency, decl.spec.metadata.get(ROLLOUT_KEY));
        let by = |such: &dyn Fn(&&Batch) -> bool| self.batches.iter().find(such).cloned();
        let found = by(&|batch| batch.decl.id == decl.id)
            .or_else(|| by(&|batch| key.is_some() && batch.decl.idempotency == key))
            .or_else(|| {
                let same = |batch: &&Batch| batch.decl.spec.metadata.get(ROLLOUT_KEY) == own;
                by(&|batch| own.is_some() && same(batch))
            });
        if let Some(found) = found {
            let id = found.decl.id;
            return match found.decl.body_hash == decl.body_hash {
                true => {
                    self.note("batch found");
                    Ok(Reply::Batch { id, created: false })
                }
                false => Err(OpenAiRefusal::IdempotencyKeyReused(id).into()),
            };
        }
        let input = &decl.spec.input_file;
        if self.files.namespace_of(input) != Some(decl.namespace.as_str()) {
            return Err(OpenAiRefusal::FileUnknown(input.clone()).into());
        }
        let (id, created_at) = (decl.id.clone(), self.clock);
        let (owner, fence, run) = (None, BatchFence(0), None);
        let stage = Stage::Validating(Vec::new(), 0);
        self.batches.push(Batch { decl, created_at, owner, fence, stage, run });
        Ok(Reply::Batch { id, created: true })
    }

    fn assign_batch(&mut self, op: op::AssignBatch) -> Outcome {
        let at = self.batch_at(&op.batch)?;
        let batch = &self.batches[at];
        let validates = matches!(batch.stage, Stage::Validating(..));
        if !validates && self.end_of(batch).is_none() {
            return Err(self.stale(at));
        }
        let fence = BatchFence::at(self.index, self.op);
        let batch = &mut self.batches[at];
        (batch.owner, batch.fence) = (Some(op.member), fence);
        Ok(Reply::Ok)
    }

    fn add_batch_segments(&mut self, op: op::AddBatchSegments) -> Outcome {
        let at = self.fenced(&op.batch, op.fence)?;
        let Stage::Validating(mut segments, offset) = self.batches[at].stage.clone() else {
            return Err(self.stale(at));
        };
        if op.offset == offset && segments.last() == op.segments.last() {
            self.note("segments repeated");
            return Ok(Reply::Ok);
        }
        self.check_owned(at)?;
        let have = segments.len() as u32;
        let number = op.segments[0].number.0;
        if number != have {
            return Err(Rejection::SegmentConflict { number, have });
        }
        // Each line has ten bytes.
        if op.offset <= offset || op.lines < offset / 10 + rows_of(&op.segments) {
            let why = "the position in the file does not advance";
            return Err(Rejection::Invalid(why.into()));
        }
        segments.extend(op.segments);
        let namespace = self.batches[at].decl.namespace.clone();
        self.room_for_rows(&namespace, rows_of(&segments))?;
        self.batches[at].stage = Stage::Validating(segments, op.offset);
        Ok(Reply::Ok)
    }

    fn start_batch(&mut self, op: op::StartBatch) -> Outcome {
        let at = self.fenced(&op.batch, op.fence)?;
        let segments = match self.batches[at].stage.clone() {
            Stage::Validating(segments, _) => segments,
            Stage::Started(..) => return Ok(Reply::Ok),
            Stage::Ended(_) => return Err(self.stale(at)),
        };
        self.check_owned(at)?;
        let rows = rows_of(&segments);
        if rows == 0 {
            return Err(Rejection::Invalid("a batch without rows cannot start".into()));
        }
        let Batch { decl, created_at, .. } = self.batches[at].clone();
        self.room_for_rows(&decl.namespace, rows)?;
        self.room_for_a_run(&decl.namespace)?;
        if op.rows != rows {
            return Err(Rejection::InputMismatch { rows });
        }
        let spec = RunSpec { deadline_ms: decl.spec.window_ms, ..*op.spec };
        self.create(decl.namespace, decl.id, spec, decl.folder)?;
        let no = RunNo(self.runs.len() as u32);
        self.segments(no, &segments)?;
        let run = self.run_of(no)?;
        (run.closed, run.created_at) = (true, created_at);
        self.batches[at].run = Some(no);
        self.note("batch started");
        self.set_stage(at, Stage::Started(no, false))
    }

    fn cancel_batch(&mut self, id: &str) -> Outcome {
        let at = self.batch_at(id)?;
        match self.batches[at].stage.clone() {
            Stage::Validating(..) => {
                self.set_stage(at, Stage::Ended((BatchStatus::Cancelled, 0, 0)))
            }
            Stage::Ended((BatchStatus::Cancelled, ..)) | Stage::Started(_, true) => Ok(Reply::Ok),
            Stage::Ended((status, ..)) => {
                Err(OpenAiRefusal::BatchEnded { status: status.to_string() }.into())
            }
            Stage::Started(run, false) => {
                if !self.run_of(run)?.ended() {
                    self.control(run, RunAction::Cancel)?;
                    self.note("batch cancelled");
                }
                self.batches[at].stage = Stage::Started(run, true);
                Ok(Reply::Ok)
            }
        }
    }

    fn finish_batch(&mut self, op: op::FinishBatch) -> Outcome {
        let at = self.fenced(&op.batch, op.fence)?;
        let batch = self.batches[at].clone();
        let run = match batch.stage {
            Stage::Validating(..) => return Err(self.stale(at)),
            // A batch that never started has no output.
            Stage::Ended((status, ..)) if status == op.ends_as && batch.run.is_some() => {
                return Ok(Reply::Ok);
            }
            Stage::Ended(_) => return Err(self.stale(at)),
            Stage::Started(run, _) => run,
        };
        self.check_owned(at)?;
        let Some(status) = self.end_of(&batch) else { return Err(self.stale(at)) };
        if status != op.ends_as {
            let (status, ends_as) = (self.status_of(&batch).to_string(), op.ends_as.to_string());
            return Err(OpenAiRefusal::BatchOtherEnd { status, ends_as }.into());
        }
        let (rows, done) = (self.run_of(run)?.len(), self.run_of(run)?.counts().done);
        if let Some(BatchOutput { id, filename, content, .. }) = op.output {
            self.files.add_output(id, filename, content);
        }
        self.note(&format!("batch {status}"));
        self.set_stage(at, Stage::Ended((status, rows, done)))
    }
}

pub(crate) fn same(ledger: &Ledger, model: &Model) -> TestCaseResult {
    let listed = ledger.batch_views("default", None, 100).map_or(Vec::new(), |page| page.0);
    prop_assert_eq!(listed.len(), model.batches.len());
    for (view, batch) in listed.iter().rev().zip(&model.batches) {
        prop_assert_eq!(&view.id, &batch.decl.id);
        prop_assert_eq!((view.status, view.run), (model.status_of(batch), batch.run));
        prop_assert_eq!(ledger.batch_segments(&view.id), batch.segments().0);
        if let Stage::Ended((_, total, completed)) = batch.stage {
            let counts = (view.total, view.completed, view.failed);
            prop_assert_eq!(counts, (total, completed, total - completed));
            prop_assert!(view.ended_index > 0);
        }
    }
    let tasks = ledger.batch_tasks().into_iter().map(|task| {
        let ends_as = match task.work {
            BatchWork::Validate(_) => None,
            BatchWork::Finish(status) => Some(status),
        };
        (task.batch, task.owner, task.fence, ends_as)
    });
    let works = |batch: &&Batch| {
        matches!(batch.stage, Stage::Validating(..)) || model.end_of(batch).is_some()
    };
    let expected = model
        .batches
        .iter()
        .filter(works)
        .map(|batch| (batch.decl.id.clone(), batch.owner, batch.fence, model.end_of(batch)));
    prop_assert_eq!(tasks.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    Ok(())
}

/// Checks that a restored cluster has the batches, and that no member has their work.
pub(crate) fn restored_has_no_owner(restored: &Ledger) -> bool {
    restored.batch_tasks().iter().all(|task| task.owner.is_none())
}
