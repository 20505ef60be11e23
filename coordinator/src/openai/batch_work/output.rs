//! The two files of a batch's output, while they are written.
//!
//! *Invariant:* memory has at most one piece of each file at a time. Files that no operation may name are removed when
//! they are dropped. The digests of both files fit into one operation: [`RESULTS_BYTES_MAX`] and [`ERRORS_BYTES_MAX`]
//! bound the files, and beyond these, a row gets a short line without its outcome ([`OutputFiles::left_out`]).

use super::error::WorkError;
use crate::grpc::FORWARD_OP_BYTES_MAX;
use crate::openai::content::{ContentWriter, Named, PIECE_BYTES, Written};
use crate::openai::ids::new_id;
use crate::openai::state::ApiState;
use bytes::Bytes;
use rollout_batch::export::{LeftOut, Piece};
use rollout_ledger::{BatchOutput, BatchTask, FILE_ID_PREFIX, limits};

/// Bytes of the output file, except for the lines of the rows that reach this.
const RESULTS_BYTES_MAX: u64 = 48 << 30;
/// Bytes of the error file with outcomes. After that, a line has the row's own id and at most 256 bytes.
const ERRORS_BYTES_MAX: u64 = 16 << 30;
/// All short lines: own ids, which are in the input, and the rest of each line.
const SHORT_LINES_BYTES_MAX: u64 = limits::UPLOAD_BYTES_MAX + limits::BATCH_ROWS_MAX * 256;
/// The lines of the rows that reach a bound.
const LAST_LINES_BYTES_MAX: u64 = 64 << 20;
/// The digest and the length of a piece.
const REFERENCE_BYTES_MAX: u64 = 32 + 5;

const RESULTS_PIECES_MAX: u64 = (RESULTS_BYTES_MAX + LAST_LINES_BYTES_MAX) / PIECE_BYTES as u64 + 1;
const ERRORS_PIECES_MAX: u64 =
    (ERRORS_BYTES_MAX + LAST_LINES_BYTES_MAX + SHORT_LINES_BYTES_MAX) / PIECE_BYTES as u64 + 1;
const _: () = assert!(RESULTS_PIECES_MAX <= limits::FILE_PIECES_MAX);
const _: () = assert!(ERRORS_PIECES_MAX <= limits::FILE_PIECES_MAX);
const _: () = assert!(
    (RESULTS_PIECES_MAX + ERRORS_PIECES_MAX) * REFERENCE_BYTES_MAX + 4096
        <= FORWARD_OP_BYTES_MAX as u64
);

/// The files while they are written.
pub(super) struct OutputFiles {
    results: OutputFile,
    errors: OutputFile,
}

struct OutputFile {
    id: String,
    filename: String,
    writer: ContentWriter,
}

/// A file that an operation may name.
pub(super) type NamedOutput = (BatchOutput, Named);

impl OutputFiles {
    /// Begins both files.
    pub(super) fn begin(api: &ApiState, task: &BatchTask) -> Self {
        let begin = |kind: &str| {
            let id = new_id(FILE_ID_PREFIX);
            let writer = ContentWriter::begin(api, &task.namespace, &id);
            OutputFile { id, filename: format!("{}_{kind}.jsonl", task.batch), writer }
        };
        Self { results: begin("output"), errors: begin("error") }
    }

    /// What the next lines leave out.
    pub(super) fn left_out(&self) -> LeftOut {
        LeftOut {
            results: self.results.writer.bytes() >= RESULTS_BYTES_MAX,
            failures: self.errors.writer.bytes() >= ERRORS_BYTES_MAX,
        }
    }

    /// Appends lines.
    ///
    /// # Errors
    /// The store refused a piece.
    pub(super) async fn push(&mut self, piece: Piece) -> Result<(), WorkError> {
        self.results.push(piece.completions).await?;
        self.errors.push(piece.errors).await
    }

    /// Makes both files durable. A file without lines is none. From now on an operation may name them.
    ///
    /// # Errors
    /// The store refused a piece.
    pub(super) async fn finish(
        self,
    ) -> Result<(Option<NamedOutput>, Option<NamedOutput>), WorkError> {
        let (results, errors) = (self.results.finish().await?, self.errors.finish().await?);
        Ok((results.map(Durable::name), errors.map(Durable::name)))
    }
}

impl OutputFile {
    async fn push(&mut self, lines: String) -> Result<(), WorkError> {
        if lines.is_empty() {
            return Ok(());
        }
        self.writer.push(Bytes::from(lines)).await.map_err(WorkError::failed)?;
        self.writer.settle().await.map_err(WorkError::failed)
    }

    async fn finish(self) -> Result<Option<Durable>, WorkError> {
        if self.writer.bytes() == 0 {
            return Ok(None);
        }
        let Self { id, filename, writer } = self;
        let written = writer.finish().await.map_err(WorkError::failed)?;
        Ok(Some(Durable { id, filename, written }))
    }
}

/// A file whose content is durable, and that no operation may name yet.
struct Durable {
    id: String,
    filename: String,
    written: Written,
}

impl Durable {
    fn name(self) -> NamedOutput {
        let Self { id, filename, written } = self;
        let (content, begun_at, named) = written.name();
        (BatchOutput { id, filename, content, begun_at }, named)
    }
}
