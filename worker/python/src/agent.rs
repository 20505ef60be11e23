//! Owns: the agent as an engine's process sees it: rows come in, outcomes go out.
//!
//! *Invariant:* no socket wait and no write holds the interpreter's lock. At most [`EVENTS_MAX`] messages wait for
//! Python; the socket holds back the rest. Outcomes leave in the order in which Python gave them, all of them at
//! [`Agent::flush`].
//!
//! Absent: what a row means.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::exceptions::{PyEOFError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rollout_engine_protocol::{
    self as protocol, Counters, FromEngine, Loaded, Row, RowClass, RowFailure, SOCKET_ENV,
    ToEngine, VERSION,
};

/// Messages that wait for Python.
const EVENTS_MAX: usize = 4096;

/// The agent that started this process.
#[pyclass(frozen)]
pub struct Agent {
    events: Mutex<Receiver<io::Result<ToEngine>>>,
    out: Mutex<Out>,
    /// Which of the agent's slots this process serves.
    #[pyo3(get)]
    slot: u32,
    /// The engine's block of the configuration, as JSON.
    #[pyo3(get)]
    options: String,
}

/// Messages to the agent.
struct Out {
    socket: UnixStream,
    pending: Vec<u8>,
}

/// One request of the agent.
#[derive(IntoPyObject)]
enum Event<'py> {
    /// Ticket, task, model, sampling (JSON), row (JSON).
    Start((u64, String, String, String, Bound<'py, PyBytes>)),
    /// The ticket of a row to stop.
    Cancel(u64),
}

#[pymethods]
impl Agent {
    /// Greets the agent over the inherited socket. Raises RuntimeError if no agent started this process.
    #[new]
    fn connect(py: Python<'_>) -> PyResult<Self> {
        let connected = py.detach(connect);
        let (socket, events, slot, options) = connected.map_err(no_agent)?;
        let out = Mutex::new(Out { socket, pending: Vec::new() });
        Ok(Self { events: Mutex::new(events), out, slot, options })
    }

    /// Reports that the engine is loaded. Raises EOFError once the agent is gone.
    fn ready(&self, py: Python<'_>) -> PyResult<()> {
        self.put(&FromEngine::Ready)?;
        self.flush(py)
    }

    /// Reports what was loaded, before `ready`: versions by name, and the names of the model's revision. The last
    /// argument is the number of tokens that the engine can hold at once, 0 if unknown.
    fn loaded(
        &self,
        versions: BTreeMap<String, String>,
        revisions: Vec<String>,
        room_tokens: u64,
    ) -> PyResult<()> {
        self.put(&FromEngine::Loaded(Loaded { versions, revisions, room_tokens }))
    }

    /// The agent's requests: tuples (ticket, task, model, sampling, row) to start, or a ticket to stop. At most
    /// `limit`. Waits for the first one, at most `timeout_ms`, or forever if that is None. Raises EOFError once the
    /// agent is gone.
    #[pyo3(signature = (limit, timeout_ms))]
    fn poll<'py>(
        &self,
        py: Python<'py>,
        limit: usize,
        timeout_ms: Option<u64>,
    ) -> PyResult<Vec<Event<'py>>> {
        let taken = py.detach(|| take(&self.events.lock(), limit, timeout_ms));
        taken
            .map_err(gone)?
            .into_iter()
            .map(|message| match message {
                ToEngine::Start(Row { ticket, task, model, sampling, body, .. }) => {
                    Ok(Event::Start((ticket, task, model, sampling, PyBytes::new(py, &body))))
                }
                ToEngine::Cancel { ticket } => Ok(Event::Cancel(ticket)),
                ToEngine::Hello { .. } => Err(PyRuntimeError::new_err("a second hello")),
            })
            .collect()
    }

    /// A row's completion; `extra` is a JSON object's text, or empty.
    fn finish(
        &self,
        ticket: u64,
        text: String,
        finish_reason: String,
        prompt_tokens: u64,
        completion_tokens: u64,
        extra: String,
    ) -> PyResult<()> {
        let finished = FromEngine::Finished {
            ticket,
            text,
            finish_reason,
            prompt_tokens,
            completion_tokens,
            extra,
        };
        // A completion that is too large fails the row, not the engine.
        self.put(&finished.bounded())
    }

    /// A row's failure; `class` is invalid, transient, out_of_memory or engine_died.
    fn fail(&self, ticket: u64, class: &str, code: String, message: String) -> PyResult<()> {
        let class = match class {
            "invalid" => RowClass::Invalid,
            "transient" => RowClass::Transient,
            "out_of_memory" => RowClass::OutOfMemory,
            "engine_died" => RowClass::EngineDied,
            other => return Err(PyValueError::new_err(format!("no class {other:?}"))),
        };
        self.put(&FromEngine::Failed { ticket, failure: RowFailure { class, code, message } })
    }

    /// A row that the agent stopped no longer runs.
    fn stopped(&self, ticket: u64) -> PyResult<()> {
        self.put(&FromEngine::Stopped { ticket })
    }

    /// The engine's counters, in the order of the protocol's.
    #[expect(clippy::too_many_arguments, reason = "Python gives a tuple")]
    fn progress(
        &self,
        steps: u64,
        tokens: u64,
        steps_not_full: u64,
        steps_hungry: u64,
        admitted: u64,
        admitted_beside: u64,
        aborted: u64,
        tokens_after_abort: u64,
    ) -> PyResult<()> {
        self.put(&FromEngine::Progress(Counters {
            steps,
            tokens,
            steps_not_full,
            steps_hungry,
            admitted,
            admitted_beside,
            aborted,
            tokens_after_abort,
        }))
    }

    /// Sends everything queued since the last call. Raises EOFError once the agent is gone.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let sent = py.detach(|| {
            let mut out = self.out.lock();
            let pending = std::mem::take(&mut out.pending);
            out.socket.write_all(&pending)
        });
        sent.map_err(gone)
    }
}

