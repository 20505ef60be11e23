//! Events recorded beside a history: faults and the proof that they took effect, what observers saw of members and
//! leaders, and how the run ended.
//!
//! *Invariant:* one object per line, in the time order of the process that wrote it. Events and history together are
//! all that a verdict needs, so a run can be judged again.

use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};

/// The exit status text of a member whose port another process had taken when it started.
pub const PORT_TAKEN: &str = "its port was taken";

/// Something seen or done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// The plan of this run.
    Plan { workload: String, nemesis: Vec<String>, seed: u64, secs: u64 },
    /// A member's status, with the epoch in its applied state. `life` counts the starts of its process; `installed`
    /// counts the snapshots of others that it installed in this life.
    Status {
        member: String,
        life: u64,
        role: String,
        term: u64,
        epoch: u64,
        applied: u64,
        #[serde(default)]
        installed: u64,
    },
    /// A worker registered, or failed to (`session` 0), between these epochs. `clean`: it sent one request only, so
    /// that no copy is in transit.
    Registered { observer: String, session: u64, from_epoch: u64, epoch: u64, clean: bool },
    /// A heartbeat that was sent at `sent_ns` in this session was answered in this epoch.
    Beat { session: u64, epoch: u64, sent_ns: u64 },
    /// A row was granted to this session alone by an exchange that went out once, at `asked_ns`.
    Granted { session: u64, key: String, attempt: u64, epoch: u64, asked_ns: u64 },
    /// The worker is about to report the outcome of a row.
    Settles { session: u64, key: String, attempt: u64 },
    /// A leader spoke to a worker.
    Heard { observer: String, leader: String, epoch: u64 },
    /// A fault begins. `proven`: a probe saw it take effect.
    Fault { id: u64, kind: String, on: String, proven: bool },
    /// A member lost power, and this was lost: files truncated, bytes cut off them, operations on names undone.
    PowerLost { member: String, files: u64, bytes: u64, names: u64 },
    /// A bit was flipped back. `noticed`: the member had exited because of it, or had not started.
    Flipped { member: String, file: String, noticed: bool },
    /// A fault that was not proven when it began has taken effect.
    Proven { id: u64 },
    /// A fault ends.
    Healed { id: u64 },
    /// A member's process ended without being killed.
    Died { member: String, status: String, panicked: bool },
    /// The real client ended by a panic, or by a signal that the suite did not send.
    Crashed { what: String, status: String },
    /// The log of a process reports a panic: the first such line.
    Panicked { log: String, line: String },
    /// A request was sent twice under one id. `same`: both answers were equal.
    Repeated { what: String, request_id: String, same: bool, detail: String },
    /// A session was opened for this client or worker.
    Opened { observer: String, session: u64 },
    /// A session ended, as the cluster said.
    Ended { observer: String, session: u64 },
    /// A session that had ended was refused.
    EndedRefused { observer: String, session: u64 },
    /// A session that had ended was accepted.
    Revived { observer: String, session: u64, how: String },
    /// A message was sent in an epoch that is over. `taken_by`: the epoch that accepted it anyway.
    Stale { observer: String, what: String, claimed: u64, taken_by: Option<u64> },
    /// The message of an answer carried an earlier epoch than the answer's log position.
    EpochBehind { f: String, key: String, said: u64, placed: u64 },
    /// Time from healing the last fault to the first successful write; absent: none succeeded.
    Recovered { after_ms: Option<u64> },
    /// A member's digests at one index at the end, hex.
    Digest {
        member: String,
        index: u64,
        chain: String,
        state: String,
        image: String,
        error: String,
    },
    /// A member's digests at one index while the run went on, hex.
    Compared { member: String, index: u64, chain: String, state: String },
    /// A request was refused because its object is not in the state that was acknowledged.
    Refused { what: String, why: String },
    /// Rows of this run made no progress for this long although everything was healed and every worker did its best:
    /// how many are left, and how many of them a worker is said to hold.
    Stuck { run: String, left: u64, running: u64, secs: u64 },
    /// Items to read at the end, and how many were read.
    FinalReads { wanted: u64, answered: u64 },
}

/// An event with its time from the start of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Time by the clock of the history.
    pub time_ns: u64,
    /// The event.
    #[serde(flatten)]
    pub what: EventKind,
}

impl Event {
    /// Appends the event as one line.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn write(&self, to: &mut impl Write) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        to.write_all(&line)
    }
}

/// Reads recorded events.
///
/// # Errors
/// Errors of the reader, and a line that is no event.
pub fn read(input: impl BufRead) -> anyhow::Result<Vec<Event>> {
    let mut events = Vec::new();
    for (number, line) in input.lines().enumerate() {
        let event = serde_json::from_str(&line?)
            .map_err(|error| anyhow::anyhow!("line {}: {error}", number + 1))?;
        events.push(event);
    }
    Ok(events)
}
