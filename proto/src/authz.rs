//! Which role may call which method.
//!
//! *Invariant:* no role may call a method that is not in the table, and a test fails while the contract has such a
//! method. The decision is made before a byte of the message is decoded.
//!
//! Deliberately absent: namespaces, and that a worker speaks only for the name in its certificate: both need the
//! decoded request, so the services check them with [`crate::Identity`].

#[cfg(test)]
mod tests;

use std::task::{Context, Poll};

use futures::future::{Either, Ready, ready};
use tonic::Status;
use tower::{Layer, Service};

use crate::error::{ErrorCode, RpcError};
use crate::identity::{PeerInfo, Role, no_identity};
use crate::revocations::Revocations;

const RUNS: &[Role] = &[Role::Client, Role::Admin];
/// Reads of runs and training jobs.
const VIEW: &[Role] = &[Role::Viewer, Role::Client, Role::Admin];
const WORKER: &[Role] = &[Role::Worker];
/// Calls that the agent of a training host makes for the job's processes there.
const TRAIN: &[Role] = &[Role::Worker, Role::Client, Role::Admin];
const PEER: &[Role] = &[Role::Member];
const ANY: &[Role] = &Role::ALL;
const WATCH: &[Role] = &[Role::Member, Role::Viewer, Role::Client, Role::Admin];
const OPERATE: &[Role] = &[Role::Member, Role::Admin];
const MEMBERS: &[Role] = &[Role::Member, Role::Viewer, Role::Admin];
const ADMIN: &[Role] = &[Role::Admin];
/// Roles whose certificates are issued over the wire.
const ENROLLED: &[Role] = &[Role::Worker, Role::Client];
const NEWCOMER: &[Role] = &[Role::Newcomer];

