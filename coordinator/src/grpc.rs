//! The services: decode, propose or read, encode. They have no logic of their own.
//!
//! *Invariant:* a layer decides which role may call which method before it decodes the message
//! (`rollout_proto::authz`). The services then decide, by the namespaces and the name in the certificate, what the
//! caller may access.

mod answer_queue;
mod barrier;
pub(crate) mod body_budget;
pub(crate) mod caller;
mod certificates;
mod checkpoint;
mod checkpoint_base;
mod checkpoint_manifest;
mod cluster;
pub(crate) mod convert;
mod dataset;
mod decoded_size;
mod digest_pace;
mod dry_run;
mod enrollment;
pub(crate) mod epoch_gate;
pub(crate) mod event_out;
mod events;
mod exchange_room;
mod forward;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod items;
mod job;
mod keys;
mod maintenance;
mod members;
pub(crate) mod message_weight;
pub(crate) mod middleware;
mod namespace;
pub(crate) mod position_layer;
mod rendezvous;
pub(crate) mod revoked_certificates;
mod rosters;
mod runs;
pub(crate) mod session_holder;
mod session_room;
mod settings;
mod shard;
mod store;
pub(crate) mod store_probe;
mod store_waits;
mod tokens;
pub(crate) mod trace_layer;
mod training_convert;
mod upgrade;
mod waits;
mod work_stream;
mod worker;

pub(crate) use barrier::BarrierService;
pub(crate) use certificates::CertificatesService;
pub(crate) use checkpoint::CheckpointsService;
pub(crate) use cluster::ClusterService;
pub(crate) use dataset::DatasetsService;
pub(crate) use digest_pace::DigestPace;
pub(crate) use dry_run::DryRunsService;
#[cfg(feature = "fuzzing")]
pub(crate) use dry_run::fuzzed as fuzzed_dry_run;
pub(crate) use enrollment::EnrollmentService;
pub(crate) use events::EventsService;
pub(crate) use forward::{BATCH_CALLER, FORWARD_OP_BYTES_MAX, ForwardService};
pub(crate) use items::ItemsService;
pub(crate) use job::JobsService;
pub(crate) use keys::KeysService;
pub(crate) use maintenance::MaintenanceService;
pub(crate) use members::MembersService;
pub(crate) use namespace::NamespacesService;
pub(crate) use rendezvous::RendezvousService;
pub(crate) use runs::RunsService;
pub(crate) use shard::ShardsService;
pub(crate) use store::StoreService;
pub(crate) use tokens::TokensService;
pub(crate) use waits::Waits;
pub(crate) use worker::WorkerService;

use crate::config::Config;
use crate::enrollment::CertificateIssuer;
use crate::gc::run_stores::RunStores;
use crate::grpc::session_holder::holder_of;
use crate::grpc::store_probe::StoreProbe;
use crate::leader::dry_run::is_dry_run;
use crate::leader::full_disk;
use crate::leader::header::{answer_epoch, cluster_id, members, restored_from};
use crate::leader::ledger_read::ReadLedger;
use crate::leader::proposer::{Applied, LogPosition};
use crate::leader::reject;
use crate::leader::state::{Current, LeaderState};
use crate::leader::stuck_runs::StuckRuns;
use crate::leader::webhooks::Webhooks;
use crate::observe::audit;
use crate::observe::log_position;
use crate::observe::metrics::MetricsPage;
use rollout_ledger::id::RunNo;
use rollout_ledger::seeded::{Bug, seeded};
use rollout_ledger::{Ledger, Op, OpKind, Rejection, Reply, RequestId};
use rollout_proto::{
    ErrorCode, Identity, Outcome, PeerInfo, Revocations, Role, RpcError, ServerTls,
    UNCONFIRMED_HEADER, v1,
};
use rollout_raft::{Node, ProposeError};
use std::sync::Arc;
use std::time::Instant;
use tonic::{Request, Status};

/// The state that all services share.
pub(crate) struct Shared {
    pub(crate) node: Node,
    pub(crate) config: Config,
    pub(crate) current: Current,
    pub(crate) probe: StoreProbe,
    pub(crate) started: Instant,
    /// Completion webhooks.
    pub(crate) hooks: Option<Arc<Webhooks>>,
    /// Stores for the objects of runs.
    pub(crate) stores: RunStores,
    pub(crate) metrics: MetricsPage,
    /// The certificate issuer, if it is configured.
    pub(crate) issuer: Option<Arc<CertificateIssuer>>,
    /// The TLS configuration of this member, for clients and for other members.
    pub(crate) tls: ServerTls,
    /// Runs that cannot make progress.
    pub(crate) stuck: StuckRuns,
    /// Certificates that this member refuses.
    pub(crate) revocations: Revocations,
    /// The pace of digests.
    pub(crate) digest_pace: DigestPace,
}

