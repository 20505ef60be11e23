//! Owns: the runtime of this process, and how Python waits for its tasks.
//!
//! *Invariant:* while Python waits, the interpreter's lock is free, and a signal (Ctrl-C) ends the wait within
//! [`LOOK_EVERY`]; the signal's handler may itself wait this way. A forked process has no runtime and gets an error.
//! Absent: the tasks themselves.

use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::{Instant, timeout_at};

/// How often a wait checks for a signal.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Longer than any real wait.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// They only wait for sockets; hashing and files have their own threads.
const THREADS: usize = 2;

static RUNTIME: OnceLock<(u32, Runtime)> = OnceLock::new();

/// The runtime of this process.
pub(crate) fn runtime() -> PyResult<Handle> {
    let pid = std::process::id();
    let (made_by, runtime) = match RUNTIME.get() {
        Some(made) => made,
        None => {
            let made = Builder::new_multi_thread()
                .worker_threads(THREADS)
                .thread_name("rollout")
                .enable_all()
                .build()
                .map_err(|error| PyRuntimeError::new_err(format!("no threads: {error}")))?;
            // Two threads may get here at once; the second one's runtime ends unused.
            RUNTIME.get_or_init(|| (pid, made))
        }
    };
    match *made_by == pid {
        true => Ok(runtime.handle().clone()),
        false => Err(PyRuntimeError::new_err(
            "this process was forked from one that had connected to rollout: connect after the fork, or spawn",
        )),
    }
}

/// Waits for `work` without the interpreter's lock, until a signal handler raises. Returns None if it took longer than
/// `within`.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    within: Duration,
    work: impl Future<Output = T> + Send,
) -> PyResult<Option<T>> {
    let runtime = runtime()?;
    py.detach(|| {
        let until = Instant::now() + within;
        let mut work = pin!(work);
        loop {
            let look = until.min(Instant::now() + LOOK_EVERY);
            // The timer must be made inside the runtime.
            let done = runtime.block_on(async { timeout_at(look, &mut work).await });
            if let Ok(done) = done {
                return Ok(Some(done));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            // Outside of the runtime, because a Python signal handler may call the package and wait as this does.
            Python::attach(|py| py.check_signals())?;
        }
    })
}

/// As [`wait`], but a wait that takes too long raises TimeoutError.
pub(crate) fn wait_or_raise<T: Send>(
    py: Python<'_>,
    within: Duration,
    what: &str,
    work: impl Future<Output = T> + Send,
) -> PyResult<T> {
    wait(py, within, work)?.ok_or_else(|| too_long(within, what))
}

/// The exception of a wait that took too long.
pub(crate) fn too_long(within: Duration, what: &str) -> PyErr {
    PyTimeoutError::new_err(format!("wait timeout after {}ms: {what}", within.as_millis()))
}