const TABLE: &[(&str, &[Role])] = &[
    ("/rollout.v1.Runs/OpenSession", TRAIN),
    ("/rollout.v1.Runs/CreateRun", RUNS),
    ("/rollout.v1.Runs/AddSegments", RUNS),
    ("/rollout.v1.Runs/CloseInput", RUNS),
    ("/rollout.v1.Runs/ControlRun", RUNS),
    ("/rollout.v1.Runs/ListRuns", VIEW),
    ("/rollout.v1.Runs/DescribeRun", VIEW),
    ("/rollout.v1.Runs/WatchRun", VIEW),
    ("/rollout.v1.Runs/ReadResults", VIEW),
    ("/rollout.v1.Items/ListItems", VIEW),
    ("/rollout.v1.Items/DescribeItem", VIEW),
    ("/rollout.v1.Items/RetryItems", RUNS),
    ("/rollout.v1.Runs/DeleteRun", RUNS),
    ("/rollout.v1.Store/Apply", TRAIN),
    ("/rollout.v1.Store/Read", TRAIN),
    ("/rollout.v1.Store/Wait", TRAIN),
    ("/rollout.v1.Store/Drop", RUNS),
    ("/rollout.v1.Rendezvous/Join", RUNS),
    ("/rollout.v1.Rendezvous/Participate", RUNS),
    ("/rollout.v1.Rendezvous/Wait", RUNS),
    ("/rollout.v1.Rendezvous/KeepAlive", RUNS),
    ("/rollout.v1.Rendezvous/Leave", RUNS),
    ("/rollout.v1.Rendezvous/Close", RUNS),
    ("/rollout.v1.Rendezvous/Describe", VIEW),
    ("/rollout.v1.Rendezvous/List", VIEW),
    ("/rollout.v1.Barrier/Arrive", RUNS),
    ("/rollout.v1.Barrier/Wait", RUNS),
    ("/rollout.v1.Barrier/Abort", RUNS),
    ("/rollout.v1.Barrier/Describe", VIEW),
    ("/rollout.v1.Barrier/List", VIEW),
    ("/rollout.v1.Datasets/CreateDataset", RUNS),
    ("/rollout.v1.Datasets/DescribeDataset", VIEW),
    ("/rollout.v1.Datasets/ListDatasets", VIEW),
    ("/rollout.v1.Datasets/DeleteDataset", RUNS),
    ("/rollout.v1.Shards/JoinJob", RUNS),
    ("/rollout.v1.Shards/KeepTrainers", RUNS),
    ("/rollout.v1.Shards/LeaveJob", RUNS),
    ("/rollout.v1.Shards/ClaimShard", RUNS),
    ("/rollout.v1.Shards/WaitShard", RUNS),
    ("/rollout.v1.Shards/FinishShard", RUNS),
    ("/rollout.v1.Shards/ReleaseShard", RUNS),
    ("/rollout.v1.Shards/DescribeShards", VIEW),
    ("/rollout.v1.Shards/ListJobs", VIEW),
    ("/rollout.v1.Shards/DeleteJob", RUNS),
    ("/rollout.v1.Checkpoints/BeginCheckpoint", RUNS),
    ("/rollout.v1.Checkpoints/ReportCheckpoint", RUNS),
    ("/rollout.v1.Checkpoints/AbortCheckpoint", RUNS),
    ("/rollout.v1.Checkpoints/WaitCheckpoint", RUNS),
    ("/rollout.v1.Checkpoints/LatestCheckpoint", VIEW),
    ("/rollout.v1.Checkpoints/ListCheckpoints", VIEW),
    ("/rollout.v1.Checkpoints/DescribeCheckpoint", VIEW),
    ("/rollout.v1.Checkpoints/PruneCheckpoints", RUNS),
    ("/rollout.v1.Checkpoints/LabelCheckpoint", RUNS),
    ("/rollout.v1.Checkpoints/Recover", RUNS),
    ("/rollout.v1.Worker/Probe", WORKER),
    ("/rollout.v1.Worker/Register", WORKER),
    ("/rollout.v1.Worker/GetRun", WORKER),
    ("/rollout.v1.Worker/Work", WORKER),
    ("/rollout.v1.Worker/Deregister", WORKER),
    // Workers too, because they find the leader by reading the status.
    ("/rollout.v1.Cluster/Status", ANY),
    ("/rollout.v1.Cluster/ListWorkers", WATCH),
    ("/rollout.v1.Cluster/RequestDigest", OPERATE),
    ("/rollout.v1.Cluster/Digests", OPERATE),
    ("/rollout.v1.Cluster/Counters", OPERATE),
    ("/rollout.v1.Cluster/CordonWorker", ADMIN),
    ("/rollout.v1.Cluster/DrainWorker", ADMIN),
    ("/rollout.v1.Cluster/Bootstrap", ADMIN),
    ("/rollout.v1.Cluster/UpgradeCluster", ADMIN),
    ("/rollout.v1.Cluster/ListSettings", WATCH),
    ("/rollout.v1.Cluster/SetSetting", ADMIN),
    ("/rollout.v1.Members/ListMembers", MEMBERS),
    ("/rollout.v1.Members/AddMember", ADMIN),
    ("/rollout.v1.Members/PromoteMember", ADMIN),
    ("/rollout.v1.Members/RemoveMember", ADMIN),
    ("/rollout.v1.Members/UpdateMember", ADMIN),
    ("/rollout.v1.Members/TransferLeader", ADMIN),
    ("/rollout.v1.Events/WatchEvents", WATCH),
    // The snapshot has the whole ledger, of all namespaces.
    ("/rollout.v1.Maintenance/SaveSnapshot", ADMIN),
    ("/rollout.v1.Maintenance/Diagnose", ADMIN),
    ("/rollout.v1.Namespaces/ListNamespaces", VIEW),
    ("/rollout.v1.Namespaces/DescribeNamespace", VIEW),
    ("/rollout.v1.Namespaces/SetQuota", ADMIN),
    ("/rollout.v1.Tokens/CreateToken", ADMIN),
    ("/rollout.v1.Tokens/ListTokens", ADMIN),
    ("/rollout.v1.Tokens/RevokeToken", ADMIN),
    ("/rollout.v1.Certificates/Revoke", ADMIN),
    ("/rollout.v1.Certificates/Withdraw", ADMIN),
    ("/rollout.v1.Certificates/ListRevocations", ADMIN),
    // On a port of its own, where every caller is a newcomer.
    ("/rollout.v1.Enrolment/Enrol", NEWCOMER),
    ("/rollout.v1.Enrolment/Renew", ENROLLED),
    ("/rollout.v1.Peer/Append", PEER),
    ("/rollout.v1.Peer/Vote", PEER),
    ("/rollout.v1.Peer/PreVote", PEER),
    ("/rollout.v1.Peer/TransferLeader", PEER),
    ("/rollout.v1.Peer/InstallSnapshot", PEER),
    ("/rollout.v1.Peer/Hello", PEER),
    ("/rollout.v1.Peer/Adopt", PEER),
];