impl Shared {
    /// The open epoch, if this member leads and its lease is valid.
    pub(crate) fn leader_state(&self) -> Result<Arc<LeaderState>, RpcError> {
        let leader = self.current.read().clone();
        match leader {
            Some(leader) if self.node.lease_valid() => Ok(leader),
            Some(_) => Err(RpcError::new(ErrorCode::NoQuorum, "no quorum confirms the lease")
                .with_outcome(Outcome::NotApplied)),
            None if self.node.is_waiting() => Err(RpcError::new(
                ErrorCode::NotBootstrapped,
                "this member belongs to no cluster yet",
            )),
            None => Err(reject::not_leader(self.node.leader().as_ref())),
        }
        .map_err(|e| e.with_members(self.members()))
    }

    /// The open epoch, once everything committed before now can be read.
    pub(crate) async fn reading(&self) -> Result<Arc<LeaderState>, RpcError> {
        if seeded(Bug::StaleRead)
            && let Some(leader) = self.current.read().clone()
        {
            return Ok(leader);
        }
        let leader = self.leader_state()?;
        let read = tokio::select! {
            read = self.node.read_index() => read,
            () = self.node.quorum_lost() => {
                return Err(reject::quorum_lost(Outcome::NotApplied).with_members(self.members()));
            }
        };
        match read {
            Ok(_) => Ok(leader),
            Err(e) => Err(reject::not_leader(e.leader.as_ref()).with_members(self.members())),
        }
    }

    /// The same for a read whose caller may accept an unconfirmed answer. Then it is enough that this member belongs
    /// to a cluster and, unless the caller is an administrator or a member, is in contact with the leader. It returns
    /// no leader in that case, even if it is this member.
    pub(crate) async fn reading_for<T>(
        &self,
        request: &Request<T>,
    ) -> Result<Option<Arc<LeaderState>>, RpcError> {
        if !request.metadata().contains_key(UNCONFIRMED_HEADER) {
            return self.reading().await.map(Some);
        }
        if self.node.is_waiting() {
            return self.leader_state().map(|_| None);
        }
        let identity = request.extensions().get::<PeerInfo>().map(|peer| &peer.identity);
        if !identity.is_some_and(|who| who.acts_as(Role::Admin) || who.role == Role::Member) {
            revoked_certificates::check_contact(self)?;
        }
        Ok(None)
    }

    /// Reads the whole answer from the ledger: the answer names the index of this read.
    pub(crate) fn read_ledger<R: Default>(&self, read: impl FnOnce(&Ledger) -> R) -> R {
        self.node.ledger(|l| {
            log_position::as_of(l);
            read(l)
        })
    }

    /// Looks for an object that the request then reads or changes. If it is missing, that is the answer, as of the
    /// index of this read.
    pub(crate) fn found<R>(&self, look: impl FnOnce(&Ledger) -> Option<R>) -> Option<R> {
        self.node.ledger(|l| {
            let found = look(l);
            if found.is_none() {
                log_position::as_of(l);
            }
            found
        })
    }

    /// Waits for a client's proposal, but only while a quorum answers. Without a quorum there is no reply, not even a
    /// refusal, and the client may find another leader meanwhile.
    pub(crate) async fn proposed<T>(
        &self,
        proposal: impl Future<Output = Result<T, ProposeError>>,
    ) -> Result<T, RpcError> {
        tokio::select! {
            biased;
            replies = proposal => replies.map_err(|e| reject::proposal(&e)),
            () = self.node.quorum_lost() => Err(reject::quorum_lost(Outcome::Unknown)),
        }
        .map_err(|e| e.with_members(self.members()))
    }

    /// The request's id, whose session the caller must have opened.
    ///
    /// A session that is not known here does not exist: all sessions whose number a client knows, of earlier epochs
    /// and of this one, have been applied. So a guessed session is refused as unknown. A dry run needs no session.
    pub(crate) fn request_in(
        &self,
        identity: &Identity,
        request: Option<&v1::RequestId>,
    ) -> Result<RequestId, RpcError> {
        if is_dry_run() {
            self.leader_state()?;
            return Ok(dry_run::NO_REQUEST);
        }
        let id = convert::request_in(request)?;
        self.leader_state()?;
        let holds = self.node.ledger(|l| {
            let caller = holder_of(identity, l.version());
            let holder = l.client_holder(id.session)?;
            // The caller may have opened this session before the cluster's version was raised. Treat it as forgotten.
            let forgotten = holder != caller && holder == identity.to_string();
            (!forgotten).then_some(holder == caller)
        });
        match holds {
            Some(true) => Ok(id),
            Some(false) => {
                tracing::warn!(%identity, session = %id.session, "refused a request in another caller's session");
                let message = format!("{identity} did not open session {}", id.session);
                Err(RpcError::new(ErrorCode::PermissionDenied, message))
            }
            None => Err(reject::rejected(&Rejection::SessionUnknown)),
        }
    }

    /// The id of a request to which old clients give none. A dry run always has one, whose session does not exist: if
    /// its operation were proposed by mistake, the ledger would reject it.
    pub(crate) fn request_of_any_client(
        &self,
        identity: &Identity,
        request: Option<&v1::RequestId>,
    ) -> Result<Option<RequestId>, RpcError> {
        match request {
            None if !is_dry_run() => Ok(None),
            request => self.request_in(identity, request).map(Some),
        }
    }

