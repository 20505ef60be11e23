//! Decoders of what a worker gets from the leader, engines, clouds and its own disk, for fuzz targets only.
//!
//! Invariant: bad bytes are an error here, as they are in a running worker.
//! Absent: the worker.

use std::sync::Arc;

use bytes::Bytes;
use rollout_proto::v1;

pub use crate::compute::fuzzing::answer as metadata_answer;
use crate::disk::WorkerState;
use crate::engine::EngineRow;
use crate::engine::evidence::{Crash, DeathEvidence, classify};
use crate::engine::openai;
use crate::enrollment::EnrolledMetadata;
use crate::leased_rows::{NamedRows, first_ranges, listed};
use crate::part::Finished;
use crate::run::RunInfo;
use crate::versions;

/// Reads a row as an engine gets it: the leader's description of its run, and its bytes in the segment.
///
/// # Errors
/// Why the row or its run is refused.
pub fn row(run: v1::GetRunResponse, body: &[u8]) -> Result<(), String> {
    let run = Arc::new(RunInfo::from_wire(run).map_err(|error| error.to_string())?);
    let body = Bytes::copy_from_slice(body);
    let row = EngineRow { run, row: 0, attempt: 1, item_id: [0; 32], body, tokens: 0 };
    row.request().map(drop).map_err(|failure| failure.message)
}

/// Reads the rows that the leader grants or revokes; returns their number.
pub fn rows(held: Vec<v1::HeldRows>) -> usize {
    let rows = held.iter().flat_map(|set| &set.rows).filter_map(listed).map(|rows| rows.len());
    let rows = rows.sum();
    let few = first_ranges(held, 4);
    NamedRows::new(few).contains((0, 0), 0);
    rows
}

/// Reads an answer of the kind that the first byte selects, and writes it as a result; returns its length.
///
/// # Errors
/// Why the answer is refused.
pub fn answer(bytes: &[u8]) -> Result<usize, String> {
    let completion = openai::fuzzing::answer(bytes)?;
    let finished = Finished::new(1, 0, &completion).map_err(|error| error.to_string())?;
    Ok(finished.as_part_row().body.len())
}

/// Reads `worker.json`.
///
/// # Errors
/// Why it is refused.
pub fn state(bytes: &[u8]) -> Result<u64, String> {
    let state = serde_json::from_slice::<WorkerState>(bytes);
    state.map(|state| state.session).map_err(|error| error.to_string())
}

/// Reads `enrolment.json`; returns the number of labels.
///
/// # Errors
/// Why it is refused.
pub fn enrollment(bytes: &[u8]) -> Result<usize, String> {
    EnrolledMetadata::parse(bytes).map(|kept| kept.labels.len()).map_err(|error| error.to_string())
}

/// Reads an engine's crash file; returns the code of its death, or `None` if the file is unusable.
pub fn crash(bytes: &[u8]) -> Option<&'static str> {
    let crash = Crash::parse(bytes)?;
    let evidence = DeathEvidence { crash: Some(crash), ..DeathEvidence::default() };
    Some(classify(&evidence.of_the_core()).1)
}

/// Reads the versions that an engine's environment reports; returns their number.
///
/// # Errors
/// Why the text is refused.
pub fn versions(output: &[u8]) -> Result<usize, String> {
    versions::parse(output).map(|versions| versions.len())
}
