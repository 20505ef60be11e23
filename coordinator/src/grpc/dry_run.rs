//! `DryRuns`: whether the leader would grant a request that changes the cluster.
//!
//! *Invariant:* nothing is changed. The request goes through the handler of its method, so it is checked and refused
//! as the request itself, in the same order. Only methods with the option `dry_run` are called, whose handlers change
//! nothing but by one operation of the ledger.
//!
//! Absent: how a handler is stopped (`leader::dry_run`); the check of an operation (the ledger's
//! `Operation::dry_run`); changes outside of the ledger, such as those of members.

use super::{
    BarrierService, CertificatesService, CheckpointsService, ClusterService, DatasetsService,
    ItemsService, KeysService, NamespacesService, RendezvousService, RunsService, ShardsService,
    Shared, TokensService,
};
use crate::grpc::body_budget::BodyBudgetLayer;
use crate::grpc::convert::invalid;
use crate::grpc::message_weight::{self, Weighing};
use crate::leader::dry_run::{checking, granted};
use crate::leader::fair_room::Permit;
use crate::leader::{caller, full_disk, reject};
use crate::observe::{audit, log_position};
use rollout_ledger::id::SessionId;
use rollout_ledger::{OpKind, RequestId};
use rollout_proto::{
    DRY_RUNS, DryRunnable, ErrorCode, Identity, Outcome, PeerInfo, RpcError, authz,
    for_each_dry_run, v1,
};
use std::sync::Arc;
use tonic::metadata::MetadataMap;
use tonic::{Extensions, Request, Response, Status};
use v1::barrier_server::Barrier as _;
use v1::certificates_server::Certificates as _;
use v1::checkpoints_server::Checkpoints as _;
use v1::cluster_server::Cluster as _;
use v1::datasets_server::Datasets as _;
use v1::items_server::Items as _;
use v1::keys_server::Keys as _;
use v1::namespaces_server::Namespaces as _;
use v1::rendezvous_server::Rendezvous as _;
use v1::runs_server::Runs as _;
use v1::shards_server::Shards as _;
use v1::tokens_server::Tokens as _;

/// The id of a request that is never proposed. No session has this number.
pub(super) const NO_REQUEST: RequestId = RequestId { session: SessionId(0), seq: 0, ack_upto: 0 };

/// The most memory that a decoded request may take. A retry of 10,000 rows, the most that `rolloutctl` names, takes
/// about half of it if each row is a range of its own.
const REQUEST_WEIGHT_MAX: usize = 1 << 20;

/// The longest path of a method. A longer one is refused, and not repeated in an error or a line of the audit.
const METHOD_BYTES_MAX: usize = 128;

/// The services whose handlers it calls, by the names that [`rollout_proto::for_each_dry_run`] has for them.
#[derive(Clone)]
pub(crate) struct DryRunsService {
    shared: Arc<Shared>,
    /// The memory that requests may take.
    memory: BodyBudgetLayer,
    barrier: BarrierService,
    certificates: CertificatesService,
    checkpoints: CheckpointsService,
    cluster: ClusterService,
    datasets: DatasetsService,
    items: ItemsService,
    keys: KeysService,
    namespaces: NamespacesService,
    rendezvous: RendezvousService,
    runs: RunsService,
    shards: ShardsService,
    tokens: TokensService,
}

impl DryRunsService {
    pub(crate) fn new(
        (shared, memory): (Arc<Shared>, BodyBudgetLayer),
        (shards, checkpoints, rendezvous, barrier): (
            &ShardsService,
            &CheckpointsService,
            &RendezvousService,
            &BarrierService,
        ),
    ) -> Self {
        Self {
            memory,
            barrier: barrier.clone(),
            certificates: CertificatesService(shared.clone()),
            checkpoints: checkpoints.clone(),
            cluster: ClusterService(shared.clone()),
            datasets: DatasetsService(shared.clone()),
            items: ItemsService(shared.clone()),
            keys: KeysService(shared.clone()),
            namespaces: NamespacesService(shared.clone()),
            rendezvous: rendezvous.clone(),
            runs: RunsService(shared.clone()),
            shards: shards.clone(),
            tokens: TokensService(shared.clone()),
            shared,
        }
    }
}

/// A request to check, from the caller of the dry run.
struct DryRunTarget {
    metadata: MetadataMap,
    /// With the caller's identity.
    extensions: Extensions,
    method: String,
    request: bytes::Bytes,
}

/// The memory that a request of this method takes once it is decoded. Refuses one that would take much.
fn weight(method: &str, request: &[u8]) -> Result<usize, RpcError> {
    let Some(method) = message_weight::method(method) else { return Ok(request.len()) };
    let weight = Weighing::new(method, request.len()).add(request)?;
    if weight > REQUEST_WEIGHT_MAX {
        let text = format!(
            "the request to check takes more than {REQUEST_WEIGHT_MAX} bytes of memory, the most in a dry run"
        );
        return Err(RpcError::new(ErrorCode::LimitExceeded, text));
    }
    Ok(weight)
}