    /// Applies a client's operation.
    pub(crate) async fn apply(
        &self,
        request: Option<RequestId>,
        kind: OpKind,
    ) -> Result<Reply, RpcError> {
        Ok(self.apply_at(request, kind).await?.1)
    }

    /// The same, with the log index of its command. In a dry run, checks the operation and always returns an error.
    pub(crate) async fn apply_at(
        &self,
        request: Option<RequestId>,
        kind: OpKind,
    ) -> Result<(u64, Reply), RpcError> {
        if is_dry_run() {
            // On the heap, so that the futures of requests do not grow.
            return Err(Box::pin(self.end_of_dry_run(&kind)).await);
        }
        audit::requested(request);
        match self.reply_to(Op { request, kind }).await? {
            (.., Reply::Rejected(why)) => Err(reject::rejected(&why)),
            (_, at, reply) => Ok((at.index, reply)),
        }
    }

    /// Applies an operation. Returns its epoch, its position, and the reply, which may be a rejection.
    pub(crate) async fn reply_to(&self, op: Op) -> Result<(u64, LogPosition, Reply), RpcError> {
        log_position::of_several_looks();
        let leader = self.leader_state()?;
        full_disk::check(&self.node, &self.config.name, [&op.kind])?;
        let (at, reply) = self.proposed(leader.proposer.op_at(op)).await?;
        log_position::applied(leader.epoch, at);
        Ok((leader.epoch, at, reply))
    }

    /// Applies operations together. The first one's reply is the answer. If that one is rejected, the others were
    /// rejected too, or changed nothing by themselves. A later rejection is also the answer.
    pub(crate) async fn apply_all(&self, ops: Vec<Op>) -> Result<Reply, RpcError> {
        audit::requested(ops.iter().find_map(|op| op.request));
        log_position::of_several_looks();
        let leader = self.leader_state()?;
        full_disk::check(&self.node, &self.config.name, ops.iter().map(|op| &op.kind))?;
        let Applied { at, replies } = self.proposed(leader.proposer.ops(ops)).await?;
        log_position::applied(leader.epoch, at);
        if let Some(Reply::Rejected(why)) = replies.iter().find(|r| matches!(r, Reply::Rejected(_)))
        {
            return Err(reject::rejected(why));
        }
        let unknown = || reject::proposal(&ProposeError::Unknown);
        replies.into_iter().next().ok_or_else(unknown)
    }

    /// The cluster's id; empty while this member belongs to none.
    pub(crate) fn cluster_id(&self) -> String {
        cluster_id(&self.node)
    }

    /// The run of that name, in a namespace that the caller may use. If it is missing, that holds as of this read:
    /// call it once everything committed before can be read.
    pub(crate) fn find_run(
        &self,
        identity: &Identity,
        namespace: &str,
        name: &str,
    ) -> Result<RunNo, RpcError> {
        let namespace = namespace_or_default(namespace);
        audit::about("run", name);
        check_namespace(identity, &namespace)?;
        self.found(|l| l.find_run(&namespace, name)).ok_or_else(|| {
            RpcError::new(ErrorCode::RunNotFound, format!("no run {name} in namespace {namespace}"))
        })
    }

    pub(crate) fn members(&self) -> v1::MemberList {
        members(&self.node)
    }

    /// The header of every answer, which describes the cluster.
    pub(crate) fn header(&self) -> v1::ClusterHeader {
        let (applied, epoch) = self.node.ledger(|l| (l.applied(), l.epoch()));
        v1::ClusterHeader {
            cluster_id: cluster_id(&self.node),
            coord_epoch: answer_epoch(&self.node, epoch.0),
            applied_index: applied.index,
            // A member that belongs to no cluster knows no members. An empty list would say that there are none.
            members: (!self.node.is_waiting()).then(|| self.members()),
            restored_from: restored_from(&self.node),
        }
    }
}

/// The caller's identity, from the certificate.
pub(crate) fn caller<T>(request: &Request<T>) -> Result<Identity, Status> {
    rollout_proto::peer_identity(request)
}

/// Refuses a namespace that the certificate does not name.
pub(crate) fn check_namespace(identity: &Identity, namespace: &str) -> Result<(), RpcError> {
    audit::in_namespace(namespace);
    if identity.namespaces.is_empty() || identity.namespaces.iter().any(|n| n == namespace) {
        return Ok(());
    }
    let who = &identity.name;
    Err(RpcError::new(
        ErrorCode::PermissionDenied,
        format!("the certificate of {who} does not name namespace {namespace}"),
    ))
}

/// Refuses a certificate for some namespaces if the request concerns all of them.
pub(crate) fn check_every_namespace(identity: &Identity) -> Result<(), RpcError> {
    if identity.namespaces.is_empty() {
        return Ok(());
    }
    let message = format!(
        "the certificate of {identity} is for namespaces {} only, and this concerns all of them",
        identity.namespaces.join(", ")
    );
    Err(RpcError::new(ErrorCode::PermissionDenied, message))
}

/// The requested namespace; `default` if there is none.
pub(crate) fn namespace_or_default(namespace: &str) -> String {
    match namespace {
        "" => "default".into(),
        other => other.into(),
    }
}
