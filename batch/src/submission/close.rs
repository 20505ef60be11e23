//! Owns: closing an open input.
//!
//! Invariant: it closes exactly the input that it listed: if rows arrive in between, it lists again and never omits
//! them silently.
//! Absent: adding rows.

use rollout_proto::{Client, ErrorCode, Session, v1};

use super::error::BatchError;
use super::{revision, submit};
use crate::export::parts::digest_of;

/// Tries while other clients append.
pub(super) const ROUNDS_MAX: u32 = 32;

/// A closed input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed {
    /// Rows of the run.
    pub rows: u64,
    /// Whether it was already closed.
    pub already: bool,
}

/// Closes the input of a run as it is.
pub async fn close(session: &Session, namespace: &str, name: &str) -> Result<Closed, BatchError> {
    let client = session.client();
    for _ in 0..ROUNDS_MAX {
        let described = submit::describe(client, namespace, name).await?;
        let run = described.run.clone().unwrap_or_default();
        if run.input_closed {
            let rows = run.counts.unwrap_or_default().rows;
            return Ok(Closed { rows, already: true });
        }
        check_goes_on(&run)?;
        let (rows, digest) = listed(client, session.store_url(), &described).await?;
        match submit::close_at(session, run.run, rows, digest).await {
            Ok(()) => return Ok(Closed { rows, already: false }),
            Err(error) if lost_to_another(error.code()) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(busy(name))
}

/// The number of a run's rows, and blake3 over its segments' digests in order.
async fn listed(
    client: &Client,
    store_url: &str,
    described: &v1::DescribeRunResponse,
) -> Result<(u64, [u8; 32]), BatchError> {
    let store = revision::store_of(described, store_url)?;
    let (_, segments) = revision::segments(client, &store, described).await?;
    let mut hasher = blake3::Hasher::new();
    let mut rows = 0;
    for (blob, count) in &segments {
        let digest = digest_of(blob).map_err(|error| BatchError::Inconsistent {
            name: described.run.clone().unwrap_or_default().name,
            message: error.to_string(),
        })?;
        hasher.update(&digest);
        rows += u64::from(*count);
    }
    Ok((rows, *hasher.finalize().as_bytes()))
}

/// Whether another client changed the input first, so that it must be read again.
pub(super) fn lost_to_another(code: Option<ErrorCode>) -> bool {
    use ErrorCode::{DeadlineExceeded, InputClosed, InputMismatch, RunEnded, SegmentConflict};
    let changed = matches!(code, Some(SegmentConflict | InputMismatch | InputClosed));
    changed || matches!(code, Some(RunEnded | DeadlineExceeded))
}

/// Refuses a run that was ended early or is being deleted.
pub(super) fn check_goes_on(run: &v1::RunSummary) -> Result<(), BatchError> {
    let what = match run.state() {
        v1::RunState::Cancelled => "was cancelled",
        v1::RunState::Deleting => "is being deleted",
        v1::RunState::DeadlineExceeded => "was ended by its deadline",
        _ => return Ok(()),
    };
    let advice = "its input stays as it is".to_owned();
    Err(BatchError::Conflict { name: run.name.clone(), what, advice })
}

/// Other clients were faster each time.
pub(super) fn busy(name: &str) -> BatchError {
    let what = "was changed by other clients at every attempt";
    let advice = "repeat the command: it does not add rows that the run already has".to_owned();
    BatchError::Conflict { name: name.to_owned(), what, advice }
}
