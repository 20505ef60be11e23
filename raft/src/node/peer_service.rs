//! Owns: the incoming side: the `Peer` service of this member.
//!
//! Invariant: a message reaches consensus only if it names this cluster, this member as its receiver, and another
//! member as its sender. A removed member no longer reaches it, whatever its certificate says ([`Caller`]). A member
//! that waits to be adopted answers only `Hello` and `Adopt`.
//! Absent: which clients may connect at all. The code that mounts the service checks the certificate's role.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use openraft::async_runtime::WatchReceiver;
use openraft::raft::AppendEntriesRequest;
use parking_lot::Mutex;
use rollout_proto::v1::peer_server::Peer;
use rollout_proto::v1::snapshot_chunk::Kind;
use rollout_proto::v1::{
    AdoptRequest, AdoptResponse, HelloRequest, HelloResponse, PeerMessage, SnapshotChunk,
};
use rollout_proto::{Identity, Role, peer_identity};
use tonic::{Request, Response, Status, Streaming};

use super::Node;
use crate::codec::{
    decode_append, decode_snapshot_header, decode_transfer, decode_vote_request,
    encode_append_result, encode_transfer_reply, encode_vote, encode_vote_response,
};
use crate::consensus::quorum;
use crate::consensus::running::Running;
use crate::errors::OpenError;
use crate::ops::successor::disk_room_number;
use crate::peer::{StreamGuard, receive_files};
use crate::state::state_machine::SnapshotData;
use crate::types::Types;

/// The `Peer` service of one member; made by [`Node::peer_service`].
pub struct PeerService {
    node: Node,
}

impl PeerService {
    pub(crate) fn new(node: Node) -> Self {
        Self { node }
    }

    fn running(&self) -> Result<Arc<Running>, Status> {
        self.node.running().ok_or_else(|| {
            self.node.record_expected();
            Status::failed_precondition("this member waits to be adopted by a cluster")
        })
    }

    /// Records that the caller stops. Only the member itself can report this.
    fn record_stop(&self, request: &Request<HelloRequest>) {
        let HelloRequest { cluster_id, from, stops_started_ms } = request.get_ref();
        let Some(running) = self.node.running().filter(|_| *stops_started_ms > 0) else { return };
        let ours = *cluster_id == running.context.cluster_text && *from != running.context.me;
        let listed = || {
            Caller::of(request)
                .check(&running, *from)
                .is_ok_and(|standing| standing == SenderStatus::Listed)
        };
        if ours && listed() {
            tracing::info!(from, "a member stops");
            running.reachability.stops(*from, *stops_started_ms);
        }
    }

    /// The running member and the payload of a message for it.
    fn open(&self, request: Request<PeerMessage>) -> Result<OpenedMessage, Status> {
        let running = self.running()?;
        let caller = Caller::of(&request);
        let PeerMessage { cluster_id, from, to, payload, .. } = request.into_inner();
        check(&running, &cluster_id, from, to)?;
        let standing = caller.check(&running, from)?;
        Ok(OpenedMessage { running, from, payload, standing })
    }
}

/// A message for this member.
struct OpenedMessage {
    running: Arc<Running>,
    from: u64,
    payload: Bytes,
    standing: SenderStatus,
}

/// Refuses a message of another cluster, for another member, or from this member itself.
fn check(running: &Running, cluster: &str, from: u64, to: u64) -> Result<(), Status> {
    let context = &running.context;
    if cluster != context.cluster_text {
        tracing::warn!(from, cluster, "refused a message of another cluster");
        return Err(Status::failed_precondition(format!(
            "this member belongs to cluster {}, the message to cluster {cluster}",
            context.cluster_text
        )));
    }
    if to != context.me || from == context.me {
        tracing::warn!(from, to, "refused a message for another member");
        return Err(Status::failed_precondition(format!(
            "this is member {}, the message goes from member {from} to member {to}",
            context.me
        )));
    }
    Ok(())
}

