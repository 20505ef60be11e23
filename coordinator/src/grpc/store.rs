//! `Store`: what training jobs share.
//!
//! *Invariant:* a wait is a read, which a client repeats at whoever leads by then. So a leader may go in the middle
//! of it.

use super::runs::unexpected;
use super::waits::Waits;
use super::{Shared, caller, check_namespace, namespace_or_default};
use crate::audit;
use crate::convert;
use crate::placed;
use parking_lot::Mutex;
use rollout_ledger::seeded::{Bug, seeded};
use rollout_ledger::{Ledger, Op, OpKind, Reply, StoreAnswer, StoreName, StoreOp, limits};
use rollout_proto::{ErrorCode, Identity, RpcError, STORE_REQUEST_BYTES_MAX, v1};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tonic::{Request, Response, Status};

/// Keys, queues or awaited things in one request.
const ASKED_MAX: usize = 4096;
/// Bytes of values in one answer: below what a message may have.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Somebody who waits for several things is told which were seen no later than this.
const SEEN_TOLD_WITHIN: Duration = Duration::from_millis(200);

/// The service.
#[derive(Clone)]
pub(crate) struct StoreService {
    shared: Arc<Shared>,
    waits: Waits,
}

impl StoreService {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let waits = Waits::new(shared.clone(), Ledger::store_changes);
        Self { shared, waits }
    }
}

fn is_there(ledger: &Ledger, name: &StoreName, awaited: &v1::StoreAwaited) -> bool {
    let Some(store) = ledger.store(name) else { return false };
    match awaited.at_least {
        None => store.has(&awaited.key),
        Some(least) => store.number(&awaited.key).is_some_and(|n| n >= least),
    }
}

/// Which of several awaited things were there since a wait began. As in TCPStore each counts once it was seen, whatever
/// becomes of it then.
#[derive(Default)]
struct Sighted {
    at: Mutex<BTreeSet<u32>>,
    first: Notify,
}

impl Sighted {
    /// Looks at those that were not seen yet; whether that were all.
    fn look(
        &self,
        awaited: &[v1::StoreAwaited],
        there: impl Fn(&v1::StoreAwaited) -> bool,
    ) -> bool {
        let mut at = self.at.lock();
        for (position, one) in (0..).zip(awaited) {
            if !at.contains(&position) && there(one) {
                at.insert(position);
                self.first.notify_one();
            }
        }
        at.len() == awaited.len()
    }

    /// Returns a little after the first was seen: whoever waits has to know of it when this leader dies.
    async fn to_tell(&self) {
        self.first.notified().await;
        tokio::time::sleep(SEEN_TOLD_WITHIN).await;
    }

    fn seen(&self) -> Vec<u32> {
        self.at.lock().iter().copied().collect()
    }
}

#[tonic::async_trait]
impl v1::store_server::Store for StoreService {
    async fn apply(
        &self,
        request: Request<v1::StoreApplyRequest>,
    ) -> Result<Response<v1::StoreApplyResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let store = name_in(&identity, r.store)?;
        let id = self.shared.request_in(&identity, r.request.as_ref())?;
        if r.ops.len() > limits::STORE_OPS_MAX {
            return Err(too_many("operations", limits::STORE_OPS_MAX).into());
        }
        let ops = r.ops.into_iter().map(op_in).collect::<Result<_, _>>()?;
        let change = within_bytes(OpKind::Store { store, ops })?;
        match self.shared.apply(Some(id), change).await? {
            Reply::Store(answers) => {
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
        let mut answer = self.shared.seen(|l| read(l, &name, &r));
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
        let name = name_in(&identity, r.store)?;
        let sighted = Sighted::default();
        let look = |l: &Ledger| {
            let all = sighted.look(&r.awaited, |one| is_there(l, &name, one));
            (all || seeded(Bug::WaitWakesEarly)).then_some(())
        };
        let ready = tokio::select! {
            biased;
            found = self.waits.until(r.wait_ms, look) => found?.is_some(),
            () = sighted.to_tell() => false,
        };
        if r.awaited.len() > 1 {
            placed::of_several_looks();
        }
        let (header, seen) = (Some(self.shared.header()), sighted.seen());
        Ok(Response::new(v1::StoreWaitResponse { header, ready, seen }))
    }

    async fn drop(
        &self,
        request: Request<v1::StoreDropRequest>,
    ) -> Result<Response<v1::StoreDropResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let store = name_in(&identity, r.store)?;
        let id = self.shared.request_in(&identity, r.request.as_ref())?;
        self.shared.apply(Some(id), OpKind::DropStore { store }).await?;
        Ok(Response::new(v1::StoreDropResponse { header: Some(self.shared.header()) }))
    }
}

