//! `Store`: the shared stores of training jobs.
//!
//! *Invariant:* a wait is a read, which a client repeats at the next leader, so a leader may fail during a wait. Only
//! the certificates of a round's members, and administrators, read the store of a complete round.

use super::runs::unexpected;
use super::store_waits::StoreWaits;
use super::{Shared, caller, check_namespace, namespace_or_default};
use crate::grpc::convert;
use crate::grpc::session_holder::holder_of;
use crate::leader::ledger_read::ReadLedger;
use crate::leader::reject;
use crate::observe::audit;
use bytes::Bytes;
use rollout_ledger::id::SessionId;
use rollout_ledger::{
    Ledger, Op, OpKind, Rejection, Reply, SCHEDULING_VERSION, StoreAnswer, StoreName, StoreOp,
    limits, op,
};
use rollout_proto::{ErrorCode, Identity, Role, RpcError, STORE_REQUEST_BYTES_MAX, v1};
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// Most keys, queues or awaited keys in one request.
const ASKED_MAX: usize = 4096;
/// Most bytes of values in one answer, below the limit of a message.
const ANSWER_BYTES_MAX: usize = 8 << 20;

#[derive(Clone)]
pub(crate) struct StoreService {
    shared: Arc<Shared>,
    waits: StoreWaits,
}

impl StoreService {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let waits = StoreWaits::new(shared.clone());
        Self { shared, waits }
    }

    /// The ticket in a request for a round's store, if the cluster's version checks it.
    fn incarnation_in(&self, name: Option<&v1::StoreName>) -> Option<SessionId> {
        let named = name.filter(|name| name.round > 0 && name.ticket > 0)?;
        let version = self.shared.node.ledger(Ledger::version);
        (version >= SCHEDULING_VERSION).then_some(SessionId(named.ticket))
    }

    /// Refuses a store that the caller may not read, as of now.
    fn check_round_member(
        &self,
        identity: &Identity,
        name: &StoreName,
        incarnation: Option<SessionId>,
    ) -> Result<(), RpcError> {
        allowed(self.shared.node.ledger(|l| refusal(l, identity, name, incarnation)))
    }
}

/// Why the caller may not read a store: it belongs to the latest complete round and the caller has no member in that
/// round, or the ticket belongs to no member of the round. Administrators may read it. Check this in the same read
/// that serves the caller, because the rule no longer applies once a later round is complete.
fn refusal(
    ledger: &Ledger,
    identity: &Identity,
    name: &StoreName,
    incarnation: Option<SessionId>,
) -> Option<Rejection> {
    if name.round == 0 {
        return None;
    }
    let holder = holder_of(identity, ledger.version());
    let looks = identity.role == Role::Admin;
    let of_round = if looks { Ok(()) } else { ledger.check_round_member(name, Some(&holder)) };
    of_round
        .and_then(|()| {
            incarnation.map_or(Ok(()), |incarnation| ledger.check_incarnation(name, incarnation))
        })
        .err()
}

fn allowed(refused: Option<Rejection>) -> Result<(), RpcError> {
    refused.map_or(Ok(()), |why| Err(reject::rejected(&why)))
}