/// The identity in the other side's certificate; `None` if connections carry no identity.
///
/// A member's certificate outlives its membership, so it is not enough. Ids are indexes of log entries and are never
/// given twice: an id at or below the committed membership that is not in it was removed. A higher one may have
/// joined in an entry that this member has not read; it is accepted only while no live leader is known, because such
/// a leader would have sent that entry.
struct Caller(Option<Identity>);

/// Whether the sender of a message is a member.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SenderStatus {
    /// It is a member.
    Listed,
    /// It may have become one.
    Unknown,
}

impl Caller {
    fn of<T>(request: &Request<T>) -> Self {
        Self(peer_identity(request).ok().filter(|identity| !identity.is_insecure()))
    }

    /// Refuses a member that names another as the sender, and a removed member.
    fn check(&self, running: &Running, from: u64) -> Result<SenderStatus, Status> {
        let listed =
            running.raft.metrics().borrow_watched().membership_config.get_node(&from).cloned();
        if let Some(identity) = &self.0 {
            let named = listed.as_ref().is_none_or(|listed| listed.name == identity.name);
            if identity.role != Role::Member || !named {
                let who = format!("{} {:?}", identity.role, identity.name);
                tracing::warn!(
                    from,
                    who,
                    "refused a message: the certificate names another sender"
                );
                let text = format!("{who} does not speak for member {from}");
                return Err(Status::permission_denied(text));
            }
        }
        match listed {
            Some(_) => Ok(SenderStatus::Listed),
            None => self.check_unlisted(running, from),
        }
    }

    fn check_unlisted(&self, running: &Running, from: u64) -> Result<SenderStatus, Status> {
        // Use the committed membership: an uncommitted removal may still be undone, by the very member that it names.
        let (formed, index, listed) = running.machine.read(|state| {
            let membership = &state.membership;
            let index = membership.log_id().map_or(0, |id| id.index());
            let listed = membership.get_node(&from).map(|node| node.name.clone());
            (membership.nodes().next().is_some(), index, listed)
        });
        if let Some(name) = listed {
            let same = self.0.as_ref().is_none_or(|identity| identity.name == name);
            return match same {
                true => Ok(SenderStatus::Listed),
                false => Err(Status::permission_denied(format!("member {from} is {name}"))),
            };
        }
        if !formed {
            return Ok(SenderStatus::Unknown);
        }
        if from <= index {
            tracing::warn!(from, "refused a message of a member that was removed");
            let text = format!("member {from} is not part of this cluster any more");
            return Err(Status::permission_denied(text));
        }
        if follows_another_leader(running, from) {
            let text = format!("member {from} is not listed, and a leader is there");
            return Err(Status::unavailable(text));
        }
        Ok(SenderStatus::Unknown)
    }
}

/// Whether this member leads, or heard a leader other than `from` within a lease.
fn follows_another_leader(running: &Running, from: u64) -> bool {
    let leader = running.raft.metrics().borrow_watched().current_leader;
    another_leader_lives(leader, from, |leader| {
        if leader == running.context.me {
            return quorum::lease_valid(running);
        }
        let heard = running.presence.of(leader).0;
        heard.is_some_and(|heard| heard.elapsed() < running.config.lease())
    })
}

/// A member that reads the log from its beginning may follow a leader whose entry it has not reached yet. It must
/// keep accepting that leader: if it refused the messages after the first, it would join many leases later, if at
/// all.
fn another_leader_lives(leader: Option<u64>, from: u64, lives: impl FnOnce(u64) -> bool) -> bool {
    leader.is_some_and(|leader| leader != from && lives(leader))
}

fn stopping(error: impl std::fmt::Display) -> Status {
    Status::unavailable(format!("this member is stopping: {error}"))
}

/// Refuses a vote that an earlier process of this member may have promised not to give.
fn keep_promise(running: &Running) -> Result<(), Status> {
    let Some(left) = running.promise.left() else { return Ok(()) };
    Err(Status::unavailable(format!(
        "vote refused: this member restarted and must keep its lease promise for another {left:?}"
    )))
}

