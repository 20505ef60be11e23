//! The gate on the client port: refuses requests whose sender knows the wrong cluster or the wrong epoch.
//!
//! *Invariant:* a request reaches no service and changes nothing if its sender knows another cluster, is behind the
//! open epoch, or claims an epoch that no leader of this cluster has opened. A leader that receives a higher epoch
//! first asks a quorum whether it still leads, because the sender may be right.
//!
//! Absent: the messages inside a worker's stream; the code that reads them applies the same rules.
//! `Cluster/Status` passes: a sender learns from it what it does not know.

use crate::grpc::Shared;
use crate::leader::header::restored_from;
use crate::leader::state::LeaderState;
use rollout_ledger::seeded::{Bug, seeded};
use rollout_proto::{ErrorCode, Outcome, RpcError, sender_knows};
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::Status;
use tower::{Layer, Service};

/// This request changes nothing, and its answer has the current epoch.
const STATUS: &str = "/rollout.v1.Cluster/Status";
/// Events are the same under every leader, and any member sends them.
const EVENTS: &str = "/rollout.v1.Events/WatchEvents";

/// The layer, for services of one member.
#[derive(Clone)]
pub(crate) struct EpochGate(pub(crate) Arc<Shared>);

impl<S> Layer<S> for EpochGate {
    type Service = Gated<S>;

    fn layer(&self, inner: S) -> Gated<S> {
        Gated { shared: self.0.clone(), inner }
    }
}

/// A service behind the gate.
#[derive(Clone)]
pub(crate) struct Gated<S> {
    shared: Arc<Shared>,
    inner: S,
}

type Boxed<T> = std::pin::Pin<Box<dyn Future<Output = T> + Send>>;

impl<S, B, R> Service<http::Request<B>> for Gated<S>
where
    S: Service<http::Request<B>, Response = http::Response<R>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    R: Default + Send + 'static,
{
    type Response = http::Response<R>;
    type Error = S::Error;
    type Future = futures::future::Either<S::Future, Boxed<Result<Self::Response, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        use futures::future::Either;
        let refused = match judge(&self.shared, &request) {
            Ok(()) => return Either::Left(self.inner.call(request)),
            Err(refused) => refused,
        };
        let shared = self.shared.clone();
        Either::Right(Box::pin(async move {
            let error = match refused {
                GateError::Now(error) => error,
                GateError::Ahead { leader, claimed } => ahead(&shared, &leader, claimed).await,
            };
            Ok(Status::from(error.with_members(shared.members())).into_http())
        }))
    }
}

/// Why a request does not pass.
enum GateError {
    Now(RpcError),
    /// Its epoch is higher than the one that this member has opened.
    Ahead {
        leader: Arc<LeaderState>,
        claimed: u64,
    },
}

fn judge<B>(shared: &Shared, request: &http::Request<B>) -> Result<(), GateError> {
    if request.uri().path() == STATUS {
        return Ok(());
    }
    let Some((cluster, claimed)) = sender_knows(request.headers()).map_err(GateError::Now)? else {
        return Ok(());
    };
    same_cluster(shared, cluster).map_err(GateError::Now)?;
    if request.uri().path() == EVENTS {
        return Ok(());
    }
    if seeded(Bug::EpochUnchecked) {
        return Ok(());
    }
    // A member that does not lead has no epoch to compare with; its service names the leader.
    let Some(leader) = shared.current.read().clone() else { return Ok(()) };
    match claimed.cmp(&leader.epoch) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Less => Err(GateError::Now(behind(&leader, claimed))),
        std::cmp::Ordering::Greater => Err(GateError::Ahead { leader, claimed }),
    }
}

/// Refuses a sender that knows another cluster.
fn same_cluster(shared: &Shared, cluster: &str) -> Result<(), RpcError> {
    let ours = shared.cluster_id();
    if ours.is_empty() || cluster == ours {
        return Ok(());
    }
    if restored_from(&shared.node).iter().any(|old| old == cluster) {
        let message = format!(
            "the sender knows cluster {cluster}; this is a member of {ours}, which was restored from a snapshot of \
             it: sessions, leases and requests of {cluster} are void"
        );
        return Err(RpcError::new(ErrorCode::ClusterRestored, message));
    }
    let message = format!("the sender knows cluster {cluster}, this is a member of {ours}");
    Err(RpcError::new(ErrorCode::OtherCluster, message))
}

/// Judges the epoch that a worker's registration says it has seen, if any. A past epoch is accepted there, because a
/// worker repeats the same message to a later leader.
pub(crate) async fn check_registration(
    shared: &Shared,
    leader: &LeaderState,
    (cluster, epoch): (&str, u64),
) -> Result<(), RpcError> {
    if cluster.is_empty() {
        return Ok(());
    }
    same_cluster(shared, cluster)?;
    match epoch > leader.epoch && !seeded(Bug::EpochUnchecked) {
        true => Err(ahead(shared, leader, epoch).await),
        false => Ok(()),
    }
}

/// The error for a sender with a past epoch.
pub(crate) fn behind(leader: &LeaderState, claimed: u64) -> RpcError {
    let message = format!("epoch {claimed} is over, {} is open", leader.epoch);
    RpcError::new(ErrorCode::StaleEpoch, message).with_epoch(leader.epoch)
}

/// The error for a sender with an epoch that this leader has not seen: that this member no longer leads or, if a
/// quorum says that it does, that no leader has opened such an epoch.
pub(crate) async fn ahead(shared: &Shared, leader: &LeaderState, claimed: u64) -> RpcError {
    let confirmed = tokio::select! {
        confirmed = shared.node.barrier() => confirmed,
        // Without a quorum the epoch can be neither confirmed nor denied, and a sender that knows a later leader
        // should not wait.
        () = shared.node.quorum_lost() => return crate::leader::reject::quorum_lost(Outcome::NotApplied),
    };
    match confirmed {
        Ok(term) if term == leader.epoch => {
            tracing::warn!(
                claimed,
                open = leader.epoch,
                "a sender claims an epoch that no leader of this cluster has opened"
            );
            let message = format!(
                "no leader of this cluster has opened epoch {claimed}: a quorum has just confirmed \
                 that {} is the newest",
                leader.epoch
            );
            RpcError::new(ErrorCode::EpochUnknown, message).with_epoch(leader.epoch)
        }
        Ok(_) => crate::leader::reject::not_leader(None),
        Err(error) => crate::leader::reject::not_leader(error.leader.as_ref()),
    }
    .with_outcome(Outcome::NotApplied)
}
