//! A rank's part of a checkpoint: written in the background, and read back with every byte compared.
//!
//! *Invariant:* the bytes written are those at the time of [`CheckpointWriter::begin`]: Python's `bytes` do not
//! change, and a `bytearray` is copied. No hashing, write or read holds the interpreter's lock, and Ctrl-C ends a
//! wait.
//!
//! Absent: the report to the cluster. The caller that writes sends it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use rollout_proto::v1;
use rollout_training::{Files, TrainError, Written};
use tokio::sync::watch;

use crate::error::raised_training;
use crate::wait::{FOR_EVER, runtime, wait, wait_or_raise};

/// Names and bytes, as Python gives them.
pub(crate) type PyFiles = Vec<(String, PyBackedBytes)>;
/// The outcome of an operation; none while it is in progress.
pub(crate) type Outcome<T> = Option<Result<T, Arc<TrainError>>>;

/// Copies nothing: Python's objects live until their bytes are durable.
pub(crate) fn files(given: PyFiles) -> Files {
    given.into_iter().map(|(name, bytes)| (name, Bytes::from_owner(bytes))).collect()
}

/// Converts names and bytes for Python.
pub(crate) fn handed_over<'py>(
    py: Python<'py>,
    files: &Files,
) -> Vec<(String, Bound<'py, PyBytes>)> {
    files.iter().map(|(name, bytes)| (name.clone(), PyBytes::new(py, bytes))).collect()
}

/// Waits for an operation to end.
pub(crate) async fn ended<T: Clone>(mut outcomes: watch::Receiver<Outcome<T>>) -> PyResult<T> {
    let outcome = outcomes.wait_for(Option::is_some).await;
    match outcome.ok().and_then(|outcome| outcome.clone()) {
        Some(outcome) => outcome.map_err(|error| raised_training(&error)),
        None => Err(PyRuntimeError::new_err("the checkpoint's writer ended early")),
    }
}

/// A time limit from seconds; None means no limit.
pub(crate) fn limit(timeout_s: Option<f64>) -> Duration {
    let within = timeout_s.and_then(|s| Duration::try_from_secs_f64(s.max(0.0)).ok());
    within.unwrap_or(FOR_EVER).min(FOR_EVER)
}

/// Writes checkpoints into one store.
#[pyclass(frozen)]
pub struct CheckpointWriter {
    writer: rollout_training::CheckpointWriter,
}

#[pymethods]
impl CheckpointWriter {
    /// Opens the store of that URL. Raises OSError if the URL names no store.
    #[new]
    fn open(store_url: &str) -> PyResult<Self> {
        let writer = rollout_training::CheckpointWriter::open(store_url);
        Ok(Self { writer: writer.map_err(|error| raised_training(&error))? })
    }

    /// Starts to write files, given as (name, bytes), under a checkpoint's prefix, and returns at once.
    fn begin(
        &self,
        prefix: String,
        step: u64,
        trainer: String,
        files: PyFiles,
    ) -> PyResult<Writing> {
        let (tell, outcomes) = watch::channel(None);
        let (writer, files) = (self.writer.clone(), self::files(files));
        let checkpoint = v1::Checkpoint { prefix, step, ..v1::Checkpoint::default() };
        runtime()?.spawn(async move {
            let writing = writer.begin(&checkpoint, &trainer, files);
            tokio::select! {
                written = writing.wait() => {
                    tell.send_replace(Some(written.map_err(Arc::new)));
                }
                // No caller is left, so there is no need to wait for a store that does not answer.
                () = tell.closed() => {}
            }
        });
        Ok(Writing { outcomes })
    }
}

/// A rank's part while it is written.
#[pyclass(frozen)]
pub struct Writing {
    outcomes: watch::Receiver<Outcome<Written>>,
}

#[pymethods]
impl Writing {
    /// Whether the write has ended.
    fn done(&self) -> bool {
        self.outcomes.borrow().is_some()
    }

    /// Waits until everything is durable. Returns the manifest's digest and length, and the bytes and the number of
    /// the objects that it names. Raises OSError if the store refused, and TimeoutError after `timeout_s` if that is
    /// not None.
    #[pyo3(signature = (timeout_s = None))]
    fn wait<'py>(
        &self,
        py: Python<'py>,
        timeout_s: Option<f64>,
    ) -> PyResult<(Bound<'py, PyBytes>, u32, u64, u32)> {
        let what = "the checkpoint is not durable yet";
        let written = wait_or_raise(py, limit(timeout_s), what, ended(self.outcomes.clone()))??;
        let Written { manifest, bytes, objects } = written;
        Ok((PyBytes::new(py, &manifest.digest), manifest.bytes, bytes, objects))
    }
}

/// The files of a rank, as (name, bytes), from its manifest. Raises OSError if anything is missing or differs from
/// what was written.
#[pyfunction]
pub(crate) fn restore_checkpoint<'py>(
    py: Python<'py>,
    store_url: String,
    prefix: String,
    step: u64,
    manifest: (Vec<u8>, u32),
) -> PyResult<Vec<(String, Bound<'py, PyBytes>)>> {
    let (digest, bytes) = manifest;
    let manifest = Some(v1::BlobName { digest: digest.into(), bytes });
    let rank = v1::CheckpointRank { manifest, ..v1::CheckpointRank::default() };
    let checkpoint =
        v1::Checkpoint { store_url, prefix, step, ranks: vec![rank], ..v1::Checkpoint::default() };
    match wait(py, FOR_EVER, rollout_training::restore_rank(&checkpoint, 0))? {
        Some(restored) => {
            Ok(handed_over(py, &restored.map_err(|error| raised_training(&error))?.files))
        }
        None => Err(PyRuntimeError::new_err("the restore timed out")),
    }
}