fn malformed(error: impl std::fmt::Display) -> Status {
    Status::invalid_argument(format!("malformed message: {error}"))
}

/// The incoming requests of one append stream.
struct Incoming {
    /// Weak: a stream that stays open does not keep the stores of a stopped member open.
    running: Weak<Running>,
    messages: Streaming<PeerMessage>,
    caller: Caller,
    /// Set with the first message, which names the sender of the stream.
    guard: Option<StreamGuard>,
    from: Arc<AtomicU64>,
    /// Why the stream was ended from this side.
    refused: Arc<Mutex<Option<Status>>>,
}

impl Incoming {
    async fn next(mut self) -> Option<(AppendEntriesRequest<Types>, Self)> {
        // The end of the stream and a broken connection mean the same here: there is nothing more to append.
        let message = self.messages.message().await.ok().flatten()?;
        match self.accept(message) {
            Ok(request) => Some((request, self)),
            Err(status) => {
                *self.refused.lock() = Some(status);
                None
            }
        }
    }

    fn accept(&mut self, message: PeerMessage) -> Result<AppendEntriesRequest<Types>, Status> {
        let running = self.running.upgrade().ok_or_else(|| stopping("consensus has ended"))?;
        check(&running, &message.cluster_id, message.from, message.to)?;
        // Check each time: the sender may have been removed since the stream was opened.
        self.caller.check(&running, message.from)?;
        if self.guard.is_none() {
            self.guard = Some(running.presence.connected(message.from));
            self.from.store(message.from, Ordering::Release);
        }
        if self.from.load(Ordering::Acquire) != message.from {
            return Err(Status::invalid_argument("one stream carries one sender"));
        }
        running.presence.record_message(message.from);
        decode_append(message.payload).map_err(malformed)
    }
}

type Answers = Pin<Box<dyn Stream<Item = Result<PeerMessage, Status>> + Send>>;

#[tonic::async_trait]
impl Peer for PeerService {
    type AppendStream = Answers;

    async fn append(
        &self,
        request: Request<Streaming<PeerMessage>>,
    ) -> Result<Response<Answers>, Status> {
        let running = self.running()?;
        let refused = Arc::new(Mutex::new(None));
        // Answers go to the sender of the first request, and there is none before that request.
        let asker = Arc::new(AtomicU64::new(0));
        let incoming = Incoming {
            running: Arc::downgrade(&running),
            caller: Caller::of(&request),
            messages: request.into_inner(),
            guard: None,
            from: asker.clone(),
            refused: refused.clone(),
        };
        let requests = Box::pin(stream::unfold(incoming, Incoming::next));
        let context = running.context.clone();
        let answers = running.raft.stream_append(requests).map(move |answer| {
            let answer = answer.map_err(stopping)?;
            let to = asker.load(Ordering::Acquire);
            Ok(context.frame(to, encode_append_result(&answer)))
        });
        let last =
            stream::once(async move { refused.lock().take() }).filter_map(|s| async { s.map(Err) });
        Ok(Response::new(Box::pin(answers.chain(last))))
    }

    async fn vote(&self, request: Request<PeerMessage>) -> Result<Response<PeerMessage>, Status> {
        let OpenedMessage { running, from, payload, standing } = self.open(request)?;
        let mut request = decode_vote_request(payload).map_err(malformed)?;
        // The sender writes this itself, and it overrides a leader's lease.
        request.leadership_transfer &= standing == SenderStatus::Listed;
        if !request.leadership_transfer {
            keep_promise(&running)?;
        }
        let answer = running.raft.vote(request).await.map_err(stopping)?;
        Ok(Response::new(running.context.frame(from, encode_vote_response(&answer))))
    }

