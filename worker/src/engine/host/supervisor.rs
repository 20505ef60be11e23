//! Owns: an engine's successive lives: start, hello, rows, death, wait, restart.
//!
//! Invariant: messages that the process sent before it died are processed before its death is reported; a death is
//! reported once, with the rows that it took. A process that breaks the protocol, hangs, or is no longer wanted is
//! killed with its group. A process may also hang on rows that no caller wants any more. Until it has answered for all
//! of these it gets no other rows, which would become suspects of a hang that began before them. A killed process that
//! does not end, because a driver holds it, is reported dead too; no other is started before it has ended.
//! Absent: what a death means for the rows.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::frame::{self, Counters, FromEngine, ToEngine};
use super::process::{self, Killer, Process};
use super::stderr::LastWords;
use super::{Death, HostConfig, Shared, State};
use crate::backoff::Backoff;
use crate::engine::evidence::{Crash, DeathEvidence};
use crate::engine::oom_kills;
use crate::engine::xid::Xid;
use crate::engine::{Completion, EngineRow, News};

/// Messages between the socket's tasks and the life, each way.
const MESSAGES: usize = 256;
/// How long a process may take to end after its socket has.
const END_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Supervisor {
    pub(super) config: HostConfig,
    pub(super) shared: std::sync::Arc<Shared>,
    pub(super) news: mpsc::Sender<News>,
    pub(super) state: watch::Sender<State>,
    pub(super) stop: CancellationToken,
}

/// Why the agent ends a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndReason {
    /// It ended by itself.
    Itself,
    Stalled,
    /// It sent an invalid or unexpected message.
    Garbled,
    /// It speaks another version of the protocol.
    Version(u32),
    /// It was not ready for rows in time.
    Late,
    Stopped,
}

/// Counts at the start of a life.
struct Counts {
    oom_kills: Option<u64>,
    xids: u64,
}

/// How a life ended.
struct End {
    evidence: DeathEvidence,
    /// The human-readable text.
    how: String,
    /// It was killed and has not ended.
    stuck: bool,
}

/// A life in progress.
struct Life {
    killer: Killer,
    ended: oneshot::Receiver<io::Result<std::process::ExitStatus>>,
    incoming: mpsc::Receiver<io::Result<FromEngine>>,
    outgoing: mpsc::Sender<ToEngine>,
    last_words: LastWords,
    ready: bool,
    /// Whether any row was started.
    worked: bool,
    /// The counters that the process last reported.
    counters: Counters,
    progress: Instant,
}

impl Supervisor {
    pub(super) async fn run(self) {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
        while !self.stop.is_cancelled() {
            let before = Counts { oom_kills: oom_kills::count(), xids: self.config.xids() };
            let worked = match self.config.program.start().await {
                Ok(process) => match self.life(process, before).await {
                    Some(worked) => worked,
                    None => break,
                },
                Err(error) => {
                    let path = self.config.program.path.display();
                    let message = format!("the engine {path} cannot be started: {error}");
                    let rows = Vec::new();
                    let (evidence, last_words) = (DeathEvidence::default(), String::new());
                    let unwanted = 0;
                    let death = Death { evidence, last_words, message, rows, unwanted, down: true };
                    self.report_death(death).await;
                    false
                }
            };
            if worked {
                backoff.reset();
            }
            tokio::select! {
                () = backoff.sleep() => {}
                () = self.stop.cancelled() => {}
            }
        }
        self.shared.rows.lock().give_back("the engine is stopped");
    }

    /// Runs one life until the next may begin; returns whether it did any work. None: no other is wanted.
    async fn life(&self, process: Process, before: Counts) -> Option<bool> {
        let mut life = Life::begin(process);
        let why = self.live(&mut life).await;
        let end = self.end(&mut life, why, before).await;
        if why == EndReason::Stopped {
            return None;
        }
        let (stuck, last_words) = (end.stuck, life.last_words.text().await);
        self.report_death(self.death(&life, end, last_words)).await;
        if stuck {
            // Until then its devices and their memory are in use.
            tokio::select! {
                _ = &mut life.ended => {}
                () = self.stop.cancelled() => return None,
            }
        }
        Some(life.worked)
    }

    fn death(&self, life: &Life, end: End, last_words: String) -> Death {
        let End { evidence, how, stuck } = end;
        let (rows, unwanted) = self.shared.rows.lock().bury();
        let mut message = format!("the engine {how}");
        if life.ready {
            message = format!("{message} with {} rows started", rows.len());
        }
        if unwanted > 0 {
            message = format!("{message} and {unwanted} rows that were being cancelled");
        }
        if stuck {
            let pid = life.killer.pid;
            message = format!("{message}, and process {pid}, which was killed, does not end");
        }
        if let Some(Xid { device, code }) = evidence.xid {
            message = format!("{message}, after error {code} (XID) of GPU {device}");
        }
        if let Some(crash) = &evidence.crash {
            message = format!("{message}: {}: {}", crash.exception, crash.message);
        }
        Death { evidence, last_words, message, rows, unwanted, down: !life.ready || stuck }
    }

