//! Owns: the mock engine's own process, the other side of `host`'s protocol.
//!
//! Invariant: it ends when the agent's end of the socket closes. It prints progress only while a row makes progress.
//! Absent: starting it.

use std::collections::HashMap;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use super::host::frame::{self, Counters, FromEngine, RowClass, RowFailure, SOCKET_ENV, ToEngine};
use super::mock::MockEngine;
use super::{Engine, EngineRow};
use crate::config::EngineConfig;
use crate::run::RunInfo;

/// Messages that may wait for the socket.
const MESSAGES: usize = 256;
/// How often progress is checked.
const PROGRESS_EVERY: Duration = Duration::from_millis(25);

/// Runs the mock engine for the agent that started this process, until that agent closes the socket.
pub(crate) fn mock_engine() -> ExitCode {
    let served = inherited().and_then(|socket| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async { serve(UnixStream::from_std(socket)?).await })
    });
    match served {
        Ok(code) => code,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mock engine: {error}");
            ExitCode::FAILURE
        }
    }
}

fn inherited() -> io::Result<std::os::unix::net::UnixStream> {
    let missing = || io::Error::other(format!("{SOCKET_ENV} names no socket: agents start this"));
    let fd = std::env::var(SOCKET_ENV).map_err(|_| missing())?.parse().map_err(|_| missing())?;
    // SAFETY: F_GETFD reads no memory; on a descriptor that is not open it fails.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
        return Err(missing());
    }
    // SAFETY: it is open, was inherited for this purpose, and nothing else in this process uses it.
    let socket = std::os::unix::net::UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    socket.set_nonblocking(true)?;
    Ok(socket)
}

async fn serve(socket: UnixStream) -> io::Result<ExitCode> {
    let (read, mut write) = socket.into_split();
    let mut read = BufReader::new(read);
    frame::write(&mut write, &FromEngine::Hello { version: frame::VERSION }).await?;
    let ToEngine::Hello { version: frame::VERSION, options, .. } = frame::read(&mut read).await?
    else {
        return Err(io::Error::other("the agent speaks another version"));
    };
    let config: EngineConfig = serde_json::from_str(&options).map_err(io::Error::other)?;
    if let Some(status) = config.exit_at_start {
        return Ok(ExitCode::from(status));
    }
    let engine = Arc::new(MockEngine::in_own_process(&config).map_err(io::Error::other)?);
    if let Some(loaded) = engine.loaded() {
        frame::write(&mut write, &FromEngine::Loaded(loaded)).await?;
    }
    frame::write(&mut write, &FromEngine::Ready).await?;
    let (out, mut messages) = mpsc::channel::<FromEngine>(MESSAGES);
    let writer = tokio::spawn(async move {
        while let Some(message) = messages.recv().await {
            frame::write(&mut write, &message).await?;
        }
        Ok::<(), io::Error>(())
    });
    let ticker = tokio::spawn(progress(engine.clone(), out.clone()));
    let served = rows(&mut read, &engine, &out).await;
    writer.abort();
    ticker.abort();
    served.map(|()| ExitCode::SUCCESS)
}

async fn rows(
    read: &mut (impl tokio::io::AsyncRead + Unpin),
    engine: &Arc<MockEngine>,
    out: &mpsc::Sender<FromEngine>,
) -> io::Result<()> {
    let mut running: HashMap<u64, AbortHandle> = HashMap::new();
    let mut tasks = JoinSet::new();
    loop {
        match frame::read(read).await? {
            ToEngine::Start(row) => {
                running.retain(|_, task| !task.is_finished());
                while tasks.try_join_next().is_some() {}
                let (ticket, engine, out) = (row.ticket, engine.clone(), out.clone());
                let task = tasks.spawn(async move {
                    let message = match row_of(row) {
                        Ok(row) => frame::of_row(ticket, engine.run(row).await),
                        Err(failure) => FromEngine::Failed { ticket, failure },
                    };
                    // The socket has ended, and the process will too.
                    let _ = out.send(message).await;
                });
                running.insert(ticket, task);
            }
            ToEngine::Cancel { ticket } => {
                if let Some(task) = running.remove(&ticket) {
                    task.abort();
                }
                // The socket has ended, and the process will too.
                let _ = out.send(FromEngine::Stopped { ticket }).await;
            }
            ToEngine::Hello { .. } => return Err(io::Error::other("a second hello")),
        }
    }
}

async fn progress(engine: Arc<MockEngine>, out: mpsc::Sender<FromEngine>) {
    let mut every = tokio::time::interval(PROGRESS_EVERY);
    let mut counters = Counters::default();
    loop {
        every.tick().await;
        if engine.is_working() {
            counters.steps += 1;
            if out.send(FromEngine::Progress(counters)).await.is_err() {
                return;
            }
        }
    }
}

fn row_of(row: frame::Row) -> Result<EngineRow, RowFailure> {
    let sampling = serde_json::from_str(&row.sampling).map_err(|error| RowFailure {
        class: RowClass::Invalid,
        code: "RUN_SPEC".to_owned(),
        message: format!("the run's sampling: {error}"),
    })?;
    let task = row.task.parse().map_err(|message| RowFailure {
        class: RowClass::Invalid,
        code: "RUN_SPEC".to_owned(),
        message,
    })?;
    let run = RunInfo {
        number: row.run,
        namespace: row.namespace,
        name: row.name,
        folder: String::new(), // Only the agent uses it.
        model: row.model,
        revision: String::new(), // The leader has already matched it.
        task,
        sampling,
        store_url: String::new(),
        attempt_timeout: None, // Only the agent enforces it.
        deadline: None,
    };
    Ok(EngineRow {
        run: Arc::new(run),
        row: row.row,
        attempt: row.attempt,
        item_id: row.item_id,
        body: Bytes::from(row.body),
        tokens: 0,
    })
}
