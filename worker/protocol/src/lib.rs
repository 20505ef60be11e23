//! The messages between an agent and an engine's process, and their form on the socket.
//!
//! *Invariant:* a frame is a length (u32, little endian) and one message in postcard. No frame is longer than
//! [`FRAME_BYTES_MAX`]; a longer one ends the connection before its message is read. Both sides begin with a hello
//! that names the version, and a process of another version is disconnected.
//!
//! Absent: sockets and processes. Add new messages at the end of an enum, because postcard numbers them.

#![warn(missing_docs)]

use std::collections::BTreeMap;
use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of this protocol.
pub const VERSION: u32 = 4;
/// Bytes of a frame: a row's body is at most a segment.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// Bytes of a result that fit into a frame.
const RESULT_BYTES_MAX: usize = FRAME_BYTES_MAX - 1024;
/// Holds the number of the inherited socket's descriptor.
pub const SOCKET_ENV: &str = "ROLLOUT_ENGINE_FD";
/// Names the file that an engine's process writes before it dies of an exception.
pub const CRASH_FILE_ENV: &str = "ROLLOUT_CRASH_FILE";

/// Messages from the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToEngine {
    /// The first message.
    Hello {
        /// The agent's [`VERSION`].
        version: u32,
        /// Which of the agent's slots the process serves.
        slot: u32,
        /// The engine's block of the configuration, as JSON.
        options: String,
    },
    /// Starts a row beside those that run.
    Start(Row),
    /// Stops a row; [`FromEngine::Stopped`] answers it. Stopping a row that has ended is not an error.
    Cancel {
        /// The execution.
        ticket: u64,
    },
}

/// One execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Names the execution on this connection.
    pub ticket: u64,
    /// The run's number.
    pub run: u32,
    /// The run's namespace.
    pub namespace: String,
    /// The run's name.
    pub name: String,
    /// The run's model.
    pub model: String,
    /// The task: `generate`, `embed`, `score`, or `openai`.
    pub task: String,
    /// The run's sampling parameters, a JSON object.
    pub sampling: String,
    /// The row's number in the run.
    pub row: u64,
    /// The attempt under which it was granted.
    pub attempt: u64,
    /// The item's id.
    pub item_id: [u8; 32],
    /// The row's JSON object.
    pub body: Vec<u8>,
}

/// Messages from the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromEngine {
    /// The first message, sent as soon as the process runs.
    Hello {
        /// The process's [`VERSION`].
        version: u32,
    },
    /// The engine is loaded and accepts rows.
    Ready,
    /// A row's completion.
    Finished {
        /// The execution.
        ticket: u64,
        /// The completion.
        text: String,
        /// Why generation ended, in the engine's words.
        finish_reason: String,
        /// Tokens of the prompt.
        prompt_tokens: u64,
        /// Tokens of the completion, or of all completions if several were requested.
        completion_tokens: u64,
        /// Further results, as a JSON object; empty if there are none.
        extra: String,
    },
    /// A row has failed; the engine keeps running.
    Failed {
        /// The execution.
        ticket: u64,
        /// The reason.
        failure: RowFailure,
    },
    /// The engine's own counters. If rows run and neither steps nor tokens grow, it hangs.
    Progress(Counters),
    /// A row that the agent stopped no longer runs, or had already ended.
    Stopped {
        /// The execution.
        ticket: u64,
    },
    /// What was loaded, sent once, before [`FromEngine::Ready`]; optional.
    Loaded(Loaded),
}

impl FromEngine {
    /// The same message, or a failure for a result that is too large for a frame.
    #[must_use]
    pub fn bounded(self) -> Self {
        match self {
            Self::Finished { ticket, text, finish_reason, extra, .. }
                if text.len() + finish_reason.len() + extra.len() > RESULT_BYTES_MAX =>
            {
                let bytes = text.len() + extra.len();
                let failure = RowFailure {
                    class: RowClass::Invalid,
                    code: "RESULT_TOO_LARGE".to_owned(),
                    message: format!("a result of {bytes} bytes is too large"),
                };
                Self::Failed { ticket, failure }
            }
            fits => fits,
        }
    }
}

