//! Owns: the outgoing heartbeats to one peer, all on one lasting stream.
//!
//! Invariant: each heartbeat returns only its own answer. openraft extends a leader's lease from the time at which it
//! sent the heartbeat that it awaits. If a late answer to an earlier heartbeat were returned instead, the lease would
//! extend beyond what the peer promised. Answers come in the order of the requests, because one HTTP/2 stream carries
//! both, so counting them is enough.
//!
//! openraft drops the future of a heartbeat that takes too long. Neither the stream nor its connection is closed with
//! that future: opening them takes three round trips, and a heartbeat that pays them each time never succeeds.
//! Absent: when a heartbeat is sent; see `heartbeats`.

use std::time::Instant;

use futures::{Stream, StreamExt};
use openraft::OptionalSend;
use openraft::errors::RPCError;
use openraft::raft::{AppendEntriesRequest, StreamAppendResult};
use rollout_proto::v1::PeerMessage;
use rollout_proto::v1::peer_client::PeerClient;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::append::read;
use super::link::{PeerContext, unreachable};
use crate::codec::encode_append;
use crate::types::Types;

/// Heartbeats without an answer after which the stream is replaced. A peer that is merely slow or paused answers them
/// all; each is some dozen bytes.
const UNANSWERED_MAX: u64 = 16;

/// The source of answers.
enum Answers {
    /// The peer has not sent its headers yet. A task waits for them, so that opening outlives one heartbeat.
    Opening(JoinHandle<Result<Streaming<PeerMessage>, Status>>),
    Open(Box<Streaming<PeerMessage>>),
}

impl Answers {
    /// The next answer. May be dropped at any time: nothing that has arrived is lost.
    async fn next(&mut self) -> Result<PeerMessage, Status> {
        if let Self::Opening(opening) = self {
            let opened = opening.await.map_err(|error| Status::internal(error.to_string()))?;
            *self = Self::Open(Box::new(opened?));
        }
        let Self::Open(messages) = self else { unreachable!("it was opened above") };
        let message = messages.message().await?;
        message.ok_or_else(|| Status::unavailable("the peer closed the stream"))
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        if let Self::Opening(opening) = self {
            opening.abort();
        }
    }
}

/// A stream that stays open between heartbeats, so that its end tells the peer that this process is gone.
pub(super) struct BeatStream {
    to: mpsc::Sender<PeerMessage>,
    answers: Answers,
    /// Heartbeats given to the stream.
    sent: u64,
    /// Answers taken from it.
    answered: u64,
}

impl BeatStream {
    /// Starts opening a stream; messages sent meanwhile go out with the request itself.
    fn open(mut client: PeerClient<Channel>) -> Self {
        let (to, outgoing) = mpsc::channel(UNANSWERED_MAX as usize);
        let opening = tokio::spawn(async move {
            client.append(ReceiverStream::new(outgoing)).await.map(tonic::Response::into_inner)
        });
        Self { to, answers: Answers::Opening(opening), sent: 0, answered: 0 }
    }

    /// Sends the one request of `input` and returns its answer; `None` if `input` is empty. A stream with any error
    /// is not used again. A stream with a late answer is: the caller drops this future, and the next call discards
    /// that answer.
    pub(super) async fn beat<S>(
        kept: &mut Option<Self>,
        context: &PeerContext,
        target: u64,
        client: PeerClient<Channel>,
        mut input: S,
    ) -> Result<Option<StreamAppendResult<Types>>, RPCError<Types>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        let Some(request) = input.next().await else { return Ok(None) };
        let message = context.frame(target, encode_append(&request));
        let (term, sent) = (request.vote.leader_id().term, Instant::now());
        kept.take_if(|stream| stream.sent - stream.answered >= UNANSWERED_MAX);
        let stream = kept.get_or_insert_with(|| Self::open(client));
        let result = stream.exchange(context, target, message).await;
        match result {
            Ok(Ok(_)) => context.followers.answered(target, term, sent),
            _ => *kept = None,
        }
        result.map(Some)
    }

    async fn exchange(
        &mut self,
        context: &PeerContext,
        target: u64,
        message: PeerMessage,
    ) -> Result<StreamAppendResult<Types>, RPCError<Types>> {
        self.to.try_send(message).map_err(|_| unreachable("the stream of heartbeats is closed"))?;
        self.sent += 1;
        let mine = self.sent;
        loop {
            let answer = self.answers.next().await.map_err(unreachable)?;
            self.answered += 1;
            let result = read(context, target, Ok(answer))?;
            match result {
                _ if self.answered == mine => return Ok(result),
                // It answers an earlier heartbeat, not this one.
                Ok(_) => {}
                // The peer ends the stream here. The next heartbeat gets the same result itself.
                Err(_) => return Err(unreachable("the peer refused an earlier heartbeat").into()),
            }
        }
    }
}

#[cfg(test)]
mod tests;
