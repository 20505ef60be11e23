//! A rank's part of a checkpoint: written behind the loop's back, and read back with every byte compared.
//!
//! *Invariant:* the bytes are copied when [`CheckpointWriter::begin`] is called: what the loop changes afterwards is in
//! the next checkpoint. The interpreter's lock is held neither while something is hashed nor while it is written.
//!
//! Absent: what the cluster is told. Whoever writes reports.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyTimeoutError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rollout_proto::v1;
use rollout_training::{TrainError, Written};
use tokio::runtime::Runtime;

/// How often a wait looks for Ctrl-C.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Threads that hash and write.
const THREADS: usize = 2;

fn runtime() -> PyResult<Arc<Runtime>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("rollout-checkpoint")
        .enable_all()
        .build();
    runtime.map(Arc::new).map_err(|error| PyOSError::new_err(error.to_string()))
}

fn raised(error: &TrainError) -> PyErr {
    PyOSError::new_err(error.to_string())
}

/// Writes checkpoints into one store.
#[pyclass(frozen)]
pub struct CheckpointWriter {
    runtime: Arc<Runtime>,
    writer: rollout_training::CheckpointWriter,
}

#[pymethods]
impl CheckpointWriter {
    /// Opens the store of that URL. Raises OSError where there can be none.
    #[new]
    fn open(store_url: &str) -> PyResult<Self> {
        let writer =
            rollout_training::CheckpointWriter::open(store_url).map_err(|error| raised(&error))?;
        Ok(Self { runtime: runtime()?, writer })
    }

    /// Begins to write files, as (name, bytes), below a checkpoint's prefix, and returns at once.
    fn begin(
        &self,
        py: Python<'_>,
        prefix: String,
        step: u64,
        trainer: &str,
        files: Vec<(String, Bound<'_, PyBytes>)>,
    ) -> Writing {
        let files =
            files.into_iter().map(|(name, bytes)| (name, Bytes::copy_from_slice(bytes.as_bytes())));
        let files = files.collect();
        let checkpoint = v1::Checkpoint { prefix, step, ..v1::Checkpoint::default() };
        let writing = py.detach(|| {
            let _entered = self.runtime.enter();
            self.writer.begin(&checkpoint, trainer, files)
        });
        Writing { runtime: self.runtime.clone(), state: Mutex::new(State::Running(writing)) }
    }
}

enum State {
    Running(rollout_training::Writing),
    Done(Result<Written, String>),
    /// Somebody waits.
    Taken,
}

/// A rank's part on its way.
#[pyclass(frozen)]
pub struct Writing {
    runtime: Arc<Runtime>,
    state: Mutex<State>,
}

#[pymethods]
impl Writing {
    /// Whether there is nothing to wait for.
    fn done(&self) -> bool {
        match &*self.state.lock() {
            State::Running(writing) => writing.is_done(),
            State::Done(_) => true,
            State::Taken => false,
        }
    }

    /// Waits until all is durable: the manifest's digest and length, the bytes and the number of the objects that it
    /// names. Raises OSError where the store refused, TimeoutError after `timeout_s`, where that is not None.
    #[pyo3(signature = (timeout_s = None))]
    fn wait<'py>(
        &self,
        py: Python<'py>,
        timeout_s: Option<f64>,
    ) -> PyResult<(Bound<'py, PyBytes>, u32, u64, u32)> {
        let begun = std::time::Instant::now();
        let limit = timeout_s.map(|s| Duration::from_secs_f64(s.clamp(0.0, 1e9)));
        while !self.done() {
            py.detach(|| std::thread::sleep(LOOK_EVERY));
            py.check_signals()?;
            if limit.is_some_and(|limit| begun.elapsed() >= limit) {
                return Err(PyTimeoutError::new_err("the checkpoint is not durable yet"));
            }
        }
        let taken = std::mem::replace(&mut *self.state.lock(), State::Taken);
        let done = match taken {
            State::Running(writing) => {
                py.detach(|| self.runtime.block_on(writing.wait())).map_err(|e| e.to_string())
            }
            State::Done(done) => done,
            State::Taken => return Err(PyRuntimeError::new_err("another thread waits for it")),
        };
        *self.state.lock() = State::Done(done.clone());
        let written = done.map_err(PyOSError::new_err)?;
        let Written { manifest, bytes, objects } = written;
        Ok((PyBytes::new(py, &manifest.digest), manifest.bytes, bytes, objects))
    }
}

/// The files of a rank, as (name, bytes), from its manifest. Raises OSError where anything is missing, or not what was
/// written.
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
    let runtime = runtime()?;
    let restored = py.detach(|| runtime.block_on(rollout_training::restore_rank(&checkpoint, 0)));
    let files = restored.map_err(|error| raised(&error))?.files;
    Ok(files.into_iter().map(|(name, bytes)| (name, PyBytes::new(py, &bytes))).collect())
}