    async fn report_death(&self, death: Death) {
        let (slot, rows) = (self.config.program.slot, death.rows.len());
        tracing::warn!(slot, rows, down = death.down, "{}", death.message);
        if death.down {
            self.state.send_replace(State::Down(death.message.clone()));
            self.shared.rows.lock().give_back(&death.message);
        } else {
            self.state.send_replace(State::Starting);
        }
        // The slot is gone and wants no news.
        let _ = self.news.send(News::Died(Box::new(death))).await;
    }

    /// Talks to the process until it must end.
    async fn live(&self, life: &mut Life) -> EndReason {
        let program = &self.config.program;
        let options = self.config.options.clone();
        let hello = ToEngine::Hello { version: frame::VERSION, slot: program.slot, options };
        // An empty channel has room.
        let _ = life.outgoing.try_send(hello);
        let deadline = Instant::now() + self.config.start_timeout;
        let (mut said_hello, mut loaded) = (false, None);
        while !life.ready {
            tokio::select! {
                () = self.stop.cancelled() => return EndReason::Stopped,
                () = sleep_until(deadline) => return EndReason::Late,
                message = life.incoming.recv() => match message {
                    Some(Ok(FromEngine::Hello { version })) if version == frame::VERSION => {
                        said_hello = true;
                    }
                    Some(Ok(FromEngine::Hello { version })) => return EndReason::Version(version),
                    Some(Ok(FromEngine::Loaded(told))) if said_hello => loaded = Some(told),
                    Some(Ok(FromEngine::Ready)) if said_hello => life.ready = true,
                    Some(Ok(_)) => return EndReason::Garbled,
                    Some(Err(error)) => return broken(&error),
                    None => return EndReason::Itself,
                },
            }
        }
        tracing::info!(slot = program.slot, ?loaded, "the engine runs");
        *self.shared.loaded.lock() = loaded;
        self.shared.rows.lock().down = None;
        self.state.send_replace(State::Ready);
        if self.news.send(News::Ready).await.is_err() {
            return EndReason::Stopped;
        }
        life.progress = Instant::now();
        self.serve(life).await
    }

    async fn serve(&self, life: &mut Life) -> EndReason {
        let outgoing = life.outgoing.clone();
        loop {
            if let Err(why) = self.feed(life) {
                return why;
            }
            let runs = self.shared.rows.lock().runs();
            let stalled = life.progress + self.config.stall_timeout;
            let full = outgoing.capacity() == 0;
            tokio::select! {
                () = self.stop.cancelled() => return EndReason::Stopped,
                message = life.incoming.recv() => match message {
                    Some(Ok(message)) => {
                        if !self.take(life, message) {
                            return EndReason::Garbled;
                        }
                    }
                    Some(Err(error)) => return broken(&error),
                    None => return EndReason::Itself,
                },
                () = self.shared.changed.notified(), if !full => {}
                // Room again.
                permit = outgoing.reserve(), if full => drop(permit),
                () = sleep_until(stalled), if runs => return EndReason::Stalled,
            }
        }
    }

    /// Sends as many waiting rows as fit.
    fn feed(&self, life: &mut Life) -> Result<(), EndReason> {
        let mut rows = self.shared.rows.lock();
        while life.outgoing.capacity() > 0 {
            let message = if let Some(ticket) = rows.cancelled.pop() {
                ToEngine::Cancel { ticket }
            } else {
                if rows.queue.is_empty() || !rows.stopping.is_empty() {
                    break;
                }
                if !rows.runs() {
                    life.progress = Instant::now();
                }
                let Some((ticket, row)) = rows.next() else { break };
                life.worked = true;
                ToEngine::Start(to_wire(ticket, row))
            };
            match life.outgoing.try_send(message) {
                Ok(()) => {}
                // The writer has ended, so the socket has too.
                Err(TrySendError::Closed(_) | TrySendError::Full(_)) => {
                    return Err(EndReason::Itself);
                }
            }
        }
        Ok(())
    }

    /// False if the message is not allowed here.
    fn take(&self, life: &mut Life, message: FromEngine) -> bool {
        let mut rows = self.shared.rows.lock();
        match message {
            FromEngine::Finished {
                ticket,
                text,
                finish_reason,
                prompt_tokens,
                completion_tokens,
                extra,
            } => {
                let done =
                    Completion { text, finish_reason, prompt_tokens, completion_tokens, extra };
                rows.end(ticket, Ok(done));
                life.progress = Instant::now();
            }
            FromEngine::Failed { ticket, failure } => {
                rows.end(ticket, Err(failure.into()));
                life.progress = Instant::now();
            }
            FromEngine::Stopped { ticket } => {
                rows.stopping.remove(&ticket);
                life.progress = Instant::now();
            }
            FromEngine::Progress(counters) => {
                let before = std::mem::replace(&mut life.counters, counters);
                if (counters.steps, counters.tokens) != (before.steps, before.tokens) {
                    life.progress = Instant::now();
                }
                drop(rows);
                self.shared.totals.lock().add(before, counters);
                self.shared.progressed.notify_one();
            }
            FromEngine::Hello { .. } | FromEngine::Ready | FromEngine::Loaded(_) => return false,
        }
        true
    }

