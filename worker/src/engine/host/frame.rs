//! Owns: what an agent and an engine's process say to each other, and its form on the socket.
//!
//! Invariant: a frame is its length (u32, little endian) and one message as postcard writes it; none is longer than
//! [`FRAME_BYTES_MAX`], and a longer one ends the connection before anything of it is read. Both sides begin with a
//! hello that names the version; a process of another version is not spoken to.
//! Absent: processes. New messages go to the end of an enum, since postcard numbers them.

use std::io;

use rollout_proto::v1::FailureClass;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::engine::{Completion, EngineFailure};

/// The version of this protocol.
pub(crate) const VERSION: u32 = 1;
/// Bytes of a frame: a row's body is at most a segment.
pub(crate) const FRAME_BYTES_MAX: usize = 16 << 20;
/// Holds the number of the inherited socket's descriptor.
pub(crate) const SOCKET_ENV: &str = "ROLLOUT_ENGINE_FD";

/// From the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum ToEngine {
    /// First; `options` is the engine's block of the configuration, as JSON.
    Hello { version: u32, slot: u32, options: String },
    /// Takes up a row beside those that run.
    Start(Row),
    /// Stops a row; nothing more is said of it. One that has ended is no error.
    Cancel { ticket: u64 },
}

/// One execution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Names the execution on this connection.
    pub(crate) ticket: u64,
    pub(crate) run: u32,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) model: String,
    /// The run's sampling parameters, a JSON object.
    pub(crate) sampling: String,
    pub(crate) row: u64,
    pub(crate) attempt: u64,
    pub(crate) item_id: [u8; 32],
    /// The row's JSON object.
    pub(crate) body: Vec<u8>,
}

/// From the engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum FromEngine {
    /// First, as soon as the process runs.
    Hello {
        version: u32,
    },
    /// The engine is loaded: rows may come.
    Ready,
    Finished {
        ticket: u64,
        text: String,
        finish_reason: String,
        prompt_tokens: u64,
        completion_tokens: u64,
    },
    Failed {
        ticket: u64,
        failure: RowFailure,
    },
    /// The engine's own counters; they only grow. While rows run and none of them grows, it hangs.
    Progress {
        steps: u64,
        tokens: u64,
    },
}

/// Why a row failed while its engine lives on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RowFailure {
    pub(crate) class: RowClass,
    pub(crate) code: String,
    pub(crate) message: String,
}

/// Classes that an engine may give to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RowClass {
    Invalid,
    Transient,
    OutOfMemory,
    EngineDied,
}

impl From<EngineFailure> for RowFailure {
    fn from(failure: EngineFailure) -> Self {
        let class = match failure.class {
            FailureClass::InvalidRow => RowClass::Invalid,
            FailureClass::OutOfMemory => RowClass::OutOfMemory,
            FailureClass::EngineDied => RowClass::EngineDied,
            _ => RowClass::Transient,
        };
        Self { class, code: failure.code.into_owned(), message: failure.message }
    }
}

impl From<RowFailure> for EngineFailure {
    fn from(failure: RowFailure) -> Self {
        let class = match failure.class {
            RowClass::Invalid => FailureClass::InvalidRow,
            RowClass::Transient => FailureClass::Transient,
            RowClass::OutOfMemory => FailureClass::OutOfMemory,
            RowClass::EngineDied => FailureClass::EngineDied,
        };
        Self::new(class, failure.code, failure.message)
    }
}

impl FromEngine {
    pub(crate) fn of_row(ticket: u64, outcome: Result<Completion, EngineFailure>) -> Self {
        match outcome {
            Ok(Completion { text, finish_reason, prompt_tokens, completion_tokens }) => {
                Self::Finished { ticket, text, finish_reason, prompt_tokens, completion_tokens }
            }
            Err(failure) => Self::Failed { ticket, failure: failure.into() },
        }
    }
}

/// A message with its length before it.
pub(crate) fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut frame = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let length = frame.len() - 4;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::other(format!("a message of {length} bytes is too large")));
    }
    frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(frame)
}

pub(crate) async fn write<T: Serialize>(
    to: &mut (impl AsyncWrite + Unpin),
    message: &T,
) -> io::Result<()> {
    to.write_all(&encode(message)?).await
}

/// The next message; an error also at the connection's end. Not to be dropped half-way.
pub(crate) async fn read<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
) -> io::Result<T> {
    let length = from.read_u32_le().await? as usize;
    if length > FRAME_BYTES_MAX {
        let reason = format!("a frame of {length} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
    }
    let mut frame = vec![0; length];
    from.read_exact(&mut frame).await?;
    postcard::from_bytes(&frame).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_come_through_and_monstrous_frames_do_not() {
        let (mut one, mut two) = tokio::io::duplex(1 << 16);
        let said = ToEngine::Hello { version: VERSION, slot: 3, options: "{}".into() };
        write(&mut one, &said).await.unwrap();
        assert_eq!(read::<ToEngine>(&mut two).await.unwrap(), said);
        assert_eq!(
            &encode(&FromEngine::Ready).unwrap(),
            &[1, 0, 0, 0, 1],
            "the bytes of version 1"
        );
        one.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
        let error = read::<ToEngine>(&mut two).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let large = ToEngine::Hello { version: 1, slot: 0, options: "x".repeat(FRAME_BYTES_MAX) };
        assert!(encode(&large).is_err());
    }
}