fn too_many(what: &str, max: usize) -> RpcError {
    convert::invalid(format!("more than {max} {what} in one request"))
}

/// What consensus would refuse is refused before, in words of the request.
fn within_bytes(change: OpKind) -> Result<OpKind, RpcError> {
    let op = Op::from(change);
    let bytes = op.encoded_bytes();
    if bytes <= STORE_REQUEST_BYTES_MAX {
        return Ok(op.kind);
    }
    let message = format!(
        "the keys and values of one request to a shared store take {bytes} bytes, the most is \
         {STORE_REQUEST_BYTES_MAX}: ask for fewer at once"
    );
    Err(RpcError::new(ErrorCode::LimitExceeded, message))
}

fn name_in(identity: &Identity, name: Option<v1::StoreName>) -> Result<StoreName, RpcError> {
    let name = name.ok_or_else(|| convert::invalid("the store's name is missing"))?;
    let namespace = namespace_or_default(&name.namespace);
    audit::about("store", &name.job);
    check_namespace(identity, &namespace)?;
    Ok(StoreName { namespace, job: name.job, round: name.round })
}

fn op_in(op: v1::StoreOp) -> Result<StoreOp, RpcError> {
    use v1::store_op::Kind;
    let kind = op.kind.ok_or_else(|| convert::invalid("an operation says nothing"))?;
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

/// All of one moment.
fn read(ledger: &Ledger, name: &StoreName, asked: &v1::StoreReadRequest) -> v1::StoreReadResponse {
    let store = ledger.store(name);
    let (mut values, mut bytes) = (Vec::new(), 0);
    for key in &asked.keys {
        let value = store.and_then(|s| s.get(key)).map(<[u8]>::to_vec);
        bytes += value.as_ref().map_or(0, Vec::len);
        if bytes > ANSWER_BYTES_MAX && !values.is_empty() {
            break;
        }
        values.push(answer_out(StoreAnswer::Value(value)));
    }
    let listed = store.filter(|_| asked.list_keys);
    let present = listed.map(|s| s.keys().map(|key| key.to_vec().into()).collect());
    let length = |queue: &bytes::Bytes| store.map_or(0, |s| s.queue_len(queue) as u64);
    v1::StoreReadResponse {
        header: None,
        answered: values.len() as u32,
        values,
        present: present.unwrap_or_default(),
        lengths: asked.queues.iter().map(length).collect(),
        keys: store.map_or(0, |s| s.len() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_ledger::id::{CoordEpoch, LedgerMs, SessionId};
    use rollout_ledger::{Body, Command, RequestId};
    use rollout_proto::{DialMap, Security};
    use rollout_raft::RaftConfig;

    /// Values of so many bytes, set at once.
    fn set(values: &[usize]) -> OpKind {
        let pairs = (0u8..).zip(values).map(|(n, bytes)| (vec![n], vec![7; *bytes])).collect();
        let store = StoreName { namespace: "default".into(), job: "j".into(), round: 1 };
        OpKind::Store { store, ops: vec![StoreOp::Set { pairs }] }
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
        let (epoch, at, body) = (CoordEpoch(u64::MAX), LedgerMs(u64::MAX), Body::Ops(vec![op]));
        let bytes = Command { epoch, at, wall_ms: u64::MAX, body }.encode().len();
        let config = RaftConfig::new("", "", DialMap::default(), Security::InsecurePlaintext);
        assert!((STORE_REQUEST_BYTES_MAX..=config.command_bytes_max).contains(&bytes), "{bytes}");
    }
}
