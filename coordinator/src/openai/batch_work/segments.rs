//! The segments of a batch in validation: rows are collected, stored and declared.
//!
//! *Invariant:* a segment is durable before it is declared, and the position after its last line is declared with it.
//! The next segment begins only then, so the next owner of the batch repeats at most one.

use super::context::Context;
use super::error::WorkError;
use super::reader::Waits;
use super::run_spec::run_spec;
use crate::leader::convert;
use rollout_batch::input::batch_file::{BatchRow, NotTaken, Position};
use rollout_batch::input::rules::Rules;
use rollout_batch::submission::spec;
use rollout_ledger::id::SegmentNo;
use rollout_ledger::{BatchSpec, BatchTask, BlobRef, OpKind, SegmentDecl, op};
use rollout_storage::{Full, SegmentWriter, segment_key};

/// Collects rows.
pub(super) struct Segments<'a> {
    context: &'a Context,
    waits: &'a Waits,
    task: &'a BatchTask,
    batch: &'a BatchSpec,
    folder: &'a str,
    /// How items are identified, once the model is known.
    rules: Option<Rules>,
    next: u32,
    segment: SegmentWriter,
    /// After the last row of the segment.
    end: Position,
    /// Why no more rows are taken.
    pub(super) failed: Option<WorkError>,
}

impl<'a> Segments<'a> {
    /// After `have` segments, for the run with its objects in `folder`.
    pub(super) fn new(
        (context, waits): (&'a Context, &'a Waits),
        (task, batch): (&'a BatchTask, &'a BatchSpec),
        folder: &'a str,
        have: u32,
    ) -> Self {
        Self {
            context,
            waits,
            task,
            batch,
            folder,
            rules: None,
            next: have,
            segment: SegmentWriter::new(),
            end: Position::default(),
            failed: None,
        }
    }

    /// Takes a row.
    ///
    /// # Errors
    /// The row fits into no segment, or the rows before it could not be stored or declared (`failed`).
    pub(super) fn take(&mut self, row: &BatchRow<'_>) -> Result<(), NotTaken> {
        self.push(row).map_err(|error| match error {
            NotPushed::Row(full) => NotTaken::Invalid(full.to_string()),
            NotPushed::Work(error) => {
                self.failed = Some(error);
                NotTaken::Stopped
            }
        })
    }

    fn push(&mut self, row: &BatchRow<'_>) -> Result<(), NotPushed> {
        let rules = match &mut self.rules {
            Some(rules) => rules,
            none => none.insert(rules_of(self.batch, row.model)?),
        };
        let item_id = rules.item_id(&row.row, 0);
        let body = row.text.as_bytes();
        match self.segment.push(item_id, row.line, body) {
            Err(Full::Rows | Full::Bytes) => {
                self.finish()?;
                self.segment.push(item_id, row.line, body).map_err(NotPushed::Row)?;
            }
            pushed => pushed.map_err(NotPushed::Row)?,
        }
        self.end = row.next;
        Ok(())
    }

    /// Stores and declares the rows that are left.
    ///
    /// # Errors
    /// The store or the leader does not answer, or the ledger refuses the segment.
    pub(super) fn finish(&mut self) -> Result<(), WorkError> {
        if self.segment.is_empty() {
            return Ok(());
        }
        let segment = std::mem::take(&mut self.segment);
        let (number, rows) = (SegmentNo(self.next), segment.len() as u32);
        let bytes = segment.finish();
        let blob = BlobRef { digest: *blake3::hash(&bytes).as_bytes(), bytes: bytes.len() as u32 };
        let key = segment_key(&self.task.namespace, self.folder, &blob.digest);
        let add = op::AddBatchSegments {
            batch: self.task.batch.clone(),
            fence: self.task.fence,
            segments: vec![SegmentDecl { number, rows, blob }],
            offset: self.end.offset,
            lines: self.end.lines,
        };
        self.waits.wait(async {
            self.context.api.store.put(&key, bytes).await.map_err(WorkError::failed)?;
            self.context.apply(self.task, OpKind::AddBatchSegments(add)).await
        })??;
        self.next += 1;
        Ok(())
    }
}

enum NotPushed {
    Row(Full),
    Work(WorkError),
}

impl From<WorkError> for NotPushed {
    fn from(error: WorkError) -> Self {
        Self::Work(error)
    }
}

fn rules_of(batch: &BatchSpec, model: &str) -> Result<Rules, WorkError> {
    let spec = convert::spec_out(&run_spec(batch, model)?);
    spec::rules(&spec).map_err(WorkError::failed)
}