impl Agent {
    fn put(&self, message: &FromEngine) -> PyResult<()> {
        let frame = protocol::encode(message)?;
        self.out.lock().pending.extend_from_slice(&frame);
        Ok(())
    }
}

type Events = Receiver<io::Result<ToEngine>>;

fn connect() -> io::Result<(UnixStream, Events, u32, String)> {
    let mut socket = inherited()?;
    socket.write_all(&protocol::encode(&FromEngine::Hello { version: VERSION })?)?;
    let mut from = BufReader::new(socket.try_clone()?);
    let ToEngine::Hello { version: VERSION, slot, options } = protocol::read(&mut from)? else {
        return Err(io::Error::other("the agent speaks another version of the engine protocol"));
    };
    let (events, received) = sync_channel(EVENTS_MAX);
    std::thread::Builder::new().name("agent".to_owned()).spawn(move || {
        loop {
            let message = protocol::read(&mut from);
            let last = message.is_err();
            if events.send(message).is_err() || last {
                return;
            }
        }
    })?;
    Ok((socket, received, slot, options))
}

fn inherited() -> io::Result<UnixStream> {
    let missing = || io::Error::other(format!("{SOCKET_ENV} names no socket"));
    let fd = std::env::var(SOCKET_ENV).map_err(|_| missing())?.parse().map_err(|_| missing())?;
    // SAFETY: the agent passed this descriptor on for this purpose, and a process makes one `Agent`. If the descriptor
    // is not open, its first use fails.
    let socket = UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    socket.set_nonblocking(false)?;
    Ok(socket)
}

fn take(events: &Events, limit: usize, timeout_ms: Option<u64>) -> io::Result<Vec<ToEngine>> {
    let hung_up = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let first = match timeout_ms {
        None => events.recv().map_err(|_| hung_up())?,
        Some(ms) => match events.recv_timeout(Duration::from_millis(ms)) {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) => return Ok(Vec::new()),
            Err(RecvTimeoutError::Disconnected) => return Err(hung_up()),
        },
    };
    let mut taken = vec![first?];
    while taken.len() < limit {
        match events.try_recv() {
            Ok(message) => taken.push(message?),
            Err(TryRecvError::Empty) => break,
            Err(TryRecvError::Disconnected) => return Err(hung_up()),
        }
    }
    Ok(taken)
}

fn no_agent(error: io::Error) -> PyErr {
    PyRuntimeError::new_err(format!("no agent of rollout started this process: {error}"))
}

fn gone(error: io::Error) -> PyErr {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => {
            PyEOFError::new_err("the agent is gone")
        }
        _ => PyOSError::new_err(error.to_string()),
    }
}
