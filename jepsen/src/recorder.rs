//! Records a run while it runs.
//!
//! *Invariant:* history and events share one clock. An invocation is written before its request leaves. Claims are
//! the exception: only the answer says which row was claimed, so both records are written then, the first with the
//! time at which the request left. The first record that could not be written fails the run at its end.

use crate::events::{Event, EventKind};
use crate::history::{Kind, LogPosition, Record};
use crate::operations::READS;
use anyhow::{Context, Result};
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Names of a run's files in its directory.
pub const HISTORY: &str = "history.jsonl";
/// See [`HISTORY`].
pub const EVENTS: &str = "events.jsonl";

pub struct Recorder {
    start: Instant,
    history: Mutex<BufWriter<File>>,
    events: Mutex<BufWriter<File>>,
    failed: Mutex<Option<io::Error>>,
    processes: AtomicU64,
    succeeded: AtomicU64,
}

/// An operation that awaits its answer. Each is a process of its own.
#[derive(Clone, Debug)]
pub struct Op {
    process: u64,
    f: &'static str,
    key: String,
    request_id: Option<String>,
}

impl Op {
    /// Its function.
    pub fn f(&self) -> &'static str {
        self.f
    }
}

/// The answering member, and the position of the answer.
#[derive(Clone, Debug, Default)]
pub struct By {
    pub member: Option<String>,
    /// The epoch that was open at the operation's position, or else the one in the message.
    pub epoch: Option<u64>,
    /// The epoch in the message.
    pub said: Option<u64>,
    /// The operation's log position, as the answer reports it.
    pub at: Option<LogPosition>,
    /// Whether the operation had been sent before.
    pub repeated: bool,
    /// When it was answered, if it is recorded later.
    pub answered_ns: Option<u64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    /// Begins the files of a run.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn create(dir: &Path) -> Result<Self> {
        let file = |name: &str| {
            let path = dir.join(name);
            File::create(&path).with_context(|| path.display().to_string())
        };
        Ok(Self {
            start: Instant::now(),
            history: Mutex::new(BufWriter::new(file(HISTORY)?)),
            events: Mutex::new(BufWriter::new(file(EVENTS)?)),
            failed: Mutex::default(),
            processes: AtomicU64::new(0),
            succeeded: AtomicU64::new(0),
        })
    }

    /// Nanoseconds since the start.
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The number of writes acknowledged so far.
    pub fn succeeded(&self) -> u64 {
        self.succeeded.load(Ordering::Relaxed)
    }

    /// Records an event that happens now.
    pub fn event(&self, what: EventKind) {
        self.event_since(Instant::now(), what);
    }

    /// Records an event that happened at `then`.
    pub fn event_since(&self, then: Instant, what: EventKind) {
        let since = then.saturating_duration_since(self.start);
        let time_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let event = Event { time_ns, what };
        let written = event.write(&mut *lock(&self.events));
        self.keep(written);
    }

    /// Records the start of an operation.
    pub fn invoke(
        &self,
        f: &'static str,
        key: String,
        value: Value,
        request_id: Option<String>,
    ) -> Op {
        self.invoke_at(self.now_ns(), f, key, value, request_id)
    }

    /// Records the start of an operation at `time_ns`.
    pub fn invoke_at(
        &self,
        time_ns: u64,
        f: &'static str,
        key: String,
        value: Value,
        request_id: Option<String>,
    ) -> Op {
        let process = self.processes.fetch_add(1, Ordering::Relaxed);
        let op = Op { process, f, key, request_id };
        self.record(&op, time_ns, Kind::Invoke, value, By::default(), None);
        op
    }

    /// Records an answer. If its message carries an earlier epoch than the answer's log position, that is an alarm.
    pub fn ok(&self, op: &Op, value: Value, by: By) {
        // For whole batches, each sign of progress counts as a write.
        let is_reported = ["export", "progress"].contains(&op.f) || !READS.contains(&op.f);
        if is_reported && value != Value::Bool(false) {
            self.succeeded.fetch_add(1, Ordering::Relaxed);
        }
        if let (Some(said), Some(placed), Some(_)) = (by.said, by.epoch, by.at)
            && said < placed
        {
            let (f, key) = (op.f.to_owned(), op.key.clone());
            self.event(EventKind::EpochBehind { f, key, said, placed });
        }
        let time_ns = by.answered_ns.unwrap_or_else(|| self.now_ns());
        self.record(op, time_ns, Kind::Ok, value, by, None);
    }

    /// Records that it certainly did not happen and never will.
    pub fn fail(&self, op: &Op, why: String) {
        self.record(op, self.now_ns(), Kind::Fail, Value::Null, By::default(), Some(why));
    }

    /// Records that the outcome is unknown.
    pub fn info(&self, op: &Op, why: String) {
        self.record(op, self.now_ns(), Kind::Info, Value::Null, By::default(), Some(why));
    }

    fn record(
        &self,
        op: &Op,
        time_ns: u64,
        kind: Kind,
        value: Value,
        by: By,
        error: Option<String>,
    ) {
        let record = Record {
            time_ns,
            process: op.process,
            kind,
            f: op.f.to_owned(),
            key: Some(op.key.clone()),
            value,
            request_id: op.request_id.clone(),
            epoch: by.epoch,
            at: by.at,
            repeated: by.repeated,
            member: by.member,
            error,
        };
        let written = record.write(&mut *lock(&self.history));
        self.keep(written);
    }

    fn keep(&self, written: io::Result<()>) {
        if let Err(error) = written {
            lock(&self.failed).get_or_insert(error);
        }
    }

    /// Flushes everything to the files.
    ///
    /// # Errors
    /// The first record that could not be.
    pub fn finish(&self) -> Result<()> {
        lock(&self.history).flush().context(HISTORY)?;
        lock(&self.events).flush().context(EVENTS)?;
        match lock(&self.failed).take() {
            Some(error) => Err(error).context("the run could not be written down"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::Recorded;
    use serde_json::json;

    /// Reads back what was written.
    fn written(write: impl FnOnce(&Recorder)) -> Recorded {
        let dir = tempfile::tempdir().unwrap();
        let recorder = Recorder::create(dir.path()).unwrap();
        write(&recorder);
        recorder.finish().unwrap();
        Recorded::read(dir.path()).unwrap()
    }

    #[test]
    fn an_answer_that_is_recorded_later_keeps_its_time() {
        let mut answered = 0;
        let run = written(|recorder| {
            let op = recorder.invoke("set", "a".to_owned(), json!("1"), Some("4/1".to_owned()));
            answered = recorder.now_ns();
            std::thread::sleep(std::time::Duration::from_millis(5));
            recorder.ok(&op, Value::Null, By { answered_ns: Some(answered), ..By::default() });
        });
        assert_eq!(run.operations[0].answered_at(), Some(answered));
        assert_eq!(run.operations[0].request.as_deref(), Some("4/1"));
    }

    #[test]
    fn a_message_of_an_epoch_before_that_of_its_position_is_an_alarm() {
        let alarms = |said: u64, placed: u64| {
            let run = written(|recorder| {
                let op = recorder.invoke("get", "a".to_owned(), Value::Null, None);
                let at = Some(LogPosition::behind(30));
                let by = By { epoch: Some(placed), said: Some(said), at, ..By::default() };
                recorder.ok(&op, Value::Null, by);
            });
            let behind = |event: &&Event| matches!(event.what, EventKind::EpochBehind { .. });
            run.events.iter().filter(behind).count()
        };
        assert_eq!((alarms(6, 7), alarms(7, 7), alarms(8, 7)), (1, 0, 0));
    }
}