/// What an engine reports about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// Versions by name, and the kind of device as `gpu`.
    pub versions: BTreeMap<String, String>,
    /// Every name of the loaded revision of the model; none if it is unknown.
    pub revisions: Vec<String>,
    /// Tokens of prompts and completions that it can hold at once; 0 if unknown.
    pub room_tokens: u64,
}

/// What an engine has done in this life; all counters only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Steps of its loop that had rows to run.
    pub steps: u64,
    /// Tokens that it has generated.
    pub tokens: u64,
    /// Steps with fewer running sequences than the engine has room for.
    pub steps_not_full: u64,
    /// Of these, the steps in which no other sequence waited in the engine.
    pub steps_hungry: u64,
    /// Sequences that began to run.
    pub admitted: u64,
    /// Of these, the sequences that started while others were decoding.
    pub admitted_beside: u64,
    /// Sequences that were aborted.
    pub aborted: u64,
    /// Tokens generated for sequences after they were aborted.
    pub tokens_after_abort: u64,
}

/// Why a row failed while its engine keeps running.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowFailure {
    /// The class, which decides whether the row is retried.
    pub class: RowClass,
    /// One word for programs.
    pub code: String,
    /// The human-readable text.
    pub message: String,
}

/// Classes that an engine may give to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowClass {
    /// The row is at fault and is not retried.
    Invalid,
    /// A retry may succeed.
    Transient,
    /// The engine ran out of memory for it.
    OutOfMemory,
    /// The engine is no longer usable.
    EngineDied,
}

/// A message, prefixed with its length.
///
/// # Errors
/// The message is longer than a frame may be.
pub fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut frame = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let length = frame.len() - 4;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other(format!("a message of {length} bytes is too large")));
    }
    frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(frame)
}

/// Checks a frame's length and returns it.
///
/// # Errors
/// The frame would be too long.
pub fn checked_length(length: u32) -> io::Result<usize> {
    match length as usize {
        length if length <= FRAME_BYTES_MAX => Ok(length),
        length => {
            let reason = format!("a frame of {length} bytes");
            Err(io::Error::new(io::ErrorKind::InvalidData, reason))
        }
    }
}

/// Decodes the message of a frame.
///
/// # Errors
/// The bytes are not a message.
pub fn decode<T: DeserializeOwned>(frame: &[u8]) -> io::Result<T> {
    postcard::from_bytes(frame).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Reads the next message; blocks.
///
/// # Errors
/// The socket's; its end is [`io::ErrorKind::UnexpectedEof`].
pub fn read<T: DeserializeOwned>(from: &mut impl io::Read) -> io::Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut frame = vec![0; checked_length(u32::from_le_bytes(length))?];
    from.read_exact(&mut frame)?;
    decode(&frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_no_frame_holds_is_its_rows_failure() {
        let of = |bytes: usize| FromEngine::Finished {
            ticket: 7,
            text: "x".repeat(bytes),
            finish_reason: "stop".into(),
            prompt_tokens: u64::MAX,
            completion_tokens: u64::MAX,
            extra: "{}".into(),
        };
        let largest = of(RESULT_BYTES_MAX - 6);
        assert_eq!(largest.clone().bounded(), largest);
        assert!(encode(&largest).is_ok());
        let FromEngine::Failed { ticket: 7, failure } = of(RESULT_BYTES_MAX).bounded() else {
            panic!("it is reported as a result");
        };
        assert_eq!((failure.class, &*failure.code), (RowClass::Invalid, "RESULT_TOO_LARGE"));
    }

    #[test]
    fn messages_come_through_and_monstrous_frames_do_not() {
        let said = ToEngine::Hello { version: VERSION, slot: 3, options: "{}".into() };
        let mut bytes = encode(&said).unwrap();
        assert_eq!(encode(&FromEngine::Ready).unwrap(), [1, 0, 0, 0, 1], "as in every version");
        bytes.extend(u32::MAX.to_le_bytes());
        let mut from = bytes.as_slice();
        assert_eq!(read::<ToEngine>(&mut from).unwrap(), said);
        let error = read::<ToEngine>(&mut from).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let error = read::<ToEngine>(&mut from).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let large = ToEngine::Hello { version: 1, slot: 0, options: "x".repeat(FRAME_BYTES_MAX) };
        assert!(encode(&large).is_err());
    }
}
