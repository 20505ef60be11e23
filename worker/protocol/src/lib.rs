//! The messages between an agent and an engine's process, and their form on the socket.
//!
//! *Invariant:* a frame is a length (u32, little endian) and one message in postcard. No frame is longer than
//! [`FRAME_BYTES_MAX`]; a longer one ends the connection before its message is read. Both sides begin with a hello
//! that names the version, and a process of another version is disconnected.
//!
//! Absent: sockets and processes. Add new messages at the end of an enum, because postcard numbers them.

use std::collections::BTreeMap;
use std::io;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of this protocol.
pub const VERSION: u32 = 4;
/// Bytes of a frame: a row's body is at most a segment.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// Bytes of a result that a frame has room for.
const RESULT_BYTES_MAX: usize = FRAME_BYTES_MAX - 1024;
/// Holds the number of the inherited socket's descriptor.
pub const SOCKET_ENV: &str = "ROLLOUT_ENGINE_FD";
/// Names the file that an engine's process leaves before it dies of an exception.
pub const CRASH_FILE_ENV: &str = "ROLLOUT_CRASH_FILE";

/// From the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToEngine {
    /// First.
    Hello {
        /// The agent's [`VERSION`].
        version: u32,
        /// Which of the agent's slots the process serves.
        slot: u32,
        /// The engine's block of the configuration, as JSON.
        options: String,
    },
    /// Takes up a row beside those that run.
    Start(Row),
    /// Stops a row, which is answered by [`FromEngine::Stopped`]. One that has ended is no error.
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
    /// What is asked: `generate`, `embed`, `score`, or `openai`.
    pub task: String,
    /// The run's sampling parameters, a JSON object.
    pub sampling: String,
    /// The row's number in the run.
    pub row: u64,
    /// Under which attempt it was granted.
    pub attempt: u64,
    /// The item's id.
    pub item_id: [u8; 32],
    /// The row's JSON object.
    pub body: Vec<u8>,
}

/// From the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromEngine {
    /// First, as soon as the process runs.
    Hello {
        /// The process's [`VERSION`].
        version: u32,
    },
    /// The engine is loaded: rows may come.
    Ready,
    /// A row has its completion.
    Finished {
        /// The execution.
        ticket: u64,
        /// The completion.
        text: String,
        /// Why it ends where it ends, in the engine's words.
        finish_reason: String,
        /// Tokens of the prompt.
        prompt_tokens: u64,
        /// Tokens of the completion, of all of them where several were asked for.
        completion_tokens: u64,
        /// What else came of it, a JSON object; empty where nothing did.
        extra: String,
    },
    /// A row has failed; the engine lives on.
    Failed {
        /// The execution.
        ticket: u64,
        /// Why.
        failure: RowFailure,
    },
    /// The engine's own counters. While rows run and neither steps nor tokens grow, it hangs.
    Progress(Counters),
    /// A row that was to be stopped runs no more, or had ended.
    Stopped {
        /// The execution.
        ticket: u64,
    },
    /// What was loaded, once, before [`FromEngine::Ready`]; an engine that has nothing to say leaves it out.
    Loaded(Loaded),
}

impl FromEngine {
    /// The same, or that its result is too large, where no frame has room for it.
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

/// What an engine says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// Versions by name, and the kind of device as `gpu`.
    pub versions: BTreeMap<String, String>,
    /// Every name that the loaded revision of the model has; none where it is not known.
    pub revisions: Vec<String>,
    /// Tokens that it can hold at once, of prompts and completions; 0 where it does not say.
    pub room_tokens: u64,
}

/// What an engine has done in this life; all only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Steps of its loop that had rows to run.
    pub steps: u64,
    /// Tokens that it has generated.
    pub tokens: u64,
    /// Steps with fewer running sequences than it has room for.
    pub steps_not_full: u64,
    /// Of these, the steps in which no other sequence waited in it.
    pub steps_hungry: u64,
    /// Sequences that began to run.
    pub admitted: u64,
    /// Of these, how many began while others were decoding.
    pub admitted_beside: u64,
    /// Sequences that were aborted.
    pub aborted: u64,
    /// Tokens that sequences were given after they were aborted.
    pub tokens_after_abort: u64,
}

/// Why a row failed while its engine lives on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowFailure {
    /// What follows from it.
    pub class: RowClass,
    /// One word for machines.
    pub code: String,
    /// What a person reads.
    pub message: String,
}

/// Classes that an engine may give to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RowClass {
    /// The row is at fault: it is not tried again.
    Invalid,
    /// It may go well another time.
    Transient,
    /// The engine's memory did not suffice for it.
    OutOfMemory,
    /// The engine is of no more use.
    EngineDied,
}

/// A message with its length before it.
///
/// # Errors
/// When it is longer than a frame may be.
pub fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut frame = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let length = frame.len() - 4;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other(format!("a message of {length} bytes is too large")));
    }
    frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(frame)
}

/// The bytes that follow a length.
///
/// # Errors
/// When they are more than a frame may have.
pub fn checked_length(length: u32) -> io::Result<usize> {
    match length as usize {
        length if length <= FRAME_BYTES_MAX => Ok(length),
        length => {
            let reason = format!("a frame of {length} bytes");
            Err(io::Error::new(io::ErrorKind::InvalidData, reason))
        }
    }
}

/// The message of a frame.
///
/// # Errors
/// When the bytes are none.
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
            panic!("it is told as a result");
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