    async fn pre_vote(
        &self,
        request: Request<PeerMessage>,
    ) -> Result<Response<PeerMessage>, Status> {
        let OpenedMessage { running, from, payload, .. } = self.open(request)?;
        let request = decode_vote_request(payload).map_err(malformed)?;
        keep_promise(&running)?;
        let answer = running.raft.pre_vote(request).await.map_err(stopping)?;
        Ok(Response::new(running.context.frame(from, encode_vote_response(&answer))))
    }

    async fn transfer_leader(
        &self,
        request: Request<PeerMessage>,
    ) -> Result<Response<PeerMessage>, Status> {
        let handover = request.get_ref().handover;
        let OpenedMessage { running, from, payload, .. } = self.open(request)?;
        let request = decode_transfer(payload).map_err(malformed)?;
        // Record it before consensus acts on it, because the elected member reads it here.
        let term = request.from_leader().leader_id().term;
        running.context.handovers.record(term, handover);
        let answer = running.raft.handle_transfer_leader(request).await.map_err(stopping)?;
        Ok(Response::new(running.context.frame(from, encode_transfer_reply(&answer))))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<SnapshotChunk>>,
    ) -> Result<Response<PeerMessage>, Status> {
        let running = self.running()?;
        let caller = Caller::of(&request);
        let mut chunks = request.into_inner();
        let first = chunks.message().await?.ok_or_else(|| malformed("no header"))?;
        let from = first.from;
        check(&running, &first.cluster_id, from, first.to)?;
        caller.check(&running, from)?;
        let Some(Kind::Header(header)) = first.kind else { return Err(malformed("no header")) };
        let header = decode_snapshot_header(header).map_err(malformed)?;
        tracing::info!(from, files = header.files.len(), "receiving a snapshot");
        let image = running.machine.image().clone();
        let staged = receive_files(image, &header, chunks, |chunk| {
            check(&running, &chunk.cluster_id, chunk.from, chunk.to)
        })
        .await?;
        let snapshot = openraft::alias::SnapshotOf::<Types, SnapshotData> {
            meta: header.meta,
            snapshot: SnapshotData::Received(staged),
        };
        let answer =
            running.raft.install_full_snapshot(header.vote, snapshot).await.map_err(stopping)?;
        Ok(Response::new(running.context.frame(from, encode_vote(&answer.vote))))
    }

    async fn hello(
        &self,
        request: Request<HelloRequest>,
    ) -> Result<Response<HelloResponse>, Status> {
        self.record_stop(&request);
        let identity = self.node.identity();
        Ok(Response::new(HelloResponse {
            cluster_id: identity.as_ref().map_or_else(String::new, |id| id.cluster_id.to_string()),
            member_id: identity.map_or(0, |identity| identity.member_id),
            name: self.node.config().name.clone(),
            empty: self.node.running().is_none_or(|running| running.store.is_pristine()),
            version_min: self.node.config().versions.0,
            version_max: self.node.config().versions.1,
            fsync_us: 0,
            disk_room: disk_room_number(self.node.disk_room()),
            started_ms: self.node.running().map_or(0, |running| running.started_ms),
        }))
    }

    async fn adopt(
        &self,
        request: Request<AdoptRequest>,
    ) -> Result<Response<AdoptResponse>, Status> {
        let request = request.into_inner();
        let cluster = request.cluster_id.parse().map_err(malformed)?;
        self.node.adopt(cluster, request.member_id, &request.name).await.map_err(|error| {
            match error {
                OpenError::Start(why) => Status::unavailable(why),
                other => Status::failed_precondition(other.to_string()),
            }
        })?;
        Ok(Response::new(AdoptResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unlisted_member_is_accepted_as_leader_unless_another_one_leads() {
        let (stranger, leader) = (9, 4);
        assert!(
            another_leader_lives(Some(leader), stranger, |_| true),
            "it would disturb the leader"
        );
        assert!(
            !another_leader_lives(Some(leader), stranger, |_| false),
            "that leader may be dead"
        );
        assert!(!another_leader_lives(None, stranger, |_| true), "it may be the next leader");
        assert!(!another_leader_lives(Some(leader), leader, |_| true), "what it sends is the log");
    }
}