#[tonic::async_trait]
impl v1::store_server::Store for StoreService {
    async fn apply(
        &self,
        request: Request<v1::StoreApplyRequest>,
    ) -> Result<Response<v1::StoreApplyResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let incarnation = self.incarnation_in(r.store.as_ref());
        let store = name_in(&identity, r.store)?;
        let id = self.shared.request_in(&identity, r.request.as_ref())?;
        if r.ops.len() > limits::STORE_OPS_MAX {
            return Err(too_many("operations", limits::STORE_OPS_MAX).into());
        }
        let changed = r.ops.iter().flat_map(awaited_keys).collect::<Vec<_>>();
        let ops = r.ops.into_iter().map(op_in).collect::<Result<_, _>>()?;
        let change = match incarnation {
            Some(incarnation) => {
                OpKind::RoundStore(op::UseRoundStore { store: store.clone(), incarnation, ops })
            }
            None => OpKind::Store(op::UseStore { store: store.clone(), ops }),
        };
        match self.shared.apply(Some(id), within_bytes(change)?).await? {
            Reply::Store(answers) => {
                self.waits.changed(&store, &changed);
                let answers = answers.into_iter().map(answer_out).collect();
                let header = Some(self.shared.header());
                Ok(Response::new(v1::StoreApplyResponse { header, answers }))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn read(
        &self,
        request: Request<v1::StoreReadRequest>,
    ) -> Result<Response<v1::StoreReadResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        if r.keys.len() > ASKED_MAX || r.queues.len() > ASKED_MAX {
            return Err(too_many("keys", ASKED_MAX).into());
        }
        let name = name_in(&identity, r.store.clone())?;
        self.shared.reading().await?;
        let incarnation = self.incarnation_in(r.store.as_ref());
        let look = |l: &Ledger| (refusal(l, &identity, &name, incarnation), read(l, &name, &r));
        let (refused, mut answer) = self.shared.read_ledger(look);
        allowed(refused)?;
        if answer.present.iter().map(bytes::Bytes::len).sum::<usize>() > ANSWER_BYTES_MAX {
            let message = format!("the store's keys take more than {ANSWER_BYTES_MAX} bytes");
            return Err(RpcError::new(ErrorCode::LimitExceeded, message).into());
        }
        answer.header = Some(self.shared.header());
        Ok(Response::new(answer))
    }

    async fn wait(
        &self,
        request: Request<v1::StoreWaitRequest>,
    ) -> Result<Response<v1::StoreWaitResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        if r.awaited.len() > ASKED_MAX {
            return Err(too_many("keys", ASKED_MAX).into());
        }
        let name = name_in(&identity, r.store.clone())?;
        let keys = r.awaited.iter().map(|one| one.key.clone()).collect();
        let request = v1::StoreReadRequest { keys, ..Default::default() };
        // A member that does not lead may not know yet that the caller has joined.
        self.shared.leader_state()?;
        let incarnation = self.incarnation_in(r.store.as_ref());
        self.check_round_member(&identity, &name, incarnation)?;
        let look = |l: &Ledger| {
            let values = if r.values { read(l, &name, &request).values } else { Vec::new() };
            (refusal(l, &identity, &name, incarnation), values)
        };
        let (ready, seen, (refused, values)) =
            self.waits.until(&identity, (&name, &r.awaited), r.wait_ms, look).await?;
        allowed(refused)?;
        self.check_round_member(&identity, &name, incarnation)?;
        let values = if ready { values } else { Vec::new() };
        let header = Some(self.shared.header());
        Ok(Response::new(v1::StoreWaitResponse { header, ready, seen, values }))
    }

    async fn drop(
        &self,
        request: Request<v1::StoreDropRequest>,
    ) -> Result<Response<v1::StoreDropResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let store = name_in(&identity, r.store)?;
        let id = self.shared.request_in(&identity, r.request.as_ref())?;
        self.shared.apply(Some(id), OpKind::DropStore(op::DropStore { store })).await?;
        Ok(Response::new(v1::StoreDropResponse { header: Some(self.shared.header()) }))
    }
}

fn too_many(what: &str, max: usize) -> RpcError {
    convert::invalid(format!("more than {max} {what} in one request"))
}

/// Refuses a change that is too large for consensus, with an error that names the request's content.
pub(super) fn within_bytes(change: OpKind) -> Result<OpKind, RpcError> {
    let op = Op::from(change);
    let bytes = op.encoded_bytes();
    if bytes <= STORE_REQUEST_BYTES_MAX {
        return Ok(op.kind);
    }
    let message = format!(
        "the keys and values of one request to a shared store take {bytes} bytes, the most is \
         {STORE_REQUEST_BYTES_MAX}: send fewer at once"
    );
    Err(RpcError::new(ErrorCode::LimitExceeded, message))
}

pub(super) fn name_in(
    identity: &Identity,
    name: Option<v1::StoreName>,
) -> Result<StoreName, RpcError> {
    let name = name.ok_or_else(|| convert::invalid("the store's name is missing"))?;
    let namespace = namespace_or_default(&name.namespace);
    audit::about("store", &name.job);
    check_namespace(identity, &namespace)?;
    Ok(StoreName { namespace, job: name.job, round: name.round })
}

pub(super) fn op_in(op: v1::StoreOp) -> Result<StoreOp, RpcError> {
    use v1::store_op::Kind;
    let kind = op.kind.ok_or_else(|| convert::invalid("an operation is empty"))?;
    Ok(match kind {
        Kind::Set(set) => {
            let pairs = set.pairs.into_iter().map(|p| (p.key.into(), p.value.into()));
            StoreOp::Set { pairs: pairs.collect() }
        }
        Kind::Add(add) => StoreOp::Add { key: add.key.into(), delta: add.delta },
        Kind::CompareSet(c) => StoreOp::CompareSet {
            key: c.key.into(),
            expected: c.expected.into(),
            desired: c.desired.into(),
        },
        Kind::Append(p) => StoreOp::Append { key: p.key.into(), value: p.value.into() },
        Kind::Delete(key) => StoreOp::Delete { key: key.into() },
        Kind::Push(p) => StoreOp::Push { queue: p.key.into(), value: p.value.into() },
        Kind::Pop(queue) => StoreOp::Pop { queue: queue.into() },
    })
}

