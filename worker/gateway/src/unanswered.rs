//! Owns: the changes of a connection to which its client expects no answer, and why a connection ends early.
//!
//! Invariant: the first refusal is reported and ends the connection. The changes are bounded in count and bytes; over
//! a bound, the connection waits for the oldest.
//! Absent: their order, which the store keeps.

use std::collections::VecDeque;
use std::io;

use rollout_proto::ClientError;
use rollout_proto::v1::store_answer::Kind as AnswerKind;

use super::job_store::Begun;

/// In-flight changes of one connection.
const COUNT_MAX: usize = 4096;
/// Their bytes; a single change may exceed this.
const BYTES_MAX: usize = 4 << 20;

/// Why a connection ended before its client closed it.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionEnd {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Client(#[from] ClientError),
    #[error("the store refused: {0}")]
    Refused(String),
}

#[derive(Default)]
pub(super) struct Unanswered {
    begun: VecDeque<(Begun, usize)>,
    bytes: usize,
}

impl Unanswered {
    pub(super) fn is_empty(&self) -> bool {
        self.begun.is_empty()
    }

    /// Returns when this many more bytes fit within the bounds.
    pub(super) async fn make_room(&mut self, bytes: usize) -> Result<(), ConnectionEnd> {
        while let Some((first, _)) = self.begun.front_mut()
            && let Some(answer) = first.try_answer()
        {
            self.drop_first();
            taken(answer)?;
        }
        while !self.begun.is_empty()
            && (self.begun.len() >= COUNT_MAX || self.bytes + bytes > BYTES_MAX)
        {
            self.first().await?;
        }
        Ok(())
    }

    pub(super) fn push(&mut self, begun: Begun, bytes: usize) {
        self.bytes += bytes;
        self.begun.push_back((begun, bytes));
    }

    /// Returns when the oldest has taken effect. It is cancel-safe and may be called again.
    pub(super) async fn first(&mut self) -> Result<(), ConnectionEnd> {
        let Some((first, _)) = self.begun.front_mut() else { return Ok(()) };
        let answer = first.answer().await;
        self.drop_first();
        taken(answer)
    }

    /// Returns when all have taken effect.
    pub(super) async fn settled(&mut self) -> Result<(), ConnectionEnd> {
        while !self.begun.is_empty() {
            self.first().await?;
        }
        Ok(())
    }

    fn drop_first(&mut self) {
        if let Some((_, bytes)) = self.begun.pop_front() {
            self.bytes -= bytes;
        }
    }
}

fn taken(answer: Result<AnswerKind, ClientError>) -> Result<(), ConnectionEnd> {
    match answer? {
        AnswerKind::Refused(why) => Err(ConnectionEnd::Refused(why)),
        _ => Ok(()),
    }
}
