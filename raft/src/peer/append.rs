//! Owns: the outgoing append streams: a pipelined one for log entries, a lasting one for heartbeats.
//!
//! Invariant: answers come in the order of the requests, because one HTTP/2 stream carries both; a stream on which
//! anything went wrong is never used again.
//! Absent: the incoming side; see `service`.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use openraft::OptionalSend;
use openraft::base::BoxStream;
use openraft::errors::RPCError;
use openraft::network::RPCOption;
use openraft::raft::{AppendEntriesRequest, StreamAppendResult};
use rollout_proto::v1::PeerMessage;
use rollout_proto::v1::peer_client::PeerClient;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::link::{PeerContext, unreachable};
use crate::codec::{decode_append_result, encode_append};
use crate::types::Types;

/// The least time that opening a stream gets: a connection with TLS may have to be made first.
const OPEN_LIMIT: Duration = Duration::from_secs(1);

type Answer = Result<StreamAppendResult<Types>, RPCError<Types>>;

fn read(context: &PeerContext, from: u64, message: Result<PeerMessage, Status>) -> Answer {
    let payload = message.and_then(|message| context.open(from, message)).map_err(unreachable)?;
    Ok(decode_append_result(payload).map_err(unreachable)?)
}

/// Sends requests as they come, without waiting for answers.
pub(super) async fn log_stream<'s, S>(
    context: Arc<PeerContext>,
    target: u64,
    mut client: PeerClient<Channel>,
    mut input: S,
    option: RPCOption,
) -> Result<BoxStream<'s, Answer>, RPCError<Types>>
where
    S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
{
    // openraft's back-off after a failure is spent where its next request is awaited. Connecting before that would
    // dial a dead peer again and again without a pause.
    let Some(first) = input.next().await else { return Ok(Box::pin(futures::stream::empty())) };
    let outgoing = {
        let context = context.clone();
        let input = futures::stream::once(std::future::ready(first)).chain(input);
        input.map(move |request| context.frame(target, encode_append(&request)))
    };
    let limit = option.soft_ttl().max(OPEN_LIMIT);
    let incoming = tokio::time::timeout(limit, client.append(outgoing))
        .await
        .map_err(|_| unreachable(format!("no append stream within {limit:?}")))?
        .map_err(unreachable)?
        .into_inner();
    Ok(Box::pin(incoming.map(move |message| read(&context, target, message))))
}

/// A stream that stays open between heartbeats, so that its end tells the peer that this process is gone.
pub(super) struct BeatStream {
    to: mpsc::Sender<PeerMessage>,
    from: Streaming<PeerMessage>,
}

impl BeatStream {
    async fn open(mut client: PeerClient<Channel>) -> Result<Self, Status> {
        let (to, outgoing) = mpsc::channel(1);
        let from = client.append(ReceiverStream::new(outgoing)).await?.into_inner();
        Ok(Self { to, from })
    }

    /// Sends the one request of `input` and returns its answer; `None` where `input` is empty. The stream in
    /// `kept` is used, or replaced, and left there only after an exchange without trouble.
    pub(super) async fn beat<S>(
        kept: &mut Option<Self>,
        context: &PeerContext,
        target: u64,
        client: PeerClient<Channel>,
        mut input: S,
        option: RPCOption,
    ) -> Result<Option<StreamAppendResult<Types>>, RPCError<Types>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        let Some(request) = input.next().await else { return Ok(None) };
        let message = context.frame(target, encode_append(&request));
        // Taken out: if this future is dropped at a timeout, the stream goes with it.
        let mut stream = match kept.take() {
            Some(stream) => stream,
            None => Self::open(client).await.map_err(unreachable)?,
        };
        let exchange = async {
            stream.to.send(message).await.map_err(|_| unreachable("the stream is closed"))?;
            let answer = stream.from.message().await.map_err(unreachable)?;
            answer.ok_or_else(|| unreachable("the peer closed the stream"))
        };
        let answer = tokio::time::timeout(option.hard_ttl(), exchange)
            .await
            .map_err(|_| unreachable("no answer to a heartbeat"))??;
        let result = read(context, target, Ok(answer))?;
        if result.is_ok() {
            *kept = Some(stream);
        }
        Ok(Some(result))
    }
}
