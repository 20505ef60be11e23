//! What is recorded beside a history: faults and the proof that they took effect, what observers
//! saw of members and leaders, and how the run ended.
//!
//! *Invariant:* one object a line, in the order of time of whoever wrote it; together with the
//! history it is all that a verdict needs, so that a run can be judged again.

use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};

/// What a status says of a member whose port another process had when it was started.
pub const PORT_TAKEN: &str = "its port was taken";

/// Something seen or done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[allow(missing_docs)] // The fields say what they are.
pub enum What {
    /// What this run is.
    Plan { workload: String, nemesis: Vec<String>, seed: u64, secs: u64 },
    /// What a member said of itself, its epoch as of what it has applied. `life` counts its process's starts; `installed` snapshots of
    /// others in this life.
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
    /// A worker registered, or did not succeed with it (`session` 0), between these epochs. `clean`: it
    /// asked once alone, so that no copy of its request is on the way.
    Registered { observer: String, session: u64, from_epoch: u64, epoch: u64, clean: bool },
    /// A heartbeat that was sent at `sent_ns` in this session was answered in this epoch.
    Beat { session: u64, epoch: u64, sent_ns: u64 },
    /// A row was granted to this session alone by an exchange that went out once, at `asked_ns`.
    Granted { session: u64, key: String, attempt: u64, epoch: u64, asked_ns: u64 },
    /// The worker is about to say what became of a row.
    Settles { session: u64, key: String, attempt: u64 },
    /// A leader spoke to a worker.
    Heard { observer: String, leader: String, epoch: u64 },
    /// A fault begins. `proven`: a probe saw it take effect.
    Fault { id: u64, kind: String, on: String, proven: bool },
    /// The power of a member failed, and this was gone: files cut, bytes cut off them, operations
    /// on names undone.
    PowerLost { member: String, files: u64, bytes: u64, names: u64 },
    /// A bit flipped back. `noticed`: the member had ended itself for it, or had not started.
    Flipped { member: String, file: String, noticed: bool },
    /// A fault that was not proven when it began has taken effect.
    Proven { id: u64 },
    /// A fault ends.
    Healed { id: u64 },
    /// A member's process ended without being killed.
    Died { member: String, status: String, panicked: bool },
    /// The real client ended by a panic, or by a signal that nobody sent.
    Crashed { what: String, status: String },
    /// The log of a process tells of a panic: the first line that does.
    Panicked { log: String, line: String },
    /// A request was sent twice under one id. `same`: both answers were equal.
    Repeated { what: String, request_id: String, same: bool, detail: String },
    /// A session was opened for this client or worker.
    Opened { observer: String, session: u64 },
    /// A session ended, as the cluster said.
    Ended { observer: String, session: u64 },
    /// A session that had ended was refused.
    EndedRefused { observer: String, session: u64 },
    /// A session that had ended was not.
    Revived { observer: String, session: u64, how: String },
    /// Somebody spoke in an epoch that is over. `taken_by`: the epoch that took it all the same.
    Stale { observer: String, what: String, claimed: u64, taken_by: Option<u64> },
    /// The message of an answer said an earlier epoch than that of the answer's place.
    EpochBehind { f: String, key: String, said: u64, placed: u64 },
    /// After the last fault was healed the first new write succeeded after so long; absent: never.
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
    /// A request was refused because its object is not as its maker left it.
    Refused { what: String, why: String },
    /// When everything was healed and every worker did what it could, nothing became of rows of this
    /// run for so long: how many are left, and how many of them somebody is said to have.
    Stuck { run: String, left: u64, running: u64, secs: u64 },
    /// Items that are to be read at the end, and how many were.
    FinalReads { wanted: u64, answered: u64 },
}

/// When it was, from the start of the run, and what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// By the clock of the history.
    pub time_ns: u64,
    /// What was seen or done.
    #[serde(flatten)]
    pub what: What,
}

impl Event {
    /// Appends it as one line.
    ///
    /// # Errors
    /// What the writer reports.
    pub fn write(&self, to: &mut impl Write) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        to.write_all(&line)
    }
}

/// Reads recorded events.
///
/// # Errors
/// What the reader reports, and a line that is no event.
pub fn read(input: impl BufRead) -> anyhow::Result<Vec<Event>> {
    let mut events = Vec::new();
    for (number, line) in input.lines().enumerate() {
        let event = serde_json::from_str(&line?)
            .map_err(|error| anyhow::anyhow!("line {}: {error}", number + 1))?;
        events.push(event);
    }
    Ok(events)
}
