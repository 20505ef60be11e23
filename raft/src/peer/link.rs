//! Owns: the outgoing side: openraft's network, one link for each peer and purpose.
//!
//! Invariant: heartbeats, log entries and snapshots have connections of their own, so a large transfer delays no
//! heartbeat. A peer that cannot be reached is reported as unreachable, never as an answer.
//! Absent: retries. openraft retries, with its backoff.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use openraft::alias::SnapshotOf;
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::RPCOption;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::{OptionalSend, RaftNetworkFactory, RaftNetworkV2};
use parking_lot::RwLock;
use rollout_proto::v1::PeerMessage;
use rollout_proto::v1::peer_client::PeerClient;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::append::log_stream;
use super::dial::{Dialer, Lane};
use super::frame;
use super::heartbeat_stream::BeatStream;
use super::snapshot::send_snapshot;
use crate::codec::{
    decode_transfer_reply, decode_vote_response, encode_transfer, encode_vote_request,
};
use crate::member::MemberRecord;
use crate::peer::followers::Followers;
use crate::peer::handovers::Handovers;
use crate::state::state_machine::SnapshotData;
use crate::types::{Types, Vote};

/// The sender that every outgoing message names.
pub(crate) struct PeerContext {
    pub(crate) cluster_text: String,
    pub(crate) me: u64,
    pub(crate) dialer: Arc<Dialer>,
    /// The members as last known. openraft keeps a link when a member's address changes.
    pub(crate) member_records: RwLock<BTreeMap<u64, MemberRecord>>,
    /// The promise of this member; `followers` has those of the others.
    pub(crate) promise_ms: u32,
    pub(crate) followers: Followers,
    /// Why leadership is handed over, by this member and to it.
    pub(crate) handovers: Handovers,
}

impl PeerContext {
    pub(crate) fn frame(&self, to: u64, payload: Vec<u8>) -> PeerMessage {
        let promise_ms = self.promise_ms;
        PeerMessage { promise_ms, ..frame(&self.cluster_text, self.me, to, payload) }
    }

    /// The payload of an answer from `from`, which must be of this cluster and for this member.
    pub(crate) fn open(&self, from: u64, message: PeerMessage) -> Result<Bytes, Status> {
        if message.cluster_id != self.cluster_text || message.from != from || message.to != self.me
        {
            return Err(Status::failed_precondition(format!(
                "the answer is of member {} of cluster {} for member {}, expected member {from} of cluster {}",
                message.from, message.cluster_id, message.to, self.cluster_text
            )));
        }
        // Record the promise before consensus counts the answer.
        self.followers.record_promise(from, message.promise_ms);
        Ok(message.payload)
    }
}

pub(crate) fn unreachable(error: impl std::fmt::Display) -> Unreachable<Types> {
    Unreachable::from_string(error)
}

/// Makes links; this is openraft's network factory.
pub(crate) struct PeerLinks(pub(crate) Arc<PeerContext>);

impl PeerLinks {
    fn link(&self, target: u64, member: &MemberRecord, lane: Lane) -> PeerLink {
        PeerLink { context: self.0.clone(), target, member: member.clone(), lane, beat: None }
    }
}

impl RaftNetworkFactory<Types> for PeerLinks {
    type Network = PeerLink;

    async fn new_client(&mut self, target: u64, member: &MemberRecord) -> PeerLink {
        self.link(target, member, Lane::Log)
    }

    async fn new_heartbeat_client(&mut self, target: u64, member: &MemberRecord) -> PeerLink {
        self.link(target, member, Lane::Heartbeat)
    }

    async fn new_snapshot_client(&mut self, target: u64, member: &MemberRecord) -> PeerLink {
        self.link(target, member, Lane::Snapshot)
    }
}

/// A link to one peer for one purpose.
pub(crate) struct PeerLink {
    context: Arc<PeerContext>,
    target: u64,
    /// The member as it was when the link was made.
    member: MemberRecord,
    lane: Lane,
    /// The stream that carries heartbeats, kept open between them.
    beat: Option<BeatStream>,
}