/// The keys of an operation for which a wait may exist.
pub(super) fn awaited_keys(op: &v1::StoreOp) -> Vec<Bytes> {
    use v1::store_op::Kind;
    match &op.kind {
        Some(Kind::Set(set)) => set.pairs.iter().map(|pair| pair.key.clone()).collect(),
        Some(Kind::Add(add)) => vec![add.key.clone()],
        Some(Kind::CompareSet(c)) => vec![c.key.clone()],
        Some(Kind::Append(pair) | Kind::Push(pair)) => vec![pair.key.clone()],
        // No wait is for the removal of a key.
        Some(Kind::Delete(_) | Kind::Pop(_)) | None => Vec::new(),
    }
}

fn answer_out(answer: StoreAnswer) -> v1::StoreAnswer {
    use v1::store_answer::Kind;
    let kind = match answer {
        StoreAnswer::Done => Kind::Done(true),
        StoreAnswer::Number(n) => Kind::Number(n),
        StoreAnswer::Value(Some(value)) => Kind::Value(value.into()),
        StoreAnswer::Value(None) => Kind::Nothing(true),
        StoreAnswer::Refused(why) => Kind::Refused(why.to_string()),
    };
    v1::StoreAnswer { kind: Some(kind) }
}

/// Reads everything at one index.
fn read(
    ledger: &Ledger,
    name: &StoreName,
    request: &v1::StoreReadRequest,
) -> v1::StoreReadResponse {
    let store = ledger.store(name);
    let (mut values, mut bytes) = (Vec::new(), 0);
    for key in &request.keys {
        let value = store.and_then(|s| s.get(key)).map(<[u8]>::to_vec);
        bytes += value.as_ref().map_or(0, Vec::len);
        if bytes > ANSWER_BYTES_MAX && !values.is_empty() {
            break;
        }
        values.push(answer_out(StoreAnswer::Value(value)));
    }
    let listed = store.filter(|_| request.list_keys);
    let present = listed.map(|s| s.keys().map(|key| key.to_vec().into()).collect());
    let length = |queue: &bytes::Bytes| store.map_or(0, |s| s.queue_len(queue) as u64);
    v1::StoreReadResponse {
        header: None,
        answered: values.len() as u32,
        values,
        present: present.unwrap_or_default(),
        lengths: request.queues.iter().map(length).collect(),
        keys: store.map_or(0, |s| s.len() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_ledger::id::{CoordEpoch, LedgerMs};
    use rollout_ledger::{Body, Command, RequestId, Scope, ScopedOp};
    use rollout_proto::{DialMap, IDENTITY_NAMESPACES_MAX, Security};
    use rollout_raft::RaftConfig;

    /// Sets values of these lengths at once.
    fn set(values: &[usize]) -> OpKind {
        let pairs = (0u8..).zip(values).map(|(n, bytes)| (vec![n], vec![7; *bytes])).collect();
        let store = StoreName { namespace: "default".into(), job: "j".into(), round: 1 };
        OpKind::Store(op::UseStore { store, ops: vec![StoreOp::Set { pairs }] })
    }

    #[test]
    fn values_of_3_mib_are_set_at_once_and_those_of_5_mib_are_refused_by_the_bound() {
        let mib = limits::STORE_VALUE_BYTES_MAX;
        assert!(within_bytes(set(&[mib; 3])).is_ok());
        let refused = within_bytes(set(&[mib; 5])).expect_err("over the bound");
        assert_eq!(refused.code, ErrorCode::LimitExceeded);
        let bound = STORE_REQUEST_BYTES_MAX.to_string();
        assert!(refused.message.contains(&bound), "{refused}");
    }

    #[test]
    fn consensus_takes_the_largest_request() {
        let mib = limits::STORE_VALUE_BYTES_MAX;
        let others = Op::from(set(&[mib, mib, mib, mib / 2])).encoded_bytes() - mib / 2;
        let kind = within_bytes(set(&[mib, mib, mib, STORE_REQUEST_BYTES_MAX - others]));
        let kind = kind.expect("as much as it may have");
        let request = RequestId { session: SessionId(u64::MAX), seq: u64::MAX, ack_upto: u64::MAX };
        let op = Op { request: Some(request), kind };
        let scope =
            Scope::Namespaces(vec!["n".repeat(limits::NAME_BYTES_MAX); IDENTITY_NAMESPACES_MAX]);
        let body = Body::ScopedOps(vec![ScopedOp { scope, op }]);
        let (epoch, at) = (CoordEpoch(u64::MAX), LedgerMs(u64::MAX));
        let bytes = Command { epoch, at, wall_ms: u64::MAX, body }.encode().len();
        let config = RaftConfig::new("", "", DialMap::default(), Security::InsecurePlaintext);
        assert!((STORE_REQUEST_BYTES_MAX..=config.command_bytes_max).contains(&bytes), "{bytes}");
    }
}