impl DryRunTarget {
    /// The request, as its method receives it, and the room that it takes until it is answered. To the layer that
    /// bounds the memory of messages, it was bytes.
    fn decoded<T: DryRunnable>(
        self,
        memory: &BodyBudgetLayer,
    ) -> Result<(Request<T>, Permit), RpcError> {
        let caller = self.extensions.get::<PeerInfo>().map(|peer| peer.identity.clone());
        let weight = weight(T::METHOD, &self.request)?;
        let room = memory.room_for(caller.unwrap_or_else(Identity::insecure), weight)?;
        let request = T::decode(self.request)
            .map_err(|error| invalid(format!("the request of {}: {error}", self.method)))?;
        Ok((Request::from_parts(self.metadata, self.extensions, request), room))
    }
}

fn check_path(method: &str) -> Result<(), RpcError> {
    match method.len() {
        0 => Err(invalid("name the method of the request")),
        1..=METHOD_BYTES_MAX => Ok(()),
        _ => Err(invalid(format!("the path of a method has at most {METHOD_BYTES_MAX} bytes"))),
    }
}

fn not_checked(what: &str) -> RpcError {
    let text = format!("this member checks no dry run of {what}");
    RpcError::new(ErrorCode::UnsupportedVersion, text).with_outcome(Outcome::NotApplied)
}

/// Runs the handler of the method that the request names.
macro_rules! handled {
    (
        $self:ident, $target:ident;
        $($path:literal => $service:ident.$handler:ident($request:ident);)*
    ) => {
        match $target.method.as_str() {
            $($path => {
                let (request, room) = $target.decoded::<v1::$request>(&$self.memory)?;
                let checked = checking($self.$service.$handler(request)).await;
                drop(room);
                checked
            })*
            other => Err(not_checked(other).into()),
        }
    };
}

impl DryRunsService {
    async fn check(&self, target: DryRunTarget) -> Result<(), Status> {
        for_each_dry_run!(handled self, target;)
    }
}

#[tonic::async_trait]
impl v1::dry_runs_server::DryRuns for DryRunsService {
    async fn dry_run(
        &self,
        request: Request<v1::DryRunRequest>,
    ) -> Result<Response<v1::DryRunResponse>, Status> {
        let (metadata, extensions, v1::DryRunRequest { method, request }) = request.into_parts();
        check_path(&method)?;
        if let Some(path) = DRY_RUNS.iter().find(|path| **path == method) {
            audit::dry_run_of(path);
        }
        // Before the request is decoded.
        authz::authorize(&method, extensions.get::<PeerInfo>())?;
        self.check(DryRunTarget { metadata, extensions, method, request }).await?;
        Ok(Response::new(v1::DryRunResponse { header: Some(self.shared.header()) }))
    }
}

impl Shared {
    /// The error with which a handler's dry run ends: the refusal of the operation, or what [`granted`] returns.
    pub(super) async fn end_of_dry_run(&self, kind: &OpKind) -> RpcError {
        match self.check_operation(kind).await {
            Ok(()) => granted(),
            Err(refusal) => refusal,
        }
    }

    async fn check_operation(&self, kind: &OpKind) -> Result<(), RpcError> {
        // The check is as of everything that was committed before now.
        self.reading().await?;
        full_disk::check(&self.node, &self.config.name, [kind])?;
        let checked = self.node.with_ledger(|ledger| {
            log_position::as_of(ledger);
            ledger.dry_run(&caller::scope(), kind)
        });
        match checked.flatten() {
            Some(checked) => checked.map_err(|why| reject::rejected(&why)),
            None => Err(not_checked(kind.name())),
        }
    }
}

/// Decodes the request as its method receives it, and again after it was encoded.
#[cfg(feature = "fuzzing")]
macro_rules! decoded_twice {
    (
        $target:ident, $memory:ident;
        $($path:literal => $service:ident.$handler:ident($request:ident);)*
    ) => {
        match $target.method.as_str() {
            $($path => {
                let (request, room) = $target.decoded::<v1::$request>(&$memory)?;
                drop(room);
                let request = request.into_inner();
                let written = request.encode_to_vec();
                let length = v1::$request::decode(&written[..]).map(|again| again.encoded_len());
                assert_eq!(length, Ok(written.len()), "what was written is not read");
                Ok(written.len())
            })*
            other => Err(not_checked(other)),
        }
    };
}