impl PeerLink {
    fn client(&self) -> Result<PeerClient<Channel>, Unreachable<Types>> {
        let records = self.context.member_records.read();
        let member = records.get(&self.target).unwrap_or(&self.member);
        self.context.dialer.client(member, self.lane).map_err(unreachable)
    }

    /// How long a vote or a pre-vote may take. openraft allows an election timeout, which is longer than it allows
    /// for a heartbeat. With round trips between the two, a member would win elections, hold no lease, step down and
    /// win again, so an election gets no more time than a heartbeat.
    fn vote_limit(&self, option: &RPCOption) -> Duration {
        option.hard_ttl().min(self.context.dialer.answer_limit())
    }

    async fn unary(
        &self,
        payload: Vec<u8>,
        limit: Duration,
        call: impl AsyncFnOnce(
            PeerClient<Channel>,
            Request<PeerMessage>,
        ) -> Result<Response<PeerMessage>, Status>,
    ) -> Result<Bytes, RPCError<Types>> {
        let request = Request::new(self.context.frame(self.target, payload));
        let answer = tokio::time::timeout(limit, call(self.client()?, request))
            .await
            .map_err(|_| unreachable(format!("no answer within {limit:?}")))?
            .map_err(unreachable)?;
        Ok(self.context.open(self.target, answer.into_inner()).map_err(unreachable)?)
    }
}

impl RaftNetworkV2<Types> for PeerLink {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let one = futures::stream::iter([request]);
        let mut answers = RaftNetworkV2::stream_append(self, one, option).await?;
        match answers.next().await {
            Some(answer) => Ok(answer?.into()),
            None => Err(unreachable("the stream ended without an answer").into()),
        }
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        // openraft drops the future of a heartbeat at this limit itself, and log entries have none.
        _: RPCOption,
    ) -> BoxFuture<
        's,
        Result<BoxStream<'s, Result<StreamAppendResult<Types>, RPCError<Types>>>, RPCError<Types>>,
    >
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            let client = self.client()?;
            match self.lane {
                Lane::Heartbeat => {
                    let context = &self.context;
                    let answer =
                        BeatStream::beat(&mut self.beat, context, self.target, client, input)
                            .await?;
                    let answer: BoxStream<'s, _> = Box::pin(futures::stream::iter(answer.map(Ok)));
                    Ok(answer)
                }
                Lane::Log | Lane::Snapshot | Lane::Control => {
                    let context = self.context.clone();
                    log_stream(context, self.target, client, input).await
                }
            }
        })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let payload = encode_vote_request(&request);
        let call = async |mut client: PeerClient<Channel>, request| client.vote(request).await;
        let answer = self.unary(payload, self.vote_limit(&option), call).await?;
        Ok(decode_vote_response(answer).map_err(unreachable)?)
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let payload = encode_vote_request(&request);
        let call = async |mut client: PeerClient<Channel>, request| client.pre_vote(request).await;
        let answer = self.unary(payload, self.vote_limit(&option), call).await?;
        Ok(decode_vote_response(answer).map_err(unreachable)?)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<Types, SnapshotData>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let client = self.client()?;
        let sending = send_snapshot(&self.context, self.target, client, vote, snapshot);
        tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = tokio::time::timeout(option.hard_ttl(), sending) => match sent {
                Ok(sent) => sent,
                Err(_) => Err(unreachable("the snapshot was not installed in time").into()),
            },
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let payload = encode_transfer(&request);
        let handover = self.context.handovers.cause_number();
        let call = async |mut client: PeerClient<Channel>, mut request: Request<PeerMessage>| {
            request.get_mut().handover = handover;
            client.transfer_leader(request).await
        };
        let answer = self.unary(payload, option.hard_ttl(), call).await?;
        Ok(decode_transfer_reply(answer).map_err(unreachable)?)
    }
}
