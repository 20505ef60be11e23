//! Owns: a gateway within a Python process: TCPStore's port for the processes that it starts, at its round's own
//! address.
//!
//! *Invariant:* once it is closed or dropped, no process reaches the store through it, including those already
//! connected.
//! Absent: the protocol; crate `rollout-gateway` has it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::exceptions::{PyConnectionError, PyOSError, PyValueError};
use pyo3::prelude::*;
use rollout_gateway::{GatewayError, GatewayOptions, WaitRoom, round_address, serve_sharing};
use rollout_proto::{Client, v1};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::error::raised;
use crate::wait::{runtime, wait_or_raise};

/// A port of this host.
#[pyclass(frozen)]
pub struct Gateway {
    addr: SocketAddr,
    serving: Mutex<Option<JoinHandle<()>>>,
    error: Arc<Mutex<Option<String>>>,
}

#[pymethods]
impl Gateway {
    /// Its host.
    #[getter]
    fn host(&self) -> String {
        self.addr.ip().to_string()
    }

    /// Its port.
    #[getter]
    fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Why it ended, if the cluster refused it.
    #[getter]
    fn error(&self) -> Option<String> {
        self.error.lock().clone()
    }

    /// Closes the port and every connection.
    fn close(&self) {
        if let Some(serving) = self.serving.lock().take() {
            serving.abort();
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.close();
    }
}

impl Gateway {
    /// Returns once it listens and the cluster has answered. Its waits share the places of `room`.
    pub(crate) fn start(
        py: Python<'_>,
        (client, room): (Client, WaitRoom),
        name: v1::StoreName,
        port: u16,
        within: Duration,
    ) -> PyResult<Self> {
        let v1::StoreName { namespace, job, round, ticket } = name;
        let listen = SocketAddr::from((round_address(&namespace, &job, round), port));
        let options = GatewayOptions { namespace, job, round, ticket, listen, insecure: false };
        let (listens, listening) = oneshot::channel();
        let error = Arc::new(Mutex::new(None));
        let why = error.clone();
        let serving = runtime()?.spawn(async move {
            let mut listens = Some(listens);
            let ended = serve_sharing(client, room, options, |addr| {
                // A signal may have ended the caller's wait meanwhile.
                let _ = listens.take().map(|listens| listens.send(Ok(addr)));
            });
            if let Err(error) = ended.await {
                *why.lock() = Some(error.to_string());
                let _ = listens.take().map(|listens| listens.send(Err(error)));
            }
        });
        let aborted = Abort(Some(serving));
        let what = format!("no leader answered the gateway at {listen}");
        let addr = match wait_or_raise(py, within, &what, listening)? {
            Ok(Ok(addr)) => addr,
            Ok(Err(error)) => return Err(refused(error)),
            Err(_) => return Err(PyConnectionError::new_err("the gateway ended")),
        };
        Ok(Self { addr, serving: Mutex::new(aborted.keep()), error })
    }
}

/// Aborts the task on drop, unless it is kept.
struct Abort(Option<JoinHandle<()>>);

impl Abort {
    fn keep(mut self) -> Option<JoinHandle<()>> {
        self.0.take()
    }
}

impl Drop for Abort {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}

fn refused(error: GatewayError) -> PyErr {
    match error {
        GatewayError::Client(error) => raised(error),
        GatewayError::Exposed(_) => PyValueError::new_err(error.to_string()),
        GatewayError::Listen { .. } => PyOSError::new_err(error.to_string()),
    }
}