/// Decodes the message of a dry run and the request in it, as the service does before it calls a handler. Returns the
/// encoded length of that request. For fuzz targets only.
#[cfg(feature = "fuzzing")]
pub(crate) fn fuzzed(bytes: &[u8]) -> Result<usize, RpcError> {
    use prost::Message as _;

    let asked = v1::DryRunRequest::decode(bytes).map_err(|error| invalid(error.to_string()))?;
    let v1::DryRunRequest { method, request } = asked;
    check_path(&method)?;
    if let Some(method) = message_weight::method(&method) {
        let whole = Weighing::new(method, request.len()).add(&request);
        let mut weighing = Weighing::new(method, request.len());
        let mut pieces = request.chunks(3).map(|piece| weighing.add(piece));
        let pieces = pieces.try_fold(0, |sum, weight| weight.map(|weight| sum + weight));
        assert_eq!(pieces.ok(), whole.ok(), "in pieces, the request has another weight");
    }
    let (metadata, extensions) = (MetadataMap::new(), Extensions::new());
    let target = DryRunTarget { metadata, extensions, method, request };
    let memory = BodyBudgetLayer::new();
    for_each_dry_run!(decoded_twice target, memory;)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_ledger::id::{CoordEpoch, LedgerMs};
    use rollout_ledger::{Body, Command, EntryId, Ledger, Op, Quota, Rejection, Reply};

    #[test]
    fn the_ledger_rejects_an_operation_that_was_proposed_in_a_dry_run() {
        let mut ledger = Ledger::new([7; 16]);
        let mut apply = |index, body| {
            let command = Command { epoch: CoordEpoch(1), at: LedgerMs(0), wall_ms: 0, body };
            let entry = EntryId { index, term: 1 };
            ledger.apply(entry, &command.encode()).expect("it is known").remove(0)
        };
        apply(1, Body::OpenEpoch);
        let kind = OpKind::SetQuota(Quota { namespace: "default".into(), ..Quota::default() });
        let escaped = Op { request: Some(NO_REQUEST), kind: kind.clone() };
        let rejected = Reply::Rejected(Rejection::SessionUnknown);
        assert_eq!(apply(2, Body::Ops(vec![escaped])), rejected);
        assert_eq!(apply(3, Body::Ops(vec![Op { request: None, kind }])), Reply::Ok);
    }

    fn retry_of(rows: u64) -> v1::RetryItemsRequest {
        // Rows of the longest runs, none beside another.
        let rows = v1::Rows::from_ranges((0..rows).map(|n| ((1 << 28) + 2 * n, 1)));
        v1::RetryItemsRequest { run: "eval".into(), rows: Some(rows), ..Default::default() }
    }

    fn weight_of<T: DryRunnable>(request: &T) -> Result<usize, RpcError> {
        weight(T::METHOD, &request.encode_to_vec())
    }

    #[test]
    fn a_retry_of_as_many_single_rows_as_rolloutctl_names_may_be_checked() {
        let weight = weight_of(&retry_of(10_000)).expect("it may");
        let about_half = REQUEST_WEIGHT_MAX / 5 * 2..REQUEST_WEIGHT_MAX / 5 * 3;
        assert!(about_half.contains(&weight), "{weight} bytes");
        let refused = weight_of(&retry_of(20_000)).map_err(|refusal| refusal.code);
        assert_eq!(refused, Err(ErrorCode::LimitExceeded));
    }

    #[test]
    fn an_empty_or_a_long_path_is_refused_and_not_repeated() {
        for method in rollout_proto::METHODS {
            assert_eq!(check_path(method.path), Ok(()), "{}", method.path);
        }
        for method in [String::new(), "/x".repeat(1 << 19)] {
            let refusal = check_path(&method).expect_err("no method has it");
            assert_eq!(refusal.code, ErrorCode::InvalidArgument);
            assert!(refusal.message.len() < METHOD_BYTES_MAX, "{refusal:?}");
        }
    }

    #[test]
    fn a_decoded_request_takes_room_until_it_is_answered() {
        let request = retry_of(10_000);
        let weight = weight_of(&request).expect("it may");
        let target = || DryRunTarget {
            metadata: MetadataMap::new(),
            extensions: Extensions::new(),
            method: v1::RetryItemsRequest::METHOD.to_owned(),
            request: v1::DryRunRequest::of(&request).request,
        };
        let decoded = |memory: &BodyBudgetLayer| target().decoded::<v1::RetryItemsRequest>(memory);
        // One caller may take three quarters.
        let memory = BodyBudgetLayer::of(weight * 2);
        let (checked, room) = decoded(&memory).expect("there is room");
        assert_eq!(checked.into_inner(), request);
        let refused = decoded(&memory).map(drop).map_err(|refusal| refusal.code);
        assert_eq!(refused, Err(ErrorCode::Overloaded));
        drop(room);
        assert!(decoded(&memory).is_ok());
    }
}
