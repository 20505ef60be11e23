//! Owns: frames of the engine protocol on the agent's asynchronous sockets, and the meaning of their failures.
//!
//! Absent: the messages themselves (`rollout-engine-protocol`).

use std::io;

pub(crate) use rollout_engine_protocol::{
    Counters, FromEngine, Row, RowClass, RowFailure, SOCKET_ENV, ToEngine, VERSION,
};
use rollout_engine_protocol::{checked_length, decode, encode};
use rollout_proto::v1::FailureClass;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::engine::{Completion, EngineFailure};

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

/// The message for a row's end.
pub(crate) fn of_row(ticket: u64, outcome: Result<Completion, EngineFailure>) -> FromEngine {
    match outcome {
        Ok(Completion { text, finish_reason, prompt_tokens, completion_tokens, extra }) => {
            FromEngine::Finished {
                ticket,
                text,
                finish_reason,
                prompt_tokens,
                completion_tokens,
                extra,
            }
            .bounded()
        }
        Err(failure) => FromEngine::Failed { ticket, failure: failure.into() },
    }
}

pub(crate) async fn write<T: Serialize>(
    to: &mut (impl AsyncWrite + Unpin),
    message: &T,
) -> io::Result<()> {
    to.write_all(&encode(message)?).await
}

/// The next message; the connection's end is an error too. Not cancel-safe.
pub(crate) async fn read<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
) -> io::Result<T> {
    let mut frame = vec![0; checked_length(from.read_u32_le().await?)?];
    from.read_exact(&mut frame).await?;
    decode(&frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_frame_that_is_too_long_is_not_read() {
        let (mut one, mut two) = tokio::io::duplex(1 << 16);
        let said = ToEngine::Hello { version: VERSION, slot: 3, options: "{}".into() };
        write(&mut one, &said).await.unwrap();
        assert_eq!(read::<ToEngine>(&mut two).await.unwrap(), said);
        one.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
        let error = read::<ToEngine>(&mut two).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
