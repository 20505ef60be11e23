//! Owns: the outgoing append stream for log entries, which is pipelined.
//!
//! Invariant: answers come in the order of the requests, because one HTTP/2 stream carries both; a stream that had
//! any error is never used again.
//! Absent: heartbeats, see `heartbeat_stream`; the incoming side, see `service`.

use std::sync::Arc;

use futures::{Stream, StreamExt};
use openraft::OptionalSend;
use openraft::base::BoxStream;
use openraft::errors::RPCError;
use openraft::raft::{AppendEntriesRequest, StreamAppendResult};
use rollout_proto::v1::PeerMessage;
use rollout_proto::v1::peer_client::PeerClient;
use tonic::Status;
use tonic::transport::Channel;

use super::link::{PeerContext, unreachable};
use crate::codec::{decode_append_result, encode_append};
use crate::types::Types;

type AppendOutcome = Result<StreamAppendResult<Types>, RPCError<Types>>;

/// Decodes an answer, if it is from the peer that was asked.
pub(super) fn read(
    context: &PeerContext,
    from: u64,
    message: Result<PeerMessage, Status>,
) -> AppendOutcome {
    let payload = message.and_then(|message| context.open(from, message)).map_err(unreachable)?;
    Ok(decode_append_result(payload).map_err(unreachable)?)
}

/// Sends requests as they come, without waiting for answers.
pub(super) async fn log_stream<'s, S>(
    context: Arc<PeerContext>,
    target: u64,
    mut client: PeerClient<Channel>,
    mut input: S,
) -> Result<BoxStream<'s, AppendOutcome>, RPCError<Types>>
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
    // A TLS connection may have to be opened first.
    let limit = context.dialer.connect_limit();
    let incoming = tokio::time::timeout(limit, client.append(outgoing))
        .await
        .map_err(|_| unreachable(format!("no append stream within {limit:?}")))?
        .map_err(unreachable)?
        .into_inner();
    Ok(Box::pin(incoming.map(move |message| read(&context, target, message))))
}