/// The roles that may call the method at `path` (`/rollout.v1.Runs/CreateRun`); `None` if there is no such method.
pub fn allowed(path: &str) -> Option<&'static [Role]> {
    TABLE.iter().find(|(method, _)| *method == path).map(|(_, roles)| *roles)
}

/// Refuses, with `PERMISSION_DENIED`, a request whose caller's role may not call the method, and also one whose
/// caller's certificate is revoked. For tonic's `Server::builder().layer(..)` over connections of
/// [`crate::ServerTls::incoming`].
#[derive(Clone, Debug, Default)]
pub struct AuthzLayer {
    revocations: Revocations,
}

impl AuthzLayer {
    /// The layer without revoked certificates.
    pub fn new() -> Self {
        AuthzLayer::default()
    }

    /// The layer with a list of revoked certificates.
    pub fn refusing(revocations: Revocations) -> Self {
        AuthzLayer { revocations }
    }
}

impl<S> Layer<S> for AuthzLayer {
    type Service = Authz<S>;

    fn layer(&self, inner: S) -> Authz<S> {
        Authz { inner, revocations: self.revocations.clone() }
    }
}

/// A service behind the layer.
#[derive(Clone, Debug)]
pub struct Authz<S> {
    inner: S,
    revocations: Revocations,
}

impl<S, B, R> Service<http::Request<B>> for Authz<S>
where
    S: Service<http::Request<B>, Response = http::Response<R>>,
    R: Default,
{
    type Response = http::Response<R>;
    type Error = S::Error;
    type Future = Either<Ready<Result<Self::Response, S::Error>>, S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let peer = request.extensions().get::<PeerInfo>();
        let decided = decide(request.uri().path(), peer);
        match decided.and_then(|()| check_revocation(&self.revocations, peer)) {
            Ok(()) => Either::Right(self.inner.call(request)),
            Err(status) => Either::Left(ready(Ok(status.into_http()))),
        }
    }
}

#[allow(clippy::result_large_err)]
fn check_revocation(revocations: &Revocations, peer: Option<&PeerInfo>) -> Result<(), Status> {
    match peer {
        Some(peer) if revocations.refuses(&peer.identity, peer.not_before_unix) => {
            let message = format!("the certificate of {} is revoked", peer.identity);
            Err(RpcError::new(ErrorCode::CertificateRevoked, message).into())
        }
        _ => Ok(()),
    }
}

#[allow(clippy::result_large_err)]
fn decide(path: &str, peer: Option<&PeerInfo>) -> Result<(), Status> {
    let Some(peer) = peer else {
        return Err(no_identity());
    };
    let Some(roles) = allowed(path) else {
        let message = format!("this member knows no method {path}: it runs an older version");
        return Err(RpcError::new(ErrorCode::UnsupportedVersion, message).into());
    };
    if roles.iter().any(|role| peer.identity.acts_as(*role)) {
        return Ok(());
    }
    // Any caller of the enrollment port could fill the log; the audit log counts such callers instead.
    if peer.identity.role != Role::Newcomer {
        tracing::warn!(
            identity = %peer.identity,
            addr = %peer.addr,
            method = path,
            "refused a call that the caller's role does not allow"
        );
    }
    let wanted: Vec<String> = roles.iter().map(|role| role.with_article()).collect();
    let message = format!(
        "{} may not call {path}: it needs a certificate of {}",
        peer.identity,
        wanted.join(" or ")
    );
    Err(RpcError::new(ErrorCode::PermissionDenied, message).into())
}
