//! Reads a batch's file: checks each line, and makes segments of its rows.
//!
//! *Invariant:* the batch gets a run only if every line of the file is valid. What an earlier owner has declared is not
//! read again, except for its ids.
//! Absent: what a line must contain (`rollout_batch::input::batch_file`).

use super::context::Context;
use super::earlier;
use super::error::{WorkError, of_batch, shortened};
use super::memory::{IDS_BYTES, VALIDATION_MIB};
use super::reader::{ContentReader, Waits, of_reader};
use super::run_spec::run_spec;
use super::segments::Segments;
use crate::openai::content;
use rollout_batch::input::batch_file::{
    Checks, Invalid, Limits, Pass, Position, Report, ValidateError,
};
use rollout_batch::input::duplicates::Duplicates;
use rollout_batch::input::scan::ScanControl;
use rollout_ledger::{
    BatchCursor, BatchError, BatchSpec, BatchTask, BatchWork, Extent, Ledger, OpKind, SegmentDecl,
    limits, op,
};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// What the ledger knows of a batch in validation.
struct Input {
    spec: BatchSpec,
    /// The folder of its run's objects.
    folder: String,
    /// The position after these segments.
    cursor: BatchCursor,
    segments: Vec<SegmentDecl>,
    content: Vec<Extent>,
    bytes: u64,
}

impl Input {
    /// In one read, so that the position is that of the segments: an operation of an earlier task may still arrive.
    fn of(ledger: &Ledger, task: &BatchTask) -> Option<Self> {
        let batch = &*task.batch;
        let spec = ledger.batch_view(batch)?.spec;
        let own = ledger.batch_tasks_of(task.owner?);
        let own = own.into_iter().find(|own| own.batch == batch && own.fence == task.fence)?;
        let BatchWork::Validate(cursor) = own.work else { return None };
        let file = ledger.api_file(&spec.input_file)?;
        Some(Self {
            folder: ledger.batch_folder(batch)?.to_owned(),
            cursor,
            segments: ledger.batch_segments(batch),
            content: file.content.clone(),
            bytes: file.bytes,
            spec,
        })
    }
}

/// Validates the file from the batch's position on, and starts the batch's run or ends the batch.
///
/// # Errors
/// The work is lost or failed for now. Then it may go on from the last declared segment.
pub(super) async fn validate(
    context: Arc<Context>,
    task: BatchTask,
    stop: CancellationToken,
) -> Result<(), WorkError> {
    let memory = context.memory.reserve(VALIDATION_MIB).await;
    let (shared, fenced, waits) = (context.clone(), task.clone(), Waits::new(stop));
    let reading = tokio::task::spawn_blocking(move || {
        // Until the thread has ended, which may be after the task has.
        let _memory = memory;
        read(&shared, &fenced, &waits)
    });
    let errors = match reading.await.map_err(WorkError::failed)? {
        Ok(Report { model: Some(model), errors, .. }) if errors.is_empty() => {
            match start(&context, &task, &model).await {
                Err(WorkError::Invalid(error)) => vec![error],
                started => return started,
            }
        }
        Ok(report) => report.errors.into_iter().map(error_of).collect(),
        Err(WorkError::Invalid(error)) => vec![error],
        Err(error) => return Err(error),
    };
    tracing::info!(batch = task.batch, errors = errors.len(), "the file of a batch is invalid");
    let fail = op::FailBatch { batch: task.batch.clone(), fence: task.fence, errors };
    context.apply(&task, OpKind::FailBatch(fail)).await
}

/// Reads the rest of the file, in a thread that may block.
fn read(context: &Context, task: &BatchTask, waits: &Waits) -> Result<Report, WorkError> {
    let input = context.api.ledger(|l| Input::of(l, task)).ok_or(WorkError::Lost)?;
    let cursor = input.cursor;
    let store = &context.api.store;
    let mut checks = Checks { endpoint: input.spec.endpoint.clone(), model: None };
    let mut ids = Duplicates::new(IDS_BYTES, &context.temp_dir);
    let place = (&*task.namespace, &*input.folder);
    checks.model = earlier::read((store, waits), place, &input.segments, &checks, &mut ids)?;
    let range = cursor.offset.min(input.bytes)..input.bytes;
    let stream = content::read(store.clone(), &task.namespace, &input.content, range);
    let have = input.segments.len() as u32;
    let mut segments = Segments::new((context, waits), (task, &input.spec), &input.folder, have);
    let pass = Pass {
        checks,
        limits: Limits { rows: limits::BATCH_ROWS_MAX, bytes: limits::UPLOAD_BYTES_MAX },
        from: Position { offset: cursor.offset, lines: cursor.lines },
        rows: cursor.rows,
        ids,
        control: &ScanControl::default(),
    };
    let passed = pass.run(ContentReader::new(waits, stream), &mut |row| segments.take(row));
    match passed {
        Ok(report) => {
            if report.errors.is_empty() {
                segments.finish()?;
            }
            Ok(report)
        }
        Err(ValidateError::Read(error)) => Err(of_reader(error)),
        Err(ValidateError::Stopped) => Err(segments.failed.unwrap_or(WorkError::Lost)),
        Err(error @ ValidateError::Temporary(_)) => Err(WorkError::failed(error)),
    }
}

/// Starts the run of a batch whose segments are all declared.
async fn start(context: &Context, task: &BatchTask, model: &str) -> Result<(), WorkError> {
    let input = context.api.ledger(|l| Input::of(l, task)).ok_or(WorkError::Lost)?;
    let mut hasher = blake3::Hasher::new();
    for decl in &input.segments {
        hasher.update(&decl.blob.digest);
    }
    let start = op::StartBatch {
        batch: task.batch.clone(),
        fence: task.fence,
        spec: Box::new(run_spec(&input.spec, model)?),
        rows: input.segments.iter().map(|decl| u64::from(decl.rows)).sum(),
        digest: *hasher.finalize().as_bytes(),
    };
    context.apply(task, OpKind::StartBatch(start)).await
}

fn error_of(invalid: Invalid) -> BatchError {
    let error = of_batch(invalid.fault.code.name(), &shortened(&invalid.message));
    BatchError { param: invalid.fault.param.map(str::to_owned), line: invalid.line, ..error }
}
