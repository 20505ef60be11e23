//! Writes the output of a batch whose run has ended, and ends the batch.
//!
//! *Invariant:* each row has one line: in the output file if it has a 2xx response, otherwise in the error file. Lines
//! are in the order of the input. Results are those that the ledger names.
//! Absent: what a line contains (`rollout_batch::export`), and the bounds of the files (`output`).

use super::context::Context;
use super::error::WorkError;
use super::memory::{ASSEMBLY_MIB, CACHE_BYTES, PARTS_IN_USE, RESULTS_BYTES};
use super::output::OutputFiles;
use crate::leader::convert;
use crate::openai::content::Named;
use rollout_batch::export::format::{Lines, OpenaiLines, Unfinished};
use rollout_batch::export::{Fetch, Piece, ReadBounds};
use rollout_ledger::id::{RunNo, SegmentNo};
use rollout_ledger::{BatchStatus, BatchTask, BatchUsage, Ledger, OpKind, op};
use rollout_proto::v1;

/// Where the results of a batch are.
struct Results {
    run: RunNo,
    folder: String,
    segments: u32,
}

impl Results {
    fn of(ledger: &Ledger, batch: &str) -> Option<Self> {
        let run = ledger.batch_view(batch)?.run?;
        let view = ledger.run_view(run)?;
        Some(Self { run, folder: view.folder, segments: view.segments })
    }
}

/// Writes the output files for this end of the batch, and ends it.
///
/// # Errors
/// The work is lost, or failed for now. Then it begins again.
pub(super) async fn assemble(
    context: &Context,
    task: &BatchTask,
    ends_as: BatchStatus,
) -> Result<(), WorkError> {
    let _memory = context.memory.reserve(ASSEMBLY_MIB).await;
    let results = context.api.ledger(|l| Results::of(l, &task.batch)).ok_or(WorkError::Lost)?;
    let mut files = OutputFiles::begin(&context.api, task);
    let usage = write(context, task, &results, ends_as, &mut files).await?;
    let (output, errors) = files.finish().await?;
    let (output, output_named) = output.unzip();
    let (errors, errors_named) = errors.unzip();
    let (batch, fence) = (task.batch.clone(), task.fence);
    let finish = op::FinishBatch { batch, fence, ends_as, output, errors, usage };
    let finished = context.apply(task, OpKind::FinishBatch(finish)).await;
    if matches!(finished, Err(WorkError::Lost | WorkError::Invalid(_))) {
        // The ledger has refused the files, and no repeat names them.
        [output_named, errors_named].into_iter().flatten().for_each(Named::remove);
    }
    finished
}

/// Writes the lines of all rows, and returns the tokens of their results.
async fn write(
    context: &Context,
    task: &BatchTask,
    results: &Results,
    ends_as: BatchStatus,
    files: &mut OutputFiles,
) -> Result<BatchUsage, WorkError> {
    let unfinished = unfinished(ends_as);
    let lines = Lines::Openai(OpenaiLines { unfinished, attempts: true });
    let bounds = ReadBounds {
        cache_bytes: CACHE_BYTES,
        parts_in_use: PARTS_IN_USE,
        piece_bytes: RESULTS_BYTES,
    };
    let (store, name) = (context.api.store.clone(), task.batch.clone());
    let fetch = Fetch::bounded(store, lines, name, unfinished.is_some(), bounds);
    let mut usage = BatchUsage::default();
    for number in 0..results.segments {
        let listed = listed(context, task, results, SegmentNo(number)).ok_or(WorkError::Lost)?;
        let mut reading = fetch.begin(listed).await.map_err(WorkError::failed)?;
        loop {
            reading.left_out = files.left_out();
            let Some(piece) = reading.next().await.map_err(WorkError::failed)? else { break };
            add_usage(&mut usage, &piece);
            files.push(piece).await?;
        }
    }
    Ok(usage)
}

/// The lines of rows without an outcome.
fn unfinished(ends_as: BatchStatus) -> Option<Unfinished> {
    match ends_as {
        BatchStatus::Expired => Some(Unfinished::Expired),
        BatchStatus::Cancelled => Some(Unfinished::Cancelled),
        _ => None,
    }
}

/// The outcomes of a segment's rows, in the form in which a client reads them.
fn listed(
    context: &Context,
    task: &BatchTask,
    results: &Results,
    number: SegmentNo,
) -> Option<v1::ReadResultsResponse> {
    let view = context.api.ledger(|l| l.segment_view(results.run, number))?;
    Some(convert::results_out(&task.namespace, &results.folder, &view))
}

fn add_usage(usage: &mut BatchUsage, piece: &Piece) {
    // Saturating, because a worker may report any number.
    for (sum, tokens) in [
        (&mut usage.input_tokens, piece.prompt_tokens),
        (&mut usage.cached_tokens, piece.cached_tokens),
        (&mut usage.output_tokens, piece.completion_tokens),
        (&mut usage.reasoning_tokens, piece.reasoning_tokens),
    ] {
        *sum = sum.saturating_add(tokens);
    }
}