    /// Waits for the process to end, processes its last messages, and gathers evidence about its death.
    async fn end(&self, life: &mut Life, why: EndReason, before: Counts) -> End {
        let mut status = None;
        if why == EndReason::Itself {
            status = timeout(END_TIMEOUT, &mut life.ended).await.ok();
        }
        life.killer.kill();
        if status.is_none() {
            status = timeout(self.config.kill_timeout, &mut life.ended).await.ok();
        }
        let stuck = status.is_none();
        // Messages that arrived before the end belong before the death.
        while let Ok(Some(Ok(message))) = timeout(END_TIMEOUT, life.incoming.recv()).await {
            if life.ready {
                self.take(life, message);
            }
        }
        let (exit_code, signal) = match status {
            Some(Ok(Ok(status))) => process::fate(status),
            _ => (None, None),
        };
        let evidence = DeathEvidence {
            exit_code,
            signal,
            crash: Crash::read(&self.config.program.crash_file),
            oom_killed: false,
            xid: self.config.xid_since(before.xids),
            stalled: why == EndReason::Stalled,
            garbled: matches!(why, EndReason::Garbled | EndReason::Version(_) | EndReason::Late),
        };
        let followed = evidence.exit_code;
        let mut evidence = evidence.of_the_core();
        // Claim a kill only for a death that it may explain; a claimed kill explains no other death.
        evidence.oom_killed = why == EndReason::Itself
            && evidence.as_the_kernel_kills()
            && oom_kills::OF_THIS_HOST.claim(before.oom_kills, oom_kills::count());
        let how = match (why, evidence.exit_code.or(followed), evidence.signal) {
            (EndReason::Stalled, ..) => {
                format!("made no progress for {} ms", self.config.stall_timeout.as_millis())
            }
            (EndReason::Late, ..) => {
                format!("was not ready within {} ms", self.config.start_timeout.as_millis())
            }
            (EndReason::Version(version), ..) => {
                format!("speaks version {version} of the protocol, not {}", frame::VERSION)
            }
            (EndReason::Garbled, ..) => "broke the protocol".to_owned(),
            (_, _, Some(signal)) => format!("was ended by signal {signal}"),
            (_, Some(code), _) => format!("ended with status {code}"),
            _ => "died".to_owned(),
        };
        End { evidence, how, stuck }
    }
}

impl Life {
    fn begin(process: Process) -> Self {
        let (incoming, outgoing) = match UnixStream::from_std(process.socket) {
            Ok(socket) => {
                let (read, write) = socket.into_split();
                (read_all(read), write_all(write))
            }
            Err(error) => {
                // Both channels are closed, which ends the life at once.
                tracing::error!(%error, "an engine's socket cannot be used");
                (mpsc::channel(1).1, mpsc::channel(1).0)
            }
        };
        Self {
            killer: process.killer,
            ended: process.ended,
            incoming,
            outgoing,
            last_words: process.last_words,
            ready: false,
            worked: false,
            counters: Counters::default(),
            progress: Instant::now(),
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.killer.kill();
    }
}

fn read_all(socket: OwnedReadHalf) -> mpsc::Receiver<io::Result<FromEngine>> {
    let (sender, receiver) = mpsc::channel(MESSAGES);
    tokio::spawn(async move {
        let mut socket = BufReader::new(socket);
        loop {
            let message = frame::read(&mut socket).await;
            let broken = message.is_err();
            if sender.send(message).await.is_err() || broken {
                break;
            }
        }
    });
    receiver
}

fn write_all(mut socket: OwnedWriteHalf) -> mpsc::Sender<ToEngine> {
    let (sender, mut receiver) = mpsc::channel(MESSAGES);
    tokio::spawn(async move {
        while let Some(message) = receiver.recv().await {
            // The reader sees the same end and reports it.
            if frame::write(&mut socket, &message).await.is_err() {
                break;
            }
        }
        let _ = socket.shutdown().await;
    });
    sender
}

fn broken(error: &io::Error) -> EndReason {
    match error.kind() {
        io::ErrorKind::InvalidData => EndReason::Garbled,
        _ => EndReason::Itself,
    }
}

fn to_wire(ticket: u64, row: EngineRow) -> frame::Row {
    let run = row.run;
    frame::Row {
        ticket,
        run: run.number,
        namespace: run.namespace.clone(),
        name: run.name.clone(),
        model: run.model.clone(),
        task: run.task.name().to_owned(),
        sampling: serde_json::Value::Object(run.sampling.clone()).to_string(),
        row: row.row,
        attempt: row.attempt,
        item_id: row.item_id,
        body: row.body.to_vec(),
    }
}

#[cfg(test)]
mod tests;
