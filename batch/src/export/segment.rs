//! Owns: reading a run's segments with their results, a piece at a time.
//!
//! Invariant: memory holds a segment's input and up to three pieces of its results, however long these are. An
//! unreadable segment hides no outcome: if all of its rows failed for that reason, they are errors without their
//! input.
//! Absent: order among segments; the contents of a piece (`piece`).

use std::sync::Arc;

use rollout_proto::v1;
use rollout_storage::{BlobError, BlobStore, Segment};
use tokio::sync::{Semaphore, mpsc};

use super::format::Lines;
use super::parts::{CACHE_BYTES, ObjectError, PartCache, digest_of, fetch};
use super::piece::{PARTS_AT_A_TIME, PIECE_BYTES, Piece, Reading};
use crate::submission::error::BatchError;

/// Steps of a segment that wait to be taken: its beginning and a piece, or two pieces.
const STEPS_AHEAD: usize = 2;
/// The class of rows whose segment no worker could read.
const INPUT_UNREADABLE: &str = "input_unreadable";

/// A segment whose rows follow.
#[derive(Debug, Clone)]
pub struct SegmentOutput {
    pub number: u32,
    /// The number of its first row.
    pub first_row: u64,
    pub rows: u64,
    /// The segment, or why it cannot be read.
    pub segment: Result<Segment, String>,
    /// The blake3 of its object.
    pub digest: [u8; 32],
}

/// A step of a segment: its beginning, then its rows.
#[derive(Debug)]
pub(super) enum Step {
    Segment(SegmentOutput),
    Rows(Piece),
}

/// What reading may keep in memory, besides the segment's input and a piece's lines.
#[derive(Debug, Clone, Copy)]
pub struct ReadBounds {
    /// Bytes of cached parts, or one part.
    pub cache_bytes: u64,
    /// Parts in use at a time, over all segments.
    pub parts_in_use: usize,
    /// Bytes of results in a piece, or one result.
    pub piece_bytes: u64,
}

impl Default for ReadBounds {
    fn default() -> Self {
        Self { cache_bytes: CACHE_BYTES, parts_in_use: PARTS_AT_A_TIME, piece_bytes: PIECE_BYTES }
    }
}

/// Reads segments of one run, several at a time if the caller wants.
pub struct Fetch {
    pub(super) store: BlobStore,
    pub(super) parts: PartCache,
    /// Bounds how many parts are in use at a time, over all segments.
    pub(super) in_use: Semaphore,
    pub(super) piece_bytes: u64,
    pub(super) format: Lines,
    pub(super) run: String,
    pub(super) partial: bool,
}

/// Why a segment cannot be read.
enum SegmentLoss {
    /// Its bytes are gone.
    Always(BatchError),
    /// The store did not answer.
    Now(BatchError),
}

impl Fetch {
    /// For the run of that name, whose objects are in `store`. With `partial`, rows may lack an outcome. They get the
    /// line that the format has for them, if any.
    pub fn new(store: BlobStore, format: Lines, run: String, partial: bool) -> Self {
        Self::bounded(store, format, run, partial, ReadBounds::default())
    }

    /// The same within other bounds.
    pub fn bounded(
        store: BlobStore,
        format: Lines,
        run: String,
        partial: bool,
        bounds: ReadBounds,
    ) -> Self {
        let parts = PartCache::new(store.clone(), bounds.cache_bytes);
        let in_use = Semaphore::new(bounds.parts_in_use);
        Self { store, parts, in_use, piece_bytes: bounds.piece_bytes, format, run, partial }
    }

    /// Reads a segment in a separate task, which waits while its steps are not taken.
    pub(super) fn spawn(
        self: &Arc<Self>,
        listed: v1::ReadResultsResponse,
    ) -> mpsc::Receiver<Result<Step, BatchError>> {
        let (steps, taken) = mpsc::channel(STEPS_AHEAD);
        let fetch = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = fetch.steps(listed, &steps).await {
                // If the receiver was dropped, the error no longer matters.
                let _ = steps.send(Err(error)).await;
            }
        });
        taken
    }

    async fn steps(
        &self,
        listed: v1::ReadResultsResponse,
        steps: &mpsc::Sender<Result<Step, BatchError>>,
    ) -> Result<(), BatchError> {
        let mut reading = self.begin(listed).await?;
        let Ok(room) = steps.reserve().await else { return Ok(()) };
        room.send(Ok(Step::Segment(reading.segment.clone())));
        loop {
            // Before the piece is made, so that no more pieces wait than there is room for.
            let Ok(room) = steps.reserve().await else { return Ok(()) };
            match reading.next().await? {
                Some(piece) => room.send(Ok(Step::Rows(piece))),
                None => return Ok(()),
            }
        }
    }

    /// Reads a segment's input. `listed` is the ledger's record of the segment and of its rows' outcomes.
    ///
    /// # Errors
    /// The segment cannot be read, or contradicts the ledger.
    pub async fn begin(&self, listed: v1::ReadResultsResponse) -> Result<Reading<'_>, BatchError> {
        let blob = listed.blob.clone().unwrap_or_default();
        let digest = digest_of(&blob).map_err(|error| self.object(error))?;
        let segment = match self.input(&blob, &digest).await {
            Ok(segment) => Ok(segment),
            Err(SegmentLoss::Always(error)) if self.failed_for_it(&listed) => {
                Err(format!("segment {}: {error}", listed.number))
            }
            Err(SegmentLoss::Always(error) | SegmentLoss::Now(error)) => return Err(error),
        };
        let rows = segment.as_ref().map_or(listed.rows as usize, Segment::len);
        if rows as u32 != listed.rows
            || listed.parts.len() != rows
            || listed.part_rows.len() != rows
        {
            let message = format!(
                "segment {} has {rows} rows, the ledger lists {} with {} outcomes",
                listed.number,
                listed.rows,
                listed.parts.len()
            );
            return Err(self.inconsistent(message));
        }
        let (number, first_row) = (listed.number, listed.first_row);
        if first_row.checked_add(rows as u64).is_none() {
            let message = format!("segment {number} begins at row {first_row}, which no run has");
            return Err(self.inconsistent(message));
        }
        let segment = SegmentOutput { number, first_row, rows: rows as u64, segment, digest };
        Ok(Reading::new(self, listed, segment))
    }

    async fn input(&self, blob: &v1::BlobRef, digest: &[u8; 32]) -> Result<Segment, SegmentLoss> {
        let bytes = fetch(&self.store, &blob.key, digest).await.map_err(|error| match error {
            BlobError::Missing { .. } | BlobError::Corrupt { .. } => {
                SegmentLoss::Always(error.into())
            }
            error => SegmentLoss::Now(error.into()),
        })?;
        Segment::decode(bytes).map_err(|source| {
            let key = blob.key.clone();
            SegmentLoss::Always(self.object(ObjectError::Format { key, source }))
        })
    }

    /// True if every row that has an outcome failed because its input could not be read.
    fn failed_for_it(&self, listed: &v1::ReadResultsResponse) -> bool {
        let all = self.partial || listed.failures.len() as u64 == u64::from(listed.rows);
        all && listed.parts.iter().all(|part| *part == 0)
            && listed.failures.iter().all(|failure| failure.class == INPUT_UNREADABLE)
    }

    pub(super) fn inconsistent(&self, message: String) -> BatchError {
        BatchError::Inconsistent { name: self.run.clone(), message }
    }

    pub(super) fn object(&self, error: ObjectError) -> BatchError {
        match error {
            ObjectError::Store(error) => BatchError::Store(error),
            other => self.inconsistent(other.to_string()),
        }
    }
}
